"""Settling which products are rounded before they are added: by what was summed, not by what schedules made of it.

    acc[i] += fma(a, b, -0)                      acc[i] = fma(a, b, acc[i])
    acc[i] += where(c, fma(a, b, -0), 0)   ->    acc[i] = fma(where(c, a, 0), where(c, b, 0), acc[i])
    acc[i] += a * b                              acc[i] += fma(a, b, -0)   (which backends do not contract)

In pinned kernels lowering writes the products of a contraction as `fma(a, b, -0)`, which no pass takes for another
product. Where one was given a name, it is written out again: all of its operands are the same there.
"""
# Tests: tests/scheduler/test_pinned.py

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from weft.ir.expr import Const, Expr, Load, ScalarCall, Temp, bits, const, transform, where
from weft.ir.loops import Accumulate, Block, If, Let, Loop, Program, Stmt, Store
from weft.ir.loops_names import every
from weft.ir.numerics import rounded_product
from weft.ir.ops import Op
from weft.ir.passes.fma import contract
from weft.ir.passes.rewrite import with_body

Expansion: TypeAlias = Callable[[ScalarCall], Expr]


def settle_products(p: Program) -> Program:
    """`p` with the products of contractions in sight of each sum, and all others out of sight."""
    lets = {s.name: s.value for s in every(p.body) if isinstance(s, Let)}

    def block(body: Block) -> Block:
        return tuple(map(stmt, body))

    def stmt(s: Stmt) -> Stmt:
        match s:
            case Loop() | If():
                return s.around(block(s.body))
            case Accumulate(op=Op.ADD) if s.value.dtype.is_float:
                return _settled(s, lets)
            case _:
                return s

    return with_body(p, block(p.body))


def _settled(s: Accumulate, lets: dict[str, Expr]) -> Stmt:
    """The sum with its product, if it adds one, rounded as it is to be."""
    factors = _factors(s.value, lets)
    if factors is not None:
        so_far = Load(s.value.dtype, s.buffer, (s.offset,))
        return Store(s.buffer, s.offset, ScalarCall(s.value.dtype, Op.FMA, (*factors, so_far)), s.guard)
    if isinstance(s.value, ScalarCall) and s.value.op is Op.MUL:
        return replace(s, value=rounded_product(*s.value.operands()))
    return s


def _factors(e: Expr, lets: dict[str, Expr]) -> tuple[Expr, Expr] | None:
    """The factors of a contraction's product, each zero where a condition leaves the product out."""
    e = lets.get(e.name, e) if isinstance(e, Temp) else e
    if not isinstance(e, ScalarCall):
        return None
    if e.op is Op.FMA:
        a, b, c = e.operands()
        return (a, b) if isinstance(c, Const) and bits(c.value) == bits(-0.0) else None
    if e.op is Op.WHERE:
        test, inside, outside = e.operands()
        found = _factors(inside, lets)
        if found is None or not isinstance(outside, Const) or outside.value != 0:
            return None
        a, b = (where(test, x, const(x.dtype, 0)) for x in found)
        return a, b
    return None


def fused(expansions: Mapping[Op, Expansion]) -> Mapping[Op, Expansion]:
    """The expansions with multiply-adds contracted within each function, whatever is around its calls."""
    return {op: partial(_fused, rule) for op, rule in expansions.items()}


def _fused(rule: Expansion, c: ScalarCall) -> Expr:
    args = {Temp(a.dtype, f"argument{k}"): a for k, a in enumerate(c.args)}
    plain = rule(ScalarCall(c.dtype, c.op, tuple(args)))
    (made,) = contract(Program(c.op.name, (), frozenset(), (), (Store("result", 0, plain),))).body
    assert isinstance(made, Store)
    return transform(made.value, lambda e: args.get(e) if isinstance(e, Temp) else None)
