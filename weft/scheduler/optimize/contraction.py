"""Sums of products with reuse (matmul, convolution, einsum): register tiles, and packed panels where they pay.

    c(.., s, p) = sum k: a(.., s, k) * b(.., k, p)

One operand is the panel: its axis p runs along vector lanes, and a panel of it (all k by one tile width) is packed
contiguously when it is used often. The other is the stream: its elements are broadcast. In the innermost loop over k
a tile of s by p accumulators stays in registers (Goto & van de Geijn 2008, "Anatomy of high-performance matrix
multiplication"; Van Zee & van de Geijn 2015, BLIS).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from math import prod

from weft.backends.costs import CostModel
from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Expr, Load
from weft.ir.graph import elements
from weft.ir.index import (
    Var,
    ceildiv,
    coefficient,
    flatten,
    high,
    low,
)
from weft.ir.kernel.algorithm import Axis, ItemValue, Output, reads
from weft.ir.kernel.decisions import pick, with_decisions_of
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.clip import Clip
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.hint import PrefetchNext
from weft.ir.kernel.transforms.mark import UNROLL_LIMIT, Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.order_reduce import OrderReduce
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.kernel.transforms.window import Window, main
from weft.ir.loops import Scope
from weft.ir.numerics import Tree
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import depth, dots, parallel, squares
from weft.scheduler.optimize.access import axes_of, is_costly, plain_load
from weft.scheduler.optimize.contraction_form import (
    Contraction,
    fill,
    find,
    found,
    in_steps,
    merge_even,
    merge_short_axes,
    output_steps,
    result_index,
)
from weft.scheduler.optimize.depth import Deep, Sharing
from weft.scheduler.optimize.dots import Dots, InnerProducts
from weft.scheduler.optimize.extents import blocks_of, typical
from weft.scheduler.optimize.levels import PRODUCT_CHAIN, pinned_steps
from weft.scheduler.optimize.operands import (
    awkward,
    clash,
    contiguous,
    crowded,
    fetched_anew,
    is_in_squares,
    is_packed,
    lane_step,
    loads,
    reachable,
    row_bytes,
    run_bytes,
    square_of,
)
from weft.scheduler.optimize.prefetch import ask_for_output, ask_for_panel
from weft.scheduler.optimize.rule import Choice, Rule, TileSize
from weft.scheduler.optimize.steps import divisors, extent, least_extent, merge, split, typical_extent
from weft.scheduler.tiles import most_rows, tile_cycles

MAX_UNPACKED_USES = 2
"""Uses of a panel that do not pay for packing it."""

MAX_VECTORS = 6
"""Vectors of a tile's row, at most; four rows of them fill AVX-512's 32 registers."""

MAX_UNSIZED_ROWS = 8
"""Rows of a tile where their number is only known at run time: it may be one."""

ROWS_PER_COLUMN, PACKED_ROWS_PER_COLUMN = 0.5, 8
"""Rows for each column of a product from which on cores share its rows: where panels lie ready, and where not."""

MAX_UNMOVED_VECTORS = 4
"""Vectors of results for which a stream is not copied, however it lies: a panel or two."""

MOVING_COPIES = 12.0
"""Copies of an element that stays near, in the time that one takes which comes from afar and goes there."""

CHUNK_TILES = 16
"""Tiles for which a task copies a panel, where how many there are is only known at run time."""

PAGE_BYTES = 4096
"""Memory within which the hardware foresees what is read next. Rows that are further apart are foreseen by themselves,
if they are as long."""

WINDOW_SHARE = 4
"""A copied piece of what a stream reaches may take the second-level cache over this: the panel keeps its place."""

PANEL_SHARE = 2
"""A panel of the whole depth may take the second-level cache over this; beyond, the depth is cut into blocks."""


@dataclass(frozen=True, slots=True)
class Products:
    """A contraction, as it is and, where that is another one, with its short axes merged."""

    kernel: Kernel
    forms: tuple[tuple[Kernel, Contraction], ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """The factor that is the panel, its vector axis, and the stream's axis that is tiled; `moved`: the stream is copied
    first, tile by tile as the sum goes through it."""

    kernel: Kernel
    contraction: Contraction
    side: int
    panel: Axis
    stream: Axis
    moved: bool = False

    def __str__(self) -> str:
        """lanes j, rows i moved"""
        moved = " moved" if self.moved else ""
        return f"lanes {self.panel.var.name}, rows {self.stream.var.name}{moved}"


@dataclass(frozen=True)
class Tiles(Choice):
    """Tiles of `rows` by `vectors` results; `in_blocks`: the depth is cut, since a panel of all of it is too large;
    `in_place`: the panel is read where it lies, whatever copying it would gain; `moved`: the stream is copied first."""

    kernel: Kernel
    contraction: Contraction
    side: int
    panel: Axis
    stream: Axis
    tile: TileSize
    in_blocks: bool
    in_place: bool = False
    moved: bool = False

    decision = "contraction.tile"

    @property
    def rows(self) -> int:
        return self.tile.rows

    @property
    def vectors(self) -> int:
        return self.tile.columns

    def text(self, made: Kernel) -> str:
        """tile 6x4 vectors, panel b 1024x64 in local"""
        nest = made.nests.get("panel")
        if nest is None:
            return f"tile {self.tile} vectors, no panel"
        load = next(loads(self.contraction.factors[self.side]), None)
        size = "x".join(str(n) for n in nest.size if n != 1)
        return (
            f"tile {self.tile} vectors, panel{f' {load.source}' if load else ''} {size} in {nest.scope.value}"
        )


def recognise(k: Kernel, info: DeviceInfo) -> Products | Refusal:
    """A kernel around one contraction."""
    c = find(k)
    if isinstance(c, Refusal):
        return c
    return Products(k, tuple({id(f.value): (g, f) for g, f in ((k, c), merge_short_axes(k, c))}.values()))


def choose(form: Products, info: DeviceInfo) -> Tiles | InnerProducts | Deep | Refusal:
    """The axes and the tile that take the fewest cycles, or inner products if these take fewer; where the sum is much
    longer than there are results, tiles of parts of it."""
    axes = [x for g, c in form.forms for way in _tiled_axes(c) for x in _ways(Axes(g, c, *way), info)]
    tiles = [_tiles(x, info) for x in axes]
    stored = [_storing(x, info.costs) for x in axes]
    least = [min(t.values()) + extra for t, extra in zip(tiles, stored, strict=True)]
    names = list(map(str, axes))
    k, name = pick(form.kernel, "contraction.axes", names, least, "cycles")
    number = names.index(name)
    chosen = axes[number]
    along = [PINNED] if form.kernel.algorithm.pinned else [dots.options(g, c, info) for g, c in form.forms]
    inner = [ways for x in along if not isinstance(x, Refusal) for ways in x]
    refused: list[tuple[str, Refusal]] = []
    if inner:
        names = list(map(str, inner))
        k, name = pick(k, "dots.axes", names, [ways.cost for ways in inner], "cycles")
        ways = inner[names.index(name)]
        more = info.costs.gather_cycles * (_accesses(ways.kernel, ways.contraction) - 1)
        results = prod(typical(a.extent) for a in ways.contraction.value.axes)
        of = {"tiles": least[number], "inner products": ways.cost + more * results}
        k, method = pick(k, "contraction.method", list(of), list(of.values()), "cycles")
        if method != "tiles":
            return dots.choose(with_decisions_of(ways.kernel, k), ways)
        refused.append(("dots", _dearer(ways, of)))
    else:
        refused += [("dots", x) for x in along[:1] if isinstance(x, Refusal)]
    sizes = tiles[number]
    k, tile = pick(k, "contraction.tile", list(sizes), list(sizes.values()), "cycles")
    return _deep_or_tiled(with_decisions_of(chosen.kernel, k), chosen, tile, info, refused)


def _panel_bytes(c: Contraction, width: int) -> int:
    """The bytes of a panel of the whole depth, where that is only known at run time; 0 where it is known."""
    if _sized(c) or c.value.reduce is None:
        return 0
    return prod(high(a.extent) for a in c.value.reduce.axes) * width * c.value.dtype.itemsize


def _reach(reached: Expr, of: Mapping[Var, int]) -> int:
    """The elements of a window for so many steps of each axis."""
    return prod(
        1 + sum(abs(coefficient(i, v) or 0) * (n - 1) for v, n in of.items()) for i in main(reached).index
    )


def _dearer(ways: Dots, costs: Mapping[str, float]) -> Refusal:
    """The reason why tiles are better than inner products."""
    rows, columns = (high(a.extent) for a in ways.axes)
    more = costs["inner products"] / costs["tiles"] - 1
    return Refusal(f"{rows:,} x {columns:,} results; {100 * more:,.0f} % more cycles than tiles")


def _deep_or_tiled(
    k: Kernel, axes: Axes, tile: TileSize, info: DeviceInfo, refused: list[tuple[str, Refusal]]
) -> Tiles | Deep:
    """The choice of a tile, with what follows from its size: whether the depth is cut, or shared out to tasks."""
    k, c = in_order_of(k, axes.contraction, axes)
    assert c.value.reduce is not None
    width = tile.columns * info.lanes(c.value.dtype)
    sized, length = isinstance(axes.stream.extent, int), prod(typical(a.extent) for a in c.value.reduce.axes)
    room = info.l2_bytes // PANEL_SHARE
    far = length * width * c.value.dtype.itemsize > room
    far = far or (not axes.moved and fetched_anew(k, c, 1 - axes.side, info))
    large = _panel_bytes(c, width) > info.l2_bytes
    in_place = large and isinstance(c.factors[axes.side], Load) and contiguous(k, c, axes.side, axes.panel)
    in_blocks = large and not in_place
    if not large and sized and length > PRODUCT_CHAIN and (far or _sized(c)):
        ways = ("in blocks", "whole") if far else ("whole", "in blocks")
        k, depth_way = pick(k, "contraction.depth", ways)
        in_blocks = depth_way == "in blocks"
    tiled = Tiles(k, c, axes.side, axes.panel, axes.stream, tile, in_blocks, in_place, axes.moved)
    sharing = _shared(tiled, info)
    if isinstance(sharing, Refusal):
        return replace(tiled, refused=(*refused, ("depth", sharing)))
    k, tasks = pick(k, "depth.tasks", sharing.tasks)
    direct = isinstance(c.factors[axes.side], Load) and contiguous(k, c, axes.side, axes.panel)
    ready = is_packed(k, c, axes.side, axes.panel, width)
    packed = not ready and (not direct or ceildiv(high(axes.stream.extent), tile.rows) > MAX_UNPACKED_USES)
    of = list(c.value.axes)
    return Deep(
        k, c, of.index(axes.panel), of.index(axes.stream), width, tile.rows, packed, tasks, refused=tuple(refused)
    )  # fmt: skip


def _shared(tiled: Tiles, info: DeviceInfo) -> Sharing | Refusal:
    """The ways to share out the depth, where it is much deeper than it is wide."""
    k, c = tiled.kernel, tiled.contraction
    if k.algorithm.pinned:
        return PINNED
    if not tiled.in_blocks:
        assert c.value.reduce is not None
        length = prod(high(a.extent) for a in c.value.reduce.axes)
        return Refusal(f"{length:,} products in a sum, for which a panel of the whole depth is taken")
    if reachable(k, c, 1 - tiled.side) is not None:
        return Refusal("the stream is copied by windows")
    return depth.options(
        c, info, parallel.pays(k, info, 2.0 * prod(high(a.extent) for a in c.value.all_axes))
    )


def apply(form: Products, choice: Tiles | InnerProducts | Deep, info: DeviceInfo) -> Kernel:
    """The loops of what was chosen."""
    match choice:
        case InnerProducts():
            return dots.apply(choice, info)
        case Deep():
            return depth.apply(choice, info)
        case Tiles():
            return _Tiled(choice, info).schedule()


RULE = Rule("contraction", recognise, choose, apply)

PINNED = Refusal("the order in which the products are added is pinned")


def _sized(c: Contraction) -> bool:
    """The size of the sum is known."""
    return c.value.reduce is None or all(isinstance(a.extent, int) for a in c.value.reduce.axes)


def in_order_of(k: Kernel, c: Contraction, choice: Axes) -> tuple[Kernel, Contraction]:
    """The summed axes in the order in which the stream lies in memory: its lines are used up one by one."""
    assert c.value.reduce is not None
    axes = list(c.value.reduce.axes)
    stream = reachable(k, c, 1 - choice.side)
    load = plain_load(c.factors[1 - choice.side]) if stream is None else main(stream)
    p = k.algorithm.param(load.source) if load is not None else None
    if load is None or p is None or len(axes) < 2 or c.value.reduce.tree is not Tree.FREE:
        return k, c
    offset = flatten(load.index, p.shape)
    steps = {a.var.name: abs(coefficient(offset, a.var) or 0) for a in axes}
    names = [a.var.name for a in axes]
    order = sorted(names, key=lambda n: -steps[n] if steps[n] else -(1 << 62))
    if order == names:
        return k, c
    k = run(k, OrderReduce(c.value.name, tuple(order)))
    return k, found(k)


def _tiled_axes(c: Contraction) -> Iterator[tuple[int, Axis, Axis]]:
    """The side of the panel, its axis along lanes, and the stream's axis that is tiled."""
    for side in (0, 1):
        for panel in c.own(side):
            for stream in c.own(1 - side):
                yield side, panel, stream


