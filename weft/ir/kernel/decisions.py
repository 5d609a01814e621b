"""Named decisions: the free parameters of a schedule, the options that each had, and records that ask for others.

    k, tile = pick(k, "contraction.tile", [Tile(4, 6), Tile(3, 8)], [1.0e6, 1.04e6])

Without a record the cheapest option is taken, the first of those that cost the same (or of all, without costs). A
record names an option by its text: "3x8". One that is not among the options is ignored: they are made anew for each
size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from weft.ir.kernel.schedule import Kernel

Option = TypeVar("Option")


@dataclass(frozen=True, slots=True)
class Pick:
    """One decision: the options in the order of preference or with their costs (in cycles, to be compared only with
    each other), and the index of the one that was taken."""

    name: str
    options: tuple[object, ...]
    costs: tuple[float, ...]
    taken: int

    @property
    def option(self) -> object:
        """The option taken."""
        return self.options[self.taken]

    def ranked(self) -> list[int]:
        """The indices of the options, the cheapest first."""
        return sorted(range(len(self.options)), key=lambda n: self.costs[n] if self.costs else n)

    def __str__(self) -> str:
        """31 options; next: 8x3, +4 %"""
        head = f"{len(self.options):,} option{'' if len(self.options) == 1 else 's'}"
        other = next((n for n in self.ranked() if n != self.taken), None)
        if other is None:
            return head
        more = (
            self.costs[other] / self.costs[self.taken] - 1 if self.costs and self.costs[self.taken] else None
        )
        return f"{head}; next: {self.options[other]}{'' if more is None else f', {100 * more:+.0f} %'}"


@dataclass(frozen=True, slots=True)
class Decisions:
    """What to decide (`record`: the name of a decision -> the text of an option) and what was decided."""

    record: Mapping[str, str] = field(default_factory=dict[str, str])
    picks: tuple[Pick, ...] = ()


NONE = Decisions()


def pick(
    k: Kernel, name: str, options: Sequence[Option], costs: Sequence[float] = ()
) -> tuple[Kernel, Option]:
    """The kernel with one more decision, and the option that was taken."""
    taken = min(range(len(options)), key=costs.__getitem__) if costs else 0
    wish = k.decisions.record.get(name)
    if wish is not None:
        taken = next((n for n, option in enumerate(options) if str(option) == wish), taken)
    found = Pick(name, tuple(options), tuple(costs), taken)
    return replace(k, decisions=replace(k.decisions, picks=(*k.decisions.picks, found))), options[taken]


def with_decisions_of(k: Kernel, other: Kernel) -> Kernel:
    """`k` with the decisions noted of another form of the same kernel."""
    return replace(k, decisions=other.decisions)
