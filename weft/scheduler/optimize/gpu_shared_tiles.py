"""Sums of products without matrix units, where a block's threads share panels in LOCAL memory.

    block (s, p):  for k0:  panels a[s, k0 ..], b[k0 .., p] -> LOCAL
                            warp (sw, pw), lane (4 x 8):  for k: acc[8 x 8] += a[.., k] * b[k, ..]
                   lane: store

A thread reads panels four elements at a time: four neighbouring rows or columns of one term, or, where the terms are
contiguous in memory, four terms, so that the panel is filled by wide accesses, too (and copied ahead where the device
does that). The latter keeps four times as many elements in registers: a thread of eight rows has a panel turned while
it is filled, element by element. What one warp reads at a time lies in different banks: rows that are filled across
are padded by one access; groups of four neighbours go to neighbouring lanes. Of two lanes that are one apart the
columns are the same, of two that are two apart the rows: the memory then serves half a warp at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.index import Var, ceildiv, coefficient, high
from weft.ir.kernel.algorithm import Axis, reads
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.stage import PadRows, Stage
from weft.ir.loops import LoopKind
from weft.ir.matrix import LayoutFactor, Role
from weft.scheduler.optimize import contraction_form as contraction
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.gpu_panels import ACCESS_BYTES, fill, is_near, share_out
from weft.scheduler.optimize.steps import merge, split

NEIGHBOURS = 4
"""Results of a thread that lie next to each other."""

LANES = (4, 8)
"""Rows and columns of a warp's threads."""


UNROLLED = 16
"""Terms that are written out: of more, compilers load too many ahead, and spill."""


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


TILES = (Tile(128, 128, 16, 8, 8), Tile(64, 64, 32, 4, 4), Tile(32, 32, 32, 2, 4), Tile(16, 64, 32, 1, 4))
"""From the one with most reuse; the first that gives every multiprocessor a block is taken."""


def choose(c: contraction.Contraction, s: Axis, p: Axis, info: DeviceInfo) -> Tile:
    """The tile for rows `s` and columns `p`, with steps for which there is room."""
    others = prod(high(a.extent) for a in c.value.axes if a.var not in (s.var, p.var))

    def blocks(t: Tile) -> int:
        return ceildiv(high(s.extent), t.rows) * ceildiv(high(p.extent), t.columns) * others

    enough = [t for t in TILES if blocks(t) >= info.cores]
    t = enough[0] if enough else max(TILES, key=blocks)
    size = c.value.dtype.itemsize
    pad = ACCESS_BYTES // size
    depth = t.depth
    while depth > 4 and (t.rows + t.columns) * (depth + pad) * size > info.local_bytes:
        depth //= 2
    return Tile(t.rows, t.columns, depth, t.tall, t.wide)