def _ways(axes: Axes, info: DeviceInfo) -> list[Axes]:
    """The stream as it lies, and moved where its steps lead from line to line: one that the second cache does not hold
    but the last one does, beside which panels of the whole depth fit."""
    k, c, side = axes.kernel, axes.contraction, 1 - axes.side
    load, reduce = plain_load(c.factors[side]), c.value.reduce
    if load is None or reduce is None or not all(isinstance(a.extent, int) for a in c.value.all_axes):
        return [axes]
    depth = prod(high(a.extent) for a in reduce.axes)
    panel = depth * info.lanes(c.value.dtype) * c.value.dtype.itemsize
    size = _elements(c, side) * c.value.dtype.itemsize
    fits = info.l2_bytes <= size <= info.l3_bytes and panel * PANEL_SHARE <= info.l2_bytes
    few = high(axes.panel.extent) <= MAX_UNMOVED_VECTORS * info.lanes(c.value.dtype)
    if few or not fits or not fetched_anew(k, c, side, info) or lane_step(k, load, axes.stream.var) != 1:
        return [axes]
    return [axes, replace(axes, moved=True)]


def _tiles(axes: Axes, info: DeviceInfo) -> dict[TileSize, float]:
    """Tiles that registers hold, with the cycles that each takes without storing the results."""
    k, c, side, panel, stream = axes.kernel, axes.contraction, axes.side, axes.panel, axes.stream
    costs, lanes = info.costs, info.lanes(c.value.dtype)
    macs = prod(typical(a.extent) for a in c.value.all_axes)
    depth = prod(typical(a.extent) for a in c.value.reduce.axes) if c.value.reduce else 1
    p, s = typical(panel.extent), typical(stream.extent)
    apart = row_bytes(k, c.factors[1 - side], stream)
    strided, crowd = fetched_anew(k, c, 1 - side, info), crowded(k, c, 1 - side, info)
    if axes.moved:
        apart, strided, crowd = None, False, False
    packing, direct = _packing(k, c, side, panel, costs)
    blocks = prod(typical(a.extent) for a in c.own(1 - side) if a is not stream)
    seek = 0.0 if axes.moved else _seeking(k, c, 1 - side, panel, costs)
    free = {a.var for a in (*c.own(1 - side), panel)}
    around = prod(typical(a.extent) for a in c.value.axes if a.var not in free)
    spread = parallel.pays(k, info, 2.0 * macs)
    each, line, itemsize = macs / (p * s), costs.line_bytes, c.value.dtype.itemsize
    large = (
        axes.moved or reachable(k, c, 1 - side) is None
    ) and blocks * s * depth * itemsize > info.l2_bytes
    run = run_bytes(k, c, 1 - side)
    leaps = run is not None and apart is not None and run < PAGE_BYTES <= apart
    far = costs.far_line_cycles if leaps else costs.hidden_far_line_cycles
    in_order = (far if large else costs.hidden_line_cycles) * itemsize / line
    of_rows: list[tuple[float, float]] = []  # tiles along the stream, and cycles that a step's lines take
    for rows in range(1, _most_rows(1, stream, info) + 1):
        lines = in_order * rows
        if clash(apart, rows, info):
            lines = costs.l2_element_cycles * rows
        elif strided and apart is not None:
            used = rows * min(apart, line) / line
            lines = costs.l2_element_cycles * max(1, int(used)) + (
                costs.far_line_cycles * used if large else 0.0
            )
        of_rows.append((blocks_of(stream.extent, rows), lines))
    square = square_of(k, c, side, panel, info)
    turning = squares.cycles(square, costs) * _elements(c, side) if square else packing
    moving = MOVING_COPIES * costs.copy_cycles * _elements(c, 1 - side) if axes.moved else 0.0
    cycles: dict[TileSize, float] = {}
    widths = _widths(p, lanes)
    ready = [v for v in widths if is_packed(k, c, side, panel, v * lanes)]
    for vectors in ready[-1:] or widths:  # narrower tiles would leave out a part of each row of a panel
        width, packed = vectors * lanes, bool(ready)
        panels = blocks_of(panel.extent, width)
        step_lines = width * itemsize / line if depth * width * itemsize > info.l1_bytes else 0.0
        tasks = around * ceildiv(p, width)
        for rows in range(1, _most_rows(vectors, stream, info) + 1):
            if crowd and s % rows:
                continue
            tiles, lines = of_rows[rows - 1]
            step = tile_cycles(rows, vectors, step_lines, lines, costs)
            cost = panels * tiles * step * each + panels * seek + moving
            tile = TileSize(rows, vectors)
            if not packed and not (direct and blocks * tiles <= MAX_UNPACKED_USES):
                once = blocks * tiles <= 1 and is_in_squares(tile, square, info)
                cost += min(turning, packing) if once else packing
            if spread and tasks >= info.cores:  # the last tasks leave cores idle
                cost *= ceildiv(tasks, info.cores) * info.cores / tasks
            cycles[tile] = cost
    return cycles


