"""Contractions much deeper than they are wide (weight gradients, Gram matrices): the sum is what is shared out.

    c(i, j) = sum k in 0..K: a(k, i) * b(k, j),   K much larger than I and J

A task adds up a part of the depth for all results, in memory of its own: each element of both factors is read by one
task. Steps of the depth are outside and all tiles of results inside, so that what a step reads stays in the cache until
all tiles have used it. At the end the tasks' results are added.

    for t: for step of t: for po:
      panel(l, pi) = b(step + l, po + pi)
      for so: part(t, so + si, po + pi) += sum l: a(step + l, so + si) * panel(l, pi)
    c(i, j) = sum t: part(t, i, j)
"""
# Tests: tests/scheduler/optimize/test_contraction.py, tests/scheduler/optimize/test_refusals.py

from __future__ import annotations

from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Expr, Load
from weft.ir.index import ceildiv, coefficient, high, variables
from weft.ir.kernel.algorithm import Axis, ItemValue
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange, Stage
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.loops import Scope
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import rows
from weft.scheduler.optimize.access import axes_of, plain_load
from weft.scheduler.optimize.contraction_form import Contraction, fill, in_steps, merge_even
from weft.scheduler.optimize.levels import PRODUCT_CHAIN
from weft.scheduler.optimize.rule import Choice
from weft.scheduler.optimize.steps import split

MIN_DEPTH_TO_WIDTH = 4
"""The depth over the width, at least."""

MIN_STEPS = 4
"""Steps of the depth for each task: with fewer, adding up the tasks' results costs too much."""

PARTS_PER_CORE = 4
"""Tasks for each core at most, to even out what the cores are slowed by."""

RESULTS_SHARE = 4
"""All tasks' results may take the last-level cache over this."""


@dataclass(frozen=True)
class Deep(Choice):
    """Positions of the panel's and the stream's axis among the value's, the tile's size along each, whether the panel
    is packed, and the number of tasks that share the first summed axis."""

    decision = "depth.tasks"

    kernel: Kernel
    contraction: Contraction
    panel: int
    stream: int
    width: int
    rows: int
    packed: bool
    tasks: int

    def __str__(self) -> str:
        return f"the sum shared out to {self.tasks} tasks, tile {self.rows}x{self.width}"


@dataclass(frozen=True, slots=True)
class Sharing:
    """Numbers of tasks that may share the depth, the preferred first."""

    tasks: tuple[int, ...]


def options(c: Contraction, info: DeviceInfo, big: bool) -> Sharing | Refusal:
    """The ways to share out the depth; refused where it is not that deep, or there are too many results."""
    assert c.value.reduce is not None
    axes = [a for a in c.value.axes if a.extent != 1]
    summed = c.value.reduce.axes
    if len(axes) != 2:
        return Refusal(f"{len(axes)} axes of results; it is for two")
    if not all(isinstance(a.extent, int) for a in c.value.all_axes):
        return Refusal("sizes are only known at run time")
    depth, first = prod(high(a.extent) for a in summed), high(summed[0].extent)
    sizes = [high(a.extent) for a in axes]
    if depth < MIN_DEPTH_TO_WIDTH * max(sizes):
        return Refusal(
            f"{depth:,} products for {max(sizes):,} results; pays from {MIN_DEPTH_TO_WIDTH} times as many"
        )
    least = info.cores if big else 1
    room = info.l3_bytes // RESULTS_SHARE // (prod(sizes) * c.value.dtype.itemsize)
    steps = depth // (MIN_STEPS * PRODUCT_CHAIN // 2)
    most = min(room, steps, first, least * PARTS_PER_CORE if least > 1 else 1)
    if most < least:
        return Refusal(
            f"{least} tasks; the cache holds the results of {room}, the depth has steps for {steps}"
        )
    counts = range(least, most + 1, least)
    return Sharing(tuple(sorted(counts, key=lambda n: (first % n == 0, n), reverse=True)))


