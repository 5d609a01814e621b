"""A program as launches of GPU grids: each one BLOCK loop around one THREAD loop, with barriers.

    block b in 8:                                     block b in 8:
      alloc tile: f32[64] local                         alloc tile: f32[64] local
      alloc acc:  f32[64] local                         thread t in 64:
      for k in 8:                               ->        alloc acc: f32[1] register
        thread i in 64: tile[i] = x[64*k + i]             for k in 8:
        thread j in 64: acc[j] += tile[63 - j]              barrier
      thread l in 64: y[64*b + l] = acc[l]                  tile[t] = x[64*k + t]
                                                            barrier
                                                            acc[0] += tile[63 - t]
                                                          y[64*b + t] = acc[0]

Loops over threads that stand one after another become parts of one: iteration i of each runs on thread i. A LOCAL
buffer of which every element is only touched by one thread moves into that thread's registers. What stands outside
of all thread loops is done by every thread alike where it fills buffers that are then each thread's own, else by the
first one. What several grids of the program share lives in scratch buffers.

An ACROSS loop inside thread loops goes over neighbouring threads: each brings its term in a register, and they combine
them there. A buffer that only such groups of threads fill and read is each thread's own, like the others:

    thread i in 8: thread j in 32: part[32*i + j] = x[32*i + j]       part[0] = x[t]
    thread k in 8: top[k] = -inf                                  ->  top[0] = -inf
      across r in 32: top[k] max= part[32*k + r]                      lane[0] = part[0]; combine lane[0] max= of 32
    thread l in 8: thread m in 32: y[32*l + m] = top[l]               top[0] max= lane[0]; y[t] = top[0]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from weft.ir.expr import Const, Expr, Load, Temp, transform, walk
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
    coefficient,
    floordiv,
    high,
    mod,
    variables,
)
from weft.ir.kernel.lower import identity
from weft.ir.loops import (
    LANE_KINDS,
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import Names, every, roots, written
from weft.ir.passes.rewrite import Fresh, index_map, map_stmt

MAX_THREADS = 1024
"""Of one block."""

OWN_ELEMENTS = 64
"""The largest buffer of which every thread makes a copy of its own."""

PRIVATE_ELEMENTS = 512
"""The largest part of a buffer that moves into one thread's registers."""


@dataclass(frozen=True, slots=True)
class Launches:
    """The grids in order. Their parameters are the program's and `scratch`, which is uninitialized before the first.

    Every grid's body is one BLOCK loop; in it LOCAL allocations, then one THREAD loop of constant extent.
    """

    grids: tuple[Program, ...]
    scratch: tuple[Buffer, ...]


def launches(p: Program, local_bytes: int, max_threads: int = MAX_THREADS, warp: int = 1) -> Launches:
    """`p` as launches with at most `max_threads` and `local_bytes` of LOCAL buffers per block; the rest is scratch.

    `warp`: how many threads run in step and can exchange registers; with 1, no threads combine what they have.
    """
    return _Splitter(p, local_bytes, max_threads, warp).split()


@dataclass(slots=True)
class _Region:
    """Statements that one grid runs, after the bindings that they need."""

    body: list[Stmt]
    is_grid: bool


