"""Inverse trigonometric and hyperbolic functions, and what is made of angles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.autograd.value import Value, zero_gradient
from weft.core.args.handle import TensorLike, wrap
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.smooth import chebyshev, float_input, like, on, smooth, smooth2
from weft.core.pointwise import approximations as tables
from weft.core.pointwise.elementwise import (
    abs,
    cos,
    eq,
    floor,
    gt,
    log1p,
    logical_or,
    lt,
    maximum,
    minimum,
    ne,
    round,
    rsqrt,
    sin,
    sqrt,
    where,
)  # fmt: skip
from weft.core.pointwise.float_format import copysign, signbit
from weft.ir.dtypes import float64

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_HALF_PI = math.pi / 2
# pi / 2 less its rounding to float64, and to float32
_LOW = {True: 6.123233995736766e-17, False: -4.371139000186241e-08}
_HIGH = {True: _HALF_PI, False: 1.5707963705062866}
_TAN_22 = math.sqrt(2.0) - 1


def _is_double(x: Tensor) -> bool:
    return x.value.dtype is float64


def _arc_sine_tail(t: Tensor) -> Tensor:
    """(asin(s) / s - 1) / s**2 for s**2 = t up to 1/4."""
    return chebyshev(on(t, 1e-9, 0.25), tables.ASIN_F64 if _is_double(t) else tables.ASIN_F32)


def _arc_tangent(x: Tensor) -> Tensor:
    """atan by the tail of its series, after turning by 45 or 90 degrees what is too large for it."""
    double = _is_double(x)
    size = abs(x)
    large, middle = gt(size, 1 / _TAN_22), gt(size, _TAN_22)
    z = where(large, -1.0 / size, where(middle, (size - 1) / (size + 1), size))
    square = z * z
    c = tables.ATAN_F64 if double else tables.ATAN_F32
    small = z * square * chebyshev(on(square, 1e-9, _TAN_22**2 * 1.0001), c)
    high, low = _HIGH[double], _LOW[double]
    base = where(large, like(x, high), like(x, high / 2))
    rest = where(large, like(x, low), like(x, low / 2))
    return copysign(where(middle, base + (z + (small + rest)), z + small), x)


def _arc_sine(x: Tensor) -> Tensor:
    double = _is_double(x)
    size = abs(x)
    big = gt(size, 0.5)
    t = where(big, (1 - size) * 0.5, size * size)
    s = where(big, sqrt(t), size)
    inner = s * t * _arc_sine_tail(t)
    turned = _HIGH[double] - ((s + inner) * 2.0 - _LOW[double])
    return copysign(where(big, turned, s + inner), x)


def _arc_cosine(x: Tensor) -> Tensor:
    double = _is_double(x)
    size = abs(x)
    big = gt(size, 0.5)
    t = where(big, (1 - size) * 0.5, x * x)
    s = where(big, sqrt(t), x)
    inner = s * t * _arc_sine_tail(t)
    near = (s + inner) * 2.0
    far = _HIGH[double] * 2 - (near - _LOW[double] * 2)
    middle = _HIGH[double] - (x - (_LOW[double] - inner))
    return where(big, where(lt(x, 0), far, near), middle)


@composite(autocast=widens_on_gpus)
def asin(input: Tensor) -> Tensor:
    """The angle from -pi/2 to pi/2 whose sine is the input; NaN outside of [-1, 1]."""
    return smooth("asin", input, _arc_sine, lambda x: rsqrt((1 - x) * (1 + x)))


@composite(autocast=widens_on_gpus)
def acos(input: Tensor) -> Tensor:
    """The angle from 0 to pi whose cosine is the input; NaN outside of [-1, 1]."""
    return smooth("acos", input, _arc_cosine, lambda x: -rsqrt((1 - x) * (1 + x)))


@composite
def atan(input: Tensor) -> Tensor:
    """The angle from -pi/2 to pi/2 whose tangent is the input."""
    return smooth("atan", input, _arc_tangent, lambda x: 1 / (x * x + 1))


def _angle_of(y: Tensor, x: Tensor) -> Tensor:
    """The angle of the point (x, y): the ratio that is at most 1, and in which eighth of the circle it lies."""
    double = _is_double(y)
    height, width = abs(y), abs(x)
    steep = gt(height, width)
    small, large = minimum(height, width), maximum(height, width)
    ratio = where(eq(small, large), where(eq(small, 0), small, 1.0), small / large)
    nan = logical_or(ne(x, x), ne(y, y))
    ratio = where(nan, math.nan, ratio)
    first = _arc_tangent(ratio)
    high, low = _HIGH[double], _LOW[double]
    first = where(steep, high - (first - low), first)
    first = where(signbit(x), high * 2 - (first - low * 2), first)
    return copysign(first, y)


@composite
def atan2(input: TensorLike, other: TensorLike) -> Tensor:
    """The angle from -pi to pi of the point (other, input), by the signs of both. The gradient at the origin is 0."""

    def over_square(part: Tensor, y: Tensor, x: Tensor) -> Tensor:
        square = x * x + y * y
        return where(eq(square, 0), 0.0, part / square)

    return smooth2(
        "atan2", input, other, _angle_of,
        (lambda y, x: over_square(x, y, x), lambda y, x: over_square(-y, y, x)),
    )  # fmt: skip


@composite
def asinh(input: Tensor) -> Tensor:
    """log(x + sqrt(x**2 + 1)), exact also near 0 and without overflow."""

    def value(x: Tensor) -> Tensor:
        a = abs(x)
        huge = gt(a, 1e15 if _is_double(x) else 1e7)
        square = where(huge, 0.0, a) * a
        near = log1p(a + square / (sqrt(square + 1) + 1))
        return copysign(where(huge, log1p(a) + math.log(2.0), near), x)

    return smooth("asinh", input, value, lambda x: rsqrt(x * x + 1))


@composite
def acosh(input: Tensor) -> Tensor:
    """log(x + sqrt(x**2 - 1)), exact also near 1 and without overflow; NaN below 1."""

    def value(x: Tensor) -> Tensor:
        t = x - 1
        huge = gt(x, 1e15 if _is_double(x) else 1e7)
        small = where(huge, 0.0, where(lt(t, 0), math.nan, t))
        return where(huge, log1p(t) + math.log(2.0), log1p(small + sqrt(small * 2 + small * small)))

    return smooth("acosh", input, value, lambda x: rsqrt((x - 1) * (x + 1)))


@composite
def atanh(input: Tensor) -> Tensor:
    """log((1 + x) / (1 - x)) / 2, exact also near 0; infinite at 1 and -1, NaN beyond."""

    def value(x: Tensor) -> Tensor:
        a = abs(x)
        return copysign(log1p(a * 2 / (1 - a)) * 0.5, x)

    return smooth("atanh", input, value, lambda x: 1 / ((1 - x) * (1 + x)))


@composite
def hypot(input: Tensor, other: Tensor) -> Tensor:
    """sqrt(input**2 + other**2) without overflow or underflow on the way."""

    def value(x: Tensor, y: Tensor) -> Tensor:
        a, b = abs(x), abs(y)
        large, small = maximum(a, b), minimum(a, b)
        ratio = where(eq(large, 0), 0.0, small / large)
        out = large * sqrt(ratio * ratio + 1)
        return where(logical_or(eq(a, math.inf), eq(b, math.inf)), math.inf, out)

    def slope(part: Tensor, x: Tensor, y: Tensor) -> Tensor:
        size = hypot(x, y)
        return part / size

    return smooth2("hypot", input, other, value, (lambda x, y: slope(x, x, y), lambda x, y: slope(y, x, y)))


_SINC_SLOPE = tuple((-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, 10))
"""The derivative of sin(z) / z, in odd powers of z."""


@composite
def sinc(input: Tensor) -> Tensor:
    """sin(pi x) / (pi x), and 1 at 0."""

    def value(x: Tensor) -> Tensor:
        near = round(x)  # the sine by its distance to the nearest zero, which is exact
        half = near * 0.5
        wave = sin((x - near) * math.pi)
        wave = where(ne(half, floor(half)), -wave, wave)
        return where(eq(x, 0), 1.0, wave / where(eq(x, 0), 1.0, x * math.pi))

    def slope(x: Tensor) -> Tensor:
        angle = x * math.pi
        square, safe = angle * angle, where(lt(abs(angle), 1), 1.0, angle)
        near, c = like(x, 0.0), _SINC_SLOPE if x.value.dtype is float64 else _SINC_SLOPE[:6]
        for a in reversed(c):
            near = near * square + a
        far = (cos(angle) - sin(angle) / safe) / safe
        return where(lt(abs(angle), 1), angle * near, far) * math.pi

    return smooth("sinc", input, value, slope)


def deg2rad(input: Tensor) -> Tensor:
    """Degrees as radians."""
    return input * (math.pi / 180)


def rad2deg(input: Tensor) -> Tensor:
    """Radians as degrees."""
    return input * (180 / math.pi)


@composite
def angle(input: Tensor) -> Tensor:
    """0 for positive numbers, pi for negative ones, NaN for NaN."""
    v = float_input("angle", input)
    x = wrap(Value(v.node))
    out = where(ne(x, x), x, where(lt(x, 0), like(x, math.pi), like(x, 0.0)))
    return wrap(zero_gradient(out.value, v))
