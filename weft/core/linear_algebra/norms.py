"""Norms of vectors and matrices, condition numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.value import Value, composed, stepwise
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis
from weft.core.args.handle import Dims, value_of, wrap
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functions.reductions import amax, amin, sum
from weft.core.layout.movement import movedim, reshape
from weft.core.linear_algebra.host import matrices
from weft.core.linear_algebra.inverse import inv_ex
from weft.core.linear_algebra.spectra import svdvals
from weft.core.pointwise.elementwise import abs, eq, ne, pow, sqrt, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@composite
def vector_norm(
    x: Tensor, ord: float = 2, dim: Dims | None = None, keepdim: bool = False, *, dtype: DType | None = None
) -> Tensor:
    """(sum |x|**ord) ** (1 / ord) over dim (all by default); largest and smallest for inf and -inf, count for 0."""
    v = value_of("linalg.vector_norm", x)
    if dtype is not None:
        v = bc.cast(v, dtype)
    if not v.dtype.is_float:
        raise DTypeError(
            f"linalg.vector_norm: needs a float tensor, got {v.dtype.name}; convert it with .float()"
        )
    a = wrap(widened(v))
    if ord in (math.inf, -math.inf):
        size = abs(a)
        if not elements(v.shape):
            return wrap(bc.cast(sum(size, dim, keepdim).value, v.dtype))
        out = amax(size, dim, keepdim) if ord > 0 else amin(size, dim, keepdim)
    elif ord == 0:
        out = sum(wrap(stepwise(bc.cast(ne(a, 0).value, a.value.dtype), a.value)), dim, keepdim)
    elif ord == 1:
        out = sum(abs(a), dim, keepdim)
    elif ord == 2:
        out = _root_of_squares(a, dim, keepdim)
    else:
        out = pow(sum(pow(abs(a), ord), dim, keepdim), 1.0 / ord)
    return wrap(bc.cast(out.value, v.dtype))


def _root_of_squares(a: Tensor, dim: Dims | None, keepdim: bool) -> Tensor:
    """The Euclidean length; its gradient at 0 is 0."""
    from weft.autograd.ops import mul

    node = sqrt(sum(wrap(Value(a.value.node)) * wrap(Value(a.value.node)), dim, keepdim=True)).value
    flat = sqrt(sum(wrap(Value(a.value.node)) * wrap(Value(a.value.node)), dim, keepdim)).value

    def rule(g: Value, out: Value, x: Value) -> tuple[Value]:
        length = bc.reshape(out, node.shape)
        unit = wrap(x) / wrap(bc.expand(length, x.shape))
        unit = where(eq(wrap(bc.expand(length, x.shape)), 0), 0.0, unit)
        return (mul(bc.expand(bc.reshape(g, node.shape), x.shape), unit.value),)

    return wrap(composed(flat.node, (a.value,), rule))


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


def cond(A: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number |A| |A^-1| in a matrix norm, the ratio of singular values by default."""
    v = matrices("linalg.cond", A)
    if p in (None, 2, -2):
        if not elements(v.shape):
            return wrap(stepwise(bc.scalar(0, v.dtype, v.shape[:-2]), v))
        s = svdvals(A)
        first, last = s[..., 0], s[..., -1]
        return last / first if p == -2 else first / last
    if v.shape[-1] != v.shape[-2]:
        raise ShapeError(f"linalg.cond: p={p!r} needs square matrices, got shape {tuple(v.shape)}")
    if not elements(v.shape):
        return wrap(stepwise(bc.scalar(0, v.dtype, v.shape[:-2]), v))
    inverse = inv_ex(A).inverse
    return matrix_norm(A, p) * matrix_norm(inverse, p)
