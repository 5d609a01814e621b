"""Statistical and utility functions of the standard."""

from __future__ import annotations

from typing import Any

from weft.array_api.promotion import Axes, index_of, over_axes
from weft.core.functions import reductions, scans
from weft.core.layout import creation, movement
from weft.core.pointwise import elementwise
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import DType, Kind, int64, uint64


def _wide(x: Tensor, dtype: DType | None) -> DType:
    """The dtype in which a sum or product is given: of the same kind and 64 bits for integers."""
    if dtype is not None:
        return dtype
    if x.dtype.kind is Kind.UINT:
        return uint64
    return int64 if not x.dtype.is_float else x.dtype


def sum(x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    """The sum over axes."""
    kind = _wide(x, dtype)
    return over_axes(x, axis, keepdims, lambda x, d, k: reductions.sum(x, d, k, dtype=kind))


def prod(x: Tensor, /, *, axis: Axes = None, dtype: DType | None = None, keepdims: bool = False) -> Tensor:
    """The product over axes."""
    kind = _wide(x, dtype)

    def reduce(x: Tensor, d: Axes, k: bool) -> Tensor:
        over = tuple(range(x.ndim)) if d is None else (d,) if isinstance(d, int) else d
        for i in sorted((index_of(i, x.ndim) for i in over), reverse=True):
            x = reductions.prod(x, i, k, dtype=kind)
        return x.to(kind)

    return over_axes(x, axis, keepdims, reduce)


def max(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The maximum over axes."""
    return over_axes(x, axis, keepdims, reductions.amax)


def min(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The minimum over axes."""
    return over_axes(x, axis, keepdims, reductions.amin)


def mean(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The mean over axes."""
    return over_axes(x, axis, keepdims, reductions.mean)


def var(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The variance over axes."""
    return over_axes(
        x, axis, keepdims, lambda x, d, k: reductions.var(x, d, keepdim=k, correction=correction)
    )


def std(x: Tensor, /, *, axis: Axes = None, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The standard deviation over axes."""
    return over_axes(
        x, axis, keepdims, lambda x, d, k: reductions.std(x, d, keepdim=k, correction=correction)
    )


def all(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True where all elements along axes are nonzero."""
    return over_axes(elementwise.ne(x, 0), axis, keepdims, reductions.all)


def any(x: Tensor, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """True where any element along axes is nonzero."""
    return over_axes(elementwise.ne(x, 0), axis, keepdims, reductions.any)


def _cumulative(
    op: str,
    scan: Any,
    x: Tensor,
    axis: int | None,
    dtype: DType | None,
    include_initial: bool,
    first: int,
) -> Tensor:
    if axis is None:
        if x.ndim > 1:
            raise ArgumentError(f"{op}: axis must be given for an array of {x.ndim} axes")
        axis = 0
    kind = _wide(x, dtype)
    if not x.ndim:
        x = movement.reshape(x, 1)
    k = index_of(axis, x.ndim)
    out = scan(x, k, dtype=kind)
    if include_initial:
        shape = (*out.shape[:k], 1, *out.shape[k + 1 :])
        out = movement.cat([creation.full(shape, first, dtype=kind), out], k)
    return out


def cumulative_sum(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Running sums along an axis."""
    return _cumulative("cumulative_sum", scans.cumsum, x, axis, dtype, include_initial, 0)


def cumulative_prod(
    x: Tensor,
    /,
    *,
    axis: int | None = None,
    dtype: DType | None = None,
    include_initial: bool = False,
) -> Tensor:
    """Running products along an axis."""
    return _cumulative("cumulative_prod", scans.cumprod, x, axis, dtype, include_initial, 1)


def diff(
    x: Tensor, /, *, axis: int = -1, n: int = 1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th difference of neighbours along an axis."""
    return scans.diff(x, n, axis, prepend, append)
