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
# Tests: tests/scheduler/test_golden.py
# Tests: tests/scheduler/optimize/test_gpu.py, tests/scheduler/optimize/test_gpu_matrix.py

from __future__ import annotations

from dataclasses import replace

from weft.backends.protocol import DeviceInfo
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.stage import PadRows, Stage
from weft.ir.loops import LoopKind
from weft.ir.matrix import LayoutFactor, Role
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.access import axes_of
from weft.scheduler.optimize.gpu_panels import ACCESS_BYTES, fill, is_near, share_out
from weft.scheduler.optimize.gpu_product import Product
from weft.scheduler.optimize.rule import Choice
from weft.scheduler.optimize.steps import merge, split

NEIGHBOURS = 4
"""Results of a thread that lie next to each other."""

LANES = (4, 8)
"""Rows and columns of a warp's threads."""


MAX_UNROLLED = 16
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

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


TILES = (Tile(128, 128, 16, 8, 8), Tile(64, 64, 32, 4, 4), Tile(32, 32, 32, 2, 4), Tile(16, 64, 32, 1, 4))
"""From the one with most reuse; the first that gives every multiprocessor a block is taken."""


@dataclass(frozen=True)
class SharedTiles(Choice):
    """Panels in LOCAL memory that the threads of a block share."""

    decision = "gpu_shared_tiles.tile"

    kernel: Kernel
    tile: Tile

    def __str__(self) -> str:
        t = self.tile
        return f"tile {t} by {t.depth} in local, {t.threads} threads, each with {t.tall}x{t.wide} results in register"


def options(form: Product, info: DeviceInfo) -> list[Tile]:
    """Tiles, the preferred first, with steps for which there is room: that with most reuse of those that give every
    multiprocessor a block, else that with most blocks."""

    def blocks(t: Tile) -> int:
        return form.blocks(t.rows, t.columns)

    enough = [t for t in TILES if blocks(t) >= info.cores]
    order = dict.fromkeys((enough[0] if enough else max(TILES, key=blocks), *TILES))
    return [_with_room(t, form.contraction.value.dtype.itemsize, info) for t in order]


def _with_room(t: Tile, itemsize: int, info: DeviceInfo) -> Tile:
    """The tile with the longest steps whose panels LOCAL memory holds."""
    pad, depth = ACCESS_BYTES // itemsize, t.depth
    while depth > 4 and (t.rows + t.columns) * (depth + pad) * itemsize > info.local_bytes:
        depth //= 2
    return replace(t, depth=depth)


class InPanels:
    """Writes the schedule of one contraction."""

    def __init__(self, form: Product, tile: Tile) -> None:
        self.k, self.form, self.tile = form.kernel, form, tile
        self.c, self.s, self.p, self.depth = form.contraction, form.rows, form.columns, form.depth
        self.value, self.out = self.c.value.name, self.c.out.name
        self.factors = form.factors
        self.along = [
            is_near(self.k, f, self.depth.var) and not is_near(self.k, f, a.var)
            for f, a in zip(self.factors, (self.s, self.p), strict=True)
        ]
        """True for a factor whose terms are contiguous in memory."""
        own = tile.tall, tile.wide
        self.deep = [near and n <= NEIGHBOURS for near, n in zip(self.along, own, strict=True)]
        """True for a panel that has the terms innermost, too."""

    def schedule(self) -> Kernel:
        t = self.tile
        s, p = self.form.loops(self.k)
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
        deep = next(n for n in reduced if self.form.runs(self.k, n, self.depth))
        s, p = (next(n for n in pure if self.form.runs(self.k, n, a)) for a in (self.s, self.p))
        self.k = run(self.k, Pad(deep, t.depth))
        self.k, step, term = split(self.k, deep, t.depth, f"{deep}s", f"{deep}t")
        threads, rows, columns = self.share(s, p)
        rest = [n for n in pure if n not in (s, p)]
        outer = [n for n in reduced if n != deep]
        terms = [term]
        if t.depth > MAX_UNROLLED:
            self.k, some, term = split(self.k, term, MAX_UNROLLED, f"{term}o", f"{term}i")
            terms = [some, term]
        self.k = run(self.k, Permute(value, (*rest, *outer, step, *threads, *terms, *rows, *columns)))
        self.k = run(self.k, Unroll(term), *(Bind(n, LoopKind.THREAD) for n in threads))
        self.own(rows, columns)
        return step
