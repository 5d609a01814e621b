"""erf: x + x P(x**2) for |x| < 1, and 1 - R(|x| - 2)**8 above.

The eighth root of erfc falls almost linearly to zero, so R is a short polynomial, and raising it to the eighth power
costs three multiplications. P and R are minimax in the relative error that they leave in erf.
"""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.math.value import ScalarExpr, at_most, flip_sign, horner, sign_of, where

# erf rounds to 1 from here on
_LIMIT = {dtypes.float32: 3.9296875, dtypes.float64: 5.9375}
_P = {
    dtypes.float32: (
        0.12837916612625122, -0.3761262595653534, 0.11283578723669052, -0.026853347197175026,
        0.005187162198126316, -0.0007997853099368513, 7.806903886375949e-05,
    ),
    dtypes.float64: (
        0.12837916709551256, -0.37612638903183343, 0.11283791670936948, -0.026866170641958034,
        0.005223977596719216, -0.0008548325483699561, 0.00012055280437619562, -1.4924464004770365e-05,
        1.6444122608157021e-06, -1.6183704695985088e-07, 1.361509354382277e-08, -7.60403796703236e-10,
    ),
}  # fmt: skip
_R = {
    dtypes.float32: (
        0.5113925933837891, -0.2824268341064453, 0.01893961988389492, 0.017206113785505295,
        -0.0028071897104382515, -0.0006704143597744405, 0.0001799507299438119, 1.5919113138807006e-05,
    ),
    dtypes.float64: (
        0.5113926144390637, -0.2824268506987057, 0.01893803288352151, 0.017202182837792214,
        -0.0028042265487165114, -0.0006558404193540382, 0.00018642978659083346, 7.132847190935649e-06,
        -5.973402281846919e-06, 1.7575234491988178e-07, 1.1369059974068212e-07, -1.384710642265991e-09,
        -4.055210029358492e-09, 4.787182462848367e-10, 3.8631791338442246e-11, -2.0489341361467442e-11,
        4.058002002528407e-12, -3.754264059048005e-13,
    ),
}  # fmt: skip


def erf(x: ScalarExpr) -> ScalarExpr:
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""
    below = x * horner(x * x, _P[x.dtype]) + x
    root = horner(at_most(abs(x), _LIMIT[x.dtype]) - 2.0, _R[x.dtype])
    square = root * root
    fourth = square * square
    above = flip_sign(x.const(1.0) - fourth * fourth, sign_of(x))
    return where(abs(x) < 1.0, below, above)
