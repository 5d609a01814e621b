"""exp and exp2: reduction by an even power of two and a polynomial.

x = 2 k ln 2 + r with |r| <= ln 2, so exp(x) = exp(r) * 2**k * 2**k. Both factors 2**k are normal numbers even where
the result is subnormal or overflows, which makes scaling three instructions and correct over the whole range. At the
range's lower end the exponent's bits are 0, and so is 2**k: a product that underflows takes many processors ten times
as long as one with 0, and masks make many of -inf.
The reduction is Cody and Waite's (Software Manual for the Elementary Functions, 1980): ln 2 in two parts, the first
short enough that its product with k is exact. Polynomials are minimax in relative error; `tools/minimax.py` derives
them, and all others in this folder.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.math.value import ScalarExpr, clamp, format_of, horner, nearest, power_of_two
from weft.lazy_dataclass import dataclass

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
    """Below and above: 0 and infinity. At the lower end k is the exponent's least, whose bits are 0."""
    exp2: tuple[float, ...]
    """2**r on |r| <= 1."""
    exp2_range: tuple[float, float]


_TABLES: dict[DType, _Tables] = {
    dtypes.float32: _Tables(
        exp=(
            1.0, 1.0, 0.5000003576278687, 0.1666661649942398, 0.04166119173169136, 0.008335959166288376,
            0.001410573604516685, 0.00019633477495517582,
        ),
        exp_range=(-176.0, 89.0),
        exp2=(
            1.0, 0.6931472420692444, 0.24022668600082397, 0.05550365895032883, 0.009616844356060028,
            0.001334171975031495, 0.00015645293751731515, 1.4916943655407522e-05,
        ),
        exp2_range=(-254.0, 129.0),
    ),
    dtypes.float64: _Tables(
        exp=(
            1.0, 1.0, 0.4999999999999993, 0.16666666666666938, 0.04166666666670221, 0.008333333333269643,
            0.0013888888883556944, 0.0001984126989298709, 2.4801590841502536e-05, 2.7557300589204645e-06,
            2.755615527658117e-07, 2.5055040280806944e-08, 2.1062565913836267e-09, 1.5935437140297607e-10,
        ),
        exp_range=(-1418.0, 710.0),
        exp2=(
            1.0, 0.6931471805599453, 0.2402265069591003, 0.05550410866482282, 0.009618129107637385,
            0.0013333558146310393, 0.00015403530387187147, 1.5252733847349998e-05, 1.3215488726812932e-06,
            1.0178078743922629e-07, 7.05460946957442e-09, 4.446078205318462e-10, 2.590827569497578e-11,
            1.3582393847407261e-12,
        ),
        exp2_range=(-2046.0, 1025.0),
    ),
}  # fmt: skip


def exp(x: ScalarExpr) -> ScalarExpr:
    """e**x."""
    t, f = _TABLES[x.dtype], format_of(x)
    x = clamp(x, *t.exp_range)
    high, low = LN2[x.dtype]
    k, word = nearest(x, LOG2_E / 2, f.bias)
    r = k * (-2 * high) + x
    r = k * (-2 * low) + r
    scale = power_of_two(word)
    return horner(r, t.exp) * scale * scale


def exp2(x: ScalarExpr) -> ScalarExpr:
    """2**x."""
    return exp2_sum(clamp(x, *_TABLES[x.dtype].exp2_range), None)


def exp2_sum(x: ScalarExpr, low: ScalarExpr | None) -> ScalarExpr:
    """2**(x + low) for x within exp2's range and |low| below an ulp of x."""
    f = format_of(x)
    k, word = nearest(x, 0.5, f.bias)
    r = k * -2.0 + x
    if low is not None:
        r = r + low
    scale = power_of_two(word)
    return horner(r, _TABLES[x.dtype].exp2) * scale * scale


def exp2_clamp(x: ScalarExpr) -> ScalarExpr:
    """x limited to where 2**x is neither 0 nor infinite, and a little beyond."""
    return clamp(x, *_TABLES[x.dtype].exp2_range)
