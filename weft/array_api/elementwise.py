"""Elementwise functions of the standard."""

from __future__ import annotations

import math
from typing import Any

from weft.array_api.promotion import Operand, floats, number, together
from weft.core.layout import creation
from weft.core.pointwise import elementwise, float_format, trigonometry
from weft.core.pointwise import special_functions as special
from weft.core.tensor.tensor import Tensor
from weft.ir.dtypes import Kind


def abs(x: Tensor, /) -> Tensor:
    """The absolute value."""
    return x.clone() if number("abs", x).dtype.kind is Kind.UINT else elementwise.abs(x)


def acos(x: Tensor, /) -> Tensor:
    """The inverse cosine."""
    return trigonometry.acos(floats("acos", x)[0])


def acosh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic cosine."""
    return trigonometry.acosh(floats("acosh", x)[0])


def add(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 + x2."""
    return elementwise.add(*together("add", x1, x2))


def asin(x: Tensor, /) -> Tensor:
    """The inverse sine."""
    return trigonometry.asin(floats("asin", x)[0])


def asinh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic sine."""
    return trigonometry.asinh(floats("asinh", x)[0])


def atan(x: Tensor, /) -> Tensor:
    """The inverse tangent."""
    return trigonometry.atan(floats("atan", x)[0])


def atan2(x1: Operand, x2: Operand, /) -> Tensor:
    """The angle of the point (x2, x1)."""
    return trigonometry.atan2(*floats("atan2", x1, x2))


def atanh(x: Tensor, /) -> Tensor:
    """The inverse hyperbolic tangent."""
    return trigonometry.atanh(floats("atanh", x)[0])


def bitwise_and(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 & x2."""
    return elementwise.bitwise_and(*together("bitwise_and", x1, x2))