class _Splitter:
    def __init__(self, p: Program, local_bytes: int, max_threads: int, warp: int) -> None:
        self.p, self.local_bytes, self.max_threads, self.warp = p, local_bytes, max_threads, warp
        self.names, self.fresh = Names(), Fresh(p)
        self.scratch: dict[str, Buffer] = {}

    def split(self) -> Launches:
        regions = self.regions()
        grids = [self.grid(r, k) for k, r in enumerate(regions)]
        return Launches(tuple(grids), tuple(self.scratch.values()))

    def regions(self) -> list[_Region]:
        """The top-level statements, each loop over blocks by itself; allocations and bindings where they are used."""
        out: list[_Region] = []
        allocs: dict[str, Buffer] = {}
        lets: dict[str, tuple[Let, int]] = {}  # and the region that computes it
        for s in self.p.body:
            match s:
                case Alloc():
                    allocs[s.buffer.name] = s.buffer
                case Loop(kind=LoopKind.BLOCK):
                    out.append(_Region([s], True))
                case _:
                    if not out or out[-1].is_grid:
                        out.append(_Region([], False))
                    out[-1].body.append(s)
                    if isinstance(s, Let):
                        lets[s.name] = (s, len(out) - 1)
        used = [self.used(r.body) for r in regions] if (regions := out) else []
        for name, (let, home) in lets.items():
            for k, region in enumerate(out):
                if k > home and name in used[k]:
                    self.carry(let, out[home], region)
        used = [self.used(r.body) for r in out]
        for name, b in allocs.items():
            users = [k for k, names in enumerate(used) if name in names]
            if len(users) == 1 and b.scope is not Scope.GLOBAL and not out[users[0]].is_grid:
                out[users[0]].body.insert(0, Alloc(b))
            elif users:
                self.scratch[name] = replace(b, scope=Scope.GLOBAL)
        return [r for r in out if any(not isinstance(s, Let | Alloc) for s in r.body)] or out[:1]

    def used(self, body: list[Stmt]) -> set[str]:
        out: set[str] = set()
        for s in every(tuple(body)):
            out |= self.names.of_stmt(s)
        return out

    def carry(self, let: Let, home: _Region, region: _Region) -> None:
        """A value computed in one region and used in another goes through one element of scratch memory."""
        name = f"{let.name}_kept"
        if name not in self.scratch:
            self.scratch[name] = Buffer(name, let.value.dtype, 1, Scope.GLOBAL)
            at = home.body.index(let)
            home.body.insert(at + 1, Store(name, 0, Temp(let.value.dtype, let.name)))
        region.body.insert(0, Let(let.name, Load(let.value.dtype, name, (0,))))

    def grid(self, region: _Region, number: int) -> Program:
        """One region, normalized."""
        count, body = _blocks(region, self.fresh)
        block = Var(self.fresh.name("block"), 0, max(high(count) - 1, 0))
        mapping, body = body
        body = substituted(body, {v: e for v, e in mapping(block).items() if v != block})
        body = _across(_limited(_plain(body), self.max_threads), self.warp, True, False)
        threads = _capacity(body)
        if any(isinstance(s, Loop) and s.kind is LoopKind.ACROSS for s in every(body)):
            threads = -(-threads // self.warp) * self.warp
        thread = Var(self.fresh.name("thread"), 0, threads - 1)
        fused = _Fusion(body, threads, self.fresh)
        kept = {n for n in fused.buffers if n not in fused.own and n not in fused.private}
        # what one part writes to global memory and another reads or writes, as a fill and the updates after it
        met = _read(body) | _written_again(body)
        exchanged = kept | (self.p.writes & met) | (set[str]() if region.is_grid else set(self.scratch))
        body = _Barriers(exchanged, fused.own, self.names).block(fused.in_registers(body), _Pending())
        inner = _promoted(fused.block(body, thread if threads > 1 else 0, threads), self.fresh)
        whole = (*(Alloc(b) for b in fused.shared), Loop(thread, threads, inner, LoopKind.THREAD))
        name = f"{self.p.name}_{number}" if number else self.p.name
        return self.within_limit(self.program(name, (Loop(block, count, whole, LoopKind.BLOCK),)))

    def program(self, name: str, body: Block) -> Program:
        """A program over those parameters and scratch buffers that the body uses."""
        used = self.used(list(body))
        params = tuple(b for b in (*self.p.params, *self.scratch.values()) if b.name in used)
        writes = written(body) & {b.name for b in params}
        return Program(name, params, frozenset(writes), self.p.variables, body)

    def within_limit(self, p: Program) -> Program:
        """The largest LOCAL buffers as slices of scratch buffers, until the rest fits."""
        outer = p.body[0]
        assert isinstance(outer, Loop)
        local = sorted(
            (s.buffer for s in outer.body if isinstance(s, Alloc)),
            key=lambda b: high(b.size) * b.dtype.itemsize,
        )
        body = outer.body
        while local and sum(_padded_bytes(b) for b in local) > self.local_bytes:
            b = local.pop()
            assert isinstance(b.size, int)
            self.scratch[b.name] = Buffer(b.name, b.dtype, b.size * high(outer.extent), Scope.GLOBAL)
            body = tuple(s for s in body if not (isinstance(s, Alloc) and s.buffer is b))
            body = _moved(body, b.name, outer.var * b.size)
        return p if body is outer.body else self.program(p.name, (replace(outer, body=body),))


def _read(body: Block) -> set[str]:
    """The buffers that are read, or accumulated in."""
    out: set[str] = set()
    for s in every(body):
        out |= {e.source for e in walk(roots(s)) if isinstance(e, Load)}
        if isinstance(s, Accumulate):
            out.add(s.buffer)
    return out


def _written_again(body: Block) -> set[str]:
    """The buffers that more than one statement stores into."""
    stores = [s.buffer for s in every(body) if isinstance(s, Store | Accumulate)]
    return {n for n in stores if stores.count(n) > 1}


def _padded_bytes(b: Buffer) -> int:
    return int(ceildiv(high(b.size) * b.dtype.itemsize, 64)) * 64


_Bind = Callable[[Int], Mapping[Var, Int]]


def _blocks(region: _Region, fresh: Fresh) -> tuple[Int, tuple[_Bind, Block]]:
    """How many blocks; what the loops' variables are in terms of the block's number; what each block does."""
    if not region.is_grid:
        return 1, (lambda _: {}, tuple(region.body))
    loops: list[Loop] = []
    lets = tuple(s for s in region.body if not isinstance(s, Loop))
    body: Block = (region.body[-1],)
    while len(body) == 1 and isinstance(s := body[0], Loop) and s.kind is LoopKind.BLOCK:
        loops.append(s)
        body = s.body
    count: Int = 1
    for s in loops:
        count = count * s.extent

    def bind(block: Int) -> Mapping[Var, Int]:
        out: dict[Var, Int] = {}
        rest = block
        for s in reversed(loops[1:]):
            if s.extent == 1:
                out[s.var] = 0
            else:
                out[s.var], rest = mod(rest, s.extent), floordiv(rest, s.extent)
        out[loops[0].var] = rest
        return out

    return count, (bind, (*lets, *body))


def substituted(body: Block, mapping: Mapping[Var, Int]) -> Block:
    """The block with index variables replaced everywhere."""
    if not mapping:
        return body
    memo: dict[Expr, Expr] = {}

    def on_index(x: Index) -> Int | None:
        return mapping.get(x) if isinstance(x, Var) else None

    def on_expr(e: Expr) -> Expr:
        return transform(e, lambda _: None, on_index, memo)

    return _mapped(body, on_expr, index_map(on_expr, on_index))


def _mapped(body: Block, expr: Callable[[Expr], Expr], index: Callable[[Int], Int]) -> Block:
    out: list[Stmt] = []
    for s in body:
        new = map_stmt(s, expr, index)
        out.append(replace(new, body=_mapped(new.body, expr, index)) if isinstance(new, Loop | If) else new)
    return tuple(out)


def _moved(body: Block, name: str, by: Int) -> Block:
    """Every access to buffer `name`, `by` elements on."""

    def leaf(e: Expr) -> Expr | None:
        return (
            Load(e.dtype, name, (e.index[0] + by,), e.guard)
            if isinstance(e, Load) and e.source == name
            else None
        )

    return _accesses(body, name, leaf, lambda offset: offset + by)


def _accesses(
    body: Block, name: str, load: Callable[[Expr], Expr | None], offset: Callable[[Int], Int]
) -> Block:
    memo: dict[Expr, Expr] = {}

    def on_expr(e: Expr) -> Expr:
        return transform(e, load, None, memo)

    on_index = index_map(on_expr)

    def visit(block: Block) -> Block:
        out: list[Stmt] = []
        for s in block:
            new = map_stmt(s, on_expr, on_index)
            if isinstance(new, Store | Accumulate) and new.buffer == name:
                new = replace(new, offset=offset(new.offset))
            out.append(replace(new, body=visit(new.body)) if isinstance(new, Loop | If) else new)
        return tuple(out)

    return visit(body)


def _plain(body: Block) -> Block:
    """Without barriers, which are placed anew; tasks inside a block, and threads of unknown number, in order."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop):
            tasks = s.kind in (LoopKind.BLOCK, LoopKind.PARALLEL)
            unknown = s.kind is LoopKind.THREAD and not isinstance(s.extent, int)
            out.append(replace(s, body=_plain(s.body), kind=LoopKind.SERIAL if tasks or unknown else s.kind))
        elif isinstance(s, If):
            out.append(If(s.guard, _plain(s.body)))
        elif not isinstance(s, Barrier):
            out.append(s)
    return tuple(out)


def _capacity(body: Block) -> int:
    """How many threads the block keeps busy at most."""
    most = 1
    for s in body:
        if isinstance(s, Loop | If):
            inner = _capacity(s.body)
            if isinstance(s, Loop) and s.kind in (LoopKind.THREAD, LoopKind.ACROSS):
                assert isinstance(s.extent, int)
                inner *= max(1, s.extent)
            most = max(most, inner)
    return most


def _across(body: Block, warp: int, possible: bool, in_threads: bool) -> Block:
    """ACROSS loops as vector loops, unless their iterations can be neighbouring threads of a warp.

    They can in loops over threads that hold nothing but such loops and plain stores, so that all threads come there.
    """
    out: list[Stmt] = []
    for s in body:
        match s:
            case Loop(kind=LoopKind.ACROSS):
                out.append(s if possible and _in_step(s, warp) else replace(s, kind=LoopKind.VECTOR))
            case Loop(kind=LoopKind.THREAD):
                inner = _across(s.body, warp, possible, True)
                groups = [x for x in every(inner) if isinstance(x, Loop) and x.kind is LoopKind.ACROSS]
                plain = all(isinstance(x, Store | Accumulate | Alloc | Loop) for x in inner)
                if groups and not (plain and _capacity(inner) % max(high(x.extent) for x in groups) == 0):
                    inner = _across(s.body, warp, False, True)
                out.append(replace(s, body=inner))
            case Loop():
                alike = isinstance(s.extent, int) or not s.extent.computed
                inside = (
                    possible and not in_threads and s.kind in (LoopKind.SERIAL, LoopKind.UNROLL) and alike
                )
                out.append(replace(s, body=_across(s.body, warp, inside, in_threads)))
            case If():
                out.append(If(s.guard, _across(s.body, warp, False, in_threads)))
            case _:
                out.append(s)
    return tuple(out)


def _in_step(s: Loop, warp: int) -> bool:
    """Whether the loop's iterations may be threads: as many as divide a warp, each with one term of each sum."""
    n = s.extent
    if not isinstance(n, int) or n < 2 or n & (n - 1) or n > warp or warp % n:
        return False
    for x in s.body:
        if not isinstance(x, Accumulate) or x.guard or (not isinstance(x.offset, int) and x.offset.computed):
            return False
        if s.var in variables(x.offset):
            return False
    return True


def _limited(body: Block, most: int) -> Block:
    """Outer loops over threads run in order where the block would have too many."""
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop | If):
            s = replace(s, body=_limited(s.body, most))
            if isinstance(s, Loop) and s.kind is LoopKind.THREAD and _capacity((s,)) > most:
                s = replace(s, kind=LoopKind.SERIAL)
        out.append(s)
    return tuple(out)