def apply(deep: Deep, info: DeviceInfo) -> Kernel:
    """Each task's part of the sum in tiles, then all tasks' results added."""
    k, c = deep.kernel, deep.contraction
    assert c.value.reduce is not None
    value, first = c.value.name, c.value.reduce.axes[0]
    panel, stream = c.value.axes[deep.panel], c.value.axes[deep.stream]
    side = 0 if panel in c.own(0) else 1
    if deep.packed:
        k = run(k, Stage(value, c.factors[side], "panel", _ordered(c, c.factors[side], panel)))
    other = c.factors[1 - side]
    if not isinstance(other, Load) and plain_load(other) is None:
        k = run(k, Stage(value, other, "stream", _ordered(c, other, stream)))
    part = value
    if deep.tasks > 1:
        part = f"{value}_part"
        k = run(k, SplitReduce(value, first.var.name, _share(high(first.extent), deep.tasks), part))
        k = _added_up(k, c, info)
    else:
        k = rows.lanes(k, k.nests[c.out.name].loops[-1].var.name, info.lanes(c.value.dtype))
    k, chain = in_steps(k, part)
    k, po, so = _tiled(k, part, deep, info)
    k = _in_registers(run(k, ComputeAt(chain, part, so, Scope.REGISTER)), chain, deep)
    for name, at in (("panel", po), ("stream", so)):
        if name in k.nests:
            k = fill(run(k, ComputeAt(name, part, at, Scope.LOCAL)), name, info)
    for loop in [x.var.name for x in k.nests[chain].loops if x.reduce]:
        k = attempt(k, Trim(chain, loop, strict=True))
    return merge_even(k, chain)


def _share(extent: int, tasks: int) -> int:
    """Elements of a summed axis for each task: as many for all, or whole steps."""
    if extent % tasks == 0:
        return extent // tasks
    step = PRODUCT_CHAIN // 2 if extent >= PRODUCT_CHAIN * tasks else 1
    return ceildiv(ceildiv(extent, tasks), step) * step


def _ordered(c: Contraction, e: Expr, last: Axis) -> tuple[str, ...]:
    """The axes of a packed factor: those that are summed, then the one that is tiled."""
    assert c.value.reduce is not None
    return (*(a.var.name for a in c.value.reduce.axes if a.var in axes_of(e)), last.var.name)


def _added_up(k: Kernel, c: Contraction, info: DeviceInfo) -> Kernel:
    """The output's loops, in which the tasks' results are added: a vector of results at a time."""
    out, value = c.out.name, c.value.name
    lane = k.nests[out].loops[-1].var.name
    k = rows.lanes(k, lane, info.lanes(c.value.dtype))
    loops = k.nests[out].loops
    if len(loops) < 2:
        return k
    k = run(k, ComputeAt(value, out, loops[-2].var.name, Scope.REGISTER))
    nest = k.nests[value]
    reduced, pure = (
        [s.var.name for s in nest.loops if s.reduce],
        [s.var.name for s in nest.loops if not s.reduce],
    )
    k = run(k, Permute(value, (*reduced, *pure)))
    return attempt(k, Vectorize(pure[-1])) if pure else k


def _loop_of(k: Kernel, name: str, position: int) -> str:
    """The item's loop over its axis at that position."""
    item, nest = k.algorithm.item(name), k.nests[name]
    (var,) = variables(nest.bind[item.axes[position].var])
    return var.name


def _tiled(k: Kernel, part: str, deep: Deep, info: DeviceInfo) -> tuple[Kernel, str, str]:
    """The loops over a task's results: steps outside, tiles inside; the loops over panels and over tiles of one."""
    p, s = _loop_of(k, part, deep.panel), _loop_of(k, part, deep.stream)
    item, nest = k.algorithm.item(part), k.nests[part]
    tasks = [x.var.name for x in nest.loops if not x.reduce and x.var.name not in (p, s)]
    steps = [x.var.name for x in nest.loops if x.reduce]
    k = run(k, Pad(p, deep.width), Pad(s, deep.rows))
    k, po, pi = split(k, p, deep.width, "po", "pi")
    k, so, si = split(k, s, deep.rows, "so", "si")
    k = run(k, Permute(part, (*tasks, *steps, po, so, si, pi)), Unroll(si), Vectorize(pi))
    rank = len(item.axes)
    others = [n for n in range(rank) if n not in (deep.panel, deep.stream)]
    k = run(k, Arrange(part, Scope.LOCAL, (*others, deep.stream, deep.panel), (1,) * rank))
    return (attempt(k, Bind(tasks[-1], info.task_kind)) if deep.tasks > 1 else k), po, so


def _in_registers(k: Kernel, name: str, deep: Deep) -> Kernel:
    """A tile of a step's sums: what is summed outside, rows written out, lanes inside."""
    item, nest = k.algorithm.item(name), k.nests[name]
    assert isinstance(item, ItemValue)
    at = nest.bind[item.axes[deep.panel].var]
    pure, reduced = ([x.var for x in nest.loops if x.reduce is r] for r in (False, True))
    lane = [v for v in pure if coefficient(at, v) == 1]
    tall = [v for v in pure if v not in lane]
    k = run(k, Permute(name, tuple(v.name for v in (*reduced, *tall, *lane))))
    order = (*(n for n in range(len(item.axes)) if n != deep.panel), deep.panel)
    k = run(k, Arrange(name, Scope.REGISTER, order, (1,) * len(order)))
    return run(k, *(Unroll(v.name) for v in tall), *(Vectorize(v.name) for v in lane))
