"""The times at which steps would run: list scheduling, with lanes and wires as resources.

    next     of the steps whose inputs are there, the one that can start first; of several, by a rule
    rules    the one that has waited longest; the longest chain of what waits for it; the shortest
    then     single steps are put earlier or later, as long as there is a gap to what no order can beat

A step holds its resources together, from its start to its end: its lane, and the wires of its link. Source: Graham
1969, "Bounds on multiprocessing timing anomalies"; the second rule is that of HEFT (Topcuoglu, Hariri & Wu 2002).
"""
# Tests: tests/scheduler/parts/test_stretches.py

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import field
from heapq import heapify, heappop, heappush

from weft.backends.links import Link, estimated
from weft.backends.protocol import Device
from weft.ir.graph import elements
from weft.ir.index import high
from weft.lazy_dataclass import dataclass
from weft.scheduler.parts.cut import Cut, Exchange

VISITS = 30_000
"""Steps that are looked at to make an order better: a tenth of a second."""

NEAR = 1.02
"""The end of an order, in times of the bound, from which on none better is looked for."""

LEAD = 1.0
"""The time by which an exchange is there before it is needed, in times of its own: what is predicted may be wrong."""


@dataclass(slots=True)
class Ways:
    """The links between devices, each looked up once."""

    devices: Mapping[str, Device]
    known: dict[tuple[str, str], Link] = field(default_factory=dict[tuple[str, str], Link])

    def link(self, cut: Cut, x: Exchange) -> Link:
        """The link that an exchange takes."""
        source, target = cut.values[x.source].device, cut.values[x.target].device
        if (source, target) not in self.known:
            self.known[source, target] = estimated(self.devices[source], self.devices[target])
        return self.known[source, target]

    def ns(self, cut: Cut, x: Exchange) -> float:
        """The time of an exchange, at its largest."""
        nbytes = high(elements(x.size)) * cut.values[x.source].dtype.itemsize
        return 1e9 * self.link(cut, x).seconds(nbytes)


@dataclass(frozen=True, slots=True)
class Timed:
    """A step as it is timed: how long it takes, the steps that it waits for, what nobody else can use meanwhile."""

    ns: float
    after: tuple[int, ...]
    resources: tuple[Hashable, ...]


def bound_ns(steps: Sequence[Timed]) -> float:
    """A time before which no order ends: that of the longest chain, and of all that one resource has to do."""
    tails, loads = _tails(steps), dict[Hashable, float]()
    for s in steps:
        for r in s.resources:
            loads[r] = loads.get(r, 0.0) + s.ns
    return max([*tails, *loads.values()], default=0.0)


def begins(steps: Sequence[Timed]) -> list[float]:
    """The start of each step in the best order found. Steps come after those that they wait for."""
    shop = _Shop(steps)
    tails = _tails(steps)
    rules = (
        [0.0] * len(steps),
        [-t for t in tails],
        [s.ns for s in steps],
    )  # of equal ends the first: times may be wrong
    found = [shop.build(rule) for rule in rules]
    best = min(found, key=shop.end)
    end, bound, rng = shop.end(best), bound_ns(steps), random.Random(0)
    for _ in range(VISITS // max(1, len(steps))):
        if end <= bound * NEAR:
            break
        priority = list(best)  # those that begin earlier go first, which gives the same order again
        k = rng.randrange(len(steps))
        priority[k] = rng.uniform(0.0, 1.2 * best[k])
        other = shop.build(priority)
        if shop.end(other) < end:
            best, end = other, shop.end(other)
    return best


def delayed(steps: Sequence[Timed], at: Sequence[float], may_wait: Sequence[bool]) -> list[float]:
    """The same order in which some steps start later, where nothing has to wait for them: what arrives early takes
    memory. They are there by `LEAD` times what they take before they are needed; what nobody needs does not wait."""
    users: list[list[int]] = [[] for _ in steps]
    for k, s in enumerate(steps):
        for before in s.after:
            users[before].append(k)
    late, free = list(at), dict[Hashable, float]()
    for k in sorted(range(len(steps)), key=lambda k: (-at[k], -k)):
        s = steps[k]
        if may_wait[k] and users[k]:
            until = min([late[u] for u in users[k]]) - (1 + LEAD) * s.ns
            late[k] = max(at[k], min([until, *[free[r] - s.ns for r in s.resources if r in free]]))
        free.update(dict.fromkeys(s.resources, late[k]))
    return late


def _tails(steps: Sequence[Timed]) -> list[float]:
    """The time from the start of each step to the end of all that waits for it."""
    after = [0.0] * len(steps)
    tails = [0.0] * len(steps)
    for k in reversed(range(len(steps))):
        tails[k] = steps[k].ns + after[k]
        for before in steps[k].after:
            after[before] = max(after[before], tails[k])
    return tails


class _Shop:
    """Steps as lists that orders are built from."""

    def __init__(self, steps: Sequence[Timed]) -> None:
        self.steps = steps
        number: dict[Hashable, int] = {}
        self.uses = [[number.setdefault(r, len(number)) for r in s.resources] for s in steps]
        self.resources = len(number)
        self.users: list[list[int]] = [[] for _ in steps]
        for k, s in enumerate(steps):
            for before in s.after:
                self.users[before].append(k)

    def end(self, begin: Sequence[float]) -> float:
        """The end of the last step."""
        return max([b + s.ns for b, s in zip(begin, self.steps, strict=True)], default=0.0)

    def build(self, priority: Sequence[float]) -> list[float]:
        """The start of each step: of those that can start first, that of the least priority, or that waited longest.

        Steps that wait for a resource are in its queue, of which the first one alone is looked at when it is free.
        """
        steps, users, uses = self.steps, self.users, self.uses
        left = [len(s.after) for s in steps]
        since, free, found = [0.0] * len(steps), [0.0] * self.resources, [0.0] * len(steps)
        queues: list[list[tuple[float, float, int]]] = [[] for _ in free]
        ready = [(0.0, priority[k], 0.0, k, -1) for k, n in enumerate(left) if not n]
        heapify(ready)
        while ready:
            at, first, waited, k, queue = heappop(ready)
            if queue >= 0:
                waiting = queues[queue]
                if not waiting or waiting[0] != (first, waited, k):
                    continue  # another one has become the first
                if free[queue] > at:
                    heappush(ready, (free[queue], first, waited, k, queue))
                    continue
                heappop(waiting)
            start, taken = at, -1
            for r in uses[k]:
                if free[r] > start:
                    start, taken = free[r], r
            if taken >= 0:  # another step has taken what it needs
                heappush(queues[taken], (first, waited, k))
                if queues[taken][0][2] == k:
                    heappush(ready, (start, first, waited, k, taken))
            else:
                found[k] = start
                end = start + steps[k].ns
                for r in uses[k]:
                    free[r] = end
                for u in users[k]:
                    if end > since[u]:
                        since[u] = end
                    left[u] -= 1
                    if not left[u]:
                        heappush(ready, (since[u], priority[u], since[u], u, -1))
            if queue >= 0 and queues[queue]:
                heappush(ready, (max(at, free[queue]), *queues[queue][0], queue))
        return found
