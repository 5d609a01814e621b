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
from weft.ir.kernel.algorithm import Axis, ItemValue, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.window import Window
from weft.ir.loops import Scope
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.access import vector_score
from weft.scheduler.optimize.contraction_form import fill
from weft.scheduler.optimize.levels import SUM_CHAIN, apart, in_levels, summed
from weft.scheduler.optimize.rule import Choice, Rule, counted
from weft.scheduler.optimize.windows import (
    MIN_USES,
    WINDOW_SHARE,
    OneReduction,
    loops_of,
    only_reduction,
    slid_axes,
    sliding,
)

SPARE_REGISTERS = 6
"""For operands."""


@dataclass(frozen=True, slots=True)
class SmallOutputs:
    """The results' axes that some operand lacks, and the summed axis that lanes run along. `kernel` has what windows
    reach as a value where its elements are used often enough."""

    kernel: Kernel
    found: OneReduction
    few: tuple[Axis, ...]
    lane: Axis


@dataclass(frozen=True)
class InRegisters(Choice):
    """All results that share what they read are in registers: vectors of so many partial sums."""

    decision = "small_outputs.lanes"

    kernel: Kernel
    results: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.results} results in register, {self.lanes} partial sums each"


def recognise(k: Kernel, info: DeviceInfo) -> SmallOutputs | Refusal:
    """A kernel around one reduction with few results for all that they share."""
    found = only_reduction(k)
    if isinstance(found, Refusal):
        return found
    few = _few(k, found.value, info)
    if isinstance(few, Refusal):
        return few
    lane = _lane(k, found.value, info)
    if isinstance(lane, Refusal):
        return lane
    part = sliding(found.value, k)
    if isinstance(part, Refusal):
        return part
    slid = slid_axes(part, found.value)
    still = [a.var.name for a in few if a.var not in slid]
    if still:
        return Refusal(f"no window slides along {', '.join(still)}")
    if len(k.nests[found.out.name].loops) == len(few):
        return Refusal("there is one group of results only")
    return SmallOutputs(_windowed(k, found.value, part), found, few, lane)


def choose(form: SmallOutputs, info: DeviceInfo) -> InRegisters:
    """A vector of partial sums for each result, or a narrower one where the sum is short."""
    extent = high(form.lane.extent)
    widest = min(info.lanes(form.found.value.dtype), 1 << (extent - 1).bit_length())
    k, width = pick(
        form.kernel, "small_outputs.lanes", [widest >> n for n in range(3) if widest >> n > 1] or [1]
    )
    return InRegisters(k, prod(high(a.extent) for a in form.few), width)


def apply(form: SmallOutputs, choice: InRegisters, info: DeviceInfo) -> Kernel | Refusal:
    """The results' loops around, the sum in levels inside, at the innermost all results that share an element."""
    k, value, out = choice.kernel, form.found.value, form.found.out.name
    of = loops_of(k, form.found)
    tile = [of[a.var] for a in form.few]
    around = [s.var.name for s in k.nests[out].loops if s.var.name not in tile]
    big = parallel.pays(k, info)
    k = run(k, Permute(out, (*around, *tile)))
    k, at = _in_levels(k, form, choice.lanes, (out, around[-1]))
    if "window" in k.nests:
        window = k.algorithm.item("window")
        assert isinstance(window, ItemValue)
        k = run(k, ComputeAt("window", *at, Scope.LOCAL))
        size, room = storage_size(k.nests["window"]) * window.dtype.itemsize, info.l2_bytes // WINDOW_SHARE
        if size > room:
            return Refusal(
                f"the windows over {value.name} reach {size:,} bytes; {room:,} may stay in the cache"
            )
        k = fill(k, "window", info)
    return parallel.spread(k, out, around, info) if big else k


RULE = Rule("small_outputs", recognise, choose, apply)


def _in_levels(
    k: Kernel, form: SmallOutputs, lanes: int, at: tuple[str, str]
) -> tuple[Kernel, tuple[str, str]]:
    """The sum in levels of few additions each, the innermost by lanes, computed at `at` one inside the other; where the
    last but one is computed."""
    name, extent = form.found.value.name, high(form.lane.extent)
    k, leaf, axis = apart(k, name, form.lane.var.name, min(ceildiv(extent, lanes), SUM_CHAIN))
    order = [name]
    if leaf != name:
        k, below = in_levels(k, name)
        order += [*below, leaf]
    inner = f"{leaf}_lanes"
    k = run(k, SplitReduce(leaf, axis, lanes, inner, True))
    for n in order:
        k = run(k, ComputeAt(n, *at, Scope.REGISTER))
        if n != leaf:
            k, reduced = _tiled(k, n, "")
            at = n, reduced[-1]
    k = run(k, ComputeAt(inner, *at, Scope.REGISTER))
    k, _ = _tiled(k, leaf, summed(k, leaf)[-1].var.name)
    item = k.algorithm.item(inner)
    assert isinstance(item, ItemValue)
    return _tiled(k, inner, item.axes[-1].var.name)[0], at


def _few(k: Kernel, value: ItemValue, info: DeviceInfo) -> tuple[Axis, ...] | Refusal:
    """The axes of the results that some operand lacks, if there are few of them."""
    loads = [r for r in reads(value) if k.algorithm.param(r.source) is not None]
    if len(loads) < 2:
        return Refusal(f"{value.name} reads {counted(len(loads), 'operand')}; it is for two or more")
    on = [{v for i in r.index for v in variables(i)} for r in loads]
    axes = tuple(a for a in value.axes if a.extent != 1 and any(a.var not in x for x in on))
    count, most = prod(high(a.extent) for a in axes), info.vector_registers - SPARE_REGISTERS
    if not 1 < count <= most:
        return Refusal(f"{count:,} results share what they read; pays from 2 to {most}, which registers hold")
    return axes


def _lane(k: Kernel, value: ItemValue, info: DeviceInfo) -> Axis | Refusal:
    """The summed axis along which most is contiguous, if anything is, and it is not too long for one level."""
    assert value.reduce is not None
    axes = [a for a in value.reduce.axes if high(a.extent) > 1]
    if not axes:
        return Refusal(f"{value.name} sums one element")
    best = max(axes, key=lambda a: (vector_score(k.algorithm, value, a.var), axes.index(a)))
    steps = {
        coefficient(flatten(r.index, p.shape), best.var)
        for r in reads(value)
        if (p := k.algorithm.param(r.source)) is not None
    }
    if 1 not in steps:
        return Refusal(f"nothing is contiguous along the summed {best.var.name}, where lanes would run")
    most = info.lanes(value.dtype) * SUM_CHAIN
    if high(best.extent) > most:
        return Refusal(f"{high(best.extent):,} terms along {best.var.name}; pays up to {most:,}")
    return best


def _windowed(k: Kernel, value: ItemValue, part: Expr) -> Kernel:
    """Make a value of its own of what the windows reach, where its elements are used often enough."""
    copied = run(k, Window(value.name, part, "window"))
    window = copied.algorithm.item("window")
    assert isinstance(window, ItemValue)
    points = prod(high(a.extent) for a in value.all_axes)
    return copied if points >= MIN_USES * prod(high(a.extent) for a in window.axes) else k


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
