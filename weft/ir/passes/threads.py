"""One THREAD loop of a block's body: which buffers stay shared, and which move into each thread's registers.

See grid.py, whose middle part this is.
"""

from __future__ import annotations

from dataclasses import replace

from weft.ir.expr import Const, Expr, Load, walk
from weft.ir.index import (
    Guard,
    Index,
    InRange,
    Int,
    Sum,
    Var,
    both,
    bounds,
    ceildiv,
    floordiv,
    high,
    mod,
    variables,
)
from weft.ir.kernel.lower import identity
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Block,
    Buffer,
    Combine,
    If,
    Loop,
    LoopKind,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import every, roots
from weft.ir.passes.rewrite import Fresh, map_accesses, substituted
from weft.lazy_dataclass import dataclass

OWN_ELEMENTS = 64
"""The largest buffer of which every thread makes a copy of its own."""

PRIVATE_ELEMENTS = 512
"""The largest part of a buffer that moves into one thread's registers."""


def most_threads(body: Block) -> int:
    """The most threads that the block keeps busy."""
    most = 1
    for s in body:
        if isinstance(s, Loop | If):
            inner = most_threads(s.body)
            if isinstance(s, Loop) and s.kind in (LoopKind.THREAD, LoopKind.ACROSS):
                assert isinstance(s.extent, int)
                inner *= max(1, s.extent)
            most = max(most, inner)
    return most


@dataclass(frozen=True, slots=True)
class _Access:
    """One access: its offset, the thread loops around it as (variable, threads per iteration, extent), and whether
    a single thread makes it."""

    offset: Int
    path: tuple[tuple[Var, int, int], ...]
    alone: bool
    writes: bool


@dataclass(frozen=True, slots=True)
class _Private:
    """The layout of a buffer in registers: of the offset's parts below each `hi`, from `lo` on, times `scale`."""

    gaps: tuple[tuple[int, int, int], ...]
    size: int

    def part(self, coefficient: int) -> int | None:
        """The factor in registers of a term with this factor."""
        for lo, hi, scale in self.gaps:
            if lo <= coefficient < hi and coefficient % lo == 0:
                return coefficient // lo * scale
        return None


