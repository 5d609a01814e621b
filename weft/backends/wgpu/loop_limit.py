"""Kernels for drivers that end all loops of a kernel after so many iterations.

Mesa's llvmpipe lets one invocation run 65,535 iterations of all its loops together, and then goes on behind them, which
gives wrong results without a word. Innermost loops of a kernel that would need more are written out in steps:

    for i in 65536: s            ->   for o in 4096: unroll u in 16: s[i = 16*o + u]

What needs more still is refused.
"""

from __future__ import annotations

from dataclasses import replace

from weft.backends.clike.body import MAX_COPIES, copies
from weft.backends.wgpu.pairs import DIVISION_STEPS, is_pair
from weft.ir.expr import ScalarCall, walk
from weft.ir.index import Var, high
from weft.ir.loops import Block, If, Loop, LoopKind, Program
from weft.ir.loops_names import roots
from weft.ir.ops import Op
from weft.ir.passes.rewrite import substituted

LIMITED_DRIVERS = ("llvmpipe",)
LIMIT = 65_000
FACTOR = 16
REMAINDER = 34
"""Iterations that a remainder of floats may take."""


def iterations(body: Block) -> int:
    """The most iterations of loops that one invocation runs."""
    total = 0
    for s in body:
        inner = sum(_steps_of(e) for e in walk(roots(s)) if isinstance(e, ScalarCall))
        match s:
            case Loop(kind=LoopKind.VECTOR):
                inner += high(s.extent) * iterations(s.body)
            case Loop(kind=LoopKind.UNROLL) if copies((s,)) <= MAX_COPIES:
                inner += high(s.extent) * iterations(s.body)
            case Loop():
                inner += high(s.extent) * (1 + iterations(s.body))
            case If():
                inner += iterations(s.body)
            case _:
                pass
        total += inner
    return total


def _steps_of(call: ScalarCall) -> int:
    """Iterations that are behind one operation: remainders of floats, divisions of pairs of words."""
    if call.op is Op.MOD and call.dtype.is_float:
        return REMAINDER
    return DIVISION_STEPS if call.op in (Op.MOD, Op.FLOORDIV) and is_pair(call.dtype) else 0


def shortened(grid: Program) -> Program:
    """The grid with its innermost loops in steps, if it runs too many iterations."""
    if iterations(grid.body) - _grid_iterations(grid) <= LIMIT:
        return grid
    return replace(grid, body=_stepped(grid.body))


def too_long(grid: Program) -> bool:
    """True where the grid runs too many iterations in spite of that."""
    return iterations(_inner(grid)) > LIMIT


def _inner(grid: Program) -> Block:
    """The statements that one thread runs."""
    body = grid.body
    while len(body) >= 1 and isinstance(s := body[-1], Loop) and s.kind in (LoopKind.BLOCK, LoopKind.THREAD):
        body = s.body
    return body


def _grid_iterations(grid: Program) -> int:
    return iterations(grid.body) - iterations(_inner(grid))


def _stepped(body: Block) -> Block:
    out: Block = ()
    for s in body:
        if isinstance(s, If):
            out = (*out, If(s.guard, _stepped(s.body)))
        elif isinstance(s, Loop):
            out = (*out, *_steps(s))
        else:
            out = (*out, s)
    return out


def _steps(s: Loop) -> Block:
    n = s.extent
    if any(isinstance(x, Loop | If) for x in s.body) or s.kind is not LoopKind.SERIAL:
        return (replace(s, body=_stepped(s.body)),)
    if not isinstance(n, int) or n < 2 * FACTOR:
        return (s,)
    steps, rest = divmod(n, FACTOR)
    outer, inner = Var(f"{s.var.name}_step", 0, steps - 1), Var(f"{s.var.name}_in", 0, FACTOR - 1)
    unrolled = Loop(inner, FACTOR, substituted(s.body, {s.var: outer * FACTOR + inner}), LoopKind.UNROLL)
    out: Block = (Loop(outer, steps, (unrolled,)),)
    if rest:
        last = Var(f"{s.var.name}_rest", 0, rest - 1)
        out = (*out, Loop(last, rest, substituted(s.body, {s.var: last + steps * FACTOR})))
    return out
