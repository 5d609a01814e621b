"""Sums of products as inner products: lanes along the summed axis, for results with few rows or few columns.

    c(i, j) = sum k: a(i, k) * b(j, k)

A tile of results keeps a vector of partial sums each; at the end every vector is added up across its lanes. Where both
factors lie along k in memory, nothing is packed: each element of the larger one is read once, in order. That is what
a few rows times a matrix need (a token, a small batch): packing the matrix would cost more than the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Expr, Load, walk
from weft.ir.index import Var, ceildiv, coefficient, flatten, high, substitute
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
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.access import axes_of, plain_load
from weft.scheduler.optimize.contraction_form import CHAIN, COPIED, GATHERED, Contraction, fill, output_steps
from weft.scheduler.optimize.steps import merge, split

ACROSS = 10.0
"""Cycles to add up one vector across its lanes."""

LOADED = 0.6
"""Cycles to load a vector; a tile of r by c needs r + c of them for r * c products."""

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
        loads = [plain_load(c.factors[side]) for side in (0, 1)]
        direct = [load is not None and _along(k, load, lane.var) for load in loads]
        moved = [0.0 if direct[s] else _packing(k, c.factors[s], lane.var) * _elements(c, s) for s in (0, 1)]
        for a in c.own(0):
            for b in c.own(1):
                tile, cost = _tile(c, (a, b), lane, width, info.vector_registers)
                found = Dots((a, b), tile, lane, (not direct[0], not direct[1]), cost + sum(moved))
                if best is None or found.cost < best.cost:
                    best = found
    return best


def _packing(k: Kernel, factor: Expr, lane: Var) -> float:
    """Cycles for each element of a factor that is computed first, into memory in which it lies along `lane`."""
    found = [x for x in walk([factor], into_indices=False) if isinstance(x, Load)]
    return COPIED if all(_along(k, load, lane, (0, 1)) for load in found) else GATHERED


def _along(k: Kernel, load: Load, lane: Var, steps: tuple[int, ...] = (1,)) -> bool:
    """What is read lies in memory along `lane` (or is the same there: step 0), and there are no conditions."""
    p = k.algorithm.param(load.source)
    return p is not None and not load.guard and coefficient(flatten(load.index, p.shape), lane) in steps


def _elements(c: Contraction, side: int) -> int:
    return prod(high(a.extent) for a in c.value.all_axes if a.var in axes_of(c.factors[side]))


def _tile(
    c: Contraction, axes: tuple[Axis, Axis], lane: Axis, width: int, registers: int
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
                step = max(r * s, 4.0) + LOADED * (r + s)
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
