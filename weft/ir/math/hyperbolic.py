"""tanh(x) = h / (h + 1) with h = (exp(2 |x|) - 1) / 2, and expm1, which is twice the h of x / 2.

|x| = k ln(2) / 2 + r gives h = 2**k p + (2**k - 1) / 2 with p = (exp(2 r) - 1) / 2 = r + r**2 Q(r), Q minimax under the
weight that makes p's relative error uniform. Nothing cancels: k = 0 gives h = p, and where h is large the
quotient hardly depends on it.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.math.exponential import LN2, LOG2_E
from weft.ir.math.value import (
    ScalarExpr,
    at_most,
    clamp,
    flip_sign,
    format_of,
    horner,
    nearest,
    power_of_two,
    sign_of,
    where,
)

# tanh rounds to 1 from here on
_LIMIT = {dtypes.float32: 10.0, dtypes.float64: 20.0}
# expm1 rounds to -1 below, and is infinite above
_EXPM1_RANGE = {dtypes.float32: (-20.0, 89.0), dtypes.float64: (-40.0, 710.0)}
# Q, on |r| <= ln(2) / 4
_Q = {
    dtypes.float32: (
        1.0, 0.6666619181632996, 0.33333471417427063, 0.13385801017284393, 0.04447849467396736,
    ),
    dtypes.float64: (
        1.0, 0.6666666666666641, 0.33333333333295756, 0.1333333333342158, 0.044444444546106375,
        0.012698412613847241, 0.003174594063465252, 0.0007054700822601001, 0.0001414263406681275,
        2.5647089863584995e-05,
    ),
}  # fmt: skip


def tanh(x: ScalarExpr) -> ScalarExpr:
    """The hyperbolic tangent."""
    magnitude = at_most(abs(x), _LIMIT[x.dtype])
    high, low = LN2[x.dtype]
    k, word = nearest(magnitude, 2 * LOG2_E, format_of(x).bias)
    r = k * (-high / 2) + magnitude
    r = k * (-low / 2) + r
    scale = power_of_two(word)
    p = r * r * horner(r, _Q[x.dtype]) + r
    h = scale * p + (scale * 0.5 - 0.5)
    return flip_sign(h / (h + 1.0), sign_of(x))


def expm1(x: ScalarExpr) -> ScalarExpr:
    """exp(x) - 1. The power of two is halved, which keeps it finite where the result is just finite."""
    f = format_of(x)
    inside = clamp(x, *_EXPM1_RANGE[x.dtype])
    high, low = LN2[x.dtype]
    k, word = nearest(inside, LOG2_E, f.bias - 1)
    r = k * (-high / 2) + inside * 0.5
    r = k * (-low / 2) + r
    scale = power_of_two(word)
    p = r * r * horner(r, _Q[x.dtype]) + r
    h = scale * (p * 2.0) + (scale - 0.5)
    return where(abs(x) < 2.0 ** -(f.fraction + 2), x, h * 2.0)
