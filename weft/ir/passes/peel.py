"""Loop partition: where a guard in the innermost work fails only in a loop's first or last iterations, those run apart.

    for i in 7:                                     for i in 6:
      vector j in 16:                                 vector j in 16:
        y[16*i + j] = x[16*i + j]           ->          y[16*i + j] = x[16*i + j]
                      if 16*i + j < 100             vector j_0 in 16:
                                                      y[j_0 + 96] = x[j_0 + 96] if j_0 < 4

A serial loop is split in up to three; in a parallel loop the body is chosen by an If. The conditions that the main
part is free of are dropped there; the rest keeps all of them. Done where it frees a statement of the deepest loops of
all the bounds that it would check anew in each iteration, for at least half of the split loop's iterations (if that
is known), and where the program does not grow beyond a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from functools import reduce
from operator import is_
from typing import TypeAlias

from weft.ir.expr import Expr, Load, Test, test, transform, walk
from weft.ir.index import (
    Guard,
    Index,
    InRange,
    Int,
    Max,
    Min,
    Opaque,
    Sum,
    Var,
    atoms,
    ceildiv,
    coefficient,
    floordiv,
    high,
    low,
    maximum,
    minimum,
    variables,
)
from weft.ir.loops import LANE_KINDS, Accumulate, Block, If, Loop, LoopKind, Program, Stmt, Store
from weft.ir.loops_names import body_of, inside, roots
from weft.ir.passes.facts import at_least_zero
from weft.ir.passes.rewrite import Fresh, copy_block, index_map, map_block, with_body
from weft.lazy_dataclass import dataclass

_GROWTH = 4
_ALWAYS_ALLOWED = 64
_SMALLEST_DYNAMIC = 8
_PARTS = (LoopKind.SERIAL, LoopKind.PARALLEL)


def peel(p: Program) -> Program:
    """`p` with loops split where that frees the innermost work of guards."""
    size = inside(p.body).count
    worker = _Peel(Fresh(p), max(size * (_GROWTH - 1), _ALWAYS_ALLOWED))
    return with_body(p, worker.block(p.body))


@dataclass(frozen=True, slots=True)
class _Cut:
    """The iterations start .. stop - 1 of a loop are free of the conditions in `lows` and `highs`: of their lower
    and upper bounds."""

    start: Int
    stop: Int
    lows: frozenset[InRange]
    highs: frozenset[InRange]


Half: TypeAlias = tuple[InRange, bool]
"""A condition, and whether its lower bound is meant, or its upper."""


class _Peel:
    def __init__(self, fresh: Fresh, budget: int) -> None:
        self.fresh, self.budget = fresh, budget
        self.lanes: frozenset[str] = (
            frozenset()
        )  # variables that differ between lanes and threads: no extent may

    def block(self, body: Block) -> Block:
        out: list[Stmt] = []
        for s in body:
            match s:
                case Loop():
                    out += self.loop(s)
                case If():
                    out.append(self.within(s))
                case _:
                    out.append(s)
        return body if len(out) == len(body) and all(map(is_, out, body)) else tuple(out)

    def within(self, s: Loop | If) -> Stmt:
        body = self.block(s.body)
        return s.around(body)

    def loop(self, s: Loop) -> list[Stmt]:
        if s.kind in (*LANE_KINDS, LoopKind.THREAD):
            outer, self.lanes = self.lanes, self.lanes | {s.var.name}
            new = self.within(s)
            self.lanes = outer
            return [new]
        cut = find_cut(s, self.lanes) if s.kind in _PARTS else None
        if cut is not None:
            cost = body_of(s).count * ((cut.start != 0) + (cut.stop != s.extent))
            if cost <= self.budget:
                self.budget -= cost
                return self.split(s, cut) if s.kind is LoopKind.SERIAL else self.choose(s, cut)
        return [self.within(s)]

    def split(self, s: Loop, cut: _Cut) -> list[Stmt]:
        """Up to three loops, one after another."""
        out: list[Stmt] = []
        if cut.start != 0:
            out += self.rest(s, 0, cut.start)
        extent = cut.stop - cut.start
        var = Var(s.var.name, 0, high(extent) - 1)
        main = substituted(without(s.body, cut), s.var, cut.start + var)
        out.append(Loop(var, extent, self.block(main), s.kind))
        if cut.stop != s.extent:
            out += self.rest(s, cut.stop, s.extent - cut.stop)
        return out

    def rest(self, s: Loop, start: Int, extent: Int) -> list[Stmt]:
        if extent == 1:
            return list(self.block(copy_block(s.body, self.fresh, {s.var.name: start})))
        var = Var(self.fresh.name(s.var.name + "_"), 0, high(extent) - 1)
        return [Loop(var, extent, copy_block(s.body, self.fresh, {s.var.name: start + var}), s.kind)]

    def choose(self, s: Loop, cut: _Cut) -> list[Stmt]:
        """One loop, in whose body Ifs tell the iterations apart."""
        body: list[Stmt] = []
        if cut.start != 0:
            body.append(If((InRange(s.var, None, cut.start),), copy_block(s.body, self.fresh)))
        lo, hi = (None if cut.start == 0 else cut.start), (None if cut.stop == s.extent else cut.stop)
        body.append(If((InRange(s.var, lo, hi),), self.block(without(s.body, cut))))
        if hi is not None:
            body.append(If((InRange(s.var, hi, None),), copy_block(s.body, self.fresh)))
        return [replace(s, body=tuple(body))]


def find_cut(s: Loop, lanes: frozenset[str] = frozenset()) -> _Cut | None:
    """The iterations of a loop that free some innermost statement of conditions, if worth splitting for.

    The cut does not depend on the variables `lanes`.
    """
    inner = body_of(s).bound | lanes
    start: Int = 0
    stop: Int = s.extent
    lows, highs = set[InRange](), set[InRange]()
    for halves in dict.fromkeys(innermost_conditions(s)):
        first, last = start, stop
        mine = [(c, low_side) for c, low_side in halves if _uses(s.var, _gap(c, low_side))]
        if not mine or not all(_elsewhere(s.body, h) for h in halves if h not in mine):
            continue
        if s.kind is LoopKind.PARALLEL and all(_ends_inside(s.body, s.var, h) for h in mine):
            continue  # what is short there is split in the loop that ends with it, once for all iterations
        for c, low_side in mine:
            limits = _free(_gap(c, low_side), s.var, inner)
            if limits is None:
                break
            first, last = maximum(first, limits[0]), last if limits[1] is None else minimum(last, limits[1])
        else:
            if _worth(s, first, last):
                start, stop = first, last
                lows |= {c for c, low_side in mine if low_side}
                highs |= {c for c, low_side in mine if not low_side}
    if not lows and not highs:
        return None
    stop = clamped(stop)
    return _Cut(minimum(start, stop), stop, frozenset(lows), frozenset(highs))


def clamped(x: Int) -> Int:
    """max(x, 0), where x may be the least of several: each of them once, and none that another never exceeds."""
    parts, least = [x], list[Int]()
    while parts:
        part = parts.pop()
        if isinstance(part, Max) and 0 in (part.a, part.b):
            parts.append(part.b if part.a == 0 else part.a)
        elif isinstance(part, Min):
            parts += (part.a, part.b)
        elif all(minimum(part, other) != other for other in least):
            least = [other for other in least if minimum(part, other) != part]
            least.append(part)
    return maximum(reduce(minimum, reversed(least)), 0)


def _elsewhere(body: Block, half: Half) -> bool:
    """A loop inside can be split where this bound begins to fail."""
    for s in body:
        if isinstance(s, Loop) and (
            (
                s.kind in _PARTS
                and _uses(s.var, _gap(*half))
                and _free(_gap(*half), s.var, body_of(s).bound) is not None
            )
            or _elsewhere(s.body, half)
        ):
            return True
    return False


def _ends_inside(body: Block, v: Var, half: Half) -> bool:
    """A serial loop inside, whose extent follows `v`, can be split where this bound begins to fail."""
    for s in body:
        if isinstance(s, Loop):
            own = s.kind is LoopKind.SERIAL and _uses(v, s.extent) and _uses(s.var, _gap(*half))
            if own and _free(_gap(*half), s.var, body_of(s).bound) is not None:
                return True
        if isinstance(s, Loop | If) and _ends_inside(s.body, v, half):
            return True
    return False


def _gap(c: InRange, low_side: bool) -> Int:
    """The expression that is >= 0 where the lower or the upper bound of the condition holds."""
    if low_side:
        return c.value - (0 if c.lo is None else c.lo)
    return (0 if c.hi is None else c.hi) - c.value - 1


def _free(gap: Int, v: Var, inner: Set[str]) -> tuple[Int, Int | None] | None:
    """(first, end) of the values of `v` for which gap >= 0 whatever the inner variables are; None if not known."""
    first: Int = 0
    end: Int | None = None
    for part in at_least_zero(gap):
        step = coefficient(part, v)
        if step is None:
            return None
        worst = lower_bound(part - v * step, inner)
        if step > 0:
            first = maximum(first, ceildiv(-worst, step))
        elif step < 0:
            here = floordiv(worst, -step) + 1
            end = here if end is None else minimum(end, here)
        elif not low(worst) >= 0:
            return None
    return None if first == 0 and end is None else (first, end)


def lower_bound(x: Int, inner: Set[str]) -> Int:
    """A lower bound of `x` that is free of the names bound inside and of computed values."""
    if isinstance(x, int):
        return x
    terms, const = (x.terms, x.const) if isinstance(x, Sum) else (((x, 1),), 0)
    out: Int = const
    for atom, c in terms:
        changing = any(isinstance(a, Opaque) or (isinstance(a, Var) and a.name in inner) for a in atoms(atom))
        out = out + ((atom.lo if c > 0 else atom.hi) * c if changing else atom * c)
    return out


def _worth(s: Loop, start: Int, stop: Int) -> bool:
    if isinstance(s.extent, int) and isinstance(start, int) and isinstance(stop, int):
        return stop > start and (stop - start) * 2 >= s.extent and stop - start < s.extent
    return high(s.extent) >= _SMALLEST_DYNAMIC


def innermost_conditions(s: Loop) -> Iterator[tuple[Half, ...]]:
    """For each statement in the deepest loops of `s`: the bounds that it checks anew in each iteration of the serial
    loop around it."""
    leaves = list(_leaves(s.body, 0, (s.var,), ()))
    deepest = max((depth for depth, _, _, _ in leaves), default=0)
    for depth, leaf, own, around in leaves:
        if depth != deepest:
            continue
        conditions = dict.fromkeys(around)
        if isinstance(leaf, Store | Accumulate):
            conditions.update(dict.fromkeys(leaf.guard))
        for e in walk(roots(leaf)):
            if isinstance(e, Load | Test):
                conditions.update(dict.fromkeys(e.guard))
        lows = [
            (c, True) for c in conditions if c.lo is not None and any(_uses(v, c.value, c.lo) for v in own)
        ]
        highs = [
            (c, False) for c in conditions if c.hi is not None and any(_uses(v, c.value, c.hi) for v in own)
        ]
        if lows or highs:
            yield (*lows, *highs)


def _uses(v: Var, *of: Int) -> bool:
    return any(v in variables(i) for i in of)


def _leaves(
    body: Block, depth: int, own: tuple[Var, ...], around: Guard
) -> Iterator[tuple[int, Stmt, tuple[Var, ...], Guard]]:
    """Each plain statement with the number of loops around it, the variables of the innermost serial loop and of the
    unrolled and vector loops in it, and the Ifs' guards."""
    for s in body:
        match s:
            case Loop():
                inner = (s.var,) if s.kind in _PARTS else (*own, s.var)
                yield from _leaves(s.body, depth + 1, inner, around)
            case If():
                yield from _leaves(s.body, depth, own, (*around, *s.guard))
            case _:
                yield depth, s, own, around