def _widths(panel: int, lanes: int) -> list[int]:
    """The widths of tiles, in vectors."""
    wider = range(2, MAX_VECTORS + 1)
    return [1, *(n for n in wider if (n - 1) * lanes < panel and n * lanes <= UNROLL_LIMIT)]


def _most_rows(vectors: int, stream: Axis, info: DeviceInfo) -> int:
    """The most rows of a tile along the stream that registers hold."""
    height = high(stream.extent) if isinstance(stream.extent, int) else MAX_UNSIZED_ROWS
    return min(height, most_rows(vectors, info))


def _packing(k: Kernel, c: Contraction, side: int, panel: Axis, costs: CostModel) -> tuple[float, bool]:
    """Cycles to pack all panels of a factor, and whether it can be read where it is."""
    factor = c.factors[side]
    contiguous = all(
        coefficient(flatten(load.index, q.shape), panel.var) == 1
        for load in loads(factor)
        if (q := k.algorithm.param(load.source)) is not None
    )
    each = costs.copy_cycles if contiguous else costs.gather_cycles
    return each * _elements(c, side), contiguous and isinstance(factor, Load)


def _storing(axes: Axes, costs: CostModel) -> float:
    """Cycles to store the results, and to read what else is computed with each: along lanes, or along the rows of a
    tile that is turned."""
    k, c = axes.kernel, axes.contraction
    assert isinstance(c.out, Output)
    across, along = output_steps(k, c, axes.panel), output_steps(k, c, axes.stream)
    in_order = all(x == 1 for x in across)
    turned = not in_order and all(x == 1 for x in along)
    elsewhere = costs.gather_cycles if turned else costs.scatter_store_cycles
    stored = [costs.copy_cycles if x == 1 and not turned else elsewhere for x in across]
    axis = result_index(c, axes.panel)
    steps = [lane_step(k, x, axis) if isinstance(axis, Var) else None for x in _read_at_results(k, c.out)]
    read = [costs.copy_cycles if x == 1 and not turned else costs.gather_cycles for x in steps]
    return sum(stored + read) * prod(typical(a.extent) for a in c.value.axes)


