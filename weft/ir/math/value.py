"""Arithmetic on scalar expressions written as formulas, and the few building blocks that every function shares.

Everything here is straight-line and exact in the sense of IEEE 754, so it means the same on every backend that
rounds each operation once. A product that feeds a sum may be contracted to one fused operation or not: the
functions are accurate either way. Sums must not be reassociated: `nearest` relies on a rounding error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, call, cast
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

Operand: TypeAlias = "ScalarExpr | float"


@dataclass(frozen=True, slots=True)
class ScalarExpr:
    """A scalar expression with Python's operators. A Python number beside it takes its dtype."""

    expr: Expr

    @property
    def dtype(self) -> DType:
        return self.expr.dtype

    def const(self, value: float) -> ScalarExpr:
        """A constant of this value's dtype."""
        return ScalarExpr(Const(self.dtype, value))

    def _with(self, op: Op, other: Operand) -> ScalarExpr:
        return ScalarExpr(call(op, self.expr, _operand(other, self.dtype)))

    def __add__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.ADD, other)

    def __sub__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.SUB, other)

    def __mul__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.MUL, other)

    def __truediv__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.DIV, other)

    def __lt__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.LT, other)

    def __le__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.LE, other)

    def equals(self, other: Operand) -> ScalarExpr:
        """True where the two compare equal (`==` compares expressions)."""
        return self._with(Op.EQ, other)

    def differs(self, other: Operand) -> ScalarExpr:
        """True where the two compare unequal, or one is NaN."""
        return self._with(Op.NE, other)

    def __and__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.AND, other)

    def __or__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.OR, other)

    def __xor__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.XOR, other)

    def __lshift__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.SHL, other)

    def __rshift__(self, other: Operand) -> ScalarExpr:
        return self._with(Op.SHR, other)

    def __neg__(self) -> ScalarExpr:
        return ScalarExpr(call(Op.NEG, self.expr))

    def __abs__(self) -> ScalarExpr:
        return ScalarExpr(call(Op.ABS, self.expr))

    def floor(self) -> ScalarExpr:
        """The largest integer not above it, as a float."""
        return ScalarExpr(call(Op.FLOOR, self.expr))

    def to(self, dtype: DType) -> ScalarExpr:
        """Its value in another dtype."""
        return ScalarExpr(cast(self.expr, dtype))

    def bits_as(self, dtype: DType) -> ScalarExpr:
        """Its bits read as another dtype of the same width."""
        return ScalarExpr(call(Op.BITCAST, self.expr, dtype=dtype))


def _operand(value: Operand, dtype: DType) -> Expr:
    return value.expr if isinstance(value, ScalarExpr) else Const(dtype, value)


def where(condition: ScalarExpr, a: ScalarExpr, b: Operand) -> ScalarExpr:
    """a where the condition holds, else b."""
    return ScalarExpr(call(Op.WHERE, condition.expr, a.expr, _operand(b, a.dtype)))


@dataclass(frozen=True, slots=True)
class Format:
    """An IEEE 754 binary format, as the expansions take it apart."""

    dtype: DType
    unsigned: DType
    signed: DType
    fraction: int
    """Stored bits of the significand."""
    bias: int
    """The exponent field of 1.0."""
    short_mask: int
    """Keeps the sign, the exponent and half of the significand, so that a product of two such values is exact."""

    @property
    def magic(self) -> float:
        """1.5 * 2**fraction: adding it rounds to an integer, held in the low bits of the sum."""
        return 1.5 * 2.0**self.fraction

    @property
    def min_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def sign_bit(self) -> int:
        return 1 << (self.dtype.bits - 1)


FORMATS: dict[DType, Format] = {
    dtypes.float32: Format(dtypes.float32, dtypes.uint32, dtypes.int32, 23, 127, 0xFFFFF000),
    dtypes.float64: Format(dtypes.float64, dtypes.uint64, dtypes.int64, 52, 1023, 0xFFFFFFFFF8000000),
}
"""The formats that functions are expanded in; 16-bit floats are computed in float32."""