def bitwise_or(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 | x2."""
    return elementwise.bitwise_or(*together("bitwise_or", x1, x2))


def bitwise_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 ^ x2."""
    return elementwise.bitwise_xor(*together("bitwise_xor", x1, x2))


def bitwise_invert(x: Tensor, /) -> Tensor:
    """~x."""
    return elementwise.bitwise_not(x)


def bitwise_left_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 << x2."""
    return elementwise.bitwise_left_shift(*together("bitwise_left_shift", x1, x2))


def bitwise_right_shift(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 >> x2."""
    return elementwise.bitwise_right_shift(*together("bitwise_right_shift", x1, x2))


def ceil(x: Tensor, /) -> Tensor:
    """Rounded toward +inf."""
    return elementwise.ceil(x)


def clip(x: Tensor, /, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x limited to min..max, in the dtype of x."""
    out = number("clip", x)
    if min is not None:
        out = _limited(out, min, elementwise.maximum)
    if max is not None:
        out = _limited(out, max, elementwise.minimum)
    return out.clone() if out is x else out


def _limited(x: Tensor, bound: Operand, choose: Any) -> Tensor:
    if isinstance(bound, Tensor):
        return choose(x, bound.to(x.dtype))
    if x.dtype.is_int:  # a bound beyond the dtype limits nothing, or everything
        low, high = int(x.dtype.min), int(x.dtype.max)
        bound = low if bound < low else high if bound > high else int(bound)
    return choose(x, creation.full((), bound, dtype=x.dtype))


def conj(x: Tensor, /) -> Tensor:
    """The array itself: weft has real numbers only."""
    return number("conj", x)


def real(x: Tensor, /) -> Tensor:
    """The array itself: weft has real numbers only."""
    return number("real", x)


def copysign(x1: Operand, x2: Operand, /) -> Tensor:
    """The size of x1 with the sign of x2."""
    return float_format.copysign(*floats("copysign", x1, x2))


def cos(x: Tensor, /) -> Tensor:
    """The cosine."""
    return elementwise.cos(floats("cos", x)[0])


def cosh(x: Tensor, /) -> Tensor:
    """The hyperbolic cosine."""
    return elementwise.cosh(floats("cosh", x)[0])


def divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 / x2."""
    return elementwise.div(*together("divide", x1, x2))


def equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 == x2."""
    return elementwise.eq(*together("equal", x1, x2))


def exp(x: Tensor, /) -> Tensor:
    """e ** x."""
    return elementwise.exp(floats("exp", x)[0])


def expm1(x: Tensor, /) -> Tensor:
    """exp(x) - 1."""
    return elementwise.expm1(floats("expm1", x)[0])


def floor(x: Tensor, /) -> Tensor:
    """Rounded toward -inf."""
    return elementwise.floor(x)


def floor_divide(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 // x2."""
    return elementwise.floor_divide(*together("floor_divide", x1, x2))


def greater(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 > x2."""
    return elementwise.gt(*together("greater", x1, x2))


def greater_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 >= x2."""
    return elementwise.ge(*together("greater_equal", x1, x2))


def hypot(x1: Operand, x2: Operand, /) -> Tensor:
    """sqrt(x1**2 + x2**2)."""
    return trigonometry.hypot(*floats("hypot", x1, x2))


def isfinite(x: Tensor, /) -> Tensor:
    """True for finite numbers."""
    return elementwise.isfinite(x)


def isinf(x: Tensor, /) -> Tensor:
    """True for infinities."""
    return elementwise.isinf(x)


def isnan(x: Tensor, /) -> Tensor:
    """True for NaN."""
    return elementwise.isnan(x)


def less(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 < x2."""
    return elementwise.lt(*together("less", x1, x2))


def less_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 <= x2."""
    return elementwise.le(*together("less_equal", x1, x2))


def log(x: Tensor, /) -> Tensor:
    """The natural logarithm."""
    return elementwise.log(floats("log", x)[0])


def log1p(x: Tensor, /) -> Tensor:
    """log(1 + x)."""
    return elementwise.log1p(floats("log1p", x)[0])


def log2(x: Tensor, /) -> Tensor:
    """The logarithm to base 2."""
    return elementwise.log2(floats("log2", x)[0])


def log10(x: Tensor, /) -> Tensor:
    """The logarithm to base 10."""
    return elementwise.log10(floats("log10", x)[0])


def logaddexp(x1: Operand, x2: Operand, /) -> Tensor:
    """log(exp(x1) + exp(x2))."""
    return special.logaddexp(*floats("logaddexp", x1, x2))


def logical_and(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 and x2."""
    return elementwise.logical_and(*together("logical_and", x1, x2))


def logical_not(x: Tensor, /) -> Tensor:
    """not x."""
    return elementwise.logical_not(x)


def logical_or(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 or x2."""
    return elementwise.logical_or(*together("logical_or", x1, x2))


def logical_xor(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 or x2, but not both."""
    return elementwise.logical_xor(*together("logical_xor", x1, x2))


def maximum(x1: Operand, x2: Operand, /) -> Tensor:
    """The larger of both."""
    return elementwise.maximum(*together("maximum", x1, x2))


def minimum(x1: Operand, x2: Operand, /) -> Tensor:
    """The smaller of both."""
    return elementwise.minimum(*together("minimum", x1, x2))


def multiply(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 * x2."""
    return elementwise.mul(*together("multiply", x1, x2))


def negative(x: Tensor, /) -> Tensor:
    """-x."""
    return elementwise.neg(x)


def nextafter(x1: Operand, x2: Operand, /) -> Tensor:
    """The next float after x1 toward x2."""
    return float_format.nextafter(*floats("nextafter", x1, x2))


def not_equal(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 != x2."""
    return elementwise.ne(*together("not_equal", x1, x2))


def positive(x: Tensor, /) -> Tensor:
    """+x."""
    return elementwise.positive(x)


def pow(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 ** x2."""
    return elementwise.pow(*together("pow", x1, x2))


def reciprocal(x: Tensor, /) -> Tensor:
    """1 / x."""
    return elementwise.reciprocal(floats("reciprocal", x)[0])


def remainder(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 % x2, with the sign of x2, of zeros too."""
    a, b = together("remainder", x1, x2)
    rest = elementwise.remainder(a, b)
    if not rest.dtype.is_float:
        return rest
    return elementwise.where(elementwise.eq(rest, 0), float_format.copysign(rest, b), rest)


def round(x: Tensor, /) -> Tensor:
    """Rounded to the nearest integer, ties to even."""
    return elementwise.round(x)


def sign(x: Tensor, /) -> Tensor:
    """-1, 0 or 1; NaN for NaN."""
    out = elementwise.sign(number("sign", x))
    return elementwise.where(elementwise.isnan(x), math.nan, out) if x.dtype.is_float else out


def signbit(x: Tensor, /) -> Tensor:
    """True where the sign is negative."""
    return float_format.signbit(floats("signbit", x)[0])


def sin(x: Tensor, /) -> Tensor:
    """The sine."""
    return elementwise.sin(floats("sin", x)[0])


def sinh(x: Tensor, /) -> Tensor:
    """The hyperbolic sine."""
    return elementwise.sinh(floats("sinh", x)[0])


def sqrt(x: Tensor, /) -> Tensor:
    """The square root."""
    return elementwise.sqrt(floats("sqrt", x)[0])


def square(x: Tensor, /) -> Tensor:
    """x * x."""
    return elementwise.square(number("square", x))


def subtract(x1: Operand, x2: Operand, /) -> Tensor:
    """x1 - x2."""
    return elementwise.sub(*together("subtract", x1, x2))


def tan(x: Tensor, /) -> Tensor:
    """The tangent."""
    return elementwise.tan(floats("tan", x)[0])


def tanh(x: Tensor, /) -> Tensor:
    """The hyperbolic tangent."""
    return elementwise.tanh(floats("tanh", x)[0])


def trunc(x: Tensor, /) -> Tensor:
    """Rounded toward zero."""
    return elementwise.trunc(x)
