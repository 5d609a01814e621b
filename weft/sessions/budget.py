"""What a form of a session keeps in a limit: solved from estimates, and checked against real plans.

The problem of `keeping.py` counts bytes of values and estimates the scratch of runs. What scratch plans take is known
once they are made, so the limit that is solved for is corrected by what they took more, until the plans of what was
chosen fit: no run starts that was not measured before. Where none fits, the least that would do is that of plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.backends.protocol import DeviceInfo
from weft.errors import MemoryPlanError
from weft.ir.graph import Node
from weft.ir.regions.region import Region
from weft.sessions.buckets import Bucket
from weft.sessions.costs import Change, retention
from weft.sessions.keeping import Keeping, keep, least, rank, stacked, unlimited
from weft.sessions.retention import Retention, members
from weft.sessions.transitions import TransitionLog

EVERYTHING = "all"
"""The name of the bucket of a run that computes everything."""

TRIES = 6
"""Limits that are solved for before the least that would do is taken, or named."""


def name_of(bucket: Bucket) -> str:
    """A bucket as text, the same in every process."""
    return repr(tuple(bucket))


@dataclass(slots=True)
class Budget:
    """What is known of a form's runs, and what follows for what it keeps. `changes`: the regions that each bucket
    reaches, by its name; `log`: the order of runs."""

    stored: tuple[Node, ...]
    results: tuple[Node, ...]
    info: DeviceInfo
    changes: dict[str, Mapping[Node, Region]] = field(default_factory=dict[str, Mapping[Node, Region]])
    guessed: dict[str, Mapping[Node, Region]] = field(default_factory=dict[str, Mapping[Node, Region]])
    """The regions that a change of one element reaches, for each argument: while no bucket is known."""
    log: TransitionLog = field(default_factory=TransitionLog)

    def problem(self) -> Retention:
        """The problem of what to keep for the buckets that are known, as probable as the log says."""
        known = self.changes or self.guessed
        changes = [Change(EVERYTHING, {}), *(Change(name, dirty) for name, dirty in known.items())]
        return retention(self.stored, self.results, changes, self.log.chances((EVERYTHING, *known)), self.info)

    def all_kept(self, p: Retention) -> Keeping:
        """The answer that keeps every value."""
        found = stacked(p, (*members(p.pinned), *rank(p)), unlimited(p, rank(p)))
        assert found is not None
        return found

    def solved(
        self, limit: int | None, seconds: float, measure: Callable[[Sequence[Node]], int]
    ) -> tuple[Keeping, tuple[Node, ...]]:
        """What to keep in a limit (None: whatever is of use). `measure` gives the bytes that plans take which keep
        these nodes. MemoryPlanError: nothing fits; it says what the least limit would be."""
        p = self.problem()
        if limit is None:
            answer = keep(p)
            return answer, self._nodes(answer)
        aim = limit
        for _ in range(TRIES):
            try:
                answer = keep(p, aim, seconds, shares=False)
            except MemoryPlanError:
                break
            nodes = self._nodes(answer)
            over = measure(nodes) - limit
            if over <= 0:
                return answer, nodes
            aim -= over
        return self._least(p, limit, measure)

    def _least(
        self, p: Retention, limit: int, measure: Callable[[Sequence[Node]], int]
    ) -> tuple[Keeping, tuple[Node, ...]]:
        """The answer of fewest bytes that is known. MemoryPlanError where it does not fit, either."""
        order = rank(p)
        smallest: int | None = None
        for kept in dict.fromkeys((least(p, order)[1], members(p.pinned))):
            answer = stacked(p, kept, unlimited(p, order))
            assert answer is not None
            nodes = self._nodes(answer)
            need = measure(nodes)
            if need <= limit:
                return answer, nodes
            smallest = need if smallest is None else min(smallest, need)
        raise MemoryPlanError(
            f"session: its results and what its largest run needs take at least {smallest:,} bytes, and the limit is "
            f"{limit:,}. Raise memory=, or use smaller inputs"
        )

    def _nodes(self, answer: Keeping) -> tuple[Node, ...]:
        """The kept nodes, in the order of computation."""
        return tuple([self.stored[k] for k in sorted(answer.kept)])
