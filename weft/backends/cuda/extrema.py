"""Limits as maxima and minima, which GPUs from sm_80 on have one instruction for that keeps NaNs.

where(x < c, c, x)  ->  max(x, c)          where(c < x, c, x)  ->  min(x, c)         f32, c a constant but 0 and NaN
"""
# Tests: tests/backends/cuda/test_kernels.py

from __future__ import annotations

import math

from weft.ir import dtypes
from weft.ir.expr import Const, Expr, ScalarCall, call, transform
from weft.ir.loops import Program
from weft.ir.ops import Op
from weft.ir.passes.rewrite import index_map, map_block, with_body


def with_extrema(grid: Program) -> Program:
    """The grid with its limits so written."""
    memo: dict[Expr, Expr] = {}

    def leaf(e: Expr) -> Expr | None:
        limited = _limit(e)
        return None if limited is None else call(limited[0], expr(limited[1]), limited[2])

    def expr(e: Expr) -> Expr:
        return transform(e, leaf, memo=memo)

    return with_body(grid, map_block(grid.body, expr, index_map(expr)))


def _limit(e: Expr) -> tuple[Op, Expr, Const] | None:
    """The extremum that a choice is, its operand and its limit."""
    if not isinstance(e, ScalarCall) or e.op is not Op.WHERE or e.dtype is not dtypes.float32:
        return None
    test, chosen, other = e.args
    if not isinstance(test, ScalarCall) or test.op is not Op.LT or not isinstance(chosen, Const):
        return None
    if not chosen.value or math.isnan(float(chosen.value)):  # zeros have signs
        return None
    if test.args == (other, chosen):
        return Op.MAX, other, chosen
    return (Op.MIN, other, chosen) if test.args == (chosen, other) else None