def _accesses(k: Kernel, c: Contraction) -> int:
    """The elements that are stored for each result, and those that are read for it beside the factors."""
    return len(c.out.stores) + len(_read_at_results(k, c.out))


def _read_at_results(k: Kernel, out: Output) -> list[Load]:
    """Loads of parameters at every result."""
    return [x for x in reads(out) if len(axes_of(x)) >= len(out.axes) and k.algorithm.param(x.source)]


def _seeking(k: Kernel, c: Contraction, side: int, panel: Axis, costs: CostModel) -> float:
    """Cycles to find the elements of the stream for the tiles of one panel (one tile's width of its axis)."""
    if (reached := reachable(k, c, side)) is not None:
        return costs.copy_cycles * _elements(c, side) * _left_out(c, reached)
    if not awkward(k, c.factors[side]):
        return 0.0
    found = c.value.axes if _is_found_once(k, c, side) else c.value.all_axes
    return costs.seek_cycles * prod(typical(a.extent) for a in found if a is not panel)


def _left_out(c: Contraction, reached: Expr) -> int:
    """The elements that a window has for each that is read: the steps of a sum may leave some out between them."""
    summed = [a.var for a in c.value.reduce.axes if a.extent != 1] if c.value.reduce else []
    steps = [[abs(x) for v in summed if (x := coefficient(i, v))] for i in main(reached).index]
    return prod(min(found) for found in steps if found)


def _is_found_once(k: Kernel, c: Contraction, side: int) -> bool:
    """The factor is a load at an index that is awkward for its place only, and affine in the steps of the sum."""
    load, reduce = plain_load(c.factors[side]), c.value.reduce
    p = k.algorithm.param(load.source) if load is not None and not load.guard else None
    if load is None or p is None or reduce is None:
        return False
    offset = flatten(load.index, p.shape)
    return all(coefficient(offset, a.var) is not None for a in reduce.axes)


def _elements(c: Contraction, side: int) -> int:
    """The elements of a factor, as often as the sum's axes name them."""
    return prod(typical(a.extent) for a in c.value.all_axes if a.var in axes_of(c.factors[side]))


