"""Functions of how a float is written: its sign, exponent and mantissa, and its neighbours."""
# Tests: tests/core/composed/test_composite.py, tests/core/test_torch_samples.py

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from weft.autograd.ops import mul
from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.defaults import get_default_dtype
from weft.core.args.handle import Handle, TensorLike, value_of, wrap
from weft.core.composed.composite import composite
from weft.core.composed.smooth import float_operands
from weft.core.pointwise.elementwise import abs, eq, lt, ne, where
from weft.core.pointwise.elementwise import mul as times
from weft.errors import DTypeError
from weft.ir.dtypes import DType, accumulator, bool_, int16, int32, int64
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_SAME_WIDTH: dict[int, DType] = {16: int16, 32: int32, 64: int64}
MANTISSA = {"float8_e4m3fn": 3, "float8_e5m2": 2, "float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}


class Parts(NamedTuple):
    """The result of frexp: mantissa * 2**exponent."""

    mantissa: Tensor
    exponent: Tensor


def raw_bits(v: Value) -> Tensor:
    """The bits of a float as a signed integer of the same width."""
    return wrap(apply(Op.BITCAST, (Value(v.node),), None, None, _SAME_WIDTH[v.dtype.bits]))


def from_bits(x: Tensor, dtype: DType) -> Tensor:
    """The float with these bits."""
    return wrap(apply(Op.BITCAST, (x.value,), None, None, dtype))


def signbit(input: Tensor) -> Tensor:
    """True where the sign is negative, -0.0 and NaNs with a sign included."""
    v = value_of("signbit", input)
    if v.dtype.is_float:
        return lt(raw_bits(v), 0)
    if v.dtype is bool_ or v.dtype.min == 0:
        return wrap(bc.scalar(False, bool_, v.shape))
    return lt(wrap(Value(v.node)), 0)


@composite(rounds_once=False)
def copysign(input: TensorLike, other: TensorLike) -> Tensor:
    """The size of input with the sign of other. The gradient at 0 is 0."""
    a, b, dtype = float_operands("copysign", input, other)
    x, y = wrap(Value(a.node)), wrap(Value(b.node))
    if isinstance(other, Handle) and not value_of("copysign", other).dtype.is_float:
        negative = lt(y, 0)
        out = where(negative, -abs(x), abs(x))
    else:
        top = -(1 << (dtype.bits - 1))
        rest = (1 << (dtype.bits - 1)) - 1
        out = from_bits((raw_bits(x.value) & rest) | (raw_bits(y.value) & top), dtype)

    def rule(g: Value, result: Value, a: Value, b: Value) -> tuple[Value | None, ...]:
        x = wrap(Value(a.node))
        ratio = where(eq(x, 0), 0.0, wrap(Value(result.node)) / x)
        return (mul(g, bc.cast(ratio.value, g.dtype)) if a.needs_grad else None), (
            mul(g, bc.scalar(0, g.dtype, g.shape)) if b.needs_grad else None
        )

    return wrap(composed(out.value.node, (a, b), rule))


@composite(rounds_once=False)
def nextafter(input: Tensor, other: Tensor) -> Tensor:
    """The next float after input in the direction of other. The gradient of input is 1, but 0 where both are equal."""
    a, b = bc.operand("nextafter", input), bc.operand("nextafter", other)
    dtype = bc.result_dtype((a, b))
    if not dtype.is_float:
        raise DTypeError(f"nextafter: not defined on {dtype.name}; convert both with .float()")
    left, right = bc.broadcast("nextafter", (a, b), dtype)
    x, y = wrap(Value(left.node)), wrap(Value(right.node))
    whole = raw_bits(x.value)
    away = where(lt(x, y), lt(0, x), lt(x, 0))
    stepped = from_bits(where(away, whole + 1, whole - 1), dtype)
    least = copysign(from_bits(whole * 0 + 1, dtype), y)
    out = where(eq(x, 0), least, stepped)
    out = where(eq(x, y), y, out)
    out = where(ne(x, x), x, where(ne(y, y), y, out))

    def rule(g: Value, result: Value, a: Value, b: Value) -> tuple[Value | None, ...]:
        none = bc.scalar(0, g.dtype, g.shape)
        return where(eq(wrap(a), wrap(b)), wrap(none), wrap(g)).value if a.needs_grad else None, none

    return wrap(composed(out.value.node, (left, right), rule))


@composite(rounds_once=False)
def frexp(input: Tensor) -> Parts:
    """Mantissa from 0.5 to 1 (or 0, infinite, NaN) and exponent, int32, with input = mantissa * 2**exponent."""
    v = value_of("frexp", input)
    if not v.dtype.is_float:
        raise DTypeError(f"frexp: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    digits = MANTISSA[v.dtype.name]
    bias = (1 << (v.dtype.bits - digits - 2)) - 1
    field = (1 << (v.dtype.bits - digits - 1)) - 1
    x = wrap(Value(v.node))
    tiny = lt(abs(x), 2.0 ** (1 - bias))
    scaled = where(tiny, x * 2.0 ** (digits + 1), x)
    whole = raw_bits(scaled.value)
    exponent = ((whole >> digits) & field) - (bias - 1)
    exponent = where(tiny, exponent - (digits + 1), exponent)
    odd = eq(x, 0) | ne(x, x) | eq(abs(x), math.inf)
    power = where(odd, 0, exponent)
    kept = whole & ~(field << digits) | ((bias - 1) << digits)
    mantissa = where(odd, x, from_bits(kept, v.dtype))

    def rule(g: Value, result: Value, x: Value) -> tuple[Value | None, ...]:
        return (bc.cast(ldexp(wrap(g), -wrap(bc.cast(power.value, int32))).value, x.dtype),)

    return Parts(wrap(composed(mantissa.value.node, (v,), rule)), wrap(bc.cast(power.value, int32)))


def ldexp(input: Tensor, other: TensorLike) -> Tensor:
    """input * 2**other, in the dtype of both, the default float dtype of integers."""
    from weft.core.pointwise.elementwise import pow

    if not isinstance(other, Handle):
        return times(input, 2.0**other)
    x, y = value_of("ldexp", input), other.value
    dtype = bc.result_dtype((x, y))
    dtype = dtype if dtype.is_float else get_default_dtype()
    wide = accumulator(dtype)
    out = times(wrap(bc.cast(x, wide)), pow(2.0, wrap(bc.cast(y, wide))))
    return wrap(bc.cast(out.value, dtype))
