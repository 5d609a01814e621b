"""DataLoader: batches of a data set, fetched ahead by worker threads or processes."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any, cast

import numpy as np

from weft.core.functions.random import Generator, default_generator
from weft.core.layout.creation import tensor
from weft.core.tensor.tensor import Tensor
from weft.data.collate import default_collate, default_convert
from weft.data.dataset import IterableDataset, size_of
from weft.data.sampler import BatchSampler, RandomSampler, SequentialSampler
from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """The worker that runs: its number, how many there are, its seed, and its copy of the data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Local(threading.local):
    """The worker that this thread is: it is one for all of its life, so this is no mode."""

    info: WorkerInfo | None = None


_local = _Local()


def get_worker_info() -> WorkerInfo | None:
    """The information for a data set that is read by a worker; None in the main process."""
    return _local.info


@dataclass(slots=True)
class _Fetcher:
    """A function that turns indices into a batch; sent to worker processes."""

    dataset: Any
    collate_fn: Callable[[Any], Any]
    batched: bool

    def __call__(self, indices: Any) -> Any:
        if not self.batched:
            return self.collate_fn(self.dataset[indices])
        fetch = getattr(self.dataset, "__getitems__", None)
        if fetch is not None:
            found = fetch(list(indices))
            if self.collate_fn is default_collate and hasattr(found, "stacked"):
                return found.stacked()
            return self.collate_fn(list(found))
        return self.collate_fn([self.dataset[i] for i in indices])


_worker: dict[str, Any] = {}
"""In a worker process: the fetcher that it was started with."""


def _start_process(fetcher: _Fetcher, counter: Any, count: int, seed: int, init: Any) -> None:
    with counter.get_lock():
        number = counter.value
        counter.value += 1
    _worker["fetch"] = fetcher
    _enter(number, count, seed, fetcher.dataset, init)


def _start_thread(counter: Iterator[int], fetcher: _Fetcher, count: int, seed: int, init: Any) -> None:
    _enter(next(counter), count, seed, fetcher.dataset, init)


def _enter(number: int, count: int, seed: int, dataset: Any, init: Any) -> None:
    _local.info = WorkerInfo(number, count, seed + number, dataset)
    if init is not None:
        init(number)


def _in_process(indices: Any) -> Any:
    return _plain(_worker["fetch"](indices))


def _plain(x: Any) -> Any:
    """Tensors as arrays, to be sent between processes."""
    return _mapped(x, lambda t: _Array(t.numpy()) if isinstance(t, Tensor) else t)


@dataclass(slots=True)
class _Array:
    array: np.ndarray[Any, Any]


def _mapped(x: Any, f: Callable[[Any], Any]) -> Any:
    if isinstance(x, dict):
        return {k: _mapped(v, f) for k, v in cast("dict[Any, Any]", x).items()}
    if isinstance(x, (list, tuple)):
        items = [_mapped(v, f) for v in cast("list[Any]", x)]
        kind: Any = cast("Any", x).__class__
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return f(x)


