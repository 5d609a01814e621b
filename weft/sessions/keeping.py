"""The choice of values that a session keeps in a given memory, and their places.

    1. rank      all are kept; the one whose loss costs least time per byte goes, again and again. A loss costs the time
                 to compute the value again, and all before it that is not kept, times the chance that it is needed.
                 The order in which they go, turned round, is the same for every limit.
    2. stack     values at the end of the arena in that order; what no run ever finds there goes, and makes room.
    3. exchange  moves that lower the time, one after the other, until time is up or none does.

Each stands with a working answer when it is stopped. The time of an answer is exact for the model: the stationary time
of the chain of (bucket, validity class), for a session that is started anew once in `RUNS` runs. No answer of any limit
takes less than `bound_ns`.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from weft.errors import MemoryPlanError
from weft.lazy_dataclass import dataclass
from weft.scheduler.memory import ALIGNMENT
from weft.sessions.retention import PART, WHOLE, Effect, Retention, aligned, bits, members
from weft.sessions.transitions import visits

RUNS = 1000
"""The runs of a session that the first run is set against."""

MAX_CLASSES = 16
"""Validity classes of a session: with each bucket, each is a plan of its own at most."""

LEAST_GAIN = 1e-9
"""The part of the time by which an exchange has to be better: less is rounding."""


@dataclass(frozen=True, slots=True)
class State:
    """A bucket in a validity class: what its run does, as values, and the class that it leaves."""

    case: int
    before: int
    after: int
    ns: float
    scratch: int
    reads: tuple[int, ...]
    updates: tuple[int, ...]
    stores: tuple[int, ...]
    invalidates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Keeping:
    """An answer: the kept values with their offsets in an arena of `nbytes`, the best first; the classes of values that
    are valid, of which the first has none; what runs do. `ns`: the expected time of a run."""

    nbytes: int
    kept: tuple[int, ...]
    offsets: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    states: tuple[State, ...]
    ns: float
    bound_ns: float

    @property
    def gap(self) -> float:
        """The part of `ns` by which another answer could be faster."""
        return max(0.0, self.ns - self.bound_ns) / self.ns if self.ns > 0 else 0.0

    @property
    def peak(self) -> int:
        """The bytes that are used: from the beginning to where the scratch of any run ends, and what is kept."""
        lowest = min(self.offsets, default=self.nbytes)
        return max((s.scratch for s in self.states), default=0) + self.nbytes - lowest


def keep(
    p: Retention,
    limit: int | None = None,
    seconds: float = 0.0,
    moves: int | None = None,
    shares: bool = True,
) -> Keeping:
    """The values to keep in `limit` bytes (None: no limit). `seconds` and `moves` bound the exchange. `shares`: what is
    kept may share memory with the scratch of runs, and is lost to it.

    MemoryPlanError: the limit cannot be met; it says with which it could."""
    end = time.monotonic() + seconds
    order = rank(p)
    first = members(p.pinned)
    if limit is None:
        answer = stacked(p, (*first, *order), unlimited(p, order))
        assert answer is not None
        return _without_unused(p, answer)
    limit = limit // ALIGNMENT * ALIGNMENT
    answer = stacked(p, (*first, *order), limit, shares) or stacked(p, first, limit, shares)
    if answer is None:
        need, few = least(p, order)
        answer = stacked(p, few, limit, shares) if need <= limit else None
        if answer is None:
            raise MemoryPlanError(
                f"a session of {len(p.values)} values and {len(p.cases)} buckets cannot be kept in {limit:,} bytes: "
                f"results and what the largest run needs take at least {need:,}. Raise the limit, or use smaller inputs"
            )
    answer = _without_unused(p, answer, shares)
    return exchanged(p, answer, order, lambda: time.monotonic() < end, moves, shares)


def unlimited(p: Retention, order: Sequence[int]) -> int:
    """Bytes in which no run reaches anything that is kept."""
    kept = (*members(p.pinned), *order)
    return sum(aligned(p.values[k].nbytes) for k in kept) + _most_scratch(p, kept)


def least(p: Retention, order: Sequence[int]) -> tuple[int, tuple[int, ...]]:
    """The fewest bytes that are known to do, and what is kept in them: the pinned values and the best of the others,
    of which keeping some may need less than computing them again does."""
    first = members(p.pinned)
    counts = {0, len(order), *(1 << k for k in range(len(order).bit_length()))}
    found: list[tuple[int, int, tuple[int, ...]]] = []
    for count in sorted(c for c in counts if c <= len(order)):
        kept = (*first, *order[:count])
        nbytes = sum(aligned(p.values[k].nbytes) for k in kept) + _most_scratch(p, kept)
        found.append((nbytes, count, kept))
    need, _, kept = min(found)
    return need, kept


def _most_scratch(p: Retention, kept: Sequence[int]) -> int:
    """The most scratch of any run where nothing that is kept is ever lost."""
    stored = bits(kept)
    seen, left, most = {0}, [(0, 0)], 0
    while left:
        case, valid = left.pop()
        _, scratch, _, _, stores = p.work(case, valid, stored)
        most = max(most, scratch)
        after = valid | stores
        if after not in seen:
            seen.add(after)
            left += [(c, after) for c in range(len(p.cases))]
    return most


def stacked(p: Retention, order: Sequence[int], limit: int, shares: bool = True) -> Keeping | None:
    """The answer that keeps these values in this order, from the arena's end on; None where a run does not fit.

    Where there would be more validity classes than MAX_CLASSES, or a run would reach values that share no memory, the
    last ones are not kept."""
    offsets: list[tuple[int, int]] = []
    at = limit
    for k in order:
        at -= aligned(p.values[k].nbytes)
        if at < 0:
            if p.pinned >> k & 1:
                return None
            break
        offsets.append((k, at))
    first, count = sum(p.pinned >> k & 1 for k, _ in offsets), len(offsets)
    effects = _effects(p, offsets, shares)
    while effects is None and count > first:  # that few fit is the rule: the most that do, by halving
        middle = (first + count) // 2
        found = _effects(p, offsets[:middle], shares)
        if found is None:
            count = middle
        elif first == middle:
            count, effects = first, found
        else:
            first = middle
    return None if effects is None else _answer(p, limit, offsets[:count], effects)


def _effects(
    p: Retention, offsets: Sequence[tuple[int, int]], shares: bool
) -> dict[tuple[int, int], Effect] | None:
    """The effects of all runs that can come, by bucket and what is valid; None where one does not fit, or there are
    too many classes."""
    effects: dict[tuple[int, int], Effect] = {}
    seen, left = {0}, [(0, 0)]
    while left:
        case, valid = left.pop()
        effect = p.effect(case, valid, offsets, shares)
        if effect is None:
            return None
        effects[case, valid] = effect
        if effect.after not in seen or not effect.after:  # what leaves nothing is a class like any other
            seen.add(effect.after)
            if len(seen) > MAX_CLASSES and any(not p.pinned >> k & 1 for k, _ in offsets):
                return None
            states = [(c, effect.after) for c in range(len(p.cases))]
            left += [s for s in states if s not in effects and s not in left]
    return effects


def _answer(
    p: Retention, limit: int, offsets: Sequence[tuple[int, int]], effects: dict[tuple[int, int], Effect]
) -> Keeping:
    classes = sorted({v for _, v in effects} | {e.after for e in effects.values()})
    number = {v: k for k, v in enumerate(classes)}
    states = [
        State(
            case, number[valid], number[e.after], e.ns, e.scratch,
            members(e.reads), members(e.updates), members(e.stores), members(e.invalidates),
        )
        for (case, valid), e in sorted(effects.items(), key=lambda found: (number[found[0][1]], found[0][0]))
    ]  # fmt: skip
    kept, at = tuple(k for k, _ in offsets), tuple(a for _, a in offsets)
    ns = expected_ns(p, states)
    return Keeping(limit, kept, at, tuple(map(members, classes)), tuple(states), ns, min(ns, _bound(p)))


def expected_ns(p: Retention, states: Sequence[State]) -> float:
    """The time of a run, on average over a session of RUNS runs on average: the first state begins it."""
    number = {(s.case, s.before): k for k, s in enumerate(states)}
    steps = np.zeros((len(states), len(states)))
    for k, s in enumerate(states):
        for c in range(len(p.cases)):
            steps[k, number[c, s.after]] += p.chances[s.case, c]
    return float(visits(steps, RUNS) @ np.array([s.ns for s in states]))


def _bound(p: Retention) -> float:
    """A time that no answer is below: each run computes what may differ, the first all that results are made of."""
    needed = p.pinned
    for k in range(len(p.values) - 1, -1, -1):
        if needed >> k & 1:
            needed |= bits(p.values[k].inputs)
    whole = sum(p.values[k].ns for k in members(needed))
    return float(visits(p.chances, RUNS) @ np.array(p.least_ns)) + (whole - p.least_ns[0]) / RUNS


def _without_unused(p: Retention, answer: Keeping, shares: bool = True) -> Keeping:
    """An answer without the values that no run reads as an earlier one left them, as long as that costs nothing."""
    while True:
        used = p.pinned | bits(k for s in answer.states for k in s.reads)
        fewer = tuple(k for k in answer.kept if used >> k & 1)
        if len(fewer) == len(answer.kept):
            return answer
        found = stacked(p, fewer, answer.nbytes, shares)
        if found is None or found.ns > answer.ns * (1 + LEAST_GAIN):
            return answer
        answer = found


# rank ---------------------------------------------------------------------------------------------------------------


def rank(p: Retention) -> tuple[int, ...]:
    """The candidates that are not pinned, the one that is worth most per byte first."""
    losses = _Losses(p)
    shares = [float(x) for x in visits(p.chances, RUNS)]

    def score(k: int) -> float:
        return sum(s * losses.of(c, k) for c, s in enumerate(shares)) / max(p.values[k].nbytes, 1)

    # The loss of one makes that of others larger, mostly: what the heap has is a bound, computed anew when it is due.
    heap = [(score(k), -k) for k, v in enumerate(p.values) if not v.pinned]
    heapq.heapify(heap)
    gone: list[int] = []
    while heap:
        known, k = heapq.heappop(heap)
        now = score(-k)
        if heap and now > max(known, heap[0][0]):
            heapq.heappush(heap, (now, k))
            continue
        losses.take(-k)
        gone.append(-k)
    return tuple(reversed(gone))


class _Losses:
    """The part of each value that runs compute, while fewer and fewer are kept."""

    def __init__(self, p: Retention) -> None:
        self._p = p
        self._kept = (1 << len(p.values)) - 1
        self._levels = [p.levels(c, self._kept) for c in range(len(p.cases))]

    def of(self, case: int, k: int) -> float:
        """The time that a run takes more without value k."""
        return self._raised(case, k)[0]

    def take(self, k: int) -> None:
        """Do without value k."""
        for case, (level, demand) in enumerate(self._levels):
            _, levels, demands = self._raised(case, k)
            for i, done in levels.items():
                level[i] = done
            for i, wanted in demands.items():
                demand[i] = wanted
        self._kept &= ~(1 << k)

    def _raised(self, case: int, k: int) -> tuple[float, dict[int, int], dict[int, int]]:
        """The time that comes on top where value k is computed as far as it is demanded, with the new levels."""
        p, (level, demand) = self._p, self._levels[case]
        values, part_ns, inputs = p.values, p.cases[case].part_ns, p.inputs[case]
        levels, demands = dict[int, int](), dict[int, int]()
        more, left = 0.0, [(k, demand[k])]
        while left:
            n, done = left.pop()
            had = levels.get(n, level[n])
            if n == k and done < had:  # it was kept up to date for nobody
                levels[n] = done
                more -= part_ns[n]
                continue
            if done <= had:
                continue
            levels[n] = done
            more += (values[n].ns if done == WHOLE else part_ns[n]) - (part_ns[n] if had == PART else 0.0)
            for i, wanted in inputs[n]:
                wanted = WHOLE if done == WHOLE else wanted
                if wanted > demands.get(i, demand[i]):
                    demands[i] = wanted
                    if not self._kept >> i & 1:
                        left.append((i, wanted))
        return more, levels, demands


# exchange -----------------------------------------------------------------------------------------------------------


def exchanged(
    p: Retention,
    answer: Keeping,
    order: Sequence[int],
    going: Callable[[], bool],
    moves: int | None = None,
    shares: bool = True,
) -> Keeping:
    """The answer after all moves that make it faster, while `going` and at most `moves` are tried."""
    pinned = sum(1 for k in answer.kept if p.pinned >> k & 1)
    tried = 0
    better = True
    while better:
        better = False
        for kept in _neighbours(answer.kept[pinned:], order):
            if not going() or tried == moves or answer.ns <= answer.bound_ns * (1 + LEAST_GAIN):
                return answer
            tried += 1
            found = stacked(p, (*answer.kept[:pinned], *kept), answer.nbytes, shares)
            if found is not None and found.ns < answer.ns * (1 - LEAST_GAIN):
                answer, better = _without_unused(p, found, shares), True
                break
    return answer


def _neighbours(kept: Sequence[int], order: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Orders that one move makes: another value comes in, the best first; one goes for another; one goes; two change
    places."""
    others = [k for k in order if k not in set(kept)]
    for k in others:
        for at in range(len(kept), -1, -1):
            yield (*kept[:at], k, *kept[at:])
    for at in range(len(kept) - 1, -1, -1):
        rest = (*kept[:at], *kept[at + 1 :])
        for k in others:
            for to in range(len(rest), -1, -1):
                yield (*rest[:to], k, *rest[to:])
    for at in range(len(kept) - 1, -1, -1):
        yield (*kept[:at], *kept[at + 1 :])
    for b in range(len(kept) - 1, 0, -1):
        for a in range(b - 1, -1, -1):
            yield (*kept[:a], kept[b], *kept[a + 1 : b], kept[a], *kept[b + 1 :])