class ThreadLoop:
    """Makes one THREAD loop of a block's body; `shared` are the buffers that stay LOCAL."""

    def __init__(self, body: Block, threads: int, fresh: Fresh) -> None:
        self.shared: list[Buffer] = []
        self.fresh = fresh
        self.buffers = {s.buffer.name: s.buffer for s in every(body) if isinstance(s, Alloc)}
        self.found: dict[str, list[_Access]] = {n: [] for n in self.buffers}
        self.survey(body, (), threads)
        self.own = {n for n, b in self.buffers.items() if b.scope is Scope.REGISTER or self.is_own(b)}
        self.private: dict[str, _Private] = {}
        self.grouped: set[str] = set()
        """The private buffers of which each thread of a group has a copy, that all of them fill."""
        for n, b in self.buffers.items():
            if n in self.own:
                continue
            if (layout := self.layout(b, False)) is not None:
                self.private[n] = layout
            elif (layout := self.layout(b, True)) is not None:
                self.private[n] = layout
                self.grouped.add(n)

    # what the buffers are used for

    def survey(self, body: Block, path: tuple[tuple[Var, int, int], ...], capacity: int) -> None:
        for s in body:
            match s:
                case Loop() if s.kind is LoopKind.THREAD:
                    assert isinstance(s.extent, int)
                    inner = most_threads(s.body)
                    self.survey(s.body, (*path, (s.var, inner, s.extent)), inner)
                case Loop(kind=LoopKind.ACROSS):
                    self.survey_across(s, path, capacity)
                case Loop() | If():
                    self.survey(s.body, path, capacity)
                case _:
                    pass
            for e in walk(roots(s)):
                if isinstance(e, Load) and e.source in self.found:
                    self.found[e.source].append(_Access(e.index[0], path, capacity == 1, False))
            if isinstance(s, Store | Accumulate) and s.buffer in self.found:
                self.found[s.buffer].append(_Access(s.offset, path, capacity == 1, True))

    def survey_across(self, s: Loop, path: tuple[tuple[Var, int, int], ...], capacity: int) -> None:
        """Each term is one thread's; the sum is all their's, if these are all that there are."""
        assert isinstance(s.extent, int)
        one = (*path, (s.var, 1, s.extent))
        for x in s.body:
            assert isinstance(x, Accumulate)
            for e in walk(roots(x)):
                if isinstance(e, Load) and e.source in self.found:
                    self.found[e.source].append(_Access(e.index[0], one, True, False))
            if x.buffer in self.found:
                everybody = capacity == s.extent
                self.found[x.buffer].append(_Access(x.offset, path if everybody else one, False, True))

    def is_own(self, b: Buffer) -> bool:
        """Small, and only filled where all threads do the same."""
        return high(b.size) <= OWN_ELEMENTS and all(not a.path for a in self.found[b.name] if a.writes)

    def layout(self, b: Buffer, groups: bool) -> _Private | None:
        """The buffer's place in registers, where each element belongs to one thread, or, if asked, to a group of
        threads that all fill it alike: the inner loops over threads around an access are within the group."""
        if b.scope is not Scope.LOCAL or not isinstance(b.size, int):
            return None
        digits: set[tuple[tuple[int, int, int], ...]] = set()
        rests: list[list[tuple[int, int]]] = []
        for a in self.found[b.name]:
            if not a.path or not (a.alone or groups):
                return None
            terms, const = _terms(a.offset)
            if const:
                return None
            place = {v: (inner, n) for v, inner, n in a.path}
            mine = [(c, *place[t]) for t, c in terms if isinstance(t, Var) and t in place]
            group = min((inner for _, inner, n in mine if n > 1), default=0)
            others = [(inner, n) for v, inner, n in a.path if n > 1 and all(v != t for t, _ in terms)]
            if others and (not groups or a.writes or any(inner * n > group for inner, n in others)):
                return None
            rest: list[tuple[int, int]] = []
            for t, c in terms:
                if isinstance(t, Var) and t in place:
                    continue
                lo, hi = bounds(t)
                if lo < 0 or c < 0 or t.computed or any(v in place for v in variables(t)):
                    return None
                rest.append((c, hi))
            digits.add(_merged([d for d in mine if d[2] > 1]))
            rests.append(rest)
        if len(digits) != 1:
            return None
        return _gaps(next(iter(digits)), rests, b.size)

    # one loop of them

    def block(self, body: Block, local: Int, capacity: int) -> Block:
        """`body` as thread number `local` of `capacity` runs it."""
        out: list[Stmt] = []
        for s in body:
            match s:
                case Loop() if s.kind is LoopKind.THREAD:
                    out += self.part(s, local, capacity)
                case Loop(kind=LoopKind.ACROSS):
                    out += self.across(s, local, capacity)
                case Loop() | If():
                    out.append(replace(s, body=self.block(s.body, local, capacity)))
                case Alloc():
                    out += self.alloc(s)
                case Store() | Accumulate() if capacity > 1 and not self.everywhere(s.buffer):
                    out.append(replace(s, guard=both(s.guard, _first(local))))
                case _:
                    out.append(s)
        return tuple(out)

    def part(self, s: Loop, local: Int, capacity: int) -> list[Stmt]:
        assert isinstance(s.extent, int)
        inner = most_threads(s.body)
        count = inner * s.extent
        body = substituted(s.body, {s.var: floordiv(local, inner) if s.extent > 1 else 0})
        body = self.block(body, mod(local, inner), inner)
        return list(body) if count == capacity else _some(body, (InRange(local, None, count),))

    def everywhere(self, name: str) -> bool:
        """True where all threads that come to a statement that fills the buffer fill their own copies."""
        return name in self.own or name in self.grouped

    def across(self, s: Loop, local: Int, capacity: int) -> list[Stmt]:
        """One term of each thread, combined; the first thread adds it where the sum is in memory."""
        assert isinstance(s.extent, int)
        out: list[Stmt] = []
        for x in substituted(s.body, {s.var: mod(local, s.extent)}):
            assert isinstance(x, Accumulate)
            lane = Buffer(self.fresh.name(f"{x.buffer}_lane"), x.value.dtype, 1, Scope.REGISTER)
            out += [
                Alloc(lane),
                Store(lane.name, 0, identity(x.op, lane.dtype)),
                Store(lane.name, 0, x.value),
            ]
            out.append(Combine(lane.name, 0, x.op, s.extent))
            guard = () if self.everywhere(x.buffer) else _first(local)
            out.append(Accumulate(x.buffer, x.offset, x.op, Load(lane.dtype, lane.name, (0,)), guard))
        return out if s.extent == capacity else _some(tuple(out), (InRange(local, None, s.extent),))

    def in_registers(self, body: Block) -> Block:
        """Accesses to private buffers at their place in registers; thread variables do not count there."""
        for name, layout in self.private.items():
            body = _privatized(body, name, layout)
        return body

    def alloc(self, s: Alloc) -> list[Stmt]:
        b = s.buffer
        if b.scope is Scope.REGISTER:
            return [s]
        if b.name in self.own:
            return [Alloc(replace(b, scope=Scope.REGISTER))]
        if b.name in self.private:
            return [Alloc(replace(b, scope=Scope.REGISTER, size=self.private[b.name].size))]
        self.shared.append(b)
        return []


