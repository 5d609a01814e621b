"""Pinned sums of products whose factors lie along the sum and nowhere across it: a row times a transposed matrix.

    c(j) = sum k: a(k) * b(j, k)

Lanes along the sum would change its order, and lanes along j would gather. So each result has a chain of its own, in
scalars, and as many chains run side by side as hide the latency of an addition.
"""
# Tests: tests/scheduler/test_pinned.py

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.index import coefficient, flatten, high
from weft.ir.kernel.algorithm import Axis, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import Scope
from weft.ir.numerics import Tree
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.levels import pinned_steps
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import split
from weft.scheduler.optimize.windows import OneReduction, loops_of, only_reduction

CHAINS = 8
"""Results computed side by side: what two units of four cycles' latency have under way. Each is a stream of its own,
and rows of a power of two elements meet in the sets of a cache of eight ways."""


@dataclass(frozen=True, slots=True)
class Dots:
    """The sum and its output, and the axis of the results that chains run side by side along."""

    kernel: Kernel
    found: OneReduction
    axis: Axis


@dataclass(frozen=True)
class Chains(Choice):
    """Chains side by side along an axis."""

    axis: str

    def __str__(self) -> str:
        return f"{CHAINS} chains side by side along {self.axis}"


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
    return Dots(k, found, max(own, key=lambda a: high(a.extent)))


def choose(form: Dots, info: DeviceInfo) -> Chains:
    """The only way."""
    return Chains(form.axis.var.name)


def apply(form: Dots, choice: Chains, info: DeviceInfo) -> Kernel:
    """The chains of some results outside, the steps of the sum, then one step of each."""
    k, value, out = form.kernel, form.found.value, form.found.out.name
    loop = loops_of(k, form.found)[form.axis.var]
    around = [s.var.name for s in k.nests[out].loops if s.var.name != loop]
    k = run(k, Pad(loop, CHAINS))
    k, block, within = split(k, loop, CHAINS, "block", "chain")
    k = attempt(run(k, Permute(out, (*around, block, within))), Vectorize(within))
    if parallel.pays(k, info, 2.0 * prod(high(a.extent) for a in value.all_axes)):
        k = parallel.spread(k, out, [*around, block], info)
    block = k.nests[out].loops[-2].var.name
    k, part = pinned_steps(k, value.name)
    k = _chains(run(k, ComputeAt(value.name, out, block, Scope.REGISTER)), value.name)
    if part is None:
        return k
    steps = [s.var.name for s in k.nests[value.name].loops if s.reduce]
    return _chains(run(k, ComputeAt(part, value.name, steps[-1], Scope.REGISTER)), part)


def _chains(k: Kernel, name: str) -> Kernel:
    """Steps of the sum outside, the results written out."""
    loops = k.nests[name].loops
    steps, own = ([s.var.name for s in loops if s.reduce is reduce] for reduce in (True, False))
    return run(k, Permute(name, (*steps, *own)), *(Unroll(n) for n in own))


RULE = Rule("pinned_dots", recognise, choose, apply)
