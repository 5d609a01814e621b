"""In what order examples come. Random orders are drawn from weft's generators, so a seed fixes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from weft.core.functions.random import Generator, randint, randperm
from weft.core.functions.random import rand as uniform
from weft.core.tensor.tensor import Tensor
from weft.data.dataset import size_of
from weft.errors import ArgumentError
from weft.ir.dtypes import float64

T = TypeVar("T", covariant=True)


class Sampler(Generic[T]):
    """Base of samplers: define __iter__ over indices (or lists of them), and __len__ if it is known."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__}: define __iter__")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ..."""

    def __init__(self, data_source: Any) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(size_of(self.data_source)))

    def __len__(self) -> int:
        return size_of(self.data_source)


class RandomSampler(Sampler[int]):
    """All examples in random order, again and again up to num_samples; or drawn with replacement."""

    def __init__(
        self,
        data_source: Any,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        if num_samples is not None and num_samples < 1:
            raise ArgumentError(f"RandomSampler: num_samples must be at least 1, got {num_samples}")
        self.data_source, self.replacement, self.generator = data_source, replacement, generator
        self._num_samples = num_samples

    @property
    def num_samples(self) -> int:
        """The number of examples of an epoch."""
        return size_of(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        n, left = size_of(self.data_source), self.num_samples
        if self.replacement:
            yield from randint(0, n, (left,), generator=self.generator).tolist()
            return
        while left > 0 and n:
            order = randperm(n, generator=self.generator).tolist()
            yield from order[:left]
            left -= n

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices, self.generator = indices, generator

    def __iter__(self) -> Iterator[int]:
        for i in randperm(len(self.indices), generator=self.generator).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices drawn with probabilities in proportion to weights, with or without replacement."""

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        values = weights.tolist() if isinstance(weights, Tensor) else list(weights)
        self.weights = np.asarray(values, np.float64)
        if self.weights.ndim != 1 or (self.weights < 0).any() or not self.weights.sum() > 0:
            raise ArgumentError("WeightedRandomSampler: weights must be numbers >= 0, not all 0")
        if num_samples < 1 or (not replacement and num_samples > np.count_nonzero(self.weights)):
            raise ArgumentError(
                f"WeightedRandomSampler: {num_samples} samples cannot be drawn from {len(self.weights)} weights"
            )
        self.num_samples, self.replacement, self.generator = num_samples, replacement, generator

    def __iter__(self) -> Iterator[int]:
        if self.replacement:
            edges = np.cumsum(self.weights) / self.weights.sum()
            u = uniform(self.num_samples, generator=self.generator, dtype=float64).numpy()
            found = np.searchsorted(edges, u, side="right")
            return iter(np.minimum(found, len(edges) - 1).tolist())
        u = uniform(len(self.weights), generator=self.generator, dtype=float64).numpy()
        with np.errstate(
            divide="ignore"
        ):  # the smallest of exponentials with these rates (Efraimidis & Spirakis 2006)
            times = -np.log1p(-u) / self.weights
        return iter(np.argsort(times, kind="stable")[: self.num_samples].tolist())

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """The indices of another sampler in lists of batch_size; drop_last leaves out a shorter last one."""

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if batch_size < 1:
            raise ArgumentError(f"BatchSampler: batch_size must be at least 1, got {batch_size}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __iter__(self) -> Iterator[list[int]]:
        batch: list[int] = []
        for i in self.sampler:
            batch.append(i)
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch

    def __len__(self) -> int:
        n = size_of(self.sampler)
        return n // self.batch_size if self.drop_last else -(-n // self.batch_size)
