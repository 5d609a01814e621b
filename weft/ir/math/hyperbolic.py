"""tanh(x) = h / (h + 1) with h = (exp(2 |x|) - 1) / 2.

|x| = k ln(2) / 2 + r gives h = 2**k p + (2**k - 1) / 2 with p = (exp(2 r) - 1) / 2 = r + r**2 Q(r), Q minimax under the
weight that makes p's relative error uniform. Nothing cancels: k = 0 gives h = p, and where h is large the
quotient hardly depends on it.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.math.exponential import LN2, LOG2_E
from weft.ir.math.value import Value, at_most, flip_sign, format_of, horner, nearest, power_of_two, sign_of

# tanh rounds to 1 from here on
_LIMIT = {dtypes.float32: 10.0, dtypes.float64: 20.0}
# Q, on |r| <= ln(2) / 4
_Q = {
    dtypes.float32: (1.0, 0.6666619181632996, 0.333334743976593, 0.13385827839374542, 0.04447894170880318),
    dtypes.float64: (
        1.0, 0.6666666666666641, 0.3333333333329568, 0.13333333333420833, 0.04444444454625563, 0.012698412615175783,
        0.0031745940548563653, 0.0007054700097457332, 0.00014142649396284046, 2.5648327515055687e-05,
    ),
}  # fmt: skip


def tanh(x: Value) -> Value:
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
