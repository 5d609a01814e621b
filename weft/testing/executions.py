"""The work that lowered loops do, counted without running them, beside what their algorithm states.

A schedule may compute a value again wherever it is used, and be right: no comparison of results tells. A count does.

    for i in 1000: for j in 1000: s(0) = 0; for k in 1000: s(0) += x[i, k]; y[i, j] = s(0)
    executed: 1000**3 additions; stated: 1000**2
"""
# Tests: tests/scheduler/optimize/test_executions.py

from __future__ import annotations

from weft.ir import expr as ex
from weft.ir.expr import Load, ScalarCall
from weft.ir.graph import elements
from weft.ir.index import high
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.loops import Accumulate, Block, If, Let, Loop, Program, Stmt, Store
from weft.ir.ops import CONVERSIONS
from weft.scheduler.kernelize.count import operations


def stated(a: Algorithm) -> int:
    """Operations of the algorithm, and an execution for each point of each of its items."""
    points = sum(high(elements(tuple(axis.extent for axis in i.all_axes))) for i in a.items)
    return high(operations(a)) + points


def executed(p: Program) -> int:
    """Executions of the program's statements, and of the operations in them. Loops run as long as they may; guards
    always hold. An operation is taken out of the innermost loops that it does not depend on, as passes do."""
    return _block(p.body, ())


def _block(body: Block, around: tuple[Loop, ...]) -> int:
    return sum(_statement(s, around) for s in body)


def _statement(s: Stmt, around: tuple[Loop, ...]) -> int:
    match s:
        case Loop():
            return _block(s.body, (*around, s))
        case If():
            return _block(s.body, around)
        case Store() | Accumulate() | Let():
            total = _times(around)
            for e in ex.walk([s.value]):
                if isinstance(e, ScalarCall) and e.op not in CONVERSIONS:
                    total += e.op.info.cost * _times(_needed(e, around))
            return total
        case _:
            return 0


def _times(around: tuple[Loop, ...]) -> int:
    return high(elements(tuple(loop.extent for loop in around)))


def _needed(e: ex.Expr, around: tuple[Loop, ...]) -> tuple[Loop, ...]:
    """The loops around an operation without the innermost ones in which it stays the same."""
    names = ex.names_of(e)
    loads = {x.source for x in ex.walk([e]) if isinstance(x, Load)}
    inner = len(around)
    while inner and around[inner - 1].var.name not in names and not loads & _changed(around[inner - 1].body):
        inner -= 1
    return around[:inner]


def _changed(body: Block) -> set[str]:
    """The buffers that the block stores to."""
    found: set[str] = set()
    for s in body:
        match s:
            case Loop() | If():
                found |= _changed(s.body)
            case Store() | Accumulate():
                found.add(s.buffer)
            case _:
                pass
    return found
