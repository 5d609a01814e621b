"""Sums of products as inner products: lanes along the summed axis, for results with few rows or few columns.

    c(i, j) = sum k: a(i, k) * b(j, k)

A tile of results keeps a vector of partial sums each; at the end every vector is added up across its lanes. Where both
factors lie along k in memory, nothing is packed: each element of the larger one is read once, in order. That is what
a few rows times a matrix need (a token, a small batch): packing the matrix would cost more than the product.
"""

from __future__ import annotations

from itertools import product
from math import prod

from weft.backends.costs import CostModel
from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Expr, Load, ScalarCall, walk
from weft.ir.index import FloorDiv, Var, atoms, ceildiv, coefficient, flatten, high
from weft.ir.kernel.algorithm import Axis, ItemValue
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.loops import Scope
from weft.ir.ops import EXPANDED
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel, prefetch
from weft.scheduler.optimize.access import axes_of, lane_step, plain_load
from weft.scheduler.optimize.contraction_form import (
    Contraction,
    fill,
    output_steps,
)
from weft.scheduler.optimize.extents import blocks_of, typical
from weft.scheduler.optimize.levels import PRODUCT_CHAIN
from weft.scheduler.optimize.rule import Choice, TileSize
from weft.scheduler.optimize.steps import merge, split

MAX_TOGETHER = 4
"""Vectors of a block that are written out, at most."""

UNPACKING_REGISTERS = 3
"""Registers beside sums, scales and what is loaded, where numbers are unpacked: one, a mask and an offset."""

MAX_ROWS, MAX_COLUMNS = 8, 12
"""The largest tiles tried, along the shorter and the longer axis of the results."""


@dataclass(frozen=True)
class Dots(Choice):
    """The axes of the result that are tiled (`axes[s]` belongs to factor s), the summed axis that lanes run along, and
    which factors are packed first so that they lie along it; and tiles, with the cycles that each takes."""

    kernel: Kernel
    contraction: Contraction
    axes: tuple[Axis, Axis]
    lane: Axis
    packed: tuple[bool, bool]
    tiles: tuple[tuple[TileSize, float], ...]

    @property
    def cost(self) -> float:
        """Cycles with the best tile."""
        return min(cost for _, cost in self.tiles)

    def __str__(self) -> str:
        """The axes, and whose factors are packed, as an option."""
        first, second = (a.var.name for a in self.axes)
        packed = " and ".join(a.var.name for a, p in zip(self.axes, self.packed, strict=True) if p)
        found = f"inner products along {self.lane.var.name}, tiles of {first}, {second}"
        return f"{found}, {packed} packed" if packed else found


@dataclass(frozen=True)
class InnerProducts(Choice):
    """Inner products in tiles of results."""

    decision = "dots.tile"

    kernel: Kernel
    ways: Dots
    tile: TileSize

    def __str__(self) -> str:
        return f"inner products along {self.ways.lane.var.name}, tile {self.tile} of lanes"


def options(k: Kernel, c: Contraction, info: DeviceInfo) -> list[Dots] | Refusal:
    """Ways to compute the contraction so. Refused where no summed axis is contiguous in the larger factor, or it is too
    short or too long."""
    assert c.value.reduce is not None
    found: list[Dots] = []
    width = info.lanes(c.value.dtype)
    whole = prod(high(a.extent) for a in c.value.reduce.axes)
    if whole > PRODUCT_CHAIN * width:
        return Refusal(f"{whole:,} products in a sum; pays up to {PRODUCT_CHAIN * width:,}")
    for lane in c.value.reduce.axes:
        if not isinstance(lane.extent, int) or lane.extent < 2 * width:
            continue
        ways = tuple(_ways(k, factor, lane.var, width, info.costs) for factor in c.factors)
        for axes, (first, second) in product(product(c.own(0), c.own(1)), product(*ways)):
            moved = first.moving * _elements(c, 0) + second.moving * _elements(c, 1)
            held = tuple(
                [
                    not way.packed and _in_a_block(f, lane.var, width) > 1
                    for way, f in zip((first, second), c.factors, strict=True)
                ]
            )
            tiles = _tiles(c, axes, lane, info, (first.work, second.work), held)
            costs = tuple((tile, cost + moved) for tile, cost in tiles)
            found.append(Dots(k, c, axes, lane, (first.packed, second.packed), costs))
    longest = max(high(a.extent) for a in c.value.reduce.axes)
    return found or Refusal(f"{longest:,} products in a row; pays from {2 * width}, two vectors")


@dataclass(frozen=True, slots=True)
class _Way:
    """The way a factor comes to the tile: computed into packed memory first, `moving` cycles for each element; or
    computed at each use from what it reads, `work` cycles for each vector."""

    packed: bool
    moving: float
    work: float


