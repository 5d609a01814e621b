"""Norms of vectors and matrices, condition numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.value import zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis
from weft.core.args.handle import Dims, value_of, wrap
from weft.core.composed.autocast import widens
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functions.norms import vector_norm
from weft.core.functions.reductions import amax, amin, sum
from weft.core.layout.movement import movedim, reshape
from weft.core.linear_algebra.host import matrices
from weft.core.linear_algebra.inverse import inv_ex
from weft.core.linear_algebra.spectra import svdvals
from weft.core.pointwise.elementwise import abs
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@composite
def matrix_norm(
    A: Tensor,
    ord: float | str = "fro",
    dim: tuple[int, int] = (-2, -1),
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A norm of matrices: "fro", "nuc", or inf, -inf, 1, -1, 2, -2."""
    v = value_of("linalg.matrix_norm", A)
    if dtype is not None:
        v = bc.cast(v, dtype)
    if len(v.shape) < 2:
        raise ShapeError(f"linalg.matrix_norm: needs at least 2 dimensions, got shape {tuple(v.shape)}")
    if not v.dtype.is_float:
        raise DTypeError(
            f"linalg.matrix_norm: needs a float tensor, got {v.dtype.name}; convert it with .float()"
        )
    if len(dim) != 2:
        raise ArgumentError(f"linalg.matrix_norm: dim must be two dimensions, got {dim}")
    i, j = (axis("linalg.matrix_norm", d, v.shape) for d in dim)
    if i == j:
        raise ArgumentError(f"linalg.matrix_norm: the dimensions {dim} must differ")
    x = wrap(v)
    if ord == "fro":
        return vector_norm(x, 2, (i, j), keepdim)
    if ord in ("nuc", 2, -2):
        moved = movedim(x, (i, j), (-2, -1))
        s = (
            svdvals(moved)
            if v.dtype.bits >= 32
            else wrap(bc.cast(svdvals(wrap(widened(moved.value))).value, v.dtype))
        )
        out = sum(s, -1) if ord == "nuc" else amax(s, -1) if ord == 2 else amin(s, -1)
        if not keepdim:
            return out
        shape = tuple(1 if k in (i, j) else n for k, n in enumerate(v.shape))
        return reshape(out, shape)
    if ord not in (1, -1, math.inf, -math.inf):
        raise ArgumentError(
            f"linalg.matrix_norm: ord must be 'fro', 'nuc', inf, -inf, 1, -1, 2 or -2, got {ord!r}"
        )
    along, other = (i, j) if ord in (1, -1) else (j, i)
    sums = sum(abs(x), along, keepdim=True)
    out = amax(sums, other, keepdim=True) if ord > 0 else amin(sums, other, keepdim=True)
    shape = tuple(n for k, n in enumerate(v.shape) if k not in (i, j))
    return out if keepdim else reshape(out, shape)


@composite
def norm(
    A: Tensor,
    ord: float | str | None = None,
    dim: Dims | None = None,
    keepdim: bool = False,
    *,
    dtype: DType | None = None,
) -> Tensor:
    """A vector norm of all elements or along one dim, or a matrix norm along two."""
    rank = len(value_of("linalg.norm", A).shape)
    if isinstance(dim, int):
        dim = (dim,)
    if ord is None:
        return vector_norm(A, 2, dim, keepdim, dtype=dtype)
    if dim is not None:
        if len(dim) == 2:
            return matrix_norm(A, ord, (dim[0], dim[1]), keepdim, dtype=dtype)
    elif rank == 2:
        return matrix_norm(A, ord, (0, 1), keepdim, dtype=dtype)
    elif rank > 2:
        raise ShapeError(
            f"linalg.norm: give dim for a tensor of shape {tuple(A.value.shape)} and ord {ord!r}"
        )
    if isinstance(ord, str):
        raise ArgumentError(f"linalg.norm: {ord!r} is a norm of matrices")
    return vector_norm(A, ord, dim, keepdim, dtype=dtype)


@widens
def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number |A| |A^-1| in a matrix norm, the ratio of singular values by default."""
    v = matrices("linalg.cond", A)
    if p in (None, 2, -2):
        if not elements(v.shape):
            return wrap(zero_gradient(bc.scalar(0, v.dtype, v.shape[:-2]), v))
        s = svdvals(A)
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    if v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.cond: p={p!r} needs square matrices, got shape {tuple(v.shape)}")
    if not elements(v.shape):
        return wrap(zero_gradient(bc.scalar(0, v.dtype, v.shape[:-2]), v))
    inverse = inv_ex(A).inverse
    return matrix_norm(A, p) * matrix_norm(inverse, p)