_Steps: TypeAlias = dict[str, set[int | None]]
"""By buffer: thread t accesses element step * t; None is any other access."""


@dataclass(slots=True)
class _Pending:
    """The buffers that some thread stored to, or read, since the last barrier."""

    stored: _Steps = field(default_factory=dict[str, set[int | None]])
    read: _Steps = field(default_factory=dict[str, set[int | None]])

    def add(self, other: _Pending) -> None:
        for mine, more in ((self.stored, other.stored), (self.read, other.read)):
            for name, steps in more.items():
                mine[name] = mine.get(name, set()) | steps

    def copy(self) -> _Pending:
        out = _Pending()
        out.add(self)
        return out

    def clear(self) -> None:
        self.stored.clear()
        self.read.clear()

    def meets(self, later: _Pending) -> bool:
        """Whether order matters between these accesses and later ones."""
        return any(
            _may_meet(a, b)
            for mine, other in (
                (self.stored, later.read),
                (self.stored, later.stored),
                (self.read, later.stored),
            )
            for name, a in mine.items()
            if (b := other.get(name)) is not None
        )


def _may_meet(a: set[int | None], b: set[int | None]) -> bool:
    """Whether threads may meet: not where each has an element of its own, the same in all accesses."""
    both_ = a | b
    return len(both_) > 1 or None in both_