def _ways(k: Kernel, factor: Expr, lane: Var, width: int, costs: CostModel) -> list[_Way]:
    """The ways there are; what is just a load along the lanes is not packed."""
    steps = _steps(k, factor, lane, width)
    along = steps is not None and steps <= {0, 1}
    work = _work(factor, costs)
    packed = _Way(True, (costs.copy_cycles if along else costs.gather_cycles) + work / width, 0.0)
    if steps is None or not along or 1 not in steps:
        return [packed]
    direct = _Way(False, 0.0, work)
    return [packed, direct] if work else [direct]


def _steps(k: Kernel, factor: Expr, lane: Var, width: int) -> set[int | None] | None:
    """From lane to lane along `lane`, how far apart what the factor reads is: 1 for neighbours, 0 for one element for
    a whole vector (a scale for a block). None where a condition stands in the way."""
    steps: set[int | None] = set()
    for load in walk([factor], into_indices=False):
        if isinstance(load, Load):
            p = k.algorithm.param(load.source)
            if p is None or load.guard:
                return None
            steps.add(lane_step(flatten(load.index, p.shape), lane, width))
    return steps


def _work(e: Expr, costs: CostModel) -> float:
    """Cycles per vector to compute a factor from what is loaded; a conversion alone rides along with the load."""
    if plain_load(e) is not None:
        return 0.0
    calls = [x for x in walk([e], into_indices=False) if isinstance(x, ScalarCall)]
    return sum(costs.function_cycles if x.op in EXPANDED else costs.call_cycles for x in calls)


def _elements(c: Contraction, side: int) -> int:
    return prod(typical(a.extent) for a in c.value.all_axes if a.var in axes_of(c.factors[side]))


def _tiles(
    c: Contraction,
    axes: tuple[Axis, Axis],
    lane: Axis,
    info: DeviceInfo,
    work: tuple[float, float],
    held: tuple[bool, ...],
) -> list[tuple[TileSize, float]]:
    """Tiles that registers hold, and the cycles that each takes."""
    assert c.value.reduce is not None
    costs, load, width = info.costs, info.costs.vector_load_cycles, info.lanes(c.value.dtype)
    m, n = high(axes[0].extent), high(axes[1].extent)
    around = prod(typical(a.extent) for a in c.value.axes if a not in axes)
    depth = prod(high(a.extent) for a in c.value.reduce.axes)
    steps = depth // high(lane.extent) * ceildiv(high(lane.extent), width)
    line, once = _fetched(min(m, n), max(m, n), depth * c.value.dtype.itemsize, info)
    found: list[tuple[TileSize, float]] = []
    for r in range(1, min(m, MAX_ROWS if m < n else MAX_COLUMNS) + 1):
        for s in range(1, min(n, MAX_COLUMNS if m < n else MAX_ROWS) + 1):
            shared = r * held[0] + s * held[1]
            others = UNPACKING_REGISTERS if any(held) else 1
            if r * s + shared + min(r, s) + others <= info.vector_registers:
                tiles = around * blocks_of(axes[0].extent, r) * blocks_of(axes[1].extent, s)
                step = max(r * s, costs.add_latency_cycles) + (load + work[0]) * r + (load + work[1]) * s
                step += line * max(r, s) * width * c.value.dtype.itemsize / costs.line_bytes
                each = steps * step + costs.lane_sum_cycles * r * s
                found.append((TileSize(r, s), around * once + tiles * each))
    return found


def _fetched(few: int, many: int, row_bytes: int, info: DeviceInfo) -> tuple[float, float]:
    """Cycles that the multiply-adds do not hide: of a line of the factor with fewer rows, which each tile reads anew,
    and of all of the other, which is read once."""
    costs = info.costs
    anew = 0.0
    if few * row_bytes > info.l1_bytes:
        anew = costs.hidden_far_line_cycles if few * row_bytes > info.l2_bytes else costs.hidden_line_cycles
    lines = many * row_bytes / costs.line_bytes if many * row_bytes > info.l2_bytes else 0.0
    return anew, lines * costs.hidden_far_line_cycles


def choose(k: Kernel, ways: Dots) -> InnerProducts:
    """The tile that takes the fewest cycles."""
    tiles, costs = zip(*ways.tiles, strict=True)
    k, tile = pick(k, "dots.tile", tiles, costs, "cycles")
    return InnerProducts(k, ways, tile)


