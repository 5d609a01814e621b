"""Panels that arrive while the ones before them are used: asynchronous copies into a ring of LOCAL memory.

    for r in n:                              copy panel 0, 1
      barrier                                for r in n:
      panel[..] = x[.. r ..]                   wait for panel r; barrier
      barrier                          ->      copy panel r + 2, if there is one
      ... panel[..] ...                        ... panel[r % 3][..] ...

It applies where a loop of a block's threads begins by filling LOCAL buffers with elements of parameters as they are, in
whole aligned pieces of 16, 8 or 4 bytes, and nothing else touches these buffers. A piece that a guard keeps out arrives
as zeros.
"""
# Tests: tests/backends/cuda/test_kernels.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

from weft.backends.llvm.body import Body, Own
from weft.backends.llvm.index import affine, condition
from weft.backends.llvm.memory import address
from weft.ir.expr import Expr, Load, transform
from weft.ir.index import (
    Guard,
    Index,
    InRange,
    Int,
    Sum,
    Var,
    high,
    in_range,
    map_guard,
    mod,
    substitute,
    variables,
)
from weft.ir.kernel.lower import substitute_stmt
from weft.ir.loops import Alloc, Barrier, Block, Buffer, If, Loop, LoopKind, Program, Stmt, Store
from weft.ir.loops_names import every, names_of_stmt
from weft.ir.passes.grid import grid_parts
from weft.ir.passes.rewrite import index_map, map_block
from weft.lazy_dataclass import dataclass

STAGES = (3, 2)
"""Panels of one buffer, as many as there is room for: one that is used, and two or one on their way."""

MORE_STAGES = (5, 4)
"""Stages of small panels: a step of these takes less time than a copy, so more must be on their way."""

SMALL_BYTES = 48 << 10
"""Bytes of a ring of so many places, at most."""

PIECE = 16
"""Bytes of one copy, at most: these go around the first-level cache."""

PIECES = (16, 8, 4)
"""Bytes of any copy."""


@dataclass(frozen=True, slots=True)
class Copy(Own):
    """The elements of one piece, from a parameter to a LOCAL buffer, some time before the group's end is waited for.
    `turned`: each row of eight pieces is permuted, piece k to where k exclusive-or the row's number modulo 8 is."""

    target: str
    offset: Int
    source: str
    origin: Int
    guard: Guard
    nbytes: int
    turned: bool = False

    def render(self, body: Body) -> None:
        frame, f = body.frame, body.frame.f
        to, start = frame.place(self.target), frame.place(self.source)
        when = condition(frame, self.guard)
        a = f.emit(f"addrspacecast ptr {address(frame, to, affine(frame, self.offset))} to ptr addrspace(3)")
        if (
            self.turned
        ):  # the buffer starts at a multiple of 1024 bytes: the address has the numbers of row and piece
            number = f.emit(f"ptrtoint ptr addrspace(3) {a} to i64")
            row = f.emit(f"and i64 {f.emit(f'lshr i64 {number}, 3')}, 112")
            a = f.emit(f"inttoptr i64 {f.emit(f'xor i64 {number}, {row}')} to ptr addrspace(3)")
        b = address(frame, start, affine(frame, self.origin))
        cached = "cg" if self.nbytes == PIECE else "ca"
        name = f"llvm.nvvm.cp.async.{cached}.shared.global.{self.nbytes}"
        args = [("ptr addrspace(3)", a)]
        if when.never or when.shared is not None:
            may = "false" if when.never else when.shared
            b = f.emit(f"select i1 {may}, ptr {b}, ptr {start.base}")
            size = f.emit(f"select i1 {may}, i32 {self.nbytes}, i32 0")
            args += [
                ("ptr addrspace(1)", f.emit(f"addrspacecast ptr {b} to ptr addrspace(1)")),
                ("i32", size),
            ]
            f.call(f"{name}.s", "void", args)
            return
        args.append(("ptr addrspace(1)", f.emit(f"addrspacecast ptr {b} to ptr addrspace(1)")))
        f.call(name, "void", args)


@dataclass(frozen=True, slots=True)
class Commit(Own):
    """The copies since the last one are a group."""

    def render(self, body: Body) -> None:
        body.frame.f.call("llvm.nvvm.cp.async.commit.group", "void", [])


