"""Data sets: by index, or as streams."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

from weft import errors
from weft.core.functions.random import Generator, randperm
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError

T = TypeVar("T")


class Dataset(Generic[T]):
    """A data set by index: define __getitem__, and __len__ for samplers that need it.

    `__getitems__(indices)`, if defined, fetches a whole batch at once.
    """

    def __getitem__(self, index: Any) -> T:
        raise NotImplementedError(f"{type(self).__name__}: define __getitem__")

    def __add__(self, other: Dataset[T]) -> ConcatDataset[T]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T]):
    """A data set as a stream: define __iter__. With workers, each iterates over a copy: see get_worker_info."""

    def __iter__(self) -> Iterator[T]:
        raise NotImplementedError(f"{type(self).__name__}: define __iter__")

    def __add__(self, other: Dataset[T]) -> Any:
        both: list[Any] = [self, other]
        return ChainDataset[T](both)


def size_of(data: Any) -> int:
    """len(data), with a sentence where there is none."""
    try:
        return len(data)
    except TypeError:
        raise DTypeError(f"{type(data).__name__}: has no length; define __len__") from None


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Slices of tensors along their first dimensions, which agree in size.

    >>> data = weft.data.TensorDataset(x, y)
    >>> data[0]        # (x[0], y[0])
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors or any(not t.shape or t.shape[0] != tensors[0].shape[0] for t in tensors):
            raise ShapeError(
                f"TensorDataset: tensors must agree in their first size, got shapes {[tuple(t.shape) for t in tensors]}"
            )
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(t[index] for t in self.tensors)

    def __getitems__(self, indices: list[int]) -> _Batch:
        return _Batch(tuple(t[indices] for t in self.tensors))

    def __len__(self) -> int:
        return len(self.tensors[0])


class _Batch:
    """Examples that are stacked already."""

    def __init__(self, tensors: tuple[Tensor, ...]) -> None:
        self.tensors = tensors

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        return zip(*self.tensors, strict=True)

    def stacked(self) -> list[Tensor]:
        """The result that collating the examples would give."""
        return list(self.tensors)


class StackDataset(Dataset[Any]):
    """Data sets side by side: tuples of their examples, or dicts if they have names."""

    def __init__(self, *args: Dataset[Any], **kwargs: Dataset[Any]) -> None:
        if bool(args) == bool(kwargs):
            raise ArgumentError("StackDataset: give data sets, all with names or all without")
        self._names = list(kwargs) if kwargs else None
        self._parts: list[Any] = list(kwargs.values()) if kwargs else list(args)
        sizes = {size_of(d) for d in self._parts}
        if len(sizes) > 1:
            raise ArgumentError(f"StackDataset: data sets must have one length, got {sorted(sizes)}")
        self._length = sizes.pop()

    def __getitem__(self, index: Any) -> Any:
        if self._names is not None:
            return {k: d[index] for k, d in zip(self._names, self._parts, strict=True)}
        return tuple(d[index] for d in self._parts)

    def __len__(self) -> int:
        return self._length


class ConcatDataset(Dataset[T]):
    """Data sets one after the other."""

    def __init__(self, datasets: Iterable[Dataset[T]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ArgumentError("ConcatDataset: needs at least one data set")
        if any(isinstance(d, IterableDataset) for d in self.datasets):
            raise ArgumentError("ConcatDataset: streams have no index; use ChainDataset")
        self.cumulative_sizes = list(accumulate(size_of(d) for d in self.datasets))

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]

    def __getitem__(self, index: int) -> T:
        n = len(self)
        if not -n <= index < n:
            raise errors.IndexError(f"ConcatDataset: index {index} is out of range for {n} examples")
        index %= n
        k = bisect_right(self.cumulative_sizes, index)
        return self.datasets[k][index - (self.cumulative_sizes[k - 1] if k else 0)]


class ChainDataset(IterableDataset[T]):
    """Streams one after the other."""

    def __init__(self, datasets: Iterable[Any]) -> None:
        self.datasets = list(datasets)

    def __iter__(self) -> Iterator[T]:
        for d in self.datasets:
            yield from d

    def __len__(self) -> int:
        return sum(size_of(d) for d in self.datasets)


class Subset(Dataset[T]):
    """The examples of a data set at `indices`."""

    def __init__(self, dataset: Dataset[T], indices: Sequence[int]) -> None:
        self.dataset, self.indices = dataset, indices

    def __getitem__(self, index: Any) -> T:
        return self.dataset[self.indices[index]]

    def __getitems__(self, indices: list[int]) -> Any:
        picked = [self.indices[i] for i in indices]
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(picked) if fetch is not None else [self.dataset[i] for i in picked]

    def __len__(self) -> int:
        return len(self.indices)


def random_split(
    dataset: Dataset[T], lengths: Sequence[int | float], generator: Generator | None = None
) -> list[Subset[T]]:
    """The data set split at random into parts of these lengths, or of these fractions, which add up to 1."""
    n = size_of(dataset)
    if math.isclose(sum(lengths), 1) and sum(lengths) <= 1:
        if any(not 0 <= f <= 1 for f in lengths):
            raise ArgumentError(f"random_split: fractions must be between 0 and 1, got {list(lengths)}")
        sizes = [math.floor(n * f) for f in lengths]
        for k in range(n - sum(sizes)):
            sizes[k % len(sizes)] += 1
    else:
        sizes = [int(x) for x in lengths]
    if sum(sizes) != n:
        raise ArgumentError(f"random_split: lengths {list(lengths)} do not add up to the {n} examples")
    order: list[int] = randperm(n, generator=generator).tolist()
    return [Subset(dataset, order[end - k : end]) for k, end in zip(sizes, accumulate(sizes), strict=True)]
