"""Strength reduction: cheaper operations of exactly the same result.

    integers:  x // 8, x % 8, x * 8           ->   x >> 3, x & 7, x << 3
               x ** 3                         ->   (x * x) * x
    floats:    x / 4.0                        ->   x * 0.25
               pow(x, 2.0), pow(x, -1.0)      ->   x * x, recip(x)

A float is divided by multiplying only where the reciprocal is exact, which it is for powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, ScalarCall, call, transform
from weft.ir.loops import Program
from weft.ir.ops import Op
from weft.ir.passes.rewrite import index_map, map_block, with_body

_LARGEST_EXPONENT = 16


def reduce_strength(p: Program) -> Program:
    """`p` with cheaper operations where they give the same."""
    memo: dict[Expr, Expr] = {}

    def expr(e: Expr) -> Expr:
        return transform(e, _cheaper, None, memo)

    index = index_map(expr)
    return with_body(p, map_block(p.body, expr, index))


def _cheaper(e: Expr) -> Expr | None:
    if not isinstance(e, ScalarCall) or len(e.args) != 2:
        return None
    x, c = e.args
    rule = _RULES.get(e.op)
    if rule is None:
        return None
    if isinstance(c, Const):
        return rule(e.dtype, x, c.value)
    if e.op is Op.MUL and isinstance(x, Const):
        return rule(e.dtype, c, x.value)
    return None


def _power(d: DType, value: int | float) -> int | None:
    """k where the integer constant is 2**k."""
    if not d.is_int or isinstance(value, float) or value <= 0 or value & (value - 1):
        return None
    return value.bit_length() - 1


def _floordiv(d: DType, x: Expr, c: int | float) -> Expr | None:
    k = _power(d, c)
    return None if k is None else call(Op.SHR, x, Const(d, k)) if k else x


def _mod(d: DType, x: Expr, c: int | float) -> Expr | None:
    return None if _power(d, c) is None else call(Op.AND, x, Const(d, int(c) - 1))


def _mul(d: DType, x: Expr, c: int | float) -> Expr | None:
    k = _power(d, c)
    return None if not k else call(Op.SHL, x, Const(d, k))


def _div(d: DType, x: Expr, c: int | float) -> Expr | None:
    if c == 0 or not math.isfinite(c) or math.frexp(abs(c))[0] != 0.5:
        return None
    inverse = Const(d, 1.0 / c)
    smallest = {16: 2.0**-14, 32: 2.0**-126, 64: 2.0**-1022}[d.bits]
    if not smallest <= abs(float(inverse.value)) < math.inf:
        return None
    return call(Op.MUL, x, inverse)


def _pow(d: DType, x: Expr, c: int | float) -> Expr | None:
    if d.is_float:
        if c == 0:
            return Const(d, 1)
        if c == -1:
            return call(Op.RECIP, x)
        return x if c == 1 else call(Op.MUL, x, x) if c == 2 else None
    if not 0 <= c <= _LARGEST_EXPONENT:
        return None
    result: Expr = Const(d, 1)
    n = int(c)
    while n:
        result = call(Op.MUL, result, x) if n & 1 else result
        x, n = (call(Op.MUL, x, x), n >> 1) if n > 1 else (x, 0)
    return result


_RULES: dict[Op, Callable[[DType, Expr, int | float], Expr | None]] = {
    Op.FLOORDIV: _floordiv,
    Op.MOD: _mod,
    Op.MUL: _mul,
    Op.DIV: _div,
    Op.POW: _pow,
}
