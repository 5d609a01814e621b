"""Sums of products with reuse on thread blocks: a tile of results per block, panels in LOCAL memory, and a smaller
tile in the registers of each thread.

    block (s, p):  for k0:  panels a[s, k0 ..], b[k0 .., p] -> LOCAL
                            thread: for k: acc[4 x 4 ..] += a[.., k] * b[k, ..]
                   thread: store

Without a scratchpad every thread reads what it needs where it is, and no thread waits for another.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.index import Var, ceildiv, coefficient, flatten, high
from weft.ir.kernel.algorithm import Axis, Value, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import contraction_form as contraction
from weft.scheduler.optimize import gpu_matrix
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.steps import merge, split


@dataclass(frozen=True, slots=True)
class Tile:
    """A block's tile: `rows` x `columns` results, `depth` terms at a time; `tall` x `wide` results per thread."""

    rows: int
    columns: int
    depth: int
    tall: int
    wide: int

    @property
    def threads(self) -> int:
        return self.rows // self.tall * (self.columns // self.wide)


TILES = (Tile(128, 128, 8, 8, 8), Tile(64, 64, 16, 4, 4), Tile(32, 32, 16, 2, 4), Tile(16, 64, 16, 1, 4))
"""From the one with most reuse; the first that gives every multiprocessor a block is taken."""


OWN = ((8, 8), (4, 8), (4, 4), (2, 4), (1, 4))
"""Results in the registers of a thread that shares nothing, rows and columns."""

