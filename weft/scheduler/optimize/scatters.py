"""Outputs that combine with what is there, at places that data names: lanes and tasks along what it does not name.

    for i: for j: y[at[i], j] += x[i, j]   ->   for jt (tasks): for i: for jl (lanes): y[at[i], jt + jl] += ..

Rows may meet, so they are added one after another; elements of a row do not. Each task adds its columns of all rows.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.index import Int, Sum, Var, coefficient, high, variables
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.mark import Bind
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel, rows
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import split


@dataclass(frozen=True, slots=True)
class Scatters:
    """Outputs that combine with what is there, each with a loop whose elements lie side by side and do not meet."""

    kernel: Kernel
    lanes: tuple[tuple[Output, str], ...]


@dataclass(frozen=True)
class AlongRows(Choice):
    """Lanes along those loops."""

    lanes: tuple[str, ...]

    def __str__(self) -> str:
        return f"lanes along {', '.join(self.lanes)}"


def recognise(k: Kernel, info: DeviceInfo) -> Scatters | Refusal:
    """A kernel with such outputs."""
    outputs = [
        i for i in k.algorithm.items if isinstance(i, Output) and any(s.combine is not None for s in i.stores)
    ]
    if not outputs:
        return Refusal("no output combines with what is there")
    found = [(out, _lane(k, out)) for out in outputs]
    lanes = tuple((out, lane) for out, lane in found if not isinstance(lane, Refusal))
    return Scatters(k, lanes) if lanes else next(why for _, why in found if isinstance(why, Refusal))


def choose(form: Scatters, info: DeviceInfo) -> AlongRows:
    """The only way: there is one such loop."""
    return AlongRows(tuple(lane for _, lane in form.lanes))


def apply(form: Scatters, choice: AlongRows, info: DeviceInfo) -> Kernel:
    """Lanes, and tasks if there are none yet, along the loops."""
    k = form.kernel
    for out, lane in form.lanes:
        k = _output(k, out, lane, info)
    return k


RULE = Rule("scatters", recognise, choose, apply)


def _lane(k: Kernel, out: Output) -> str | Refusal:
    """The innermost loop of the output that lanes may run along."""
    nest = k.nests[out.name]
    if nest.at is not None or any(n.at is not None and n.at.item == out.name for n in k.nests.values()):
        return Refusal(f"{out.name} shares its loops with values")
    lane = next((s.var.name for s in reversed(nest.loops) if _side_by_side(k, out, s.var)), None)
    return lane or Refusal(f"no loop of {out.name} stores elements side by side that never meet")


def _output(k: Kernel, out: Output, lane: str, info: DeviceInfo) -> Kernel:
    nest = k.nests[out.name]
    register = min(info.lanes(s.expr.dtype) for s in out.stores)
    spec = nest.loop(lane)
    assert spec is not None
    extent, tasks = high(spec.extent), any(s.kind is LoopKind.PARALLEL for s in nest.loops)
    k = run(k, Permute(out.name, (*(s.var.name for s in nest.loops if s.var.name != lane), lane)))
    if not isinstance(spec.extent, int):
        return rows.lanes(k, lane, min(extent, register))
    share = extent // info.cores
    if not tasks and parallel.pays(k, info) and extent % info.cores == 0 and share % register == 0:
        k, task, lane = split(k, lane, share, f"{lane}_task", f"{lane}_in")
        others = [s.var.name for s in k.nests[out.name].loops if s.var.name not in (task, lane)]
        k = attempt(run(k, Permute(out.name, (task, *others, lane))), Bind(task, info.task_kind))
        extent = share
    whole = [n for n in (rows.VECTORS_IN_FLIGHT, 2, 1) if n == 1 or extent % (n * register) == 0]
    k, vectors = pick(k, "scatters.vectors", whole)
    return rows.lanes(k, lane, min(extent, vectors * register))


def _side_by_side(k: Kernel, out: Output, loop: Var) -> bool:
    """The loop runs along a whole axis whose elements are stored next to each other, each at a place of its own."""
    nest = k.nests[out.name]
    axis = next((a for a in out.axes if nest.bind[a.var] == loop), None)
    spec = nest.loop(loop.name)
    if axis is None or spec is None or spec.kind is not LoopKind.SERIAL:
        return False
    apart = all(_last_only(s.index, axis.var) for s in out.stores)
    return apart and high(spec.extent) > 1 and Bind(loop.name).check(k) is None


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