class DataLoader:
    """Batches of a data set, in an order that a sampler gives, each put together by collate_fn.

    With num_workers, batches are fetched ahead (prefetch_factor for each worker), in order. Workers are threads, which
    suits NumPy and files, unless multiprocessing_context names how to start processes ("spawn", "forkserver"); a data
    set for processes must be picklable, and its examples go by way of NumPy. `shuffle` draws a new order each epoch,
    from `generator` or weft's own, so a seed fixes them. A stream (IterableDataset) is read in the main thread, or
    by each worker as get_worker_info says. `pin_memory`, `timeout` and `in_order` are accepted.

    >>> for x, y in weft.data.DataLoader(data, batch_size=32, shuffle=True):
    ...     step(x, y)
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[list[Any]] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
    ) -> None:
        if num_workers < 0 or timeout < 0:
            raise ArgumentError(
                f"DataLoader: num_workers and timeout must not be negative, got {num_workers}, {timeout}"
            )
        if prefetch_factor is not None and (not num_workers or prefetch_factor < 1):
            raise ArgumentError("DataLoader: prefetch_factor must be at least 1, and needs num_workers")
        if persistent_workers and not num_workers:
            raise ArgumentError("DataLoader: persistent_workers needs num_workers")
        self.stream = isinstance(dataset, IterableDataset)
        if self.stream and (shuffle or sampler is not None or batch_sampler is not None):
            raise ArgumentError(
                "DataLoader: a stream comes in its own order; shuffle and samplers need an index"
            )
        if sampler is not None and shuffle:
            raise ArgumentError("DataLoader: give a sampler or shuffle, not both")
        if batch_sampler is not None and (
            batch_size not in (1, None) or shuffle or sampler is not None or drop_last
        ):
            raise ArgumentError(
                "DataLoader: a batch_sampler decides on batch_size, shuffle, sampler and drop_last; leave them out"
            )
        if batch_sampler is None and batch_size is None and drop_last:
            raise ArgumentError("DataLoader: without batch_size there is no last batch to drop")
        if batch_size is not None and batch_size < 1:
            raise ArgumentError(f"DataLoader: batch_size must be at least 1, got {batch_size}")
        self.dataset, self.num_workers, self.generator = dataset, num_workers, generator
        self.drop_last, self.worker_init_fn, self.context = drop_last, worker_init_fn, multiprocessing_context
        self.prefetch_factor = 2 if prefetch_factor is None and num_workers else prefetch_factor
        self.batch_size = None if batch_sampler is not None else batch_size
        self.sampler: Any = sampler
        if sampler is None and not self.stream:
            self.sampler = (
                RandomSampler(dataset, generator=generator) if shuffle else SequentialSampler(dataset)
            )
        self.batch_sampler: Any = batch_sampler
        if batch_sampler is None and batch_size is not None and not self.stream:
            self.batch_sampler = BatchSampler(self.sampler, batch_size, drop_last)
        batched = self.batch_sampler is not None or batch_size is not None
        self.collate_fn = collate_fn or (default_collate if batched else default_convert)
        self._fetcher = _Fetcher(dataset, self.collate_fn, batched)
        self._executor: Executor | None = None
        self.persistent_workers = persistent_workers

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return size_of(self.batch_sampler)
        n = size_of(self.dataset if self.stream else self.sampler)
        if self.batch_size is None:
            return n
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        if self.stream:
            return self._streamed() if not self.num_workers else self._streamed_by_workers()
        order = iter(self.sampler if self.batch_sampler is None else self.batch_sampler)
        if not self.num_workers:
            return map(self._fetcher, order)
        return self._by_workers(order)

    def _seed(self) -> int:
        return (self.generator or default_generator).words(1)[2] + (
            self.generator or default_generator
        ).initial_seed()

    def _workers(self) -> Executor:
        if self._executor is not None:
            return self._executor
        if self.context is None:
            numbers = itertools.count()
            start = (numbers, self._fetcher, self.num_workers, self._seed(), self.worker_init_fn)
            executor: Executor = ThreadPoolExecutor(
                self.num_workers, "weft-data", initializer=_start_thread, initargs=start
            )
        else:
            import multiprocessing

            context = (
                multiprocessing.get_context(self.context) if isinstance(self.context, str) else self.context
            )
            counter = context.Value("i", 0)
            start = (self._fetcher, counter, self.num_workers, self._seed(), self.worker_init_fn)
            executor = ProcessPoolExecutor(
                self.num_workers, context, initializer=_start_process, initargs=start
            )
        if self.persistent_workers:
            self._executor = executor
        return executor

    def _by_workers(self, order: Iterator[Any]) -> Iterator[Any]:
        """Batches in order, prefetch_factor * num_workers of them under way."""
        executor = self._workers()
        fetch: Any = self._fetcher if self.context is None else _in_process
        under_way: deque[Future[Any]] = deque()
        try:
            for indices in itertools.islice(order, (self.prefetch_factor or 0) * self.num_workers):
                under_way.append(executor.submit(fetch, indices))
            while under_way:
                done = under_way.popleft().result()
                for indices in itertools.islice(order, 1):
                    under_way.append(executor.submit(fetch, indices))
                yield (
                    done
                    if self.context is None
                    else _mapped(done, lambda x: tensor(x.array) if isinstance(x, _Array) else x)
                )
        finally:
            for future in under_way:
                future.cancel()
            if executor is not self._executor:
                executor.shutdown(wait=self.context is not None, cancel_futures=True)

    def _streamed(self) -> Iterator[Any]:
        if self.batch_size is None:
            yield from map(self.collate_fn, self.dataset)
            return
        examples: Iterator[Any] = iter(self.dataset)
        while batch := list(itertools.islice(examples, self.batch_size)):
            if len(batch) == self.batch_size or not self.drop_last:
                yield self.collate_fn(batch)

    def _streamed_by_workers(self) -> Iterator[Any]:
        """Each worker reads its own stream, one batch in turn from each; threads only."""
        if self.context is not None:
            raise ArgumentError("DataLoader: streams are read by threads; leave multiprocessing_context out")
        seed = self._seed()
        with ThreadPoolExecutor(self.num_workers, "weft-data") as executor:
            streams = deque((k, self._streamed()) for k in range(self.num_workers))
            under_way = deque((k, s, executor.submit(self._next, k, s, seed)) for k, s in streams)
            while under_way:
                k, stream, future = under_way.popleft()
                batch, more = future.result()
                if more:
                    under_way.append((k, stream, executor.submit(self._next, k, stream, seed)))
                    yield batch

    def _next(self, number: int, stream: Iterator[Any], seed: int) -> tuple[Any, bool]:
        """The next batch of a worker's stream, and whether there was one."""
        first = _local.info is None or _local.info.id != number
        _local.info = WorkerInfo(number, self.num_workers, seed + number, self.dataset)
        if first and self.worker_init_fn is not None:
            self.worker_init_fn(number)
        for batch in stream:
            return batch, True
        return None, False
