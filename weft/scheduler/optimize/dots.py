"""Sums of products as inner products: lanes along the summed axis, for results with few rows or few columns.

    c(i, j) = sum k: a(i, k) * b(j, k)

A tile of results keeps a vector of partial sums each; at the end every vector is added up across its lanes. Where both
factors lie along k in memory, nothing is packed: each element of the larger one is read once, in order. That is what
a few rows times a matrix need (a token, a small batch): packing the matrix would cost more than the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Call, Expr, Load, walk
from weft.ir.index import Var, ceildiv, flatten, high, substitute
from weft.ir.kernel.algorithm import Axis, Value, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.loops import Scope
from weft.ir.ops import EXPANDED
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.access import axes_of, lane_step, plain_load
from weft.scheduler.optimize.contraction_form import CHAIN, COPIED, GATHERED, Contraction, fill, output_steps
from weft.scheduler.optimize.steps import merge, split

ACROSS = 10.0
"""Cycles to add up one vector across its lanes."""

LOADED = 0.6
"""Cycles to load a vector; a tile of r by c needs r + c of them for r * c products."""

CALL, COSTLY_CALL = 0.5, 12.0
"""Cycles to compute one operation, or one function such as an exponential, on a vector."""

TALLEST, WIDEST = 8, 12
"""The largest tiles tried."""


@dataclass(frozen=True, slots=True)
class Dots:
    """The axes of the result that are tiled (`axes[s]` belongs to factor s) and by how much, the summed axis that lanes
    run along, and which factors are packed first so that they lie along it."""

    axes: tuple[Axis, Axis]
    tile: tuple[int, int]
    lane: Axis
    packed: tuple[bool, bool]
    cost: float


def choose(k: Kernel, c: Contraction, info: DeviceInfo) -> Dots | None:
    """The best tile; None where no summed axis is contiguous in the larger factor, or it is too short or too long."""
    assert c.value.reduce is not None
    best: Dots | None = None
    width = info.lanes(c.value.dtype)
    for lane in c.value.reduce.axes:
        depth = high(lane.extent)
        whole = prod(high(a.extent) for a in c.value.reduce.axes)
        if not isinstance(lane.extent, int) or depth < 2 * width or whole > CHAIN * width:
            continue
        ways = (_ways(k, c.factors[0], lane.var, width), _ways(k, c.factors[1], lane.var, width))
        for axes, (first, second) in product(product(c.own(0), c.own(1)), product(*ways)):
            moved = first.moving * _elements(c, 0) + second.moving * _elements(c, 1)
            tile, cost = _tile(c, axes, lane, width, info.vector_registers, (first.work, second.work))
            found = Dots(axes, tile, lane, (first.packed, second.packed), cost + moved)
            if best is None or found.cost < best.cost:
                best = found
    return best


@dataclass(frozen=True, slots=True)
class _Way:
    """How a factor comes to the tile: computed into packed memory first, `moving` cycles for each element; or computed
    at each use from what it reads, `work` cycles for each vector."""

    packed: bool
    moving: float
    work: float


def _ways(k: Kernel, factor: Expr, lane: Var, width: int) -> list[_Way]:
    """The ways there are; what is just a load along the lanes is not packed."""
    steps = _steps(k, factor, lane, width)
    along = steps is not None and steps <= {0, 1}
    work = _work(factor)
    packed = _Way(True, (COPIED if along else GATHERED) + work / width, 0.0)
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


def _work(e: Expr) -> float:
    """Cycles per vector to compute a factor from what is loaded; a conversion alone rides along with the load."""
    if plain_load(e) is not None:
        return 0.0
    calls = [x for x in walk([e], into_indices=False) if isinstance(x, Call)]
    return sum(COSTLY_CALL if x.op in EXPANDED else CALL for x in calls)


def _elements(c: Contraction, side: int) -> int:
    return prod(high(a.extent) for a in c.value.all_axes if a.var in axes_of(c.factors[side]))


def _tile(
    c: Contraction,
    axes: tuple[Axis, Axis],
    lane: Axis,
    width: int,
    registers: int,
    work: tuple[float, float],
) -> tuple[tuple[int, int], float]:
    """The tile that takes the fewest cycles, and how many."""
    assert c.value.reduce is not None
    m, n = high(axes[0].extent), high(axes[1].extent)
    results = prod(high(a.extent) for a in c.value.axes)
    depth = prod(high(a.extent) for a in c.value.reduce.axes)
    steps = depth // high(lane.extent) * ceildiv(high(lane.extent), width)
    options: list[tuple[float, int, int]] = []
    for r in range(1, min(m, TALLEST if m < n else WIDEST) + 1):
        for s in range(1, min(n, WIDEST if m < n else TALLEST) + 1):
            if r * s + min(r, s) + 1 <= registers:
                tiles = results / (m * n) * ceildiv(m, r) * ceildiv(n, s)
                step = max(r * s, 4.0) + (LOADED + work[0]) * r + (LOADED + work[1]) * s
                options.append((tiles * (steps * step + ACROSS * r * s), r, s))
    cost, r, s = min(options)
    return (r, s), cost


def schedule(k: Kernel, c: Contraction, dots: Dots, info: DeviceInfo) -> Kernel:
    """The tiled schedule."""
    value, out = c.value.name, c.out.name
    loops = [_loop_of(k, c, a) for a in dots.axes]
    long = 0 if high(dots.axes[0].extent) > high(dots.axes[1].extent) else 1
    names = [s.var.name for s in k.nests[out].loops if s.var.name not in loops]
    outer: list[str] = []
    inner: list[str] = []
    for side in (0, 1):
        k = run(k, Pad(loops[side], dots.tile[side]))
        k, o, i = split(k, loops[side], dots.tile[side], f"t{side}", f"e{side}")
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
    work = 2.0 * prod(high(a.extent) for a in c.value.all_axes)
    if parallel.work_ns(work, rows.total_bytes(k), info) > parallel.WORTH_NS:
        k = parallel.spread(k, out, [task], info)
    for side in (0, 1):
        if dots.packed[side]:
            axes = [a.var.name for a in c.value.all_axes if a.var in axes_of(c.factors[side])]
            axes.sort(key=lambda n: n == dots.lane.var.name)
            k = fill(
                run(k, Stage(value, c.factors[side], f"packed{side}", tuple(axes))), f"packed{side}", info
            )
    lanes = f"{value}_lanes"
    k = run(k, SplitReduce(value, dots.lane.var.name, info.lanes(c.value.dtype), lanes, True))
    for name in (value, lanes):
        k = run(k, ComputeAt(name, out, outer[1 - long], Scope.REGISTER))
    return _unrolled(_unrolled(k, value, info), lanes, info)


def _unrolled(k: Kernel, name: str, info: DeviceInfo) -> Kernel:
    """Steps of the sum outside, the tile written out, lanes inside."""
    item = k.algorithm.item(name)
    assert isinstance(item, Value)
    nest = k.nests[name]
    of = {v.name: a for a, e in nest.bind.items() for v in [e] if isinstance(v, Var)}
    last = item.reduce.axes[-1].var if not name.endswith("_lanes") and item.reduce else item.axes[-1].var
    lane = [s.var.name for s in nest.loops if of.get(s.var.name) == last]
    tile = [s.var.name for s in nest.loops if not s.reduce and s.var.name not in lane]
    steps = [s.var.name for s in nest.loops if s.reduce and s.var.name not in lane]
    k = run(k, Permute(name, (*steps, *tile, *lane)))
    return run(k, *(Unroll(n) for n in tile), *(Vectorize(n) for n in lane))


def _loop_of(k: Kernel, c: Contraction, axis: Axis) -> str:
    """The output's loop over an axis of the value."""
    load = next(r for r in reads(c.out) if r.source == c.value.name)
    at = load.index[[a.var for a in c.value.axes].index(axis.var)]
    e = substitute(at, k.nests[c.out.name].bind)
    assert isinstance(e, Var)
    return e.name
