"""Named decisions: the free parameters of a schedule, the options that each had, and records that ask for others.

    k, tile = pick(k, "contraction.tile", [Tile(4, 6), Tile(3, 8)], [1.0e6, 1.04e6])

Without a record the cheapest option is taken, the first of those that cost the same (or of all, without costs). A
record names an option by its text: "3x8". One that is not among the options is ignored: they are made anew for each
size.
"""
# Tests: tests/scheduler/optimize/test_decisions.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, TypeVar

from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.ir.kernel.schedule import Kernel

Option = TypeVar("Option")


@dataclass(frozen=True, slots=True)
class Pick:
    """One decision: the options, plain values that are named by their texts, in the order of preference or with their
    estimated costs, in `unit` (relative to each other, without one), and the index of the one that was taken."""

    name: str
    options: tuple[object, ...]
    taken: int
    costs: tuple[float, ...] = ()
    unit: str = ""

    @property
    def option(self) -> str:
        """The text of the option taken."""
        return str(self.options[self.taken])

    def ranked(self) -> list[int]:
        """The indices of the options, the cheapest first."""
        return sorted(range(len(self.options)), key=lambda n: self.costs[n] if self.costs else n)

    def __str__(self) -> str:
        """6x4, 3.1 M cycles (31 options; next: 8x3, +4 %)"""
        return f"{self.option}{self.compared()}"

    def compared(self) -> str:
        """The estimated cost of the option taken, and the best of the others; empty where there was no other."""
        other = next((n for n in self.ranked() if n != self.taken), None)
        if other is None:
            return ""
        cost = f", {_short(self.costs[self.taken])} {self.unit}" if self.unit else ""
        return f"{cost} ({len(self.options):,} options; next: {self.options[other]}{self._more(other)})"

    def _more(self, other: int) -> str:
        """The text of an option's cost above that of the one taken, where that is known."""
        if not self.costs or not self.costs[self.taken]:
            return ""
        more = 100 * (self.costs[other] / self.costs[self.taken] - 1)
        return f", {more:+.{0 if abs(more) >= 1 else 1}f} %"


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions to take (`record`: the name of a decision -> the text of an option) and those taken."""

    record: Mapping[str, str] = field(default_factory=dict[str, str])
    picks: tuple[Pick, ...] = ()


NONE = Decisions()


def pick(
    k: Kernel, name: str, options: Sequence[Option], costs: Sequence[float] = (), unit: str = ""
) -> tuple[Kernel, Option]:
    """The kernel with one more decision, and the option that was taken."""
    taken = costs.index(min(costs)) if costs else 0
    wish = k.decisions.record.get(name)
    if wish is not None:
        taken = next((n for n, option in enumerate(options) if str(option) == wish), taken)
    found = Pick(name, tuple(options), taken, tuple(costs), unit)
    return replace(k, decisions=Decisions(k.decisions.record, (*k.decisions.picks, found))), options[taken]


def _short(n: float) -> str:
    """1234567.0 -> "1.2 M" """
    for unit in ("", " k", " M", " G"):
        if n < 1000:
            return f"{n:.{1 if unit else 0}f}{unit}"
        n /= 1000
    return f"{n:,.1f} T"


def with_decisions_of(k: Kernel, other: Kernel) -> Kernel:
    """`k` with the decisions noted of another form of the same kernel."""
    return replace(k, decisions=other.decisions)
