"""Loops that end early: iterations in which no guard can hold any more, so that nothing is stored, are left out.

    for i in 64:                                      for i in min(64, (n + 15)//16):
      vector j in 16:                                   vector j in 16:
        y[16*i + j] = x[16*i + j] if 16*i + j < n  ->     y[16*i + j] = x[16*i + j] if 16*i + j < n

So a task as large as a typical size needs takes the time of the size that there is. An accumulation whose term is the
operation's identity where a guard fails counts as guarded: the last terms of a sum are zeros there. What is stored in
a buffer of the program's own behind all that is read of it counts as nothing, too: a panel has no more rows than a sum
has terms. Done for serial loops whose every effect on what outlives an iteration ends; `peel` then frees the rest of
guards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from functools import reduce
from operator import is_

from weft.ir.dtypes import DType
from weft.ir.expr import Const, Expr, Load, ScalarCall, Test
from weft.ir.index import Guard, InRange, Int, Var, coefficient, floordiv, high, maximum, minimum, variables
from weft.ir.kernel.lower import identity
from weft.ir.loops import (
    LANE_KINDS,
    Accumulate,
    Alloc,
    Block,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Prefetch,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import body_of, every, roots
from weft.ir.ops import Op
from weft.ir.passes.facts import at_least_zero
from weft.ir.passes.peel import clamped, lower_bound, substituted
from weft.ir.passes.rewrite import with_body


def clip(p: Program) -> Program:
    """`p` without the last iterations of loops that change nothing."""
    sums = _sums(p)
    clipped = with_body(p, _Clip(sums).block(p.body, frozenset()))
    return with_body(clipped, _Clip(sums, reads=True).block(clipped.body, frozenset()))


def _sums(p: Program) -> frozenset[str]:
    """The buffers of the program's own that never hold -0.0, to which adding 0.0 would make a difference: sums that
    begin at constants."""
    own, other = set[str](), set[str]()
    for s in every(p.body):
        match s:
            case Alloc():
                own.add(s.buffer.name)
            case Store() if not (isinstance(s.value, Const) and s.value is not _negative_zero(s.value.dtype)):
                other.add(s.buffer)
            case Accumulate() if s.op is not Op.ADD:
                other.add(s.buffer)
            case _:
                pass
    return frozenset(own - other)


def _negative_zero(dtype: DType) -> Const | None:
    return Const(dtype, -0.0) if dtype.is_floating_point else None


class _Clip:
    def __init__(self, sums: frozenset[str], reads: bool = False) -> None:
        """`reads`: ends by what is read count, in loops that end by guards already."""
        self.sums, self.reads = sums, reads
        self.last: dict[str, Int] = {}
        """The last element that is read of each buffer in memory that is allocated around."""

    def block(self, body: Block, lanes: Set[str]) -> Block:
        """`lanes`: the variables that differ between lanes and threads, on which no extent may depend."""
        out: list[Stmt] = []
        for k, s in enumerate(body):
            if isinstance(s, Alloc) and self.reads and s.buffer.scope is not Scope.REGISTER:
                last = _last_read(body[k + 1 :], s.buffer.name)
                if last is not None:
                    self.last[s.buffer.name] = last
            if isinstance(s, Loop):
                apart = s.kind in LANE_KINDS or s.kind is LoopKind.THREAD
                s = s.around(self.block(s.body, lanes | {s.var.name} if apart else lanes))
                s = self.clipped(s, lanes) if s.kind is LoopKind.SERIAL else s
            elif isinstance(s, If):
                s = s.around(self.block(s.body, lanes))
            out.append(s)
        return body if all(map(is_, out, body)) else tuple(out)

    def clipped(self, s: Loop, lanes: Set[str]) -> Loop:
        """The loop without the iterations after its last effect."""
        end: Int | None = None
        for e in self.ends(s.body, s.var, (), set(), body_of(s).bound | lanes):
            if e is None:
                return s
            end = e if end is None else maximum(end, e)
        if end is None:
            return s  # dead code
        if minimum(s.extent, end) == s.extent:
            return s
        extent = clamped(minimum(s.extent, end))
        var = Var(s.var.name, 0, high(extent) - 1)
        return Loop(var, extent, substituted(s.body, s.var, var), s.kind)

    def ends(
        self, body: Block, v: Var, guard: Guard, local: set[str], inner: Set[str]
    ) -> Iterator[Int | None]:
        """For each effect on what outlives an iteration: the value of `v` from which on it does nothing; None where
        none is known. `local`: buffers of the iteration's own."""
        for s in body:
            match s:
                case Let() | Prefetch():
                    pass
                case Alloc():
                    local.add(s.buffer.name)
                case Loop():
                    yield from self.ends(s.body, v, guard, local, inner)
                case If():
                    yield from self.ends(s.body, v, (*guard, *s.guard), local, inner)
                case Store() | Accumulate():
                    if s.buffer not in local:
                        terms = self.identity_guard(s) if isinstance(s, Accumulate) else ()
                        if s.buffer in self.last and _is_outermost(s.offset, v):
                            terms = (*terms, InRange(s.offset, None, self.last[s.buffer] + 1))
                        yield _end((*guard, *s.guard, *terms), v, inner)
                case _:
                    yield None

    def identity_guard(self, s: Accumulate) -> Guard:
        """The conditions without which the accumulated value changes nothing."""
        value = s.value
        if s.op is Op.ADD and value.dtype.is_floating_point and s.buffer not in self.sums:
            return ()
        nothing = identity(s.op, value.dtype)
        match value:
            case ScalarCall(op=Op.WHERE, args=(Test() as test, _, other)) if other is nothing:
                return test.guard
            case Load() if nothing is Const(value.dtype, 0):
                return value.guard
            case _:
                return ()


