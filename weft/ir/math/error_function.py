"""erf: x + x P(x**2) for |x| < 1, and 1 - R(|x| - 2)**8 above.

The eighth root of erfc falls almost linearly to zero, so R is a short polynomial, and raising it to the eighth power
costs three multiplications. P and R are minimax in the relative error that they leave in erf.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.math.value import Value, at_most, flip_sign, horner, sign_of, where

# erf rounds to 1 from here on
_LIMIT = {dtypes.float32: 3.9296875, dtypes.float64: 5.9375}
_P = {
    dtypes.float32: (
        0.12837916612625122, -0.3761262595653534, 0.11283578723669052, -0.026853347197175026, 0.005187162198126316,
        -0.0007997853099368513, 7.806903886375949e-05,
    ),
    dtypes.float64: (
        0.12837916709551256, -0.37612638903183343, 0.11283791670936945, -0.02686617064195715, 0.005223977596709647,
        -0.0008548325483242712, 0.00012055280428730529, -1.4924464038438388e-05, 1.6444127135214404e-06,
        -1.6183783819329365e-07, 1.361568416516506e-08, -7.605703063724141e-10,
    ),
}  # fmt: skip
_R = {
    dtypes.float32: (
        0.5113925933837891, -0.2824268341064453, 0.01893961988389492, 0.017206106334924698, -0.0028072120621800423,
        -0.0006704243714921176, 0.00017997076793108135, 1.593437082192395e-05,
    ),
    dtypes.float64: (
        0.5113926144390637, -0.28242685069870554, 0.018938032883521153, 0.01720218283778723, -0.002804226548712462,
        -0.0006558404193080908, 0.00018642978657938057, 7.132847013723457e-06, -5.9734022612267184e-06,
        1.7575269745708128e-07, 1.1369055684673233e-07, -1.3850835670663836e-09, -4.055128329752511e-09,
        4.789169975625105e-10, 3.855614703010329e-11, -2.052711600129471e-11, 4.0828891183398625e-12,
        -3.7903702770840533e-13,
    ),
}  # fmt: skip


def erf(x: Value) -> Value:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    below = x * horner(x * x, _P[x.dtype]) + x
    root = horner(at_most(abs(x), _LIMIT[x.dtype]) - 2.0, _R[x.dtype])
    square = root * root
    fourth = square * square
    above = flip_sign(x.const(1.0) - fourth * fourth, sign_of(x))
    return where(abs(x) < 1.0, below, above)
