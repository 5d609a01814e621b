"""Norms of vectors: sums of powers along dimensions, and their roots."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.ops import mul
from weft.autograd.value import Value, composed, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.handle import Dims, value_of, wrap
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functions.reductions import amax, amin, sum
from weft.core.pointwise.elementwise import abs, eq, ne, pow, sign, sqrt, where
from weft.errors import DTypeError
from weft.ir.dtypes import DType

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
        out = amax(size, dim, keepdim) if ord > 0 else amin(size, dim, keepdim)
    elif ord == 0:
        out = sum(wrap(zero_gradient(bc.cast(ne(a, 0).value, a.value.dtype), a.value)), dim, keepdim)
    elif ord == 1:
        out = sum(abs(a), dim, keepdim)
    elif ord == 2:
        out = _root_of_squares(a, dim, keepdim)
    else:
        out = _root_of_powers(a, ord, dim, keepdim)
    return wrap(bc.cast(out.value, v.dtype))


def _root_of_powers(a: Tensor, ord: float, dim: Dims | None, keepdim: bool) -> Tensor:
    """(sum |a|**ord) ** (1 / ord); its gradient is 0 where all of a is 0, below order 1 at each 0."""
    x = wrap(Value(a.value.node))
    powers = pow(abs(x), ord)
    long = pow(sum(powers, dim, keepdim=True), 1.0 / ord).value
    out = pow(sum(powers, dim, keepdim), 1.0 / ord).value

    def rule(g: Value, out: Value, x: Value) -> tuple[Value]:
        each, length = wrap(x), wrap(bc.expand(bc.reshape(out, long.shape), x.shape))
        size, short = abs(each), eq(length, 0)
        if ord < 1:  # numbers in the place of zeros: what is not chosen has a derivative too
            size = where(eq(each, 0), 1.0, size)
        slope = each * pow(size, ord - 2) if ord >= 2 else sign(each) * pow(size, ord - 1)
        slope = slope * where(short, 0.0, pow(where(short, 1.0, length), 1 - ord))
        return (mul(bc.expand(bc.reshape(g, long.shape), x.shape), slope.value),)

    return wrap(composed(out.node, (a.value,), rule))


def _root_of_squares(a: Tensor, dim: Dims | None, keepdim: bool) -> Tensor:
    """The Euclidean length; its gradient at 0 is 0."""
    node = sqrt(sum(wrap(Value(a.value.node)) * wrap(Value(a.value.node)), dim, keepdim=True)).value
    flat = sqrt(sum(wrap(Value(a.value.node)) * wrap(Value(a.value.node)), dim, keepdim)).value

    def rule(g: Value, out: Value, x: Value) -> tuple[Value]:
        length = bc.reshape(out, node.shape)
        unit = wrap(x) / wrap(bc.expand(length, x.shape))
        unit = where(eq(wrap(bc.expand(length, x.shape)), 0), 0.0, unit)
        return (mul(bc.expand(bc.reshape(g, node.shape), x.shape), unit.value),)

    return wrap(composed(flat.node, (a.value,), rule))