def apply(choice: InnerProducts, info: DeviceInfo) -> Kernel:
    """Tiles of results outside, then the steps of the sum, a tile's partial sums, lanes."""
    k, dots, tile = choice.kernel, choice.ways, choice.tile
    c = dots.contraction
    value, out = c.value.name, c.out.name
    loops = [c.loop_of(k, a) for a in dots.axes]
    long = 0 if high(dots.axes[0].extent) > high(dots.axes[1].extent) else 1
    names = [s.var.name for s in k.nests[out].loops if s.var.name not in loops]
    outer: list[str] = []
    inner: list[str] = []
    for side in (0, 1):
        k = run(k, Pad(loops[side], tile[side]))
        k, o, i = split(k, loops[side], tile[side], f"t{side}", f"e{side}")
        outer.append(o)
        inner.append(i)
    across = output_steps(k, c, dots.axes[1])
    last = 1 if all(s == 1 for s in across) else 0
    order = (*names, outer[long], outer[1 - long], inner[1 - last], inner[last])
    k = run(k, Permute(out, order), Unroll(inner[1 - last]))
    k = attempt(k, Vectorize(inner[last]))
    task = outer[long]
    for name in reversed(names):
        k, task = merge(k, name, task)
    if parallel.pays(k, info, 2.0 * prod(high(a.extent) for a in c.value.all_axes)):
        k = parallel.spread(k, out, [task], info)
    k = _staged(k, dots)
    lanes = f"{value}_lanes"
    width = info.lanes(c.value.dtype)
    together = 1 if dots.packed[long] else _in_a_block(c.factors[long], dots.lane.var, width)
    k = run(k, SplitReduce(value, dots.lane.var.name, width, lanes, True))
    for name in (value, lanes):
        k = run(k, ComputeAt(name, out, outer[1 - long], Scope.REGISTER))
    if dots.packed[long] and not _lies_across(k, dots, long):
        # a tile's part at a time, for all tiles that share it: it is in a cache when it is used
        around = k.nests[out].loops[k.nests[out].depth(outer[1 - long]) - 1]
        k = run(k, ComputeAt(f"packed{long}", out, around.var.name))
    for side in (0, 1):
        k = fill(k, f"packed{side}", info) if dots.packed[side] else k
    k = _unrolled(_unrolled(k, value), lanes)
    k = _in_blocks(k, lanes, together)
    return k if dots.packed[long] else prefetch.ask_for_tile(k, lanes, outer[1 - long], info)


def _in_blocks(k: Kernel, lanes: str, together: int) -> Kernel:
    """So many steps of the sum written out: what they share is computed once."""
    step = [s for s in k.nests[lanes].loops if s.reduce][-1]
    if together == 1 or not isinstance(step.extent, int) or step.extent % together:
        return k
    k, _, inner = split(k, step.var.name, together, f"{step.var.name}_o", f"{step.var.name}_b")
    return run(k, Unroll(inner))


def _in_a_block(factor: Expr, lane: Var, width: int) -> int:
    """Vectors along the lanes that share what the factor reads of a block, such as a scale; 1 where there is none."""
    sizes = {
        a.den
        for load in walk([factor], into_indices=False)
        if isinstance(load, Load)
        for i in load.index
        if not isinstance(i, int)
        for a in atoms(i)
        if isinstance(a, FloorDiv) and a.num == lane and isinstance(a.den, int)
    }
    least = min(sizes, default=width)
    return least // width if least % width == 0 and least // width <= MAX_TOGETHER else 1


def _staged(k: Kernel, dots: Dots) -> Kernel:
    """Factors that do not lie along the lanes as values that do."""
    c = dots.contraction
    for side in (0, 1):
        if dots.packed[side]:
            axes = [a.var.name for a in c.value.all_axes if a.var in axes_of(c.factors[side])]
            axes.sort(key=lambda n: n == dots.lane.var.name)
            k = run(k, Stage(c.value.name, c.factors[side], f"packed{side}", tuple(axes)))
    return k


def _lies_across(k: Kernel, dots: Dots, side: int) -> bool:
    """Neighbours in memory belong to other results, perhaps to other tiles: the factor is packed as a whole."""
    loads = [x for x in walk([dots.contraction.factors[side]], into_indices=False) if isinstance(x, Load)]
    places = [flatten(x.index, p.shape) for x in loads if (p := k.algorithm.param(x.source)) is not None]
    return any(coefficient(i, dots.axes[side].var) == 1 for i in places)


def _unrolled(k: Kernel, name: str) -> Kernel:
    """Steps of the sum outside, the tile written out, lanes inside."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue)
    nest = k.nests[name]
    of = {v.name: a for a, e in nest.bind.items() for v in [e] if isinstance(v, Var)}
    last = item.reduce.axes[-1].var if not name.endswith("_lanes") and item.reduce else item.axes[-1].var
    lane = [s.var.name for s in nest.loops if of.get(s.var.name) == last]
    tile = [s.var.name for s in nest.loops if not s.reduce and s.var.name not in lane]
    steps = [s.var.name for s in nest.loops if s.reduce and s.var.name not in lane]
    k = run(k, Permute(name, (*steps, *tile, *lane)))
    return run(k, *(Unroll(n) for n in tile), *(Vectorize(n) for n in lane))
