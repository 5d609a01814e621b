"""Powers of integers by squaring: exact modulo the width, as repeated multiplication wraps."""

from __future__ import annotations

from weft.ir.dtypes import Kind
from weft.ir.expr import Expr, ScalarCall
from weft.ir.math.value import ScalarExpr, where


def integer_power(e: ScalarCall) -> Expr:
    """base ** exponent, one step per bit of the exponent; `e` is POW on integers.

    A negative exponent gives 0, unless the base is 1 or -1.
    """
    base, exponent = (ScalarExpr(a) for a in e.args)
    signed = e.dtype.kind is Kind.INT
    one = base.const(1)
    result, square = one, base
    for k in range(e.dtype.bits - signed):
        odd = ((exponent >> k) & 1).differs(0)
        result = where(odd, result * square, result)
        square = square * square
    if not signed:
        return result.expr
    minus = where((exponent & 1).differs(0), base, one)
    unit = where(base.equals(1), one, where(base.equals(-1), minus, 0))
    return where(exponent < 0, unit, result).expr
