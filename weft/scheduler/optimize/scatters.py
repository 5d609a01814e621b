"""Outputs that combine with what is there, at places that data names: lanes and tasks along what it does not name.

    for i: for j: y[at[i], j] += x[i, j]   ->   for jt (tasks): for i: for jl (lanes): y[at[i], jt + jl] += ..

Rows may meet, so they are added one after another; elements of a row do not. Each task adds its columns of all rows.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.index import Int, Sum, Var, coefficient, high, variables
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.mark import Bind
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.steps import split


def spread(k: Kernel, info: DeviceInfo) -> Kernel:
    """The kernel with lanes, and tasks if there are none yet, along an axis of each such output whose elements lie side
    by side and do not meet."""
    for out in k.algorithm.items:
        if isinstance(out, Output) and any(s.combine is not None for s in out.stores):
            k = _output(k, out, info)
    return k


def _output(k: Kernel, out: Output, info: DeviceInfo) -> Kernel:
    nest = k.nests[out.name]
    inside = any(n.at is not None and n.at.item == out.name for n in k.nests.values())
    register = min(info.lanes(s.expr.dtype) for s in out.stores)
    lane = next((s.var.name for s in reversed(nest.loops) if _side_by_side(k, out, s.var)), None)
    if inside or nest.at is not None or lane is None:
        return k
    spec = nest.loop(lane)
    assert spec is not None
    extent, tasks = high(spec.extent), any(s.kind is LoopKind.PARALLEL for s in nest.loops)
    k = run(k, Permute(out.name, (*(s.var.name for s in nest.loops if s.var.name != lane), lane)))
    work = parallel.work_ns(rows.total_flops(k), rows.total_bytes(k), info)
    share = extent // info.cores
    if not tasks and work > parallel.WORTH_NS and extent % info.cores == 0 and share % register == 0:
        k, task, lane = split(k, lane, share, f"{lane}_task", f"{lane}_in")
        others = [s.var.name for s in k.nests[out.name].loops if s.var.name not in (task, lane)]
        k = attempt(run(k, Permute(out.name, (task, *others, lane))), Bind(task, info.task_kind))
        extent = share
    vectors = next((n for n in (rows.VECTORS, 2) if extent % (n * register) == 0), 1)
    return rows.lanes(k, lane, min(extent, vectors * register))


def _side_by_side(k: Kernel, out: Output, loop: Var) -> bool:
    """The loop runs along a whole axis whose elements are stored next to each other, each at a place of its own."""
    nest = k.nests[out.name]
    axis = next((a for a in out.axes if nest.bind[a.var] == loop), None)
    spec = nest.loop(loop.name)
    if axis is None or spec is None or spec.kind is not LoopKind.SERIAL or not isinstance(spec.extent, int):
        return False
    apart = all(_last_only(s.index, axis.var) for s in out.stores)
    return apart and spec.extent > 1 and Bind(loop.name).check(k) is None


def _last_only(index: tuple[Int, ...], axis: Var) -> bool:
    """The last index is the axis plus what does not depend on it (places that data names); no other depends on it."""
    *others, last = index
    terms = [(last, 1)] if not isinstance(last, Sum) else list(last.terms)
    named = [(a, c) for a, c in terms if not isinstance(a, int) and a.computed]
    rest = last - sum((a * c for a, c in named), start=0)
    fixed = [*others, *(a for a, _ in named)]
    names = {v.name for i in fixed for v in variables(i)}
    names |= {n for i in fixed for e in ex.opaque_values(i) for n in ex.names_of(e)}
    return axis.name not in names and coefficient(rest, axis) == 1
