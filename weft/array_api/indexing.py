"""Indexing functions of the standard."""

from __future__ import annotations

from weft.core.layout.gather import index_select, take_along_dim
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """The slices along an axis that indices name."""
    if axis is None:
        if x.ndim != 1:
            raise ArgumentError(f"take: axis must be given for an array of {x.ndim} axes")
        axis = 0
    return index_select(x, axis, indices)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """For each line along an axis the elements that its own indices name."""
    return take_along_dim(x, indices, axis)
