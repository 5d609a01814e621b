"""Pinned sums of products whose factors lie along the sum and nowhere across it: a row times a transposed matrix, or
times several, side by side.

    c(j) = sum k: a(k) * b(j, k)

Lanes along the sum would change its order, so they run along j, in squares (`squares.py`). Where there are none, each
result has a chain of its own, in scalars, and as many chains run side by side as hide the latency of an addition.
"""
# Tests: tests/scheduler/test_pinned.py, tests/scheduler/optimize/test_refusals.py

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Load
from weft.ir.index import Var, coefficient, flatten, high
from weft.ir.kernel.algorithm import Axis, ItemValue, Output, Param, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.loops import Scope
from weft.ir.numerics import CHAIN_TERMS, Tree
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.levels import pinned_steps
from weft.scheduler.optimize.rows import lanes
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.squares import ask_ahead, in_squares, lies_in_squares, steps, width
from weft.scheduler.optimize.staging import fits, stage_repeated
from weft.scheduler.optimize.steps import split
from weft.scheduler.optimize.windows import OneReduction, loops_of, only_reduction, reduction_of

CHAINS = 8
"""Results computed side by side in scalars: what two units of four cycles' latency have under way."""


FEW_OPERATIONS = 2
"""Operations from which on a factor is computed once for all results: in each square they are done anew, for one term
at a time."""


@dataclass(frozen=True, slots=True)
class Dot:
    """A sum and its output, the axis of the results that lanes or chains run side by side along, and what lies along
    the sum: each with its parameter."""

    found: OneReduction
    axis: Axis
    across: tuple[tuple[Load, Param | None], ...]


@dataclass(frozen=True, slots=True)
class Dots:
    """Sums of one output, which reads all of them at the same place."""

    kernel: Kernel
    sums: tuple[Dot, ...]


@dataclass(frozen=True)
class Chains(Choice):
    """Chains side by side along an axis: `steps` terms of each are read together, as vectors; 0 for scalars."""

    axis: str
    count: int
    steps: int

    def __str__(self) -> str:
        how = (
            f"squares of {self.count} by {self.steps}" if self.steps else f"{self.count} chains side by side"
        )
        return f"{how} along {self.axis}"


def recognise(k: Kernel, info: DeviceInfo) -> Dots | Refusal:
    """A kernel around such a sum, or around several."""
    *values, out = k.algorithm.items
    if len(values) < 2 or not isinstance(out, Output):
        only = only_reduction(k)
        dot = only if isinstance(only, Refusal) else _dot(k, only)
        return dot if isinstance(dot, Refusal) else Dots(k, (dot,))
    sums: list[Dot] = []
    for value in values:
        if not isinstance(value, ItemValue):
            return Refusal(f"{value.name} is a second output")
        found = reduction_of(value, out)
        dot = found if isinstance(found, Refusal) else _dot(k, found)
        if isinstance(dot, Refusal):
            return dot
        if any(p is None for _, p in dot.across):
            return Refusal(f"{value.name} is made of another value")
        sums.append(dot)
    loops = {tuple(loops_of(k, d.found).values()) for d in sums}
    if len(loops) > 1 or len({loops_of(k, d.found)[d.axis.var] for d in sums}) > 1:
        return Refusal("the sums are read at several places")
    return Dots(k, tuple(sums))


def _dot(k: Kernel, found: OneReduction) -> Dot | Refusal:
    """A sum as one of products that lie along it."""
    value = found.value
    assert value.reduce is not None
    if value.reduce.tree is not Tree.PRODUCTS:
        return Refusal(f"{value.name} sums no products of a contraction")
    own = [a for a in value.axes if a.extent != 1]
    loads = [(r, k.algorithm.param(r.source)) for r in reads(value)]
    places = [flatten(r.index, p.shape) for r, p in loads if p is not None]
    if not own or any(coefficient(i, a.var) == 1 for i in places for a in own):
        return Refusal(f"lanes run along an axis of {value.name}")
    axis = max(own, key=lambda a: high(a.extent))
    across = tuple(
        (r, p) for r, p in loads if p is None or coefficient(flatten(r.index, p.shape), axis.var) != 0
    )
    return Dot(found, axis, across)


def choose(form: Dots, info: DeviceInfo) -> Chains:
    """Squares where all that lanes would gather lies along the sum."""
    first, counts = form.sums[0], [_steps(d, info) for d in form.sums]
    if all(counts):
        return Chains(first.axis.var.name, width(first.found.value.dtype, info), min(counts))
    return Chains(first.axis.var.name, CHAINS, 0)


