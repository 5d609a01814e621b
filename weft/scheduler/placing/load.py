"""Load: the times that devices take over those that were predicted, and when it pays to choose layouts again.

predicted 10, 10, 10 ms     observed 10, 10, 25 ms     the third takes 2.5 times as long: its blocks should be smaller
predicted 10, 10, 10 ms     observed 9 to 12 ms        noise: what differs by less than times vary counts as no change

Layouts are chosen anew only if a step is to gain a tenth, and if that repays what choosing took within some steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from weft.lazy_dataclass import dataclass

WINDOW = 16
"""Observations over which times are averaged; as many pass before layouts may be chosen again."""

MIN_ERRORS = 6.0
"""Standard errors by which a mean has to differ from what is assumed, or it counts as noise. With both, no gain was
seen in 20,000 observations of four devices whose times vary by 10, 20 and 40 %; with 8 and 4, one in 950 to 285."""

MIN_GAIN = 0.1
"""The part of a step's time that has to be gained."""

REPAID_STEPS = 10_000
"""Steps within which the time that choosing takes has to be repaid."""


@dataclass(slots=True, eq=False)
class Load:
    """Observations of devices of these `speeds`. `slower`: the times by which each is slower than described, as
    the present layouts assume. Each time that layouts could be chosen anew, twice as many observations pass until the
    next, so that a device that changes all the time is not followed."""

    speeds: tuple[float, ...]
    slower: tuple[float, ...] = ()
    waits: int = 0
    seen: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])
    predicted: tuple[float, ...] = ()
    count: int = 0

    def __post_init__(self) -> None:
        self.slower, self.waits = self.slower or (1.0,) * len(self.speeds), self.waits or WINDOW

    def add(self, observed: Sequence[float], predicted: Sequence[float]) -> None:
        """Take in the times of one call on each device. One that has nothing to do is as it was thought to be."""
        if not any(predicted):
            return
        times = zip(observed, predicted, self.slower, strict=True)
        self.seen = [*self.seen[1 - WINDOW :], tuple([o / p if p > 0 else s for o, p, s in times])]
        self.predicted, self.count = tuple(predicted), self.count + 1

    def now(self) -> tuple[float, ...]:
        """The times by which devices are slower: medians of what was observed, to two digits, where they tell."""
        return tuple(
            [_told(some, s) for some, s in zip(zip(*self.seen, strict=True), self.slower, strict=True)]
        )

    def step_ns(self, slower: Sequence[float]) -> float:
        """The time of the slowest device with the present blocks."""
        return max(p * s for p, s in zip(self.predicted, slower, strict=True))

    def balanced_ns(self, slower: Sequence[float]) -> float:
        """The least time: all the work over the sum of speeds."""
        work = sum(p * s for p, s in zip(self.predicted, self.speeds, strict=True))
        return work / sum(s / x for s, x in zip(self.speeds, slower, strict=True))

    def look(self) -> tuple[float, ...] | None:
        """The times by which devices are slower, if blocks by these could gain enough: then the next look is later."""
        if self.count < self.waits:
            return None
        now = self.now()
        if self.balanced_ns(now) > (1 - MIN_GAIN) * self.step_ns(now):
            return None
        self.count, self.waits = 0, 2 * self.waits
        return now

    def repays(self, now: Sequence[float], before_ns: float, after_ns: float, took_ns: float) -> bool:
        """True where other layouts pay: those of `before_ns`, as predicted when they were chosen, are to be replaced
        by those of `after_ns`, as predicted now, which takes `took_ns`."""
        step = self.step_ns(now)
        before_ns *= step / self.step_ns(self.slower)
        gain = 1 - after_ns / before_ns if before_ns > 0 else 0.0
        return gain >= MIN_GAIN and gain * step * REPAID_STEPS >= took_ns

    def chose(self, slower: tuple[float, ...]) -> None:
        """Begin anew, with layouts that assume this."""
        self.slower, self.seen, self.count = slower, [], 0


def _told(some: Sequence[float], assumed: float) -> float:
    """The median, to two digits: some may be from before a change; what is assumed, where the mean may be chance."""
    mean = sum(some) / len(some)
    if len(some) < 2:
        return assumed
    error = math.sqrt(sum((x - mean) ** 2 for x in some) / (len(some) - 1) / len(some))
    return (
        float(f"{sorted(some)[len(some) // 2]:.2g}") if abs(mean - assumed) > MIN_ERRORS * error else assumed
    )
