"""The pass that replaces calls of elementary functions by what they are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from functools import partial
from typing import TypeAlias

from weft.ir import dtypes
from weft.ir.expr import Expr, ScalarCall, cast, transform
from weft.ir.loops import Program
from weft.ir.math.error_function import erf
from weft.ir.math.exponential import exp, exp2
from weft.ir.math.float8 import converted, stored_as_bytes
from weft.ir.math.hyperbolic import expm1, tanh
from weft.ir.math.integer_power import integer_power
from weft.ir.math.logarithm import log, log2
from weft.ir.math.power import power
from weft.ir.math.threefry import threefry
from weft.ir.math.trigonometric import cos, sin
from weft.ir.math.value import FORMATS, ScalarExpr
from weft.ir.ops import ELEMENTWISE, EXPANDED, Op
from weft.ir.passes.rewrite import index_map, map_block, with_body

Expansion: TypeAlias = Callable[[ScalarCall], Expr]


def _expansion(f: Callable[..., ScalarExpr]) -> Expansion:
    """`f` on the operands of a call. 16-bit floats are computed in float32 and rounded."""

    def expand_call(c: ScalarCall) -> Expr:
        if c.dtype in FORMATS:
            return f(*map(ScalarExpr, c.args)).expr
        return cast(f(*(ScalarExpr(cast(a, dtypes.float32)) for a in c.args)).expr, c.dtype)

    return expand_call


EXPANSIONS: dict[Op, Expansion] = {
    Op.EXP: _expansion(exp),
    Op.EXP2: _expansion(exp2),
    Op.EXPM1: _expansion(expm1),
    Op.LOG: _expansion(log),
    Op.LOG2: _expansion(log2),
    Op.SIN: _expansion(sin),
    Op.COS: _expansion(cos),
    Op.TANH: _expansion(tanh),
    Op.ERF: _expansion(erf),
    Op.POW: _expansion(power),
}
"""Elementary function of floats -> the same in arithmetic, comparisons, selects, bit operations and conversions."""

_INTEGER: dict[Op, Expansion] = {Op.POW: integer_power, Op.THREEFRY: threefry}

NEEDED: frozenset[Op] = ELEMENTWISE - EXPANDED - {Op.FMA}
"""Elementwise ops that every device renders, on every dtype that loops allow: nothing makes them of others."""

WITHOUT_UINT64: dict[Op, Expansion] = EXPANSIONS | {
    Op.SIN: _expansion(partial(sin, wide=False)),
    Op.COS: _expansion(partial(cos, wide=False)),
}
"""The same for devices without 64-bit integers, on float32 and 16-bit floats."""


def expand(program: Program, native: Set[Op], expansions: Mapping[Op, Expansion] = EXPANSIONS) -> Program:
    """The program with every function in `expansions` expanded, but for the ops in `native`; others are left alone.

    8-bit floats are gone as well: they are bytes, and what converts them is written out.
    """
    memo: dict[Expr, Expr] = {}

    def expr(e: Expr) -> Expr:
        return expand_expr(e, native, expansions, memo)

    out = with_body(program, map_block(program.body, expr, index_map(expr)))
    small = any(e.dtype.is_float8 for e in memo) or any(b.dtype.is_float8 for b in program.params)
    return stored_as_bytes(out) if small else out


def expand_expr(
    e: Expr,
    native: Set[Op],
    expansions: Mapping[Op, Expansion] = EXPANSIONS,
    memo: dict[Expr, Expr] | None = None,
) -> Expr:
    """`expand` for one expression. One memo keeps sharing over several."""

    def leaf(x: Expr) -> Expr | None:
        if not isinstance(x, ScalarCall):
            return None
        if x.op is Op.CAST:
            return converted(x)
        if x.op in native:
            return None
        rule = _INTEGER.get(x.op) if x.dtype.is_int else expansions.get(x.op)
        return None if rule is None else rule(x)

    return transform(e, leaf, memo=memo)