class InPanels:
    """Writes the schedule of one contraction, rows `s` and columns `p` of factor `side`."""

    def __init__(
        self, k: Kernel, c: contraction.Contraction, s: Axis, p: Axis, side: int, depth: Axis, tile: Tile
    ) -> None:
        self.k, self.c, self.s, self.p, self.depth, self.tile = k, c, s, p, depth, tile
        self.value, self.out = c.value.name, c.out.name
        self.factors = c.factors[1 - side], c.factors[side]
        self.along = [
            is_near(k, f, depth.var) and not is_near(k, f, a.var)
            for f, a in zip(self.factors, (s, p), strict=True)
        ]
        """Whether a factor's terms are contiguous in memory."""
        own = tile.tall, tile.wide
        self.deep = [near and n <= NEIGHBOURS for near, n in zip(self.along, own, strict=True)]
        """Whether a panel has the terms innermost, too."""

    def schedule(self) -> Kernel:
        t = self.tile
        s, p = self.loop_of(self.s), self.loop_of(self.p)
        others = [x.var.name for x in self.k.nests[self.out].loops if x.var.name not in (s, p)]
        self.k = run(self.k, Pad(s, t.rows), Pad(p, t.columns))
        self.k, sb, s = split(self.k, s, t.rows, "sb", "si")
        self.k, pb, p = split(self.k, p, t.columns, "pb", "pi")
        threads, rows, columns = self.share(s, p)
        self.k = run(self.k, Permute(self.out, (*others, sb, pb, *threads, *rows, *columns)))
        block = [*others, sb, pb]
        name = block[0]
        for inner in block[1:]:
            self.k, name = merge(self.k, name, inner)
        self.k = run(self.k, Bind(name, LoopKind.BLOCK), *(Bind(n, LoopKind.THREAD) for n in threads))
        self.own(rows, columns)
        panels = [self.stage(n) for n in (0, 1)]
        self.k = run(self.k, ComputeAt(self.value, self.out, name))
        at = self.accumulate()
        for n, panel in enumerate(panels):
            self.k = run(self.k, ComputeAt(panel, self.value, at))
            size = self.factors[n].dtype.itemsize
            if self.along[n]:
                self.k = run(self.k, PadRows(panel, max(1, ACCESS_BYTES // size)))
            if self.along[n] and not self.deep[n]:
                self.turn(panel)
            else:
                self.k = fill(self.k, panel, t.threads, size)
        return self.k

    def loop_of(self, axis: Axis) -> str:
        """The output's loop over an axis of the value."""
        load = next(r for r in reads(self.c.out) if r.source == self.value)
        at = load.index[[a.var for a in self.c.value.axes].index(axis.var)]
        e = self.k.nests[self.out].bind[at] if isinstance(at, Var) else at
        assert isinstance(e, Var)
        return e.name

    def share(self, s: str, p: str) -> tuple[list[str], list[str], list[str]]:
        """A tile's rows and columns as threads, and each thread's own rows and columns."""
        t = self.tile
        self.k, down, rows, row_lanes = self.one(s, t.rows, t.tall, LANES[0] // 2, 2, self.deep[0])
        self.k, across, columns, column_lanes = self.one(p, t.columns, t.wide, LANES[1] // 2, 2, self.deep[1])
        threads = [down, across, row_lanes[0], *column_lanes, row_lanes[1]]
        return threads, rows, columns

    def one(
        self, loop: str, extent: int, own: int, far: int, near: int, deep: bool
    ) -> tuple[Kernel, str, list[str], list[str]]:
        """One axis: warps, and lanes in two factors, with a thread's neighbours behind them unless terms are."""
        neighbours = 1 if deep else min(own, NEIGHBOURS)
        lanes = far * near
        warp = lanes * own
        factors = (
            LayoutFactor(Role.LANE, far),
            LayoutFactor(Role.LANE, near),
            LayoutFactor(Role.ELEMENT, neighbours),
        )
        assert extent % warp == 0
        return share_out(self.k, loop, warp, lanes * neighbours, factors)

    def own(self, rows: list[str], columns: list[str]) -> None:
        """A thread's results written out, neighbours as a vector."""
        self.k = run(self.k, *(Unroll(n) for n in (*rows, *columns[:-1])))
        self.k = (
            attempt(self.k, Vectorize(columns[-1])) if not self.deep[1] else run(self.k, Unroll(columns[-1]))
        )

    def stage(self, which: int) -> str:
        """A factor as a panel, what is contiguous innermost; its name."""
        assert self.c.value.reduce is not None
        tiled, factor = (self.s, self.p)[which], self.factors[which]
        names = [a.var.name for a in self.c.value.all_axes if a.var in axes_of(factor)]
        inner = self.depth if self.deep[which] else tiled
        last = [n for n in (tiled.var.name, self.depth.var.name) if n in names and n != inner.var.name]
        around = [n for n in names if n not in (*last, inner.var.name)]
        panel = fresh(self.k.names(), "rows_panel" if which == 0 else "columns_panel")
        self.k = run(self.k, Stage(self.value, factor, panel, (*around, *last, inner.var.name)))
        return panel

    def turn(self, panel: str) -> None:
        """All threads fill a panel across its rows, element by element: neighbours take neighbours in memory."""
        *around, deep, tiled = [x.var.name for x in self.k.nests[panel].loops]
        self.k = run(self.k, Permute(panel, (*around, tiled, deep)))
        name = [*around, tiled, deep][0]
        for n in [*around, tiled, deep][1:]:
            self.k, name = merge(self.k, name, n)
        spec = self.k.nests[panel].loop(name)
        assert spec is not None and isinstance(spec.extent, int)
        if spec.extent % self.tile.threads == 0:
            self.k, own, name = split(self.k, name, self.tile.threads, f"{panel}o", f"{panel}t")
            self.k = run(self.k, Permute(panel, (name, own)), Unroll(own))
        self.k = attempt(self.k, Bind(name, LoopKind.THREAD))

    def accumulate(self) -> str:
        """The value's loops: steps of the sum, threads, terms of the step, a thread's results; the steps' loop."""
        t, value = self.tile, self.value
        nest = self.k.nests[value]
        pure = [x.var.name for x in nest.loops if not x.reduce]
        reduced = [x.var.name for x in nest.loops if x.reduce]
        deep = next(n for n in reduced if self.runs(n, self.depth.var))
        s, p = (next(n for n in pure if self.runs(n, a.var)) for a in (self.s, self.p))
        self.k = run(self.k, Pad(deep, t.depth))
        self.k, step, term = split(self.k, deep, t.depth, f"{deep}s", f"{deep}t")
        threads, rows, columns = self.share(s, p)
        rest = [n for n in pure if n not in (s, p)]
        outer = [n for n in reduced if n != deep]
        terms = [term]
        if t.depth > UNROLLED:
            self.k, some, term = split(self.k, term, UNROLLED, f"{term}o", f"{term}i")
            terms = [some, term]
        self.k = run(self.k, Permute(value, (*rest, *outer, step, *threads, *terms, *rows, *columns)))
        self.k = run(self.k, Unroll(term), *(Bind(n, LoopKind.THREAD) for n in threads))
        self.own(rows, columns)
        return step

    def runs(self, loop: str, axis: Var) -> bool:
        nest = self.k.nests[self.value]
        spec = nest.loop(loop)
        return spec is not None and coefficient(nest.bind[axis], spec.var) == 1
