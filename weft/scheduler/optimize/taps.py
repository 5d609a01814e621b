"""Gradients of windows' taps, with lanes along channels: sums over places of what lies a tap away, times a factor.

    w(r, s, c) = sum n, i, j: x[n, i + r - 1, j + s - 1, c] * g[n, i, j, c]   (0 outside of x)

Channels lie side by side in both operands, and each has a sum of its own. So each element of g is loaded once for a row
of taps, or for all of them where registers hold as many sums: a vector of channels for each.
"""

from __future__ import annotations

from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.index import high, variables
from weft.ir.kernel.algorithm import Axis, ItemValue, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange
from weft.ir.loops import Scope
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.levels import summed
from weft.scheduler.optimize.operands import lane_step
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.small_outputs import SPARE_REGISTERS
from weft.scheduler.optimize.steps import split
from weft.scheduler.optimize.windows import OneReduction, loops_of, only_reduction, slid_axes, sliding


@dataclass(frozen=True, slots=True)
class Taps:
    """The taps' axes of the results, and the axis of their channels."""

    kernel: Kernel
    found: OneReduction
    taps: tuple[Axis, ...]
    channels: Axis


@dataclass(frozen=True)
class Together(Choice):
    """So many of the taps' axes, the last ones, are in registers together: sums of so many lanes."""

    decision = "taps.together"

    kernel: Kernel
    axes: int
    sums: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.sums} taps in registers, {self.lanes} channels each"


def recognise(k: Kernel, info: DeviceInfo) -> Taps | Refusal:
    """A kernel around one sum that windows slide over, results being their taps, whose operands lie by channels."""
    found = only_reduction(k)
    if isinstance(found, Refusal):
        return found
    value = found.value
    part = sliding(value, k)
    if isinstance(part, Refusal):
        return part
    slid = slid_axes(part, value)
    taps = tuple(a for a in value.axes if a.var in slid and a.extent != 1)
    loads = [r for r in reads(value) if k.algorithm.param(r.source) is not None]
    if all({a.var for a in taps} <= {v for i in r.index for v in variables(i)} for r in loads):
        return Refusal("every operand has the axes of the taps: none is used for the next tap again")
    channels = next((a for a in reversed(value.axes) if a not in taps and high(a.extent) > 1), None)
    if channels is None or any(lane_step(k, r, channels.var) != 1 for r in loads):
        return Refusal("operands do not lie side by side along channels, where lanes would run")
    return Taps(k, found, taps, channels)


def choose(form: Taps, info: DeviceInfo) -> Together | Refusal:
    """As many of the taps together as registers hold."""
    room = info.vector_registers - SPARE_REGISTERS
    sums = {n: prod(high(a.extent) for a in form.taps[-n:]) for n in range(len(form.taps), 0, -1)}
    ways = [n for n, count in sums.items() if count <= room]
    if not ways:
        return Refusal(f"{sums[1]:,} taps in a row; registers hold {room}")
    k, axes = pick(form.kernel, "taps.together", ways)
    width = high(form.channels.extent)
    return Together(
        k, axes, sums[axes], min(info.lanes(form.found.value.dtype), 1 << (width - 1).bit_length())
    )


def apply(form: Taps, choice: Together, info: DeviceInfo) -> Kernel:
    """Channels in blocks of lanes outside. In them, for each row of places, the sums of a row of taps in registers, and
    the sums of all rows of taps where lines of both operands stay near."""
    k, value, out = choice.kernel, form.found.value.name, form.found.out.name
    of = loops_of(k, form.found)
    taps = [of[a.var] for a in form.taps]
    lane = of[form.channels.var]
    big = parallel.pays(k, info)
    k = run(k, Pad(lane, choice.lanes))
    k, block, lane = split(k, lane, choice.lanes, f"{lane}_o", f"{lane}_l")
    around = [s.var.name for s in k.nests[out].loops if s.var.name not in (block, lane, *taps)]
    together, apart = taps[-choice.axes :], taps[: -choice.axes]
    k = run(
        k,
        Permute(out, (block, *around, *apart, *together, lane)),
        *(Unroll(n) for n in together),
        Vectorize(lane),
    )
    row, at = value, (out, (block, *around)[-1])
    *rows, _ = (a.var.name for a in summed(k, value) if a.extent != 1)
    if rows:
        row = fresh(k.names(), f"{value}_row")
        k = run(k, SplitReduce(value, rows[-1], 0, row, whole=tuple(rows[:-1])))
        k, outer = _tiled(run(k, ComputeAt(value, *at, Scope.LOCAL)), form, choice, value, Scope.LOCAL)
        at = value, outer[-1]
    k, _ = _tiled(run(k, ComputeAt(row, *at, Scope.REGISTER)), form, choice, row, Scope.REGISTER)
    return parallel.spread(k, out, [block, *around], info) if big else k


def _tiled(k: Kernel, form: Taps, choice: Together, name: str, scope: Scope) -> tuple[Kernel, list[str]]:
    """The loops of sums: over places, over taps apart, then those together, written out, then lanes; the names of those
    that are not written out."""
    item, nest = k.algorithm.item(name), k.nests[name]
    assert isinstance(item, ItemValue)
    axes = form.found.value.axes
    own = [s.var.name for s in nest.loops if not s.reduce]
    along = {a: n for a, x in zip(axes, item.axes, strict=False) for n in own if nest.runs(n, x.var)}
    inner = [along[a] for a in (*form.taps[-choice.axes :], form.channels) if a in along]
    outer = [s.var.name for s in nest.loops if s.reduce] + [n for n in own if n not in inner]
    k = run(k, Permute(name, (*outer, *inner)), *(Unroll(n) for n in inner[:-1]), Vectorize(inner[-1]))
    rank, last = len(item.axes), axes.index(form.channels)
    order = (*(a for a in range(rank) if a != last), last)
    return run(k, Arrange(name, scope, order, (1,) * rank)), outer


RULE = Rule("taps", recognise, choose, apply)
