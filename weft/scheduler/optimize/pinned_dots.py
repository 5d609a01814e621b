"""Pinned sums of products whose factors lie along the sum and nowhere across it: a row times a transposed matrix.

    c(j) = sum k: a(k) * b(j, k)

Lanes along the sum would change its order, so they run along j, in squares (`squares.py`). Where there are none, each
result has a chain of its own, in scalars, and as many chains run side by side as hide the latency of an addition.
"""
# Tests: tests/scheduler/test_pinned.py

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.expr import Load
from weft.ir.index import coefficient, flatten, high
from weft.ir.kernel.algorithm import Axis, Param, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import Scope
from weft.ir.numerics import CHAIN_TERMS, Tree
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.levels import pinned_steps
from weft.scheduler.optimize.rows import lanes
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.squares import ask_ahead, in_squares, lies_in_squares, steps, width
from weft.scheduler.optimize.staging import fits, stage_repeated
from weft.scheduler.optimize.steps import split
from weft.scheduler.optimize.windows import OneReduction, loops_of, only_reduction

CHAINS = 8
"""Results computed side by side in scalars: what two units of four cycles' latency have under way."""


@dataclass(frozen=True, slots=True)
class Dots:
    """The sum and its output, the axis of the results that lanes or chains run side by side along, and what lies along
    the sum: each with its parameter."""

    kernel: Kernel
    found: OneReduction
    axis: Axis
    across: tuple[tuple[Load, Param | None], ...]


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
    """A kernel around such a sum."""
    found = only_reduction(k)
    if isinstance(found, Refusal):
        return found
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
    return Dots(k, found, axis, across)


def choose(form: Dots, info: DeviceInfo) -> Chains:
    """Squares where all that lanes would gather lies along the sum."""
    value = form.found.value
    assert value.reduce is not None
    last, size = value.reduce.axes[-1], width(value.dtype, info)
    count = steps(min(high(last.extent), CHAIN_TERMS), size) if size else 0
    if count and all(lies_in_squares(p, r, form.axis.var, last.var) for r, p in form.across):
        return Chains(form.axis.var.name, size, count)
    return Chains(form.axis.var.name, CHAINS, 0)


def apply(form: Dots, choice: Chains, info: DeviceInfo) -> Kernel:
    """The chains of some results outside, the steps of the sum, then one step of each."""
    k, value, out = _repeated_once(form, info), form.found.value, form.found.out.name
    loop = loops_of(k, form.found)[form.axis.var]
    around = [s.var.name for s in k.nests[out].loops if s.var.name != loop]
    k = run(k, Pad(loop, choice.count))
    k, block, within = split(k, loop, choice.count, "block", "chain")
    outer = _as_memory_lies(form, [*around, block], block)
    k = attempt(run(k, Permute(out, (*outer, within))), Vectorize(within))
    if parallel.pays(k, info, 2.0 * prod(high(a.extent) for a in value.all_axes)):
        k = parallel.spread(k, out, outer, info)
    block = k.nests[out].loops[-2].var.name
    k, part = pinned_steps(k, value.name)
    k = run(k, ComputeAt(value.name, out, block, Scope.REGISTER))
    if part is not None:
        k = _chains(k, value.name, choice, 0)
        ends = [s.var.name for s in k.nests[value.name].loops if s.reduce]
        k = run(k, ComputeAt(part, value.name, ends[-1], Scope.REGISTER))
    k = _chains(k, part or value.name, choice, choice.steps)
    assert value.reduce is not None
    terms = prod(high(a.extent) for a in value.reduce.axes)
    for _, p in form.across if choice.steps else ():
        k = ask_ahead(k, part or value.name, p, block, terms, choice.count, info) if p is not None else k
    return k


def _as_memory_lies(form: Dots, loops: list[str], block: str) -> list[str]:
    """The loops over results, `block` that over blocks of lanes, in the order in which memory has what is read: where
    heads lie side by side, their parts of a row are read together."""
    loop_of = loops_of(form.kernel, form.found)
    step = dict.fromkeys(loops, 0)
    for load, p in form.across:
        at = None if p is None else flatten(load.index, p.shape)
        for v, n in loop_of.items():
            name = block if v is form.axis.var else n
            step[name] = max(step[name], abs(coefficient(at, v) or 0) if at is not None else 0)
    return sorted(loops, key=lambda n: -step[n])


def _repeated_once(form: Dots, info: DeviceInfo) -> Kernel:
    """The kernel with parts that take time and are the same for many results as values of their own, if these fit."""
    (staged, names), width = stage_repeated(form.kernel), info.lanes(form.found.value.dtype)
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