def _terms(x: Int) -> tuple[list[tuple[Index, int]], int]:
    if isinstance(x, int):
        return [], x
    return (list(x.terms), x.const) if isinstance(x, Sum) else ([(x, 1)], 0)


def _some(body: Block, guard: Guard) -> list[Stmt]:
    """`body` where the guard holds; but all threads come to where some combine what they have."""
    lanes = {s.buffer for s in body if isinstance(s, Combine)}
    out: list[Stmt] = []
    guarded: list[Stmt] = []
    for s in body:
        start = isinstance(s, Store) and s.buffer in lanes and isinstance(s.value, Const)
        if lanes and (start or isinstance(s, Alloc | Combine)):
            out += [If(guard, tuple(guarded))] if guarded else []
            out.append(s)
            guarded.clear()
        else:
            guarded.append(s)
    return [*out, If(guard, tuple(guarded))] if guarded else out


def _first(local: Int) -> Guard:
    return (InRange(local, None, 1),)


def _merged(digits: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Digits of an offset that threads' numbers make up, (factor, threads per step, extent): 32*(t//32) + t%32 is t."""
    out: list[tuple[int, int, int]] = []
    for c, inner, n in sorted(digits):
        if out and (c, inner) == (out[-1][0] * out[-1][2], out[-1][1] * out[-1][2]):
            out[-1] = (out[-1][0], out[-1][1], out[-1][2] * n)
        else:
            out.append((c, inner, n))
    return tuple(out)


def _gaps(
    digits: tuple[tuple[int, int, int], ...], rests: list[list[tuple[int, int]]], size: int
) -> _Private | None:
    """The parts of an offset between those that the threads' numbers make up; None where they cannot be told apart."""
    gaps: list[tuple[int, int, int]] = []
    lo, scale = 1, 1
    for c, _, n in digits:
        if c < lo or c % lo:
            return None
        if c > lo:
            gaps.append((lo, c, scale))
            scale *= c // lo
        lo = c * n
    top = int(ceildiv(size, lo))
    if top > 1:
        gaps.append((lo, lo * top, scale))
        scale *= top
    layout = _Private(tuple(gaps), scale)
    for rest in rests:
        sums = dict.fromkeys(gaps, 0)
        for c, hi in rest:
            home = next((g for g in gaps if g[0] <= c < g[1] and c % g[0] == 0), None)
            if home is None:
                return None
            sums[home] += c * hi
        if any(total >= g[1] for g, total in sums.items()):
            return None
    return layout if layout.size <= PRIVATE_ELEMENTS else None


def _privatized(body: Block, name: str, layout: _Private) -> Block:
    def offset(x: Int) -> Int:
        terms, _ = _terms(x)
        total: Int = 0
        for t, c in terms:
            part = layout.part(c)
            if part is not None:
                total = total + t * part
        return total

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.source == name:
            return Load(e.dtype, name, (offset(e.index[0]),), e.guard)
        return None

    return map_accesses(body, name, load, offset)