@dataclass(frozen=True, slots=True)
class Wait(Own):
    """All groups of this thread but the `left` last have arrived, in these buffers."""

    left: int
    buffers: tuple[str, ...]

    def render(self, body: Body) -> None:
        body.frame.f.call("llvm.nvvm.cp.async.wait.group", "void", [("i32", str(self.left))])
        body.frame.touch(self.buffers)


def ringed(grid: Program, local_bytes: int, behind: int = 0) -> Program:
    """The grid with its loops over panels as rings, as far as `local_bytes` allow. `behind`: panels that are still read
    while the next one is used; nothing is copied over them, and rings have as many places more."""
    block, local, thread = grid_parts(grid)
    ring = _Ring(grid, {b.name: b for b in local}, local_bytes, behind)
    body = ring.block(thread.body)
    if not ring.grown:
        return grid
    allocs = tuple(Alloc(ring.grown.get(b.name, b)) for b in local)
    inner = replace(thread, body=body)
    return replace(grid, body=(replace(block, body=(*allocs, inner)),))


class _Ring:
    def __init__(self, grid: Program, local: dict[str, Buffer], local_bytes: int, behind: int) -> None:
        self.behind = behind
        self.params = {b.name: b for b in grid.params if b.name not in grid.writes}
        self.local, self.whole = local, grid.body
        taken = sum(high(b.size) * b.dtype.itemsize for b in local.values())
        self.left, self.shared_left = local_bytes - taken, local_bytes // 2 - taken
        self.grown: dict[str, Buffer] = {}

    def block(self, body: Block) -> Block:
        out: list[Stmt] = []
        for s in body:
            made = self.loop(s) if isinstance(s, Loop) and s.kind is LoopKind.SERIAL else None
            if made is not None:
                out += made
            elif isinstance(s, Loop | If):
                out.append(replace(s, body=self.block(s.body)))
            else:
                out.append(s)
        return tuple(out)

    def loop(self, loop: Loop) -> list[Stmt] | None:
        """The loop as a ring; None where it is none."""
        bars = [k for k, s in enumerate(loop.body) if isinstance(s, Barrier)]
        if len(bars) < 2 or bars[0] != 0 or high(loop.extent) < 2:
            return None
        before = loop.body[1 : bars[1]]
        fills = tuple([s for s in before if not isinstance(s, Alloc)])
        rest = (*(s for s in before if isinstance(s, Alloc)), *loop.body[bars[1] + 1 :])
        copies = self.copies(fills)
        if not copies:
            return None
        panels = tuple(dict.fromkeys(s.target for s in every(copies) if isinstance(s, Copy)))
        inside = {n for s in every((loop,)) for n in names_of_stmt(s)}
        touched = [s for s in every(self.whole) if names_of_stmt(s) & set(panels)]
        here = [s for s in every((loop,)) if names_of_stmt(s) & set(panels)]
        if len(touched) != len(here) or not inside.issuperset(panels):
            return None
        sizes = {n: high(self.local[n].size) for n in panels}
        one = sum(sizes[n] * self.local[n].dtype.itemsize for n in panels)
        counts = [n + self.behind for n in STAGES]
        counts = [*(n for n in MORE_STAGES if one * n <= SMALL_BYTES and not self.behind), *counts]
        rooms = (
            (self.shared_left, self.left) if self.behind else (self.left,)
        )  # two blocks at once, if they fit
        stages = next((n for room in rooms for n in counts if one * (n - 1) <= room), None)
        if stages is None:
            return None
        self.left -= one * (stages - 1)
        self.shared_left -= one * (stages - 1)
        self.grown |= {n: replace(self.local[n], size=sizes[n] * stages) for n in panels}
        ahead, r = stages - 1 - self.behind, loop.var
        out: list[Stmt] = [Barrier()]
        for k in range(ahead):
            first = self.at(copies, r, k, k, sizes)
            if not isinstance(loop.extent, int):
                out.append(If(in_range(k - loop.extent, None, 0), first))
            elif k < loop.extent:
                out += first
            out.append(Commit())
        later = self.at(copies, r, r + ahead, mod(r + ahead, stages), sizes)
        body: list[Stmt] = [Wait(ahead - 1, panels), Barrier()]
        if not isinstance(loop.extent, int) or loop.extent > ahead:
            body.append(If(in_range(r + ahead - loop.extent, None, 0), later))
        body += [Commit(), *self.used(rest, mod(r, stages), sizes)]
        return [*out, replace(loop, body=tuple(body))]

    def copies(self, fills: Block) -> Block:
        """The fills as copies; none where one of them cannot be."""
        out: list[Stmt] = []
        for s in fills:
            match s:
                case Loop(kind=LoopKind.VECTOR) | Store():
                    piece = self.piece(s)
                    if piece is None:
                        return ()
                    out.append(piece)
                case Loop() | If():
                    inner = self.copies(s.body)
                    if not inner:
                        return ()
                    out.append(replace(s, body=inner))
                case _:
                    return ()
        return tuple(out)

    def piece(self, filled: Loop | Store) -> Copy | None:
        """The elements that a vector's lanes, or one store, bring, as one copy."""
        lanes = filled if isinstance(filled, Loop) else None
        s = filled.body[0] if isinstance(filled, Loop) else filled
        if (lanes is not None and len(lanes.body) != 1) or not isinstance(s, Store) or s.guard:
            return None
        value, n = s.value, 1 if lanes is None else lanes.extent
        if not isinstance(value, Load) or value.source not in self.params or s.buffer not in self.local:
            return None
        if value.dtype is not self.local[s.buffer].dtype or not isinstance(n, int):
            return None
        nbytes = n * value.dtype.itemsize
        if nbytes not in PIECES:
            return None
        if lanes is None:
            return Copy(s.buffer, s.offset, value.source, value.index[0], value.guard, nbytes)
        var = lanes.var
        if not _whole(s.offset, var, n) or not _whole(value.index[0], var, n):
            return None
        if not all(_alike(c, var, n) for c in value.guard):
            return None
        start = {var: 0}
        return Copy(
            s.buffer,
            substitute(s.offset, start),
            value.source,
            substitute(value.index[0], start),
            map_guard(value.guard, lambda i: substitute(i, start)),
            nbytes,
        )

    def at(self, copies: Block, r: Var, step: Int, stage: Int, sizes: dict[str, int]) -> Block:
        """The copies of iteration `step`, into that stage."""
        out: list[Stmt] = []
        for s in copies:
            if isinstance(s, Copy):
                there = {r: step}
                guard: Guard = ()
                for c in s.guard:
                    lo, hi = (None if x is None else substitute(x, there) for x in (c.lo, c.hi))
                    guard = (*guard, *in_range(substitute(c.value, there), lo, hi))
                offset = substitute(s.offset, there) + stage * sizes[s.target]
                out.append(replace(s, offset=offset, origin=substitute(s.origin, there), guard=guard))
            elif isinstance(s, Loop | If):
                head = substitute_stmt(replace(s, body=()), {r: step})
                assert isinstance(head, Loop | If)
                out.append(replace(head, body=self.at(s.body, r, step, stage, sizes)))
        return tuple(out)

    def used(self, rest: Sequence[Stmt], stage: Int, sizes: dict[str, int]) -> Block:
        """The statements that read the panels, at that stage."""

        def leaf(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.source in sizes:
                return Load(e.dtype, e.source, (e.index[0] + stage * sizes[e.source],), e.guard)
            return None

        memo: dict[Expr, Expr] = {}

        def expr(e: Expr) -> Expr:
            return transform(e, leaf, lambda _: None, memo)

        return map_block(tuple(rest), expr, index_map(expr))


def _alike(c: InRange, lane: Var, n: int) -> bool:
    """The condition holds for all lanes or for none: it leaves them out, or its bounds are multiples of `n`, too."""
    bounds = [x for x in (c.lo, c.hi) if x is not None]
    if not any(lane in _variables(x) for x in (c.value, *bounds)):
        return True
    return _whole(c.value, lane, n) and all(isinstance(x, int) and x % n == 0 for x in bounds)


def _variables(i: Int) -> set[Var]:
    return set() if isinstance(i, int) else set(variables(i))


def _whole(offset: Int, lane: Var, n: int) -> bool:
    """Lanes step by one from a multiple of `n` on."""
    terms: Sequence[tuple[Index, int]] = (
        [] if isinstance(offset, int) else offset.terms if isinstance(offset, Sum) else [(offset, 1)]
    )
    const = offset if isinstance(offset, int) else offset.const if isinstance(offset, Sum) else 0
    mine = [c for t, c in terms if t == lane]
    others = [c for t, c in terms if t != lane]
    return (
        mine == [1]
        and gcd(const, *others) % n == 0
        and not any(lane in variables(t) for t, _ in terms if t != lane)
    )