def _end(guard: Guard, v: Var, inner: Set[str]) -> Int | None:
    """The value of `v` from which on a guard fails, whatever the inner variables are; None where none is known."""
    found: list[Int] = []
    for c in guard:
        if c.hi is not None:
            for part in at_least_zero(c.hi - c.value - 1):
                step = coefficient(part, v)
                if step is not None and step < 0:
                    most = -lower_bound(v * step - part, inner)
                    found.append(floordiv(most - step, -step))
    return reduce(minimum, found) if found else None


def _last_read(body: Block, name: str) -> Int | None:
    """The last element of a buffer that a block reads, in terms of what is around it; None where that is not known, or
    differs. An accumulation reads what it writes, which nobody else needs to."""
    found: list[Int] = []
    for s, loops, guard in _with_loops(body, (), ()):
        if isinstance(s, Combine) and s.buffer == name:
            return None
        for at, where in _reads(
            roots(s), (*guard, *s.guard) if isinstance(s, Store | Accumulate) else guard, name
        ):
            last = _largest(at, loops)
            for c in where:
                if c.hi is not None and isinstance(gap := c.value - at, int):
                    last = minimum(_largest(c.hi - 1 - gap, loops), last)
            if last not in found:
                found.append(last)
    return found[0] if len(found) == 1 else None


def _reads(exprs: Sequence[Expr], guard: Guard, name: str) -> Iterator[tuple[Int, Guard]]:
    """The elements of a buffer that expressions read, each with the conditions under which its value counts."""
    todo = [(e, guard) for e in exprs]
    seen = set[tuple[Expr, Guard]]()
    while todo:
        e, conditions = at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        match e:
            case Load() if e.source == name:
                yield e.index[0], (*conditions, *e.guard)
            case ScalarCall(op=Op.WHERE, args=(Test() as test, inside, other)):
                todo += [(inside, (*conditions, *test.guard)), (other, conditions), (test, ())]
                continue
            case _:
                pass
        own = e.operands()
        todo += [(x, conditions) for x in own]
        todo += [(x, ()) for x in e.parts if x not in own]  # an index is computed in any case


def _is_outermost(x: Int, v: Var) -> bool:
    """True where no other variable counts for more in `x`: a loop inside ends where the outermost one's does."""
    step = coefficient(x, v) or 0
    return all(abs(coefficient(x, o) or 0) <= step for o in variables(x))


def _with_loops(
    body: Block, loops: tuple[Loop, ...], guard: Guard
) -> Iterator[tuple[Stmt, tuple[Loop, ...], Guard]]:
    """Each statement, with the loops around it and the conditions under which it runs."""
    for s in body:
        yield s, loops, guard
        match s:
            case Loop():
                yield from _with_loops(s.body, (*loops, s), guard)
            case If():
                yield from _with_loops(s.body, loops, (*guard, *s.guard))
            case _:
                pass


def _largest(x: Int, loops: Sequence[Loop]) -> Int:
    """An upper bound of `x` in terms of what is around the loops."""
    for s in reversed(loops):
        step = coefficient(x, s.var)
        if step is None:
            x = -lower_bound(-x, {s.var.name})
        elif step:
            x = x - s.var * step + (s.extent - 1) * max(step, 0)
    return x
