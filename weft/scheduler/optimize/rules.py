"""The schedule of a kernel from its algorithm and a device description, by rules, at once.

The first rule whose form a kernel has decides; what follows changes schedules of any rule. The rules read sizes, access
patterns and the description; they know no operator by name. `decide` says what became of each.
"""
# Tests: tests/scheduler/optimize/test_rules.py, tests/scheduler/optimize/test_reports.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from weft.backends.protocol import DeviceInfo
from weft.errors import DeviceError
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.decisions import Decisions, Pick
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.base import Refusal
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import (
    blocks,
    contraction,
    levels,
    online,
    pinned_dots,
    prefixes,
    rows,
    scaled_sums,
    scatters,
    small_outputs,
    taps,
    windows,
)
from weft.scheduler.optimize.rule import Chosen, NotReached, Rule

CORES: tuple[Rule[Any, Any], ...] = (
    online.RULE,  # attention in one pass; before `contraction`, which would take one of its products
    contraction.RULE,  # sums of products with reuse; before all that has one reduction, of which it reuses most
    scaled_sums.RULE,  # the same with products of bytes, summed as integers
    blocks.RULE,  # weights of few bits, times a vector; before `rows`, which would unpack each element by itself
    windows.RULE,  # depthwise convolutions, pooling; before `small_outputs`, which keeps fewer results
    prefixes.RULE,  # running sums of short rows; before `rows`, whose lanes would run along the sum
    taps.RULE,  # gradients of taps by channels; before `small_outputs`, whose lanes run along a sum
    small_outputs.RULE,  # gradients of few taps; last of those for one reduction, as its results are the fewest
    rows.RULE,  # all other kernels: bound by memory, so few passes
)
"""Rules for devices whose tasks are run by cores."""

PINNED: tuple[Rule[Any, Any], ...] = (
    contraction.RULE,  # tiles, whose sums run in the order of their terms
    pinned_dots.RULE,  # a row times a transposed matrix; before `rows`, which would gather
    windows.RULE,  # short sums of what windows reach, which are a single block
    rows.RULE,  # all other kernels
)
"""Rules that keep to the pinned order of sums, on such devices: see `ir/numerics.py`."""

AFTER_CORES: tuple[Rule[Any, Any], ...] = (
    scatters.RULE,  # lanes and tasks for outputs that combine with what is there; before `levels`, which reads loops
    levels.RULE,  # sums that are long chains still
)
"""Rules for what any of `CORES` made."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a rule: its choice, its refusal, or neither where another decided before it; and the
    decisions on the way, by name."""

    rule: str
    chosen: str = ""
    refused: str = ""
    picks: tuple[Pick, ...] = ()

    def __str__(self) -> str:
        """chosen: ... or no: ..., with a line for each decision that had options."""
        head = (
            f"chosen: {self.chosen}"
            if self.chosen
            else f"no: {self.refused}"
            if self.refused
            else "not reached"
        )
        return "\n".join([head, *(f"  {p.name}: {p}" for p in self.picks)])


@dataclass(frozen=True, slots=True)
class Decided:
    """A scheduled kernel, and the outcome of every rule, in order."""

    kernel: Kernel
    outcomes: tuple[tuple[str, Chosen | Refusal | NotReached], ...] = field(repr=False)

    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdict on each rule; other ways to compute a form stand behind the rule that compared them."""
        found: list[Verdict] = []
        before = 0
        for rule, outcome in self.outcomes:
            match outcome:
                case Refusal(why):
                    found.append(Verdict(rule, refused=why))
                case Chosen(kernel, choice):
                    picks = kernel.decisions.picks[before:]
                    before += len(picks)
                    found.append(_chosen(rule, choice.text(kernel), choice.decision, picks))
                    found += [Verdict(name, refused=r.why) for name, r in choice.refused]
                case NotReached():
                    found.append(Verdict(rule))
        return tuple(found)

    def __str__(self) -> str:
        """The verdicts, aligned."""
        verdicts = self.verdicts()
        width = max(len(v.rule) for v in verdicts) + 2
        return "\n".join(
            f"{v.rule:{width}}{str(v).replace(NEXT_LINE, NEXT_LINE + ' ' * width)}" for v in verdicts
        )


NEXT_LINE = "\n"


def _chosen(rule: str, text: str, decision: str, picks: Sequence[Pick]) -> Verdict:
    """The verdict of a choice: the options of the decision that it is mostly of beside it, the others below."""
    once = {str((p.name, p.option)): p for p in picks if len(p.options) > 1}
    main = next((p for p in once.values() if p.name == decision), None)
    others = tuple(p for p in once.values() if p is not main)
    return Verdict(rule, text + (main.compared() if main is not None else ""), picks=others)


def schedule(algorithm: Algorithm, info: DeviceInfo, record: Mapping[str, str] | None = None) -> Kernel:
    """A good schedule for `algorithm` on a device like `info`; `record` names options that are to be taken."""
    return decide(algorithm, info, record).kernel


def _rules(
    algorithm: Algorithm, info: DeviceInfo
) -> tuple[Sequence[Rule[Any, Any]], Sequence[Rule[Any, Any]]]:
    """The rules for kernels, and those for what they made. DeviceError where no rule keeps to a pinned order."""
    if info.task_kind is LoopKind.BLOCK:
        if algorithm.pinned:
            raise DeviceError(
                f'{info.name}: numerics="same" is there for devices of cores, not for grids of blocks'
            )
        from weft.scheduler.optimize.gpu_rules import AFTER_BLOCKS, BLOCKS

        return BLOCKS, AFTER_BLOCKS
    return PINNED if algorithm.pinned else CORES, AFTER_CORES


def decide(algorithm: Algorithm, info: DeviceInfo, record: Mapping[str, str] | None = None) -> Decided:
    """The same, with what became of every rule."""
    first, after = _rules(algorithm, info)
    k = initial(algorithm)
    if record:
        k = replace(k, decisions=Decisions(record))
    outcomes: list[tuple[str, Chosen | Refusal | NotReached]] = []
    decided = False
    for rule in first:
        outcome = NotReached() if decided else rule.schedule(k, info)
        outcomes.append((rule.name, outcome))
        if isinstance(outcome, Chosen):
            k, decided = outcome.kernel, True
    for rule in after:
        outcome = rule.schedule(k, info)
        outcomes.append((rule.name, outcome))
        if isinstance(outcome, Chosen):
            k = outcome.kernel
    return Decided(k, tuple(outcomes))
