"""log and log2: x = m * 2**k with m in [sqrt(1/2), sqrt(2)), and a series for log(m).

float32: log(1 + f) = f + f**2 P(f), P minimax of degree 8 in relative error.
float64: with s = f / (2 + f), log(1 + f) = 2 atanh(s) = f - s (f - R(s**2)); R minimax. The form is FDLIBM's
(Sun Microsystems 1993, e_log.c), which keeps the leading term f exact.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.math.exponential import LN2, LOG2_E
from weft.ir.math.value import Split, Value, horner, split, where

_P32 = (
    -0.5, 0.3333333134651184, -0.250008225440979, 0.20001259446144104, -0.16623346507549286, 0.14201082289218903,
    -0.1315954476594925, 0.12765590846538544, -0.07640968263149261,
)  # fmt: skip
_R64 = (
    0.6666666666666734, 0.39999999999416647, 0.28571428742025945, 0.2222219860536604, 0.1818356283150393,
    0.15314085427556687, 0.14795626775933401,
)  # fmt: skip


def log(x: Value) -> Value:
    """The natural logarithm."""
    parts = split(x)
    f, tail = _log1p(parts)
    k, (high, low) = parts.exponent, LN2[x.dtype]
    return _special(x, k * high + (f + (k * low + tail)))


def log2(x: Value) -> Value:
    """The logarithm to base 2: k + log(m) * log2(e), the product in two parts so that it is rounded once."""
    parts = split(x)
    f, tail = _log1p(parts)
    return _special(x, (f + tail) * LOG2_E + parts.exponent)


def _log1p(parts: Split) -> tuple[Value, Value]:
    """log(m) as a sum f + tail, f exact."""
    f = parts.significand - 1.0
    if f.dtype is dtypes.float32:
        return f, f * f * horner(f, _P32)
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    # log(1 + f) = f - half_square + s (half_square + z R(z))
    return f, s * (half_square + z * horner(z, _R64)) - half_square


def _special(x: Value, result: Value) -> Value:
    """`result` for finite x > 0; else infinity, NaN, -infinity at either zero."""
    finite = where(x < float("inf"), result, x)
    return where(x.const(0.0) < x, finite, where(x.equals(0.0), x.const(float("-inf")), float("nan")))
