"""exp, exp2 and expm1: reduction by an even power of two and a polynomial.

x = 2 k ln 2 + r with |r| <= ln 2, so exp(x) = exp(r) * 2**k * 2**k. Both factors 2**k are normal numbers even where
the result is subnormal or overflows, which makes scaling three instructions and correct over the whole range.
The reduction is Cody and Waite's (Software Manual for the Elementary Functions, 1980): ln 2 in two parts, the first
short enough that its product with k is exact. Polynomials are minimax in relative error (Remez exchange, coefficients
rounded one by one and the rest refitted).
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.math.value import Value, clamp, format_of, horner, nearest, power_of_two

LOG2_E = 1.4426950408889634
LN2 = {
    dtypes.float32: (0.693145751953125, 1.42860682030941723212e-6),
    dtypes.float64: (0.6931471803691238, 1.9082149292705877e-10),
}
"""ln 2 in two parts; the first leaves room for an exponent's bits."""


@dataclass(frozen=True, slots=True)
class _Tables:
    exp: tuple[float, ...]
    """exp(r) on |r| <= ln 2."""
    exp_range: tuple[float, float]
    """Below and above: 0 and infinity."""
    exp2: tuple[float, ...]
    """2**r on |r| <= 1."""
    exp2_range: tuple[float, float]


_TABLES: dict[DType, _Tables] = {
    dtypes.float32: _Tables(
        exp=(
            1.0, 1.0, 0.5000003576278687, 0.1666661649942398, 0.04166119173169136, 0.008335955440998077,
            0.0014105623122304678, 0.00019632642215583473,
        ),
        exp_range=(-104.0, 89.0),
        exp2=(
            1.0, 0.6931473612785339, 0.2402266412973404, 0.05550278723239899, 0.009616994298994541,
            0.0013357145944610238, 0.00015635648742318153, 1.4137908692646306e-05,
        ),
        exp2_range=(-151.0, 129.0),
    ),
    dtypes.float64: _Tables(
        exp=(
            1.0, 1.0, 0.4999999999999993, 0.1666666666666696, 0.04166666666670231, 0.008333333333268366,
            0.0013888888883504457, 0.00019841269891750826, 2.480159088438161e-05, 2.7557301755739843e-06,
            2.7556143117965597e-07, 2.5054727237263786e-08, 2.1063702172309324e-09, 1.5962856094781138e-10,
        ),
        exp_range=(-746.0, 710.0),
        exp2=(
            1.0, 0.693147180559945, 0.24022650695910047, 0.05550410866483155, 0.009618129107634875,
            0.0013333558145633263, 0.00015403530388464814, 1.5252734076720753e-05, 1.321548844571367e-06,
            1.0178040615750831e-07, 7.054637062213668e-09, 4.449134435859973e-10, 2.589835237373419e-11,
            1.2638187625221952e-12,
        ),
        exp2_range=(-1076.0, 1025.0),
    ),
}  # fmt: skip


def exp(x: Value) -> Value:
    """e**x."""
    t, f = _TABLES[x.dtype], format_of(x)
    x = clamp(x, *t.exp_range)
    high, low = LN2[x.dtype]
    k, word = nearest(x, LOG2_E / 2, f.bias)
    r = k * (-2 * high) + x
    r = k * (-2 * low) + r
    scale = power_of_two(word)
    return horner(r, t.exp) * scale * scale


def exp2(x: Value) -> Value:
    """2**x."""
    return exp2_sum(clamp(x, *_TABLES[x.dtype].exp2_range), None)


def exp2_sum(x: Value, low: Value | None) -> Value:
    """2**(x + low) for x within exp2's range and |low| below an ulp of x."""
    f = format_of(x)
    k, word = nearest(x, 0.5, f.bias)
    r = k * -2.0 + x
    if low is not None:
        r = r + low
    scale = power_of_two(word)
    return horner(r, _TABLES[x.dtype].exp2) * scale * scale


def exp2_clamp(x: Value) -> Value:
    """x limited to where 2**x is neither 0 nor infinite, and a little beyond."""
    return clamp(x, *_TABLES[x.dtype].exp2_range)
