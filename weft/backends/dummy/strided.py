"""Offsets that are affine in the lanes: an access to all of them is one strided view, without an array of offsets."""
# Tests: tests/backends/dummy/test_vectorized.py

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from weft.lazy_dataclass import dataclass

Array: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Strided:
    """base + sum of strides[a] * (position of the lane on axis a). Axes beyond the strides do not count."""

    base: int
    strides: tuple[int, ...] = ()

    def plus(self, other: Strided) -> Strided:
        """The sum."""
        a, b = self.strides, other.strides
        if len(a) < len(b):
            a, b = b, a
        return Strided(self.base + other.base, (*(x + y for x, y in zip(a, b, strict=False)), *a[len(b) :]))

    def times(self, factor: int) -> Strided:
        """The product with a constant."""
        return Strided(self.base * factor, tuple(s * factor for s in self.strides))

    def reach(self, shape: Sequence[int]) -> tuple[int, int]:
        """The smallest and the largest value over lanes of that shape."""
        low = high = self.base
        for s, n in zip(self.strides, shape, strict=False):
            if s > 0:
                high += s * (n - 1)
            else:
                low += s * (n - 1)
        return low, high

    def array(self, shape: Sequence[int]) -> Array:
        """The values: an int64 array that broadcasts to `shape`, of its rank; a Python int where lanes share one."""
        out: Array = self.base
        for axis, (s, n) in enumerate(zip(self.strides, shape, strict=False)):
            if s and n > 1:
                out = out + (np.arange(n) * s).reshape((-1,) + (1,) * (len(shape) - axis - 1))
        return out if isinstance(out, int) else out.reshape((1,) * (len(shape) - out.ndim) + out.shape)

    def view(self, data: Array, shape: Sequence[int]) -> Array:
        """The elements of a flat array: an axis has size 1 where its stride is 0."""
        used = [*self.strides[: len(shape)], *[0] * (len(shape) - len(self.strides))]
        sizes = tuple(n if s else 1 for s, n in zip(used, shape, strict=True))
        width = data.dtype.itemsize
        return np.ndarray(
            sizes, data.dtype, data.view(np.uint8).data, self.base * width, tuple(s * width for s in used)
        )

    def distinct(self, shape: Sequence[int]) -> bool:
        """True where it is certain that no two lanes share an element, but for those along axes of stride 0."""
        steps = sorted((abs(s), n) for s, n in zip(self.strides, shape, strict=False) if s and n > 1)
        covered = 0
        for step, n in steps:
            if step <= covered:
                return False
            covered += step * (n - 1)
        return True


def row_major(size: int, shape: Sequence[int]) -> Strided:
    """The beginnings of the lanes' own runs of `size` elements."""
    return Strided(0, tuple(size * prod(shape[k + 1 :]) for k in range(len(shape))))
