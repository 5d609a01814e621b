"""The schedule of a kernel from its algorithm and a device description, by rules, at once.

The first rule whose form a kernel has decides; what follows changes schedules of any rule. The rules read sizes, access
patterns and the description; they know no operator by name. `decide` says what became of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from weft.backends.protocol import DeviceInfo
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.decisions import Decisions, Pick
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.base import Refusal
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import (
    blocks,
    contraction,
    gpu_contraction,
    gpu_grids,
    gpu_online,
    gpu_rows,
    levels,
    online,
    prefixes,
    rows,
    scatters,
    small_outputs,
    windows,
)
from weft.scheduler.optimize.rule import Chosen, Rule

CORES: tuple[Rule[Any, Any], ...] = (
    online.RULE,  # attention in one pass; before `contraction`, which would take one of its products
    contraction.RULE,  # sums of products with reuse; before all that has one reduction, of which it reuses most
    blocks.RULE,  # weights of few bits, times a vector; before `rows`, which would unpack each element by itself
    windows.RULE,  # depthwise convolutions, pooling; before `small_outputs`, which keeps fewer results
    prefixes.RULE,  # running sums of short rows; before `rows`, whose lanes would run along the sum
    small_outputs.RULE,  # gradients of few taps; last of those for one reduction, as its results are the fewest
    rows.RULE,  # all other kernels: bound by memory, so few passes
)
"""Rules for devices whose tasks are run by cores."""

BLOCKS: tuple[Rule[Any, Any], ...] = (
    gpu_online.RULE,  # attention in one pass; before `gpu_contraction`, as on cores
    gpu_contraction.RULE,  # tiles on matrix units, in shared memory or in registers
    gpu_rows.RULE,  # a block for each row or several, with all that is computed of it
    gpu_grids.RULE,  # all other kernels: a grid for each item
)
"""Rules for devices whose tasks are thread blocks."""

AFTER_CORES: tuple[Rule[Any, Any], ...] = (
    scatters.RULE,  # lanes and tasks for outputs that combine with what is there; before `levels`, which reads loops
    levels.RULE,  # sums that are long chains still
)
"""Rules for what any of `CORES` made."""

AFTER_BLOCKS: tuple[Rule[Any, Any], ...] = (levels.RULE,)
"""Rules for what any of `BLOCKS` made."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a rule: its choice in words, its refusal, or neither where another decided before it."""

    rule: str
    chosen: str = ""
    refused: str = ""

    def __str__(self) -> str:
        return (
            f"chosen: {self.chosen}"
            if self.chosen
            else f"no: {self.refused}"
            if self.refused
            else "not reached"
        )


@dataclass(frozen=True, slots=True)
class Decided:
    """A scheduled kernel, and the outcome of every rule, in order."""

    kernel: Kernel
    outcomes: tuple[tuple[Rule[Any, Any], Chosen | Refusal | None], ...] = field(repr=False)

    @property
    def picks(self) -> tuple[Pick, ...]:
        """The decisions that were made, each once."""
        return tuple({p.name: p for p in reversed(self.kernel.decisions.picks)}.values())[::-1]

    def verdicts(self) -> tuple[Verdict, ...]:
        """What became of each rule; other ways to compute a form stand beside the rule that compared them."""
        found: list[Verdict] = []
        for rule, outcome in self.outcomes:
            match outcome:
                case Refusal(why):
                    found.append(Verdict(rule.name, refused=why))
                case Chosen(kernel, choice):
                    found.append(Verdict(rule.name, chosen=choice.text(kernel)))
                    found += [Verdict(name, refused=r.why) for name, r in choice.refused]
                case _:
                    found.append(Verdict(rule.name))
        return tuple(found)

    def __str__(self) -> str:
        """A line for each rule, and under the chosen one a line for each decision that had options."""
        verdicts = self.verdicts()
        width = max(len(v.rule) for v in verdicts) + 2
        lines: list[str] = []
        for v in verdicts:
            lines.append(f"{v.rule:{width}}{v}")
            own = [
                p for p in self.picks if v.chosen and p.name.split(".")[0] == v.rule and len(p.options) > 1
            ]
            lines += [f"{'':{width}}  {p.name.split('.')[1]}: {p.option} ({p})" for p in own]
        return "\n".join(lines)


def schedule(algorithm: Algorithm, info: DeviceInfo, record: Mapping[str, str] | None = None) -> Kernel:
    """A good schedule for `algorithm` on a device like `info`; `record` names options that are to be taken."""
    return decide(algorithm, info, record).kernel


def decide(algorithm: Algorithm, info: DeviceInfo, record: Mapping[str, str] | None = None) -> Decided:
    """The same, with what became of every rule."""
    blocks_of_threads = info.task_kind is LoopKind.BLOCK
    first, after = (BLOCKS, AFTER_BLOCKS) if blocks_of_threads else (CORES, AFTER_CORES)
    k = initial(algorithm)
    if record:
        k = replace(k, decisions=Decisions(record))
    outcomes: list[tuple[Rule[Any, Any], Chosen | Refusal | None]] = []
    decided = False
    for rule in first:
        outcome = None if decided else rule.schedule(k, info)
        outcomes.append((rule, outcome))
        if isinstance(outcome, Chosen):
            k, decided = outcome.kernel, True
    for rule in after:
        outcome = rule.schedule(k, info)
        outcomes.append((rule, outcome))
        if isinstance(outcome, Chosen):
            k = outcome.kernel
    return Decided(k, tuple(outcomes))
