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

from collections.abc import Callable, Mapping
from dataclasses import replace

from weft.ir.expr import Expr, Load, Temp
from weft.ir.index import (
    Int,
    Var,
    ceildiv,
    floordiv,
    high,
    mod,
    variables,
)
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Block,
    Buffer,
    If,
    Let,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_names import Names, buffers_read, every, written
from weft.ir.passes.block_barriers import Barriers, Pending
from weft.ir.passes.promote import promoted
from weft.ir.passes.rewrite import Fresh, map_accesses, substituted
from weft.ir.passes.threads import ThreadLoop, most_threads
from weft.lazy_dataclass import dataclass

MAX_THREADS = 1024
"""The most threads of one block."""


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
        threads = most_threads(body)
        if any(isinstance(s, Loop) and s.kind is LoopKind.ACROSS for s in every(body)):
            threads = -(-threads // self.warp) * self.warp
        thread = Var(self.fresh.name("thread"), 0, threads - 1)
        fused = ThreadLoop(body, threads, self.fresh)
        kept = {n for n in fused.buffers if n not in fused.own and n not in fused.private}
        # what one part writes to global memory and another reads or writes, as a fill and the updates after it
        met = buffers_read(body) | _written_again(body)
        exchanged = kept | (self.p.writes & met) | (set[str]() if region.is_grid else set(self.scratch))
        body = Barriers(exchanged, fused.own, self.names).block(fused.in_registers(body), Pending())
        inner = promoted(fused.block(body, thread if threads > 1 else 0, threads), self.fresh)
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


def _written_again(body: Block) -> set[str]:
    """The buffers that more than one statement stores into."""
    stores = [s.buffer for s in every(body) if isinstance(s, Store | Accumulate)]
    return {n for n in stores if stores.count(n) > 1}


def _padded_bytes(b: Buffer) -> int:
    return int(ceildiv(high(b.size) * b.dtype.itemsize, 64)) * 64


_Bind = Callable[[Int], Mapping[Var, Int]]


def _blocks(region: _Region, fresh: Fresh) -> tuple[Int, tuple[_Bind, Block]]:
    """The number of blocks; the loops' variables in terms of the block's number; the body of each block."""
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


def _moved(body: Block, name: str, by: Int) -> Block:
    """Every access to buffer `name`, `by` elements on."""

    def leaf(e: Expr) -> Expr | None:
        return (
            Load(e.dtype, name, (e.index[0] + by,), e.guard)
            if isinstance(e, Load) and e.source == name
            else None
        )

    return map_accesses(body, name, leaf, lambda offset: offset + by)


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
                if groups and not (plain and most_threads(inner) % max(high(x.extent) for x in groups) == 0):
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
    """True where the loop's iterations may be threads: as many as divide a warp, each with one term of each sum."""
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
            if isinstance(s, Loop) and s.kind is LoopKind.THREAD and most_threads((s,)) > most:
                s = replace(s, kind=LoopKind.SERIAL)
        out.append(s)
    return tuple(out)


def grid_parts(grid: Program) -> tuple[Loop, tuple[Buffer, ...], Loop]:
    """The BLOCK loop, the LOCAL buffers and the THREAD loop of one of `Launches.grids`."""
    block = grid.body[0]
    assert isinstance(block, Loop)
    *allocs, thread = block.body
    assert isinstance(thread, Loop)
    return block, tuple(a.buffer for a in allocs if isinstance(a, Alloc)), thread