class _Barriers:
    """Barriers between a block's parts: iterations of one loop over threads need none among themselves."""

    def __init__(self, shared: Set[str], own: Set[str], names: Names) -> None:
        self.shared, self.own, self.names = shared, own, names

    def block(self, body: Block, pending: _Pending) -> Block:
        """The block with barriers; `pending` is what is pending before it, and then after it."""
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop | If) and _has_parts(s, self.shared, self.own):
                before = pending.copy()
                inner = self.block(s.body, pending)
                pending.add(before)  # it may not run at all; a loop comes round again
                if isinstance(s, Loop):
                    inner = self.block(inner, pending)
                    pending.add(before)
                out.append(replace(s, body=inner))
                continue
            if isinstance(s, Barrier):
                pending.clear()
            touched = self.touched(s)
            if pending.meets(touched):
                out.append(Barrier())
                pending.clear()
            pending.add(touched)
            out.append(s)
        return tuple(out)

    def touched(self, s: Stmt) -> _Pending:
        out = _Pending()
        row = s.var if isinstance(s, Loop) and s.kind is LoopKind.THREAD and _capacity(s.body) == 1 else None

        def note(steps: _Steps, name: str, offset: Int) -> None:
            step = coefficient(offset, row) if row is not None else None
            own = step and row is not None and offset == row * step
            steps.setdefault(name, set()).add(step if own else None)

        for x in every((s,)):
            if isinstance(x, Store | Accumulate) and x.buffer in self.shared:
                note(out.stored, x.buffer, x.offset)
            for e in walk(roots(x)):
                if isinstance(e, Load) and e.source in self.shared:
                    note(out.read, e.source, e.index[0])
        return out


