"""Sums of products with reuse on devices of many threads: which axes are tiled, and by whom.

matrix units           `gpu_matrix`, where the device has one for the factors
panels in LOCAL        `gpu_shared_tiles`, where threads of a block share memory
neither                here: every thread reads what it needs where it is, and no thread waits for another
                       thread (st, pt):  for k: acc[4 x 4 ..] += a[.., k] * b[k, ..];  store
"""

from __future__ import annotations

from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.index import Var, ceildiv, coefficient, high
from weft.ir.kernel.algorithm import Axis, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import contraction_form as contraction
from weft.scheduler.optimize import gpu_matrix, gpu_shared_tiles
from weft.scheduler.optimize.gpu_shared_tiles import Tile
from weft.scheduler.optimize.steps import merge, split

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
    if info.scratchpad:
        tile = gpu_shared_tiles.choose(c, s, p, info)
        return gpu_shared_tiles.InPanels(k, c, s, p, side, depth, tile).schedule()
    return _Tiled(k, c, s, p, depth, _own_tile(c, s, p, depth, info)).schedule()


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
        self, k: Kernel, c: contraction.Contraction, s: Axis, p: Axis, depth: Axis, tile: Tile
    ) -> None:
        self.k, self.c, self.s, self.p, self.depth, self.tile = k, c, s, p, depth, tile
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
        self.k = run(self.k, ComputeAt(self.value, self.out, name))
        self.accumulate()
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

    def accumulate(self) -> None:
        """The value's loops: steps of the sum, threads, terms of the step, a thread's results."""
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

    def runs(self, loop: str, axis: Var) -> bool:
        nest = self.k.nests[self.value]
        spec = nest.loop(loop)
        return spec is not None and coefficient(nest.bind[axis], spec.var) == 1
