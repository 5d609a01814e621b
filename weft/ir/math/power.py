"""pow: 2**(y log2 x) with log2 x to half again the precision of a float.

log2 |x| = k + 2 / (3 ln 2) * s (3 + s**2 + R), s = (m - 1) / (m + 1), is carried as a sum of two floats. Leading parts
are truncated to half a significand, so that their products are exact. The form is FDLIBM's (Sun Microsystems 1993,
e_pow.c) without its table. C99's special cases (annex F.9.4.4), which are torch's, are put in at the end.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.math.exponential import exp2_clamp, exp2_sum
from weft.ir.math.value import ScalarExpr, clamp, flip_sign, horner, short, sign_of, split, where
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class _Tables:
    series: tuple[float, ...]
    """R / s**4 in powers of s**2."""
    scale: tuple[float, float]
    """2 / (3 ln 2) in two parts, the first half a significand long."""
    largest: float
    """No |y| above it gives anything but 0, 1 or infinity."""


_TABLES: dict[DType, _Tables] = {
    dtypes.float32: _Tables(
        (0.6000022888183594, 0.42820635437965393, 0.35129448771476746), (0.961669921875, 0.0001267720509756049), 2.0**40
    ),
    dtypes.float64: _Tables(
        (
            0.6000000000000338, 0.4285714285514907, 0.3333333377997746, 0.27272676539813084,
            0.2308013659778346, 0.19885210687607938, 0.19794656343597375,
        ),
        (0.9617966860532761, 7.872699542894897e-09),
        2.0**80,
    ),
}  # fmt: skip


def power(x: ScalarExpr, y: ScalarExpr) -> ScalarExpr:
    """x**y for floats; NaN for a negative finite x and a y that is no integer."""
    largest = _TABLES[x.dtype].largest
    magnitude = abs(x)
    high, low = _log2(magnitude)
    limited = clamp(y, -largest, largest)
    y_high = short(limited)
    head = y_high * high
    tail = (limited - y_high) * high + limited * low
    total = head + tail
    exponent = exp2_clamp(total)
    rest = where(exponent.equals(total), (head - total) + tail, 0.0)
    return _special(x, y, magnitude, exp2_sum(exponent, rest))


def _log2(x: ScalarExpr) -> tuple[ScalarExpr, ScalarExpr]:
    """log2 of a finite x > 0 as a sum of two floats, the first with half a significand."""
    t = _TABLES[x.dtype]
    parts = split(x)
    m, k = parts.significand, parts.exponent
    # s = s_high + s_low = (m - 1) / (m + 1); m + 1 = d_high + d_low exactly
    f, d = m - 1.0, m + 1.0
    inverse = x.const(1.0) / d
    s = f * inverse
    s_high = short(s)
    d_high = short(d)
    d_low = m - (d_high - 1.0)
    s_low = ((f - s_high * d_high) - s_high * d_low) * inverse
    # w = w_high + w_low = 3 + s**2 + R
    z = s * s
    square = s_high * s_high
    r = z * z * horner(z, t.series) + s_low * (s_high + s)
    w_high = short((square + 3.0) + r)
    w_low = r - ((w_high - 3.0) - square)
    # p = p_high + p_low = s * w
    u = s_high * w_high
    v = s_low * w_high + w_low * s
    p_high = short(u + v)
    p_low = v - (p_high - u)
    c_high = p_high * t.scale[0]
    c_low = p_high * t.scale[1] + p_low * (t.scale[0] + t.scale[1])
    high = short((c_high + c_low) + k)
    return high, c_low - ((high - k) - c_high)


def _special(x: ScalarExpr, y: ScalarExpr, magnitude: ScalarExpr, result: ScalarExpr) -> ScalarExpr:
    """`result` = |x|**y with its sign, and the cases where x or y is zero, one, infinite, negative or NaN."""
    zero, infinity = x.const(0.0), float("inf")
    whole = y.floor().equals(y)
    half = y * 0.5
    odd = whole & half.floor().differs(half)
    # at 0 and infinity: x itself or its reciprocal; NaN stays NaN
    edge = where(y < 0.0, magnitude.const(1.0) / magnitude, where(zero < y, magnitude, float("nan")))
    result = where((zero < magnitude) & (magnitude < infinity), result, edge)
    result = flip_sign(result, where(odd, sign_of(x), sign_of(x).const(0)))
    undefined = (x < 0.0) & (magnitude < infinity) & y.floor().differs(y)
    result = where(undefined, x.const(float("nan")), result)
    return where(x.equals(1.0) | y.equals(0.0), x.const(1.0), result)