def _steps(d: Dot, info: DeviceInfo) -> int:
    """The terms of a sum that are read together; 0 where not all that lanes would gather lies along the sum."""
    assert d.found.value.reduce is not None
    last, size = d.found.value.reduce.axes[-1], width(d.found.value.dtype, info)
    along = all(lies_in_squares(p, r, d.axis.var, last.var) for r, p in d.across)
    return steps(min(high(last.extent), CHAIN_TERMS), size) if size and along else 0


def apply(form: Dots, choice: Chains, info: DeviceInfo) -> Kernel:
    """The chains of some results outside, the steps of the sum, then one step of each."""
    first = form.sums[0]
    k, value, out = _repeated_once(form, info), first.found.value, first.found.out.name
    loop_of = loops_of(k, first.found)
    loop = loop_of[first.axis.var]
    around = [s.var.name for s in k.nests[out].loops if s.var.name != loop]
    k = run(k, Pad(loop, choice.count))
    k, block, within = split(k, loop, choice.count, "block", "chain")
    outer = _as_memory_lies(first, loop_of | {first.axis.var: block}, [*around, block])
    k = attempt(run(k, Permute(out, (*outer, within))), Vectorize(within))
    if parallel.pays(k, info, 2.0 * len(form.sums) * prod(high(a.extent) for a in value.all_axes)):
        k = parallel.spread(k, out, outer, info)
    block = k.nests[out].loops[-2].var.name
    for d in form.sums:
        k = _summed(k, d, out, block, choice, info)
    return k


def _summed(k: Kernel, d: Dot, out: str, block: str, choice: Chains, info: DeviceInfo) -> Kernel:
    """A sum in its chains, computed for each block of results."""
    value = d.found.value
    k, part = pinned_steps(k, value.name)
    k = run(k, ComputeAt(value.name, out, block, Scope.REGISTER))
    if part is not None:
        k = _chains(k, value.name, choice, 0)
        ends = [s.var.name for s in k.nests[value.name].loops if s.reduce]
        k = run(k, ComputeAt(part, value.name, ends[-1], Scope.REGISTER))
    k = _chains(k, part or value.name, choice, choice.steps)
    for n in [s.var.name for s in k.nests[value.name].loops if s.reduce]:
        k = attempt(k, Trim(value.name, n, strict=True))  # of results that nobody asks for
    assert value.reduce is not None
    terms = prod(high(a.extent) for a in value.reduce.axes)
    for _, p in d.across if choice.steps else ():
        k = ask_ahead(k, part or value.name, p, block, terms, choice.count, info) if p is not None else k
    return k


def _as_memory_lies(d: Dot, loop_of: Mapping[Var, str], loops: list[str]) -> list[str]:
    """The loops over results in the order in which memory has what is read: where heads lie side by side, their parts
    of a row are read together. `loop_of`: the loop along each axis of the sum, blocks of lanes for that of lanes."""
    step = dict.fromkeys(loops, 0)
    for load, p in d.across:
        if p is None:
            continue
        at = flatten(load.index, p.shape)
        for v, name in loop_of.items():
            step[name] = max(step[name], abs(coefficient(at, v) or 0))
    return sorted(loops, key=lambda n: -step[n])


def _repeated_once(form: Dots, info: DeviceInfo) -> Kernel:
    """The kernel with parts that take time and are the same for many results as values of their own, if these fit."""
    staged, names = stage_repeated(form.kernel, FEW_OPERATIONS)
    width = info.lanes(form.sums[0].found.value.dtype)
    for name in names:
        last = staged.nests[name].loops[-1]
        staged = lanes(staged, last.var.name, min(width, high(last.extent)))
    return form.kernel if isinstance(fits(staged, (), names, info), Refusal) else staged


def _chains(k: Kernel, name: str, choice: Chains, together: int) -> Kernel:
    """Steps of the sum outside, `together` of them written out; results as lanes, or written out."""
    loops = k.nests[name].loops
    terms, own = ([s.var.name for s in loops if s.reduce is reduce] for reduce in (True, False))
    k = run(k, Permute(name, (*terms, *own)))
    if together:
        k = in_squares(k, terms[-1], together)
    if not choice.steps:
        return run(k, *(Unroll(n) for n in own))
    return run(k, *(Unroll(n) for n in own[:-1]), Vectorize(own[-1]))


RULE = Rule("pinned_dots", recognise, choose, apply)
