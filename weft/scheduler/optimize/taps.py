"""Reductions with few results for all that they share, one for each way in which two operands meet: the gradient of a
depthwise convolution's taps, moments against a few vectors.

    w(c, r, s) = sum n, i, j: x[n, c, i + r - 1, j + s - 1] * g[n, c, i, j]   (0 outside of x)

Each element of g, which lacks the axes r and s, is loaded once for all of these results: they stay in registers, a
vector of partial sums each, with lanes along a summed axis. What windows over x reach is copied first, edges and all,
where each of its elements is used often.
"""

from __future__ import annotations

from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Expr
from weft.ir.index import Var, ceildiv, coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import Axis, Value, reads
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.window import Window
from weft.ir.loops import Scope
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.access import vector_score
from weft.scheduler.optimize.contraction_form import fill
from weft.scheduler.optimize.levels import CHAIN, apart, in_levels, summed
from weft.scheduler.optimize.windows import USES, WINDOW_SHARE, loops_of, only_reduction, slid_axes, sliding

SPARE = 6
"""Registers for operands."""


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The schedule of a kernel around one such reduction; None for others."""
    found = only_reduction(k)
    if found is None:
        return None
    value, out = found
    few = _few(k, value, info)
    of = loops_of(k, value, out)
    tile = [of[a.var] for a in few]
    around = [s.var.name for s in k.nests[out.name].loops if s.var.name not in tile]
    lane = _lane(k, value, info)
    if not tile or not around or lane is None:
        return None
    name, extent = value.name, high(lane.extent)
    width = min(info.lanes(value.dtype), 1 << (extent - 1).bit_length())
    part = sliding(value, k)
    if part is None or not {a.var for a in few} <= slid_axes(part):
        return None
    k = _windowed(k, value, part)
    big = parallel.work_ns(rows.total_flops(k), rows.total_bytes(k), info) > parallel.WORTH_NS
    k = run(k, Permute(out.name, (*around, *tile)))
    k, leaf, axis = apart(k, name, lane.var.name, min(ceildiv(extent, width), CHAIN))
    order = [name]
    if leaf != name:
        k, below = in_levels(k, name)
        order += [*below, leaf]
    inner = f"{leaf}_lanes"
    k = run(k, SplitReduce(leaf, axis, width, inner, True))
    at = out.name, around[-1]
    for n in order:
        k = run(k, ComputeAt(n, *at, Scope.REGISTER))
        if n != leaf:
            k, reduced = _tiled(k, n, "")
            at = n, reduced[-1]
    k = run(k, ComputeAt(inner, *at, Scope.REGISTER))
    k, _ = _tiled(k, leaf, summed(k, leaf)[-1].var.name)
    item = k.algorithm.item(inner)
    assert isinstance(item, Value)
    k, _ = _tiled(k, inner, item.axes[-1].var.name)
    if "window" in k.nests:
        window = k.algorithm.item("window")
        assert isinstance(window, Value)
        k = run(k, ComputeAt("window", *at, Scope.LOCAL))
        if storage_size(k.nests["window"]) * window.dtype.itemsize * WINDOW_SHARE > info.l2_bytes:
            return None
        k = fill(k, "window", info)
    return parallel.spread(k, out.name, around, info) if big else k


def _few(k: Kernel, value: Value, info: DeviceInfo) -> list[Axis]:
    """The axes of the results that some operand lacks, if there are few of them."""
    loads = [r for r in reads(value) if k.algorithm.param(r.source) is not None]
    on = [{v for i in r.index for v in variables(i)} for r in loads]
    axes = [a for a in value.axes if a.extent != 1 and any(a.var not in x for x in on)]
    count = prod(high(a.extent) for a in axes)
    return axes if len(loads) > 1 and 1 < count <= info.vector_registers - SPARE else []


def _lane(k: Kernel, value: Value, info: DeviceInfo) -> Axis | None:
    """The summed axis along which most is contiguous, if anything is, and it is not too long for one level."""
    assert value.reduce is not None
    axes = [a for a in value.reduce.axes if high(a.extent) > 1]
    if not axes:
        return None
    best = max(axes, key=lambda a: (vector_score(k.algorithm, value, a.var), axes.index(a)))
    steps = {
        coefficient(flatten(r.index, p.shape), best.var)
        for r in reads(value)
        if (p := k.algorithm.param(r.source)) is not None
    }
    return best if 1 in steps and high(best.extent) <= info.lanes(value.dtype) * CHAIN else None


def _windowed(k: Kernel, value: Value, part: Expr) -> Kernel:
    """What the windows reach as a value of its own, where its elements are used often enough."""
    copied = run(k, Window(value.name, part, "window"))
    window = copied.algorithm.item("window")
    assert isinstance(window, Value)
    points = prod(high(a.extent) for a in value.all_axes)
    return copied if points >= USES * prod(high(a.extent) for a in window.axes) else k


def _tiled(k: Kernel, name: str, lane: str) -> tuple[Kernel, list[str]]:
    """Loops that reduce outside, then the tile's, written out, then the lanes'; the names of those that reduce."""
    nest = k.nests[name]
    of = {e.name: v.name for v, e in nest.bind.items() if isinstance(e, Var)}
    names = [s.var.name for s in nest.loops]
    lanes = [n for n in names if of.get(n) == lane]
    reduced = [s.var.name for s in nest.loops if s.reduce and s.var.name not in lanes]
    tile = [n for n in names if n not in reduced and n not in lanes]
    k = run(k, Permute(name, (*reduced, *tile, *lanes)))
    k = run(k, *(Unroll(n) for n in tile))
    for n in lanes:
        k = attempt(k, Vectorize(n))
    return k, reduced