def _has_parts(s: Loop | If, shared: Set[str], own: Set[str]) -> bool:
    """Whether several threads take part in the statement in turns: order may matter inside it."""
    if isinstance(s, Loop) and s.kind is LoopKind.THREAD:
        return False
    inside = list(every(s.body))
    if any(isinstance(x, Loop) and x.kind is LoopKind.THREAD for x in inside):
        return True
    stored = {x.buffer for x in inside if isinstance(x, Store | Accumulate)} & shared
    return bool(stored) and any(isinstance(x, Store | Accumulate) and x.buffer in own for x in inside)


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
    """How a buffer's elements lie in registers: of the offset's parts below each `hi`, from `lo` on, times `scale`."""

    gaps: tuple[tuple[int, int, int], ...]
    size: int

    def part(self, coefficient: int) -> int | None:
        """The factor in registers of a term with this factor."""
        for lo, hi, scale in self.gaps:
            if lo <= coefficient < hi and coefficient % lo == 0:
                return coefficient // lo * scale
        return None


class _Fusion:
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
                    inner = _capacity(s.body)
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
        inner = _capacity(s.body)
        count = inner * s.extent
        body = substituted(s.body, {s.var: floordiv(local, inner) if s.extent > 1 else 0})
        body = self.block(body, mod(local, inner), inner)
        return list(body) if count == capacity else _some(body, (InRange(local, None, count),))

    def everywhere(self, name: str) -> bool:
        """Whether all threads that come to a statement that fills the buffer fill their own copies."""
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

    return _accesses(body, name, load, offset)