def format_of(x: ScalarExpr) -> Format:
    """The format of `x`'s dtype."""
    return FORMATS[x.dtype]


def horner(x: ScalarExpr, coefficients: Sequence[float]) -> ScalarExpr:
    """c[0] + c[1] x + c[2] x**2 + ..."""
    result = x * coefficients[-1] + coefficients[-2]
    for c in reversed(coefficients[:-2]):
        result = result * x + c
    return result


def at_most(x: ScalarExpr, limit: float) -> ScalarExpr:
    """The smaller; NaN stays NaN. One instruction where the machine's minimum returns its second operand for a NaN."""
    return where(x.const(limit) < x, x.const(limit), x)


def clamp(x: ScalarExpr, lo: float, hi: float) -> ScalarExpr:
    """x limited to lo..hi; NaN stays NaN."""
    return at_most(where(x < lo, x.const(lo), x), hi)


def nearest(x: ScalarExpr, factor: float, offset: int = 0) -> tuple[ScalarExpr, ScalarExpr]:
    """k = x * factor rounded to an integer, as a float; and an unsigned integer whose low bits are those of k + offset.

    |x * factor| must stay below 2**(fraction - 1).
    """
    f = format_of(x)
    shifted = x * factor + (f.magic + offset)
    return shifted - (f.magic + offset), shifted.bits_as(f.unsigned)


def power_of_two(exponent_field: ScalarExpr) -> ScalarExpr:
    """2**(e - bias), e the exponent field in the low bits of an unsigned integer; the bits above it are shifted out."""
    f = next(f for f in FORMATS.values() if f.unsigned is exponent_field.dtype)
    return (exponent_field << f.fraction).bits_as(f.dtype)


def short(x: ScalarExpr) -> ScalarExpr:
    """x truncated to half of its significand."""
    f = format_of(x)
    return (x.bits_as(f.unsigned) & f.short_mask).bits_as(f.dtype)


def sign_of(x: ScalarExpr) -> ScalarExpr:
    """The sign bit of x, alone, as an unsigned integer."""
    f = format_of(x)
    return x.bits_as(f.unsigned) & f.sign_bit


def flip_sign(x: ScalarExpr, sign: ScalarExpr) -> ScalarExpr:
    """x negated where `sign`, an unsigned integer with no other bit set, has the sign bit set."""
    f = format_of(x)
    return (x.bits_as(f.unsigned) ^ sign).bits_as(f.dtype)


@dataclass(frozen=True, slots=True)
class SignificandAndExponent:
    """x = m * 2**k with m in [sqrt(1/2), sqrt(2)) and an integer k, for finite x > 0, subnormals included."""

    significand: ScalarExpr
    exponent: ScalarExpr


def split(x: ScalarExpr) -> SignificandAndExponent:
    """Takes x apart; garbage, but no NaN, where x is not finite and positive."""
    f = format_of(x)
    tiny = x < f.min_normal
    scaled = where(tiny, x * 2.0**f.fraction, x)
    word = scaled.bits_as(f.signed)
    # subtracting the bits of sqrt(1/2) makes the exponent field step where the significand passes sqrt(1/2)
    above = word - ROOT_HALF_BITS[f.dtype]
    steps = above >> f.fraction
    significand = (word - (steps << f.fraction)).bits_as(f.dtype)
    exponent = _to_float(steps, f) + where(tiny, x.const(-f.fraction), 0.0)
    return SignificandAndExponent(significand, exponent)


ROOT_HALF_BITS = {dtypes.float32: 0x3F3504F3, dtypes.float64: 0x3FE6A09E667F3BCD}


def _to_float(n: ScalarExpr, f: Format) -> ScalarExpr:
    """A small integer as a float. Few machines convert 64-bit integers in vectors, all add them."""
    if f.dtype is dtypes.float32:
        return n.to(f.dtype)
    magic = n.const(0x4338 << 48)
    return (n + magic).bits_as(f.dtype) - f.magic
