"""log and log2: x = m * 2**k with m in [sqrt(1/2), sqrt(2)), and a series for log(m).

float32: log(1 + f) = f + f**2 P(f), P minimax of degree 8 in relative error.
float64: with s = f / (2 + f), log(1 + f) = 2 atanh(s) = f - s (f - R(s**2)); R minimax. The form is FDLIBM's
(Sun Microsystems 1993, e_log.c), which keeps the leading term f exact.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.math.exponential import LN2, LOG2_E
from weft.ir.math.value import ScalarExpr, SignificandAndExponent, horner, split, where

_P32 = (
    -0.5, 0.3333333134651184, -0.2500081956386566, 0.2000124156475067, -0.1662341058254242,
    0.14201585948467255, -0.13159598410129547, 0.12762142717838287, -0.07636362314224243,
)  # fmt: skip
_R64 = (
    0.6666666666666734, 0.3999999999941641, 0.2857142874211418, 0.22222198593546935, 0.18183563564932748,
    0.15314064012394893, 0.14795864814501714,
)  # fmt: skip


def log(x: ScalarExpr) -> ScalarExpr:
    """The natural logarithm."""
    parts = split(x)
    f, tail = _log1p(parts)
    k, (high, low) = parts.exponent, LN2[x.dtype]
    return _special(x, k * high + (f + (k * low + tail)))


def log2(x: ScalarExpr) -> ScalarExpr:
    """The logarithm to base 2: k + log(m) * log2(e)."""
    parts = split(x)
    f, tail = _log1p(parts)
    return _special(x, (f + tail) * LOG2_E + parts.exponent)


def _log1p(parts: SignificandAndExponent) -> tuple[ScalarExpr, ScalarExpr]:
    """log(m) as a sum f + tail, f exact."""
    f = parts.significand - 1.0
    if f.dtype is dtypes.float32:
        return f, f * f * horner(f, _P32)
    s = f / (f + 2.0)
    z = s * s
    half_square = f * f * 0.5
    # log(1 + f) = f - half_square + s (half_square + z R(z))
    return f, s * (half_square + z * horner(z, _R64)) - half_square


def _special(x: ScalarExpr, result: ScalarExpr) -> ScalarExpr:
    """`result` for finite x > 0; else infinity, NaN, -infinity at either zero."""
    finite = where(x < float("inf"), result, x)
    return where(x.const(0.0) < x, finite, where(x.equals(0.0), x.const(float("-inf")), float("nan")))