OWN_THREADS = 32
"""Of a block of such threads."""


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The tiled schedule of a kernel around one contraction; None when it has none, or a small one."""
    c = contraction.find(k)
    if c is None or c.value.reduce is None or not all(isinstance(a.extent, int) for a in c.value.all_axes):
        return None
    k, c = contraction.merge_short_axes(k, c)
    assert c.value.reduce is not None
    pair = _axes(k, c)
    if pair is None:
        return None
    s, p, side = pair
    depth = max(c.value.reduce.axes, key=lambda a: (high(a.extent), a.var.name))
    if high(depth.extent) < 4 or high(s.extent) * high(p.extent) < 64:
        return None
    on_units = gpu_matrix.schedule(k, c, s, p, side, depth, info) if info.scratchpad else None
    if on_units is not None:
        return on_units
    tile = _tile(c, s, p, info) if info.scratchpad else _own_tile(c, s, p, depth, info)
    return _Tiled(k, c, s, p, side, depth, tile, info.scratchpad).schedule()


def _axes(k: Kernel, c: contraction.Contraction) -> tuple[Axis, Axis, int] | None:
    """The tiled axes, rows and columns (neighbours in the output), and the factor that the columns belong to."""
    best: tuple[float, Axis, Axis, int] | None = None
    for side in (0, 1):
        for p in c.own(side):
            steps = contraction.output_steps(k, c, p)
            for s in c.own(1 - side):
                score = (
                    sum(2.0 for x in steps if x == 1)
                    + min(high(p.extent), 128) / 128
                    + min(high(s.extent), 128) / 128
                )
                if best is None or score > best[0]:
                    best = (score, s, p, side)
    return None if best is None else best[1:]


def _tile(c: contraction.Contraction, s: Axis, p: Axis, info: DeviceInfo) -> Tile:
    others = prod(high(a.extent) for a in c.value.axes if a.var not in (s.var, p.var))

    def blocks(t: Tile) -> int:
        return ceildiv(high(s.extent), t.rows) * ceildiv(high(p.extent), t.columns) * others

    enough = [t for t in TILES if blocks(t) >= info.cores]
    return enough[0] if enough else max(TILES, key=blocks)


def _own_tile(c: contraction.Contraction, s: Axis, p: Axis, depth: Axis, info: DeviceInfo) -> Tile:
    """Where threads share nothing: the largest tile in registers that leaves work for all threads that run at once."""
    rows, columns = high(s.extent), high(p.extent)
    others = prod(high(a.extent) for a in c.value.axes if a.var not in (s.var, p.var))

    def threads(own: tuple[int, int]) -> int:
        return ceildiv(rows, own[0]) * ceildiv(columns, own[1]) * others

    fits = [own for own in OWN if own[0] < 2 * rows and own[1] < 2 * columns]
    enough = [own for own in fits if threads(own) >= info.cores * info.warp]
    tall, wide = enough[0] if enough else OWN[-1]
    across = _power(min(info.warp, ceildiv(columns, wide)))
    down = _power(min(max(1, OWN_THREADS // across), ceildiv(rows, tall)))
    terms = high(depth.extent)
    steps = next((n for n in (4, 3, 2) if terms % n == 0), 4)
    return Tile(down * tall, across * wide, steps, tall, wide)


def _power(n: int) -> int:
    """The largest power of two up to n."""
    return 1 << n.bit_length() - 1


class _Tiled:
    def __init__(
        self,
        k: Kernel,
        c: contraction.Contraction,
        s: Axis,
        p: Axis,
        side: int,
        depth: Axis,
        tile: Tile,
        panels: bool,
    ) -> None:
        self.panels = panels
        self.k, self.c, self.s, self.p, self.side, self.depth, self.tile = k, c, s, p, side, depth, tile
        self.value, self.out = c.value.name, c.out.name

    def loop_of(self, axis: Axis) -> str:
        """The output's loop over an axis of the value."""
        load = next(r for r in reads(self.c.out) if r.source == self.value)
        at = load.index[[a.var for a in self.c.value.axes].index(axis.var)]
        e = self.k.nests[self.out].bind[at] if isinstance(at, Var) else at
        assert isinstance(e, Var)
        return e.name

    def schedule(self) -> Kernel:
        t = self.tile
        s, p = self.loop_of(self.s), self.loop_of(self.p)
        others = [x.var.name for x in self.k.nests[self.out].loops if x.var.name not in (s, p)]
        self.k = run(self.k, Pad(s, t.rows), Pad(p, t.columns))
        self.k, sb, st, sr = self.three(s, t.rows, t.tall, "s")
        self.k, pb, pt, pr = self.three(p, t.columns, t.wide, "p")
        self.k = run(self.k, Permute(self.out, (*others, sb, pb, st, pt, sr, pr)))
        block = [*others, sb, pb]
        name = block[0]
        for inner in block[1:]:
            self.k, name = merge(self.k, name, inner)
        self.k = run(self.k, Bind(name, LoopKind.BLOCK), *self.threads(st, pt))
        self.k = attempt(attempt(self.k, Unroll(sr)), Vectorize(pr)) if t.wide <= 4 else self.vectors(sr, pr)
        panels = self.stage() if self.panels else []
        self.k = run(self.k, ComputeAt(self.value, self.out, name))
        at = self.accumulate()
        for panel, tiled in panels:
            self.k = run(self.k, ComputeAt(panel, self.value, at))
            self.fill(panel, tiled)
        return self.k

    def vectors(self, rows: str, columns: str) -> Kernel:
        """A thread's columns as vectors of four."""
        k, outer, inner = split(self.k, columns, 4, f"{columns}v", f"{columns}w")
        return run(k, Unroll(rows), Unroll(outer), Vectorize(inner))

    def three(self, loop: str, tile: int, own: int, stem: str) -> tuple[Kernel, str, str, str]:
        """One loop as blocks, threads and a thread's own."""
        k, block, rest = split(self.k, loop, tile, f"{stem}b", f"{stem}i")
        k, thread, inner = split(k, rest, own, f"{stem}t", f"{stem}r")
        return k, block, thread, inner

    def threads(self, *loops: str) -> list[Bind]:
        return [Bind(n, LoopKind.THREAD) for n in loops]

    def stage(self) -> list[tuple[str, Axis]]:
        """Both factors as panels; their summed axes outside, the tiled one inside."""
        out: list[tuple[str, Axis]] = []
        assert self.c.value.reduce is not None
        summed = [a.var.name for a in self.c.value.reduce.axes]
        for side, name, tiled in ((1 - self.side, "rows", self.s), (self.side, "columns", self.p)):
            factor = self.c.factors[side]
            names = [a.var.name for a in self.c.value.all_axes if a.var in axes_of(factor)]
            around = [n for n in names if n not in summed and n != tiled.var.name]
            order = (*around, *(n for n in names if n in summed), tiled.var.name)
            panel = self.fresh(f"{name}_panel")
            self.k = run(self.k, Stage(self.value, factor, panel, order))
            out.append((panel, tiled))
        return out

    def fresh(self, wish: str) -> str:
        from weft.ir.kernel.schedule import fresh

        return fresh(self.k.names(), wish)

    def accumulate(self) -> str:
        """The value's loops: steps of the sum, threads, terms of the step, a thread's results; the steps' loop."""
        t, k, value = self.tile, self.k, self.value
        nest = k.nests[value]
        pure = [x.var.name for x in nest.loops if not x.reduce]
        reduced = [x.var.name for x in nest.loops if x.reduce]
        deep = next(n for n in reduced if self.runs(n, self.depth.var))
        s, p = (next(n for n in pure if self.runs(n, a.var)) for a in (self.s, self.p))
        k = run(k, Pad(deep, t.depth))
        k, step, term = split(k, deep, t.depth, f"{deep}s", f"{deep}t")
        k, st, sr = split(k, s, t.tall, f"{s}t", f"{s}r")
        k, pt, pr = split(k, p, t.wide, f"{p}t", f"{p}r")
        rest = [n for n in pure if n not in (s, p)]
        outer = [n for n in reduced if n != deep]
        if t.wide > 4:
            k, pv, pw = split(k, pr, 4, f"{pr}v", f"{pr}w")
            k = run(
                k, Permute(value, (*rest, *outer, step, st, pt, term, sr, pv, pw)), Unroll(pv), Vectorize(pw)
            )
        else:
            k = run(k, Permute(value, (*rest, *outer, step, st, pt, term, sr, pr)), Vectorize(pr))
        self.k = run(k, Unroll(term), Unroll(sr), *self.threads(st, pt))
        return step

    def runs(self, loop: str, axis: Var) -> bool:
        nest = self.k.nests[self.value]
        spec = nest.loop(loop)
        return spec is not None and coefficient(nest.bind[axis], spec.var) == 1

    def fill(self, panel: str, tiled: Axis) -> None:
        """All threads fill a panel, neighbours reading neighbours in memory."""
        k = self.k
        item = k.algorithm.item(panel)
        assert isinstance(item, Value)
        loops = [x.var.name for x in k.nests[panel].loops]
        if not loops:
            return
        axis = {
            n: a for n in loops for a, e in k.nests[panel].bind.items() if coefficient(e, self.var(n)) == 1
        }
        near = [n for n in loops if n in axis and self.neighbours(item, axis[n])]
        if near:
            k = run(k, Permute(panel, (*(n for n in loops if n != near[-1]), near[-1])))
            loops = [x.var.name for x in k.nests[panel].loops]
        name = loops[0]
        for inner in loops[1:]:
            k, name = merge(k, name, inner)
        spec = k.nests[panel].loop(name)
        assert spec is not None and isinstance(spec.extent, int)
        threads = self.tile.threads
        if spec.extent > threads and spec.extent % threads == 0:
            k, outer, name = split(k, name, threads, f"{panel}o", f"{panel}t")
            k = attempt(run(k, Permute(panel, (name, outer))), Unroll(outer))  # one part: no barriers in it
        self.k = (
            attempt(k, Bind(name, LoopKind.THREAD)) if spec.extent >= threads or spec.extent <= 1024 else k
        )

    def var(self, loop: str) -> Var:
        owner = self.k.owner(loop)
        assert owner is not None
        spec = self.k.nests[owner].loop(loop)
        assert spec is not None
        return spec.var

    def neighbours(self, item: Value, axis: Var) -> bool:
        """The panel's loads step by one along the axis."""
        found = [
            coefficient(flatten(r.index, q.shape), axis)
            for r in reads(item)
            if (q := self.k.algorithm.param(r.source)) is not None
        ]
        return bool(found) and all(x == 1 for x in found)