def without(body: Block, cut: _Cut) -> Block:
    """The body less the conditions that the cut has made certain."""

    def guard(g: Guard) -> Guard:
        out: list[InRange] = []
        for c in g:
            lo, hi = (None if c in cut.lows else c.lo), (None if c in cut.highs else c.hi)
            if lo is not None or hi is not None:
                out.append(c if lo is c.lo and hi is c.hi else InRange(c.value, lo, hi))
        return tuple(out)

    def leaf(e: Expr) -> Expr | None:
        match e:
            case Load() if e.guard:
                return Load(e.dtype, e.source, e.index, guard(e.guard))
            case Test():
                return test(guard(e.guard))
            case _:
                return None

    memo: dict[Expr, Expr] = {}

    def expr(e: Expr) -> Expr:
        return transform(e, leaf, None, memo)

    def statements(block: Block) -> Iterator[Stmt]:
        for s in block:
            match s:
                case Store() | Accumulate():
                    yield s.over(s.offset, s.value, guard(s.guard))
                case If():
                    yield If(guard(s.guard), tuple(statements(s.body)))
                case Loop():
                    yield s.around(tuple(statements(s.body)))
                case _:
                    yield s

    return tuple(statements(map_block(body, expr, index_map(expr))))


def substituted(body: Block, v: Var, value: Int) -> Block:
    """The body with an index variable replaced."""
    memo: dict[Expr, Expr] = {}

    def variable(i: Index) -> Int | None:
        return value if i == v else None

    def expr(e: Expr) -> Expr:
        return transform(e, lambda _: None, variable, memo)

    return _narrowed(map_block(body, expr, index_map(expr, variable)))


def _narrowed(body: Block) -> Block:
    """The body with loops whose extents have a lower bound now over variables that know it."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            var = Var(s.var.name, 0, high(s.extent) - 1)
            inner = _narrowed(s.body) if var == s.var else substituted(s.body, s.var, var)
            s = s if inner is s.body else Loop(var, s.extent, inner, s.kind)
        elif isinstance(s, If):
            s = s.around(_narrowed(s.body))
        out.append(s)
    return body if all(map(is_, out, body)) else tuple(out)