class _Tiled:
    """Applies a choice of tiles."""

    def __init__(self, choice: Tiles, info: DeviceInfo) -> None:
        self.k, self.c, self.choice, self.info = choice.kernel, choice.contraction, choice, info
        c = choice.contraction
        self.width = choice.vectors * info.lanes(c.value.dtype)
        self.sized = isinstance(choice.stream.extent, int)
        self.square = 0
        self.summed = c.value.name
        self.reached = None if choice.moved else reachable(self.k, c, 1 - choice.side)
        self.depth = prod(typical(a.extent) for a in c.value.reduce.axes) if c.value.reduce else 1
        self.panel_bytes = self.depth * self.width * c.value.dtype.itemsize

    def schedule(self) -> Kernel:
        c, choice, info, out = self.c, self.choice, self.info, self.c.out.name
        p, s = c.loop_of(self.k, choice.panel), c.loop_of(self.k, choice.stream)
        tiles_s = ceildiv(typical(choice.stream.extent), choice.rows)
        panels = ceildiv(typical(choice.panel.extent), self.width)
        others = [x.var.name for x in self.k.nests[out].loops if x.var.name not in (p, s)]
        stream_only = {c.loop_of(self.k, a): a for a in c.own(1 - choice.side)}
        around = [n for n in others if n not in stream_only]
        inside = [n for n in others if n in stream_only]
        shared = prod(typical_extent(self.k, n) for n in around) * panels
        big = parallel.pays(self.k, info, 2.0 * prod(high(a.extent) for a in c.value.all_axes))
        chunks, per_chunk, cut_short = 1, tiles_s, big and self.few_panels(around)
        cut_short = cut_short or (choice.in_blocks and not self.sized)
        if cut_short:
            chunks, per_chunk = ceildiv(tiles_s, CHUNK_TILES), CHUNK_TILES
        by_rows = big and self.sized and self.shares_rows(around)
        if big and self.sized and (by_rows or shared < info.cores):  # each chunk packs the panel again
            counts = dict.fromkeys(min(tiles_s, n) for n in (info.cores, 1, 2 * info.cores, 4 * info.cores))
            self.k, count = pick(self.k, "contraction.tasks", list(counts))
            per_chunk = ceildiv(tiles_s, count)
            chunks = ceildiv(tiles_s, per_chunk)
        part: list[str] = []
        if big and shared * chunks < info.cores and (cut := self.divisible(inside, shared * chunks)):
            axis, parts = cut
            self.k, o, i = split(self.k, axis, extent(self.k, axis) // parts, f"{axis}_task", f"{axis}_in")
            inside, part = [i if n == axis else n for n in inside], [o]
            stream_only[i] = stream_only[axis]
        inside = self.blocked(inside, stream_only, choice.rows * per_chunk)
        together = per_chunk * chunks if self.sized else per_chunk if cut_short else 1
        self.k = run(self.k, Pad(p, self.width), Pad(s, choice.rows * together))
        self.k, po, pi = split(self.k, p, self.width, "po", "pi")
        tasks = [*around, po, *part]
        if self.sized or cut_short:
            self.k, sc, s = split(self.k, s, choice.rows * per_chunk, "sc", "sr")
            tasks.insert(len(around) if by_rows else len(tasks), sc)
        self.k, so, si = split(self.k, s, choice.rows, "so", "si")
        if cut_short:
            self.k = run(self.k, Clip(so))
        block = so
        if (
            self.sized
            and not choice.moved
            and not choice.in_blocks
            and crowded(self.k, c, 1 - choice.side, info)
        ):
            room = info.l2_bytes // WINDOW_SHARE // (self.depth * choice.rows * c.value.dtype.itemsize)
            together = max(d for d in divisors(per_chunk) if d <= max(room, 1))
            self.k, block, so = split(self.k, so, together, "sb", "so")
            inside.append(block)
        self.k = run(self.k, Permute(out, (*tasks, *inside, so, si, pi)))
        at = self.parallel(tasks, big, cut_short)
        turned = self.turn(so, si, pi)
        if not turned:
            self.k = run(self.k, Unroll(si), Vectorize(pi))
        uses = prod(typical_extent(self.k, n) for n in (*inside, so)) * chunks
        self.tiles(at, block, so, uses, inside)
        if choice.moved:
            self.move(big)
        return self.asking(so)

    def shares_rows(self, around: list[str]) -> bool:
        """Cores take rows of the stream rather than panels, so that each reads what it has written before: where there
        are enough of them for what each core then reads of all panels, or for packing these again."""
        choice = self.choice
        rows, columns = typical(choice.stream.extent), typical(choice.panel.extent)
        packed = is_packed(self.k, self.c, choice.side, choice.panel, self.width)
        least = ROWS_PER_COLUMN if packed else PACKED_ROWS_PER_COLUMN
        return prod(typical_extent(self.k, n) for n in around) < self.info.cores and rows > least * columns

    def few_panels(self, around: list[str]) -> bool:
        """The panels may be fewer than the cores, by sizes that are only known at run time."""
        panels = ceildiv(low(self.choice.panel.extent), self.width)
        return not self.sized and prod(least_extent(self.k, n) for n in around) * panels < self.info.cores

    def blocked(self, inside: list[str], axes: dict[str, Axis], rows: int) -> list[str]:
        """The stream's loops cut into blocks, of sizes for which the fewest elements are copied while a window stays
        small. `rows` of the tiled axis are in one window."""
        reached = self.reached
        if reached is None or not inside or self.choice.in_blocks:
            return inside
        sizes = {a.var: high(a.extent) for a in (self.c.value.reduce.axes if self.c.value.reduce else ())}
        sizes[self.choice.stream.var] = rows
        room = self.info.l2_bytes // WINDOW_SHARE // self.c.value.dtype.itemsize
        best: tuple[float, int, tuple[int, ...]] | None = None
        for blocks in product(*(divisors(extent(self.k, n)) for n in inside)):
            size = _reach(reached, sizes | {axes[n].var: b for n, b in zip(inside, blocks, strict=True)})
            copied = size * prod(extent(self.k, n) / b for n, b in zip(inside, blocks, strict=True))
            if size <= room and (best is None or (copied, size) < best[:2]):
                best = copied, size, blocks
        if best is None:
            return inside
        outer: list[str] = []
        inner: list[str] = []
        for n, b in zip(inside, best[2], strict=True):
            if 1 < b < extent(self.k, n):
                self.k, o, i = split(self.k, n, b, f"{n}_block", f"{n}_in")
                outer.append(o)
                inner.append(i)
            else:
                (inner if b > 1 else outer).append(n)
        return [*outer, *inner]

    def divisible(self, loops: list[str], tasks: int) -> tuple[str, int] | None:
        """The longest of these loops that can be cut into as many equal parts as make `tasks` tasks enough for all
        cores, and into how many."""
        found: tuple[str, int] | None = None
        for loop in sorted(loops, key=lambda n: extent(self.k, n)):
            n = extent(self.k, loop)
            least = ceildiv(self.info.cores, tasks)
            if self.fixed(loop) and (f := next((f for f in range(least, 2 * least + 1) if n % f == 0), 0)):
                found = loop, f
        return found

    def fixed(self, loop: str) -> bool:
        """True where the loop's extent is known."""
        spec = self.k.nests[self.c.out.name].loop(loop)
        return spec is not None and isinstance(spec.extent, int)

    def asking(self, tile: str) -> Kernel:
        """The kernel asking for what the epilogue reads at every result before it is due: step by step of the sum, or,
        where that is nothing large, a tile ahead."""
        out = self.c.out.name
        if not self.reads_along():
            return self.k
        k = self.k if self.choice.in_blocks else ask_for_output(self.k, self.summed, out, self.info)
        hint = k.nests[self.summed].prefetch
        return k if hint is not None and hint.output else attempt(k, PrefetchNext(out, tile))

    def reads_along(self) -> bool:
        """The epilogue reads a parameter at every result: in short runs, which no hardware foresees."""
        out = self.k.algorithm.item(self.c.out.name)
        assert isinstance(out, Output)
        return bool(_read_at_results(self.k, out))

    def turn(self, tile: str, tall: str, lane: str) -> bool:
        """Go through a tile in local memory, where lanes are not contiguous in the output but the tile's rows
        are: written along the lanes, read and stored along the rows."""
        c, choice = self.c, self.choice
        across, along = output_steps(self.k, c, choice.panel), output_steps(self.k, c, choice.stream)
        if all(x == 1 for x in across) or not all(x == 1 for x in along) or min(choice.rows, self.width) < 2:
            return False
        out = self.k.algorithm.item(c.out.name)
        load = next(r for r in reads(out) if r.source == c.value.name)
        part = self.epilogue() or load
        self.k = run(self.k, Stage(c.out.name, part, "turned"), ComputeAt("turned", c.out.name, tile))
        names = [s.var.name for s in self.k.nests[c.out.name].loops if s.var.name not in (tall, lane)]
        self.k = run(self.k, Permute(c.out.name, (*names, lane, tall)), Vectorize(tall))
        loops = [s.var.name for s in self.k.nests["turned"].loops]
        wide = next(n for n in loops if extent(self.k, n) == self.width and self.runs_panel(n))
        others = [n for n in loops if n != wide]
        self.k = run(
            self.k, Permute("turned", (*others, wide)), *(Unroll(n) for n in others), Vectorize(wide)
        )
        rank = len(self.k.nests["turned"].size)
        lanes_last = sorted(range(rank), key=lambda a: self.axis_runs("turned", a, wide))
        self.k = run(self.k, Arrange("turned", Scope.LOCAL, tuple(lanes_last), (1,) * rank))
        return True

    def axis_runs(self, name: str, axis: int, loop: str) -> bool:
        """The value's axis number `axis` is what the loop runs along."""
        item = self.k.algorithm.item(name)
        return self.runs(name, loop, item.axes[axis].var)

    def runs_panel(self, loop: str) -> bool:
        """The loop of the turned tile runs along the panel's axis."""
        staged = self.k.algorithm.item("turned")
        load = next(r for r in reads(staged) if r.source == self.c.value.name)
        at = load.index[[a.var for a in self.c.value.axes].index(self.choice.panel.var)]
        return isinstance(at, Var) and self.runs("turned", loop, at)

    def epilogue(self) -> Expr | None:
        """The whole expression stored, when there is one, it is worth computing along the lanes, and nothing that it
        loads is strided along them."""
        c = self.c
        out = self.k.algorithm.item(c.out.name)
        assert isinstance(out, Output)
        if len(out.stores) != 1 or not is_costly(out.stores[0].expr) or out.stores[0].expr.dtype.bits < 32:
            return None
        load = next(r for r in reads(out) if r.source == c.value.name)
        axis = load.index[[a.var for a in c.value.axes].index(self.choice.panel.var)]
        assert isinstance(axis, Var)
        steps = [lane_step(self.k, x, axis) for x in loads(out.stores[0].expr) if x.source != c.value.name]
        return out.stores[0].expr if all(x in (0, 1) for x in steps) else None

    def parallel(self, loops: list[str], big: bool, dividing: bool) -> str:
        """The loops around a panel as one parallel loop, as far as their sizes are known or the tasks may divide by
        them; the innermost one's name."""
        task = loops[0]
        for n, inner in enumerate(loops[1:], 1):
            if Merge(task, inner, dividing=dividing).check(self.k) is not None:
                break
            self.k, task = merge(self.k, task, inner, dividing)
            loops = [task] * (n + 1) + loops[n + 1 :]
        if big:
            self.k = attempt(self.k, Bind(task, self.info.task_kind))
        return loops[-1]

    def tiles(self, at: str, block: str, tile: str, uses: int, inside: list[str]) -> None:
        """The accumulators of one tile in registers, in the loop `tile`; the panel packed in the loop `at` when it has
        `uses` enough; the stream's tile staged when it is more than a load, or in the loop `block` some of them when
        that is another loop."""
        c, choice = self.c, self.choice
        value = c.value.name
        panel, stream = c.factors[choice.side], c.factors[1 - choice.side]
        k_axes = [a.var.name for a in (c.value.reduce.axes if c.value.reduce else ())]
        staged: list[tuple[str, str]] = []
        self.square = self.in_squares(uses)
        if not self.square and self.packed(panel, uses):
            axes = self.ordered(panel, [choice.panel.var.name], k_axes)
            self.k = run(self.k, Stage(value, panel, "panel", axes))
            staged.append(("panel", at))
        window = None
        if self.reached is not None:
            self.k, window = run(self.k, Window(value, self.reached, "window")), "window"
        elif choice.moved:
            axes = self.ordered(stream, [choice.stream.var.name], k_axes)
            self.k = run(self.k, Stage(value, stream, "moved", axes))
        elif block != tile or (not isinstance(stream, Load) and plain_load(stream) is None):
            axes = self.ordered(stream, [choice.stream.var.name], k_axes)
            self.k = run(self.k, Stage(value, stream, "stream", axes))
            staged.append(("stream", block))
        chain = self.chain(value)
        self.summed = chain or value
        if chain is None:
            self.k = run(self.k, ComputeAt(value, c.out.name, tile, Scope.REGISTER))
            self.accumulate(value, Scope.REGISTER)
        elif self.choice.in_blocks:
            self.blocks(value, chain, at, staged, window)
            self.k = merge_even(self.k, chain)
            return
        else:
            self.k = run(self.k, ComputeAt(value, c.out.name, tile, Scope.LOCAL))
            self.accumulate(value, Scope.LOCAL)
            steps = [x.var.name for x in self.k.nests[value].loops if x.reduce][-1]
            self.k = run(self.k, ComputeAt(chain, value, steps, Scope.REGISTER))
            self.accumulate(chain, Scope.REGISTER)
        self.trim(value, chain)
        for name, where in staged:
            self.k = run(self.k, ComputeAt(name, c.out.name, where, Scope.LOCAL))
            self.k = fill(self.k, name, self.info)
        if window is not None:
            self.window(window, c.out.name, [at, *inside])
        self.k = merge_even(self.k, self.summed)
        if (
            self.square
            and isinstance(panel, Load)
            and (p := self.k.algorithm.param(panel.source)) is not None
        ):
            self.k = squares.ask_ahead(self.k, self.summed, p, at, self.depth, self.width, self.info)
        else:
            self.follow(self.summed, stream, tile)
            if isinstance(panel, Load) and is_packed(self.k, c, choice.side, choice.panel, self.width):
                self.k = ask_for_panel(self.k, self.summed, at, panel.source, self.panel_bytes, self.info)

    def move(self, big: bool) -> None:
        """The loops that copy the stream before all else, each tile's rows step by step of the sum: on all cores where
        the tiles are."""
        nest, rows = self.k.nests["moved"], self.choice.rows
        rank, steps = len(nest.size), self.summed_axes(self.c.factors[1 - self.choice.side])
        order = (*range(rank - 1 - steps), rank - 1, *range(rank - 1 - steps, rank - 1))
        self.k = run(self.k, Arrange("moved", Scope.LOCAL, order, (*[1] * (rank - 1), rows)))
        row = nest.loops[-1].var.name
        self.k = run(self.k, Pad(row, rows))
        self.k, _, row = split(self.k, row, rows, "mt", "mi")
        self.k = attempt(self.k, Vectorize(row))
        if big:
            self.k = parallel.spread(self.k, "moved", [self.k.nests["moved"].loops[0].var.name], self.info)

    def summed_axes(self, factor: Expr) -> int:
        """The number of summed axes that a factor has."""
        reduce = self.c.value.reduce
        return sum(a.var in axes_of(factor) for a in reduce.axes) if reduce else 0

    def in_squares(self, uses: int) -> int:
        """The lanes of the squares in which the panel is read; 0 where it is not."""
        square = square_of(self.k, self.c, self.choice.side, self.choice.panel, self.info)
        if uses > 1 or self.choice.in_blocks or not is_in_squares(self.choice.tile, square, self.info):
            return 0
        self.k, way = pick(self.k, "contraction.panel", ("in squares", "packed"))
        return square if way == "in squares" else 0

    def packed(self, panel: Expr, uses: int) -> bool:
        """True where the panel is packed, not read where it lies."""
        if is_packed(self.k, self.c, self.choice.side, self.choice.panel, self.width):
            return False
        if not isinstance(panel, Load) or not contiguous(self.k, self.c, self.choice.side, self.choice.panel):
            return True
        if self.choice.in_place:
            return False
        pays = uses > MAX_UNPACKED_USES and self.panel_bytes > self.info.l1_bytes // 8
        ways = ("packed", "read where it lies")
        self.k, way = pick(self.k, "contraction.panel", ways if pays else ways[::-1])
        return way == "packed"

    def trim(self, *sums: str | None) -> None:
        """Leave out of each tile what a mask makes nothing, or nobody asks for."""
        for name in sums:
            if name is None:
                continue
            for loop in [x.var.name for x in self.k.nests[name].loops if x.reduce]:
                self.k = attempt(self.k, Trim(name, loop, strict=True))

    def follow(self, name: str, stream: Expr, tile: str) -> None:
        """Ask for the next tile's rows of a stream from memory, where the hardware does not find them in time. With one
        vector of results for each row, asking takes as many instructions as multiplying."""
        if self.choice.vectors == 1:
            return
        load = plain_load(stream)
        p = self.k.algorithm.param(load.source) if load is not None and not load.guard else None
        reduce = self.c.value.reduce
        if load is None or p is None or reduce is None:
            return
        size, last, costs = p.dtype.itemsize, reduce.axes[-1], self.info.costs
        if (
            coefficient(flatten(load.index, p.shape), last.var) == 1
            and costs.min_overrun_bytes <= high(last.extent) * size <= costs.max_overrun_bytes
            and high(elements(p.shape)) * size > self.info.l2_bytes * squares.FAR_CACHES
        ):
            self.k = attempt(self.k, PrefetchNext(name, tile, 1, (p.name,)))

    def blocks(
        self, value: str, chain: str, at: str, staged: list[tuple[str, str]], window: str | None
    ) -> None:
        """Pack the panel's part for each step, where a panel of the whole depth would not stay in the cache, and
        use it for all tiles, whose sums wait in local memory."""
        c, choice = self.c, self.choice
        self.k = run(self.k, ComputeAt(value, c.out.name, at, Scope.LOCAL))
        item, nest = self.k.algorithm.item(value), self.k.nests[value]
        at_panel, at_stream = (
            [a.var for a in c.value.axes].index(x.var) for x in (choice.panel, choice.stream)
        )
        steps = [x.var.name for x in nest.loops if x.reduce]
        pure = [x.var.name for x in nest.loops if not x.reduce]
        lane = [n for n in pure if self.runs(value, n, item.axes[at_panel].var)]
        tall = [n for n in pure if self.runs(value, n, item.axes[at_stream].var)]
        others = [n for n in pure if n not in (*lane, *tall)]
        outer: list[str] = []
        for n in tall:
            if extent(self.k, n) > choice.rows:
                self.k, o, i = split(self.k, n, choice.rows, "to", "ti")
                outer, tall = [o], [i]
        self.k = run(self.k, Permute(value, (*steps, *others, *outer, *tall, *lane)))
        order = (*(a for a in range(len(item.axes)) if a not in (at_panel, at_stream)), at_stream, at_panel)
        self.k = run(self.k, Arrange(value, Scope.LOCAL, order, (1,) * len(order)))
        self.k = run(self.k, *(Unroll(n) for n in tall), *(Vectorize(n) for n in lane))
        around = [*steps[-1:], *others, *outer]
        self.k = run(self.k, ComputeAt(chain, value, around[-1], Scope.REGISTER))
        self.accumulate(chain, Scope.REGISTER)
        self.trim(chain)
        for name, where in staged:
            self.k = run(
                self.k, ComputeAt(name, value, steps[-1] if where == at else around[-1], Scope.LOCAL)
            )
            self.k = fill(self.k, name, self.info)
        if window is not None:
            self.window(window, value, around)

    def window(self, name: str, consumer: str, loops: list[str]) -> None:
        """Compute what the stream reaches in the outermost loop in which it is small."""
        k = self.k
        for loop in loops:
            k = run(self.k, ComputeAt(name, consumer, loop, Scope.LOCAL))
            if (
                storage_size(k.nests[name]) * self.c.value.dtype.itemsize
                <= self.info.l2_bytes // WINDOW_SHARE
            ):
                break
        self.k = fill(k, name, self.info)

    def chain(self, value: str) -> str | None:
        """A long sum in steps, each in registers; the name of a step's sum, if it is that long."""
        item = self.k.algorithm.item(value)
        assert isinstance(item, ItemValue)
        if item.reduce is not None and item.reduce.tree is not Tree.FREE:
            self.k, name = pinned_steps(self.k, value)
            return name
        if item.reduce is None or self.depth <= PRODUCT_CHAIN:
            return None
        if not _sized(self.c) and not self.choice.in_blocks:
            return None  # `levels` sets aside what is added in sequence, as much as there is
        self.k, name = in_steps(self.k, value, self.beyond_room)
        return name

    def beyond_room(self, of: Mapping[Var, int]) -> int:
        """The elements for which there is no room, of a window for a step of the sum in blocks and all of the stream's
        results; `of`: the extents of the summed axes in a step."""
        reached = self.reached
        if reached is None or not self.choice.in_blocks:
            return 0
        own = {a.var: high(a.extent) for a in self.c.own(1 - self.choice.side)}
        room = self.info.l2_bytes // WINDOW_SHARE // self.c.value.dtype.itemsize
        return max(_reach(reached, {**own, **of}) - room, 0)

    def accumulate(self, name: str, scope: Scope) -> None:
        """The loops of a tile of sums: what is summed outside, rows written out, lanes inside."""
        item = self.k.algorithm.item(name)
        assert isinstance(item, ItemValue)
        at_panel = [a.var for a in self.c.value.axes].index(self.choice.panel.var)
        nest = self.k.nests[name]
        pure = [x.var.name for x in nest.loops if not x.reduce]
        reduced = [x.var.name for x in nest.loops if x.reduce]
        lane = [
            n for n in pure if extent(self.k, n) == self.width and self.runs(name, n, item.axes[at_panel].var)
        ]
        tall = [n for n in pure if n not in lane]
        self.k = run(self.k, Permute(name, (*reduced, *tall, *lane)))
        order = (*(a for a in range(len(item.axes)) if a != at_panel), at_panel)
        self.k = run(self.k, Arrange(name, scope, order, (1,) * len(order)))
        self.k = run(self.k, *(Unroll(n) for n in tall), *(Vectorize(n) for n in lane))
        if self.square and scope is Scope.REGISTER:
            length = extent(self.k, reduced[-1])
            self.k = squares.in_squares(self.k, reduced[-1], squares.steps(length, self.square))

    def ordered(self, e: Expr, last: list[str], k_axes: list[str]) -> tuple[str, ...]:
        """The axes of a staged factor: others, then the summed ones, then the tiled one."""
        names = [a.var.name for a in self.c.value.all_axes if a.var in axes_of(e)]
        return (
            *(n for n in names if n not in last and n not in k_axes),
            *(n for n in names if n in k_axes),
            *(n for n in names if n in last),
        )

    def runs(self, item: str, loop: str, axis: Var) -> bool:
        """The loop runs along the item's axis `axis`."""
        return self.k.nests[item].runs(loop, axis)