def _promoted(body: Block, fresh: Fresh) -> Block:
    """A sum that a loop adds up in one element of shared memory runs in a register, and is stored at the end.

    y[i] = 0; for k: y[i] += x[k]   ->   r[0] = 0; for k: r[0] += x[k]; y[i] = r[0]
    """
    out: list[Stmt] = []
    for s in body:
        if isinstance(s, Loop | If):
            s = replace(s, body=_promoted(s.body, fresh))
        at = _start_of(out, s)
        if at is not None and isinstance(s, Loop) and isinstance(first := out[at], Store):
            r = Buffer(fresh.name(f"{first.buffer}_sum"), first.value.dtype, 1, Scope.REGISTER)
            del out[at]
            out += [Alloc(r), Store(r.name, 0, first.value), _renamed(s, first.buffer, r.name)]
            out.append(Store(first.buffer, first.offset, Load(r.dtype, r.name, (0,)), first.guard))
        else:
            out.append(s)
    return tuple(out)


def _start_of(before: list[Stmt], s: Stmt) -> int | None:
    """The statement that sets the element to a constant, to which loop `s` then only adds."""
    if not isinstance(s, Loop):
        return None
    for at in range(len(before) - 1, -1, -1):
        first = before[at]
        if isinstance(first, Store) and isinstance(first.value, Const) and _only_adds(first, s):
            return None if first.buffer in _touched(tuple(before[at + 1 :])) else at
    return None


def _touched(body: Block) -> set[str]:
    return _read(body) | written(body)


def _only_adds(first: Store, loop: Loop) -> bool:
    """The loop does nothing else with the stored buffer than to add to that element."""
    inside = list(every((loop,)))
    added = False
    bound_here = {s.var for s in inside if isinstance(s, Loop)}
    if any(v in bound_here for v in variables(first.offset)):
        return False
    if not isinstance(first.offset, int) and first.offset.computed:
        return False
    for s in inside:
        if any(isinstance(e, Load) and e.source == first.buffer for e in walk(roots(s))):
            return False
        if isinstance(s, Store) and s.buffer == first.buffer:
            return False
        if isinstance(s, Loop) and s.kind in (*LANE_KINDS, LoopKind.THREAD):
            return False
        if isinstance(s, Accumulate) and s.buffer == first.buffer:
            if s.offset != first.offset or s.guard not in ((), first.guard):
                return False
            added = True
    return added and not any(isinstance(s, Barrier) for s in inside)


def _renamed(s: Loop, old: str, new: str) -> Loop:
    body: list[Stmt] = []
    for x in s.body:
        if isinstance(x, Accumulate) and x.buffer == old:
            x = replace(x, buffer=new, offset=0, guard=())
        elif isinstance(x, If):
            x = If(x.guard, _renamed(replace(s, body=x.body), old, new).body)
        elif isinstance(x, Loop):
            x = _renamed(x, old, new)
        body.append(x)
    return replace(s, body=tuple(body))


def grid_parts(grid: Program) -> tuple[Loop, tuple[Buffer, ...], Loop]:
    """The BLOCK loop, the LOCAL buffers and the THREAD loop of one of `Launches.grids`."""
    block = grid.body[0]
    assert isinstance(block, Loop)
    *allocs, thread = block.body
    assert isinstance(thread, Loop)
    return block, tuple(a.buffer for a in allocs if isinstance(a, Alloc)), thread
