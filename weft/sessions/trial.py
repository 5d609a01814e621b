"""Trials of what to keep: past runs of a session, done again with two choices and timed.

    estimates say that B is faster than A       run the last runs with B, then with A: B stays where it was faster

What is kept is chosen by estimates. Where they are far off, the choice can be worse than the one before: a trial says
so, since runs with equal inputs compute the same again.
"""
# Tests: tests/sessions/test_keeper.py

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from weft.ir.index import Var
from weft.lazy_dataclass import dataclass
from weft.sessions.buckets import Bucket, Placed

PAST_RUNS = 256
"""Runs that a session remembers for trials."""

LEAST_GAIN = 0.02
"""The part of the time by which a choice has to be faster: less is noise."""


MOST_LOST = 0.1
"""The part of the time that a choice of half of the bytes may take more, where no limit says how many are worth it."""


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """A run: its changes, None for everything, and what the function's runtime variables were."""

    steps: Sequence[Placed] | None
    numbers: Mapping[Var, int]

    @property
    def kind(self) -> tuple[Bucket, ...] | None:
        """Equal for runs whose times are like each other."""
        return None if self.steps is None else tuple([s.bucket for s in self.steps])


def is_faster(
    timed: Callable[[Sequence[Past], float], list[int]],
    change: Callable[[], None],
    past: Sequence[Past],
    seconds: float,
    gain: float = LEAST_GAIN,
) -> bool:
    """True where past runs take less time now than after `change`, by `gain`. `timed` gives the times of the first of
    some runs, as many as it does in so many seconds; the first computes everything, in fresh memory, and counts where
    it is the only one. Where there is nothing to go by, what is now is taken to be faster."""
    now = timed(past, seconds / 2)
    change()
    then = timed(past[: len(now)], seconds / 2)
    common = min(len(now), len(then))
    if not common:
        return True
    first = min(1, common - 1)
    ours, theirs = (total(past[first:common], times[first:common]) for times in (now, then))
    return ours <= (1 - gain) * theirs


def least_gain(nbytes: int, before: int, limited: bool) -> float:
    """The part of the time by which a choice of so many bytes has to be faster than one of `before`."""
    if nbytes >= before:
        return LEAST_GAIN
    return -MOST_LOST if 2 * nbytes <= before and not limited else 0.0


def total(past: Sequence[Past], times: Sequence[int]) -> float:
    """The time of runs, of which each takes what is usual for its kind."""
    by_kind: dict[tuple[Bucket, ...] | None, list[int]] = {}
    for run, ns in zip(past, times, strict=True):
        by_kind.setdefault(run.kind, []).append(ns)
    return sum(median(found) * len(found) for found in by_kind.values())
