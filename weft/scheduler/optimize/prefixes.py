"""Reductions over which only a condition tells results apart: running sums, products and maxima of a short row.

    y(i, j) = sum r: x[i, r] if r <= j else 0

All results of a row take the same elements, so lanes run along the results: each element is loaded once for a vector of
them, which adds it where the condition holds. Lanes along what is summed would add up a vector across for every result.
Several rows at a time are independent additions; of one, each waits for the one before.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.index import coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import Axis, Output, Value, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import UNROLL_LIMIT, Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import Scope
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.contraction_form import divisors
from weft.scheduler.optimize.steps import split
from weft.scheduler.optimize.windows import loops_of, only_reduction

LONGEST = 64
"""Results of a row, and elements that each reduces, at most: the work is their product."""

VECTORS = 8
"""Vectors of results at a time."""


def schedule(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The schedule of a kernel around one such reduction; None for others."""
    found = only_reduction(k)
    if found is None:
        return None
    value, out = found
    assert value.reduce is not None
    axis = _results(k, value)
    of = loops_of(k, value, out)
    if axis is None or axis.var not in of or sum(a.extent != 1 for a in value.reduce.axes) != 1:
        return None
    lane, lanes = of[axis.var], high(axis.extent)
    around = [s.var.name for s in k.nests[out.name].loops if s.var.name != lane]
    register = info.lanes(value.dtype)
    if not around or not _contiguous(k, out, lane) or lanes % min(register, lanes):
        return None
    big = parallel.work_ns(rows.total_flops(k), rows.total_bytes(k), info) > parallel.WORTH_NS
    k = run(k, Permute(out.name, (*around, lane)), Vectorize(lane))
    extent = high(next(s.extent for s in k.nests[out.name].loops if s.var.name == around[-1]))
    at_once = max(1, VECTORS * register // lanes)
    tall = max(d for d in divisors(extent) if d <= at_once)
    if tall > 1:
        k, outer, inner = split(k, around[-1], tall, f"{around[-1]}_o", f"{around[-1]}_i")
        k, around = run(k, Unroll(inner)), [*around[:-1], outer]
    k = run(k, ComputeAt(value.name, out.name, around[-1], Scope.REGISTER))
    nest = k.nests[value.name]
    along = next(
        s.var.name for s in nest.loops if not s.reduce and coefficient(nest.bind[axis.var], s.var) == 1
    )
    steps = [s.var.name for s in nest.loops if s.reduce]
    tile = [s.var.name for s in nest.loops if s.var.name not in (*steps, along)]
    k = run(k, Permute(value.name, (*steps, *tile, along)), *(Unroll(n) for n in tile), Vectorize(along))
    k = attempt(k, Unroll(steps[-1]))
    return parallel.spread(k, out.name, around, info) if big else k


def _results(k: Kernel, value: Value) -> Axis | None:
    """The only axis of the value that nothing it reads depends on, though the value does, if it is short."""
    assert value.reduce is not None
    loads = reads(value)
    read = {v for r in loads for i in r.index for v in variables(i)}
    guards = {v for r in loads for c in r.guard for v in variables(c.value)}
    free = [a for a in value.axes if a.extent != 1 and a.var not in read | guards]
    steps = [high(a.extent) for a in value.reduce.axes]
    if len(free) != 1 or max(steps) > LONGEST or not 1 < high(free[0].extent) <= min(LONGEST, UNROLL_LIMIT):
        return None
    return free[0] if all(k.algorithm.param(r.source) is not None for r in loads) else None


def _contiguous(k: Kernel, out: Output, loop: str) -> bool:
    """Neighbours along the output's loop are stored side by side."""
    nest = k.nests[out.name]
    axis = next(a.var for a in out.axes if loop in {v.name for v in variables(nest.bind[a.var])})
    params = [(k.algorithm.param(s.param), s.index) for s in out.stores]
    return all(p is not None and coefficient(flatten(i, p.shape), axis) == 1 for p, i in params)
