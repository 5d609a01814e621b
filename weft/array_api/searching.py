"""Searching functions of the standard."""

from __future__ import annotations

from weft.array_api.promotion import Axes, Operand, over_axes, result_type, together
from weft.core.functions import reductions, sorting
from weft.core.layout import creation, indexing
from weft.core.pointwise import elementwise
from weft.core.pointwise.nonzeros import argwhere
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import int64


def argmax(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first maximum."""
    return reductions.argmax(x, axis, keepdims)


def argmin(x: Tensor, /, *, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first minimum."""
    return reductions.argmin(x, axis, keepdims)


def count_nonzero(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The number of nonzero elements."""
    return over_axes(
        x, axis, keepdims, lambda x, d, k: reductions.sum(elementwise.ne(x, 0), d, k), keep_int64=True
    )


def nonzero(x: Tensor, /) -> tuple[Tensor, ...]:
    """The indices of the nonzero elements, one vector per axis. Computes the input."""
    if not x.ndim:
        raise ArgumentError("nonzero: needs at least 1 axis")
    return tuple(indexing.unbind(argwhere(x), 1))


def searchsorted(x1: Tensor, x2: Operand, /, *, side: str = "left", sorter: Tensor | None = None) -> Tensor:
    """The index at which each element of x2 would be inserted into the ascending vector x1."""
    a, b = together("searchsorted", x1, x2)
    order = None if sorter is None else sorter.to(int64)
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: side must be 'left' or 'right', got {side!r}")
    return sorting.searchsorted(a, b, right=side == "right", sorter=order)


def where(condition: Tensor, x1: Operand, x2: Operand, /) -> Tensor:
    """x1 where the condition is true, else x2."""
    dtype = result_type(x1, x2)
    a, b = (x.to(dtype) if isinstance(x, Tensor) else creation.full((), x, dtype=dtype) for x in (x1, x2))
    return elementwise.where(condition, a, b)
