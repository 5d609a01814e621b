"""Reductions over which only a condition tells results apart: running sums, products and maxima of a short row.

    y(i, j) = sum r: x[i, r] if r <= j else 0

All results of a row take the same elements, so lanes run along the results: each element is loaded once for a vector of
them, which adds it where the condition holds. Lanes along what is summed would add up a vector across for every result.
Several rows at a time are independent additions; of one, each waits for the one before.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.index import coefficient, flatten, high, variables
from weft.ir.kernel.algorithm import Axis, ItemValue, Output, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import UNROLL_LIMIT, Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.loops import Scope
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import parallel
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import divisors, split
from weft.scheduler.optimize.windows import OneReduction, loops_of, only_reduction

MAX_LENGTH = 64
"""Results of a row, and elements that each reduces, at most: the work is their product."""

MAX_VECTORS = 8
"""Vectors of results at a time, each an independent addition: half of AVX2's 16 registers."""


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The axis along which only a condition tells results apart, the output's loop over it, and the others."""

    kernel: Kernel
    found: OneReduction
    axis: Axis
    lane: str
    around: tuple[str, ...]


@dataclass(frozen=True)
class Rows(Choice):
    """So many rows of results at a time, of so many lanes."""

    decision = "prefixes.rows"

    kernel: Kernel
    rows: int
    lanes: int

    def __str__(self) -> str:
        return f"{self.rows}x{self.lanes} results in register, each element loaded once for a row of them"


def recognise(k: Kernel, info: DeviceInfo) -> Prefixes | Refusal:
    """A kernel around one reduction of short rows, all results of which take the same elements."""
    found = only_reduction(k, unsized=True)
    if isinstance(found, Refusal):
        return found
    value, out = found.value, found.out
    axis = _results(k, value)
    if isinstance(axis, Refusal):
        return axis
    assert value.reduce is not None
    of = loops_of(k, found)
    summed = sum(a.extent != 1 for a in value.reduce.axes)
    if axis.var not in of or summed != 1:
        return Refusal(f"{value.name} reduces over {summed} axes; it is for one")
    lane, lanes = of[axis.var], high(axis.extent)
    around = tuple(s.var.name for s in k.nests[out.name].loops if s.var.name != lane)
    register = info.lanes(value.dtype)
    if not around:
        return Refusal("there is a single row; several are independent additions")
    if not _contiguous(k, out, lane):
        return Refusal(f"results are not stored side by side along {lane}, where lanes would run")
    if lanes % min(register, lanes):
        return Refusal(f"{lanes} results of a row are no whole vectors of {register}")
    return Prefixes(k, found, axis, lane, around)


def choose(form: Prefixes, info: DeviceInfo) -> Rows:
    """As many rows at a time as fill the registers."""
    k, lanes = form.kernel, high(form.axis.extent)
    extent = next(s.extent for s in k.nests[form.found.out.name].loops if s.var.name == form.around[-1])
    at_once = max(1, MAX_VECTORS * info.lanes(form.found.value.dtype) // lanes)
    tall = [d for d in reversed(divisors(extent)) if d <= at_once] if isinstance(extent, int) else [1]
    k, tall = pick(k, "prefixes.rows", tall)
    return Rows(k, tall, lanes)


def apply(form: Prefixes, choice: Rows, info: DeviceInfo) -> Kernel:
    """Lanes along the results; the elements outside, some rows of results inside."""
    k, value, out, lane, around = choice.kernel, form.found.value, form.found.out, form.lane, [*form.around]
    big = parallel.pays(k, info)
    k = run(k, Permute(out.name, (*around, lane)), Vectorize(lane))
    if choice.rows > 1:
        k, outer, inner = split(k, around[-1], choice.rows, f"{around[-1]}_o", f"{around[-1]}_i")
        k, around = run(k, Unroll(inner)), [*around[:-1], outer]
    k = run(k, ComputeAt(value.name, out.name, around[-1], Scope.REGISTER))
    nest = k.nests[value.name]
    along = next(
        s.var.name for s in nest.loops if not s.reduce and coefficient(nest.bind[form.axis.var], s.var) == 1
    )
    steps = [s.var.name for s in nest.loops if s.reduce]
    tile = [s.var.name for s in nest.loops if s.var.name not in (*steps, along)]
    k = run(k, Permute(value.name, (*steps, *tile, along)), *(Unroll(n) for n in tile), Vectorize(along))
    k = attempt(k, Unroll(steps[-1]))
    return parallel.spread(k, out.name, around, info) if big else k


RULE = Rule("prefixes", recognise, choose, apply)


def _results(k: Kernel, value: ItemValue) -> Axis | Refusal:
    """The only axis of the value that nothing it reads depends on, though the value does, if it is short."""
    assert value.reduce is not None
    loads = reads(value)
    read = {v for r in loads for i in r.index for v in variables(i)}
    guards = {v for r in loads for c in r.guard for v in variables(c.value)}
    free = [a for a in value.axes if a.extent != 1 and a.var not in read | guards]
    if len(free) != 1:
        return Refusal(f"{value.name} has {len(free)} axes that only a condition tells apart; it is for one")
    if not all(isinstance(a.extent, int) for a in (*value.reduce.axes, free[0])):
        return Refusal(f"rows of {value.name} have a size that is only known at run time")
    terms, results = max(high(a.extent) for a in value.reduce.axes), high(free[0].extent)
    most = min(MAX_LENGTH, UNROLL_LIMIT)
    if terms > MAX_LENGTH or not 1 < results <= most:
        return Refusal(
            f"{results:,} results of {terms:,} terms in a row; pays from 2 to {most} of {MAX_LENGTH}"
        )
    if any(k.algorithm.param(r.source) is None for r in loads):
        return Refusal(f"{value.name} reads values")
    return free[0]


def _contiguous(k: Kernel, out: Output, loop: str) -> bool:
    """Neighbours along the output's loop are stored side by side."""
    nest = k.nests[out.name]
    axis = next(a.var for a in out.axes if loop in {v.name for v in variables(nest.bind[a.var])})
    params = [(k.algorithm.param(s.param), s.index) for s in out.stores]
    return all(p is not None and coefficient(flatten(i, p.shape), axis) == 1 for p, i in params)
