"""List scheduling on unequal devices: ranks, earliest finish with insertion, links as resources, then local search.

    HEFT   rank(t) = mean time + max over readers (mean message + rank)        device of the earliest finish
    PEFT   oct(t, p) = max over readers s of min over q (oct(s, q) + time(s, q) + message(p, q))
           rank = mean of oct                                                  device of the least finish + oct
    both   are built, and some more; then tasks change places and devices, those of critical paths above all

A task begins when its inputs have arrived, its device has a gap and its pool has room; so exchanges run beside other
work as early as memory lets them. Sources: Topcuoglu, Hariri & Wu 2002; Arabnejad & Barbosa 2014.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import field, replace
from functools import cached_property
from heapq import heappop, heappush
from typing import TypeAlias

import numpy as np

from weft.errors import MemoryPlanError
from weft.lazy_dataclass import dataclass
from weft.scheduler.placing.links import Array
from weft.scheduler.placing.tasks import Machine, Message, Schedule, Slot, Task, check_tasks, peaks

TRIES_PER_TASK = 30
MAX_TRIES = 3000
_HEAT = 0.01
"""A change that makes a schedule longer by this part is taken in one of e cases at first, later less often."""

_MOVES = 0.6
"""The part of changes that are of devices, not of order."""

_Sent: TypeAlias = tuple[int, int, int, float, float]
"""The fields of a Message: schedules are built by the thousand."""


def schedule(tasks: Sequence[Task], machine: Machine, tries: int | None = None) -> Schedule:
    """The best schedule found: never slower than HEFT's and PEFT's. `tries`: changes that are tried afterwards.

    MemoryPlanError: no order was found in which each pool has room; it says what the least limits would be.
    """
    check_tasks(tasks, machine)
    shop = _Shop(tasks, machine)
    built = [b for b in shop.constructions() if b is not None]
    if not built:
        raise MemoryPlanError(_least_limits(tasks, machine))
    best = min(built, key=lambda b: b.ns)
    count = min(TRIES_PER_TASK * len(tasks), MAX_TRIES) if tries is None else tries
    return _improve(shop, best, count).schedule()


def heft(tasks: Sequence[Task], machine: Machine) -> Schedule | None:
    """The schedule of HEFT; None where it finds no room."""
    built = _Shop(tasks, machine).heft()
    return None if built is None else built.schedule()


def peft(tasks: Sequence[Task], machine: Machine) -> Schedule | None:
    """The schedule of PEFT; None where it finds no room."""
    built = _Shop(tasks, machine).peft()
    return None if built is None else built.schedule()


def _least_limits(tasks: Sequence[Task], machine: Machine) -> str:
    """The message: limits with which an order is found, near the least multiple of those that were given."""

    def found(limits: tuple[int, ...]) -> Schedule | None:
        shop = _Shop(tasks, replace(machine, limits=limits))
        some = [b.schedule() for b in shop.constructions() if b is not None]
        return min(some, key=lambda s: max(s.peaks), default=None)

    def times(factor: float) -> tuple[int, ...]:
        return tuple(math.ceil(max(1, n) * factor) for n in machine.limits)

    total = sum(t.nbytes for t in tasks)
    low, high = 1.0, max(2.0, total / max(1, min(machine.limits)))
    while high > low * 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if found(times(middle)) is None else (low, middle)
    enough = times(high)
    done = found(enough)
    if done is not None and found(done.peaks) is not None:
        enough = done.peaks
    rows = [
        f"pool {k}: limit {limit:,} bytes, {n:,} would do"
        for k, (limit, n) in enumerate(zip(machine.limits, enough, strict=True))
    ]
    return "\n  ".join(["no order of the tasks was found in which each pool has room", *rows])


@dataclass(slots=True)
class _Line:
    """The times at which a device or a link is busy: disjoint intervals in order."""

    starts: list[float] = field(default_factory=list[float])
    ends: list[float] = field(default_factory=list[float])

    def gap(self, ready: float, ns: float) -> float:
        """The first time from `ready` on at which it is free for so long."""
        k = bisect_right(self.ends, ready)
        at = ready
        while k < len(self.starts) and self.starts[k] < at + ns:
            at = max(at, self.ends[k])
            k += 1
        return at

    def take(self, start: float, end: float) -> None:
        """Be busy then."""
        if end > start:
            k = bisect_right(self.starts, start)
            self.starts.insert(k, start)
            self.ends.insert(k, end)


@dataclass(slots=True)
class _Room:
    """A pool's bytes over time: changes in order; what has an unknown end stays."""

    limit: float
    changes: list[tuple[float, int]] = field(default_factory=list[tuple[float, int]])

    def free(self, ready: float, nbytes: int) -> float:
        """The first time from `ready` on from which so many bytes are free for good; inf if there is none."""
        held = 0
        at = ready
        for time, change in self.changes:
            if held + nbytes > self.limit and time > at:
                at = time
            held += change
        return at if held + nbytes <= self.limit else math.inf

    def add(self, time: float, change: int) -> None:
        """From then on so many bytes more, or fewer."""
        if change:
            insort(self.changes, (time, change))


class _Shop:
    """Tasks and machine, as lists that schedules are built from."""

    def __init__(self, tasks: Sequence[Task], machine: Machine) -> None:
        self.tasks, self.machine = tasks, machine
        self.readers: list[list[int]] = [[] for _ in tasks]
        for k, t in enumerate(tasks):
            for i in dict.fromkeys(t.inputs):
                self.readers[i].append(k)
        self.inputs = [tuple(dict.fromkeys(t.inputs)) for t in tasks]
        self.possible = [[d for d, ns in enumerate(t.ns) if math.isfinite(ns)] for t in tasks]
        apart = np.array(machine.pools)[:, None] != np.array(machine.pools)[None, :]
        self.latency = np.where(apart, machine.links.latency_ns, 0.0)
        self.per_byte = np.where(apart, machine.links.ns_per_byte, 0.0)
        self.tails = [0.0] * len(tasks)  # the least time from a task's end to the end of all
        for k in reversed(range(len(tasks))):
            self.tails[k] = max((min(tasks[r].ns) + self.tails[r] for r in self.readers[k]), default=0.0)
        self.latency_of: list[list[float]] = self.latency.tolist()
        self.per_byte_of: list[list[float]] = self.per_byte.tolist()

    def upward_ranks(self) -> list[float]:
        """HEFT's: the mean time from a task to the end."""
        latency, per_byte = float(self.latency.mean()), float(self.per_byte.mean())
        ranks = [0.0] * len(self.tasks)
        for k in reversed(range(len(self.tasks))):
            t = self.tasks[k]
            mean = sum(t.ns[d] for d in self.possible[k]) / len(self.possible[k])
            ranks[k] = mean + max(
                (latency + t.nbytes * per_byte + ranks[r] for r in self.readers[k]), default=0.0
            )
        return ranks

    @cached_property
    def optimistic(self) -> list[Array]:
        """PEFT's table: per task and device the least time from its end to the end of all."""
        table = [np.zeros(self.machine.links.count) for _ in self.tasks]
        for k in reversed(range(len(self.tasks))):
            message = self.latency + self.tasks[k].nbytes * self.per_byte
            np.fill_diagonal(message, 0.0)
            for r in self.readers[k]:
                after = (table[r] + np.array(self.tasks[r].ns))[None, :] + message
                table[k] = np.maximum(table[k], after.min(axis=1))
        return table

    def depth_first(self) -> list[float]:
        """Ranks by which what was just computed is read first."""
        depth = [0.0] * len(self.tasks)
        for k, inputs in enumerate(self.inputs):
            depth[k] = max((depth[i] for i in inputs), default=0.0) + 1
        return depth

    def heft(self) -> _Build | None:
        """By upward ranks, each task where it ends first."""
        return self.build(self.upward_ranks(), None)

    def peft(self) -> _Build | None:
        """By mean optimistic costs, each task where it, and what comes after it, can end first."""
        ranks = [float(row[np.isfinite(row)].mean()) for row in self.optimistic]
        return self.build(ranks, None, self.optimistic)

    def constructions(self) -> list[_Build | None]:
        """HEFT, PEFT, HEFT's ranks with PEFT's devices, and all on one device; depth first too, which saves memory."""
        ranks = self.upward_ranks()
        found = [self.heft(), self.peft(), self.build(ranks, None, self.optimistic)]
        count = len(self.tasks)
        for d in range(self.machine.links.count):
            if all(d in some for some in self.possible):
                found.append(self.build(ranks, [d] * count))
                if self.machine.limits:
                    found.append(self.build(self.depth_first(), [d] * count))
        if self.machine.limits:
            found.append(self.build(self.depth_first(), None))
        return found

    def build(
        self,
        ranks: Sequence[float],
        devices: Sequence[int] | None,
        optimistic: Sequence[Array] | None = None,
        cutoff: float = math.inf,
    ) -> _Build | None:
        """Ready tasks by rank, highest first, each on its device, or where it ends first.

        None: there is no room, or it would end later than `cutoff`.
        """
        build = _Build(self)
        waiting = [len(i) for i in self.inputs]
        ready: list[tuple[float, int]] = []
        for k, n in enumerate(waiting):
            if not n:
                heappush(ready, (-ranks[k], k))
        while ready:
            passed: list[tuple[float, int]] = []
            placed = -1
            while ready and placed < 0:
                entry = heappop(ready)
                k = entry[1]
                some = self.possible[k] if devices is None else (devices[k],)
                if build.place(k, some, None if optimistic is None else optimistic[k]):
                    placed = k
                else:
                    passed.append(entry)
            for entry in passed:
                heappush(ready, entry)
            if placed < 0 or build.ends[placed] + self.tails[placed] > cutoff:
                return None
            for r in self.readers[placed]:
                waiting[r] -= 1
                if not waiting[r]:
                    heappush(ready, (-ranks[r], r))
        return build


@dataclass(slots=True)
class _Build:
    """A schedule that grows task by task."""

    shop: _Shop
    starts: list[float] = field(init=False)
    ends: list[float] = field(init=False)
    devices: list[int] = field(init=False)
    lines: list[_Line] = field(init=False)
    wires: dict[int, _Line] = field(default_factory=dict[int, _Line])
    rooms: list[_Room] = field(init=False)
    sent: dict[tuple[int, int], _Sent] = field(default_factory=dict[tuple[int, int], _Sent])
    last_read: list[dict[int, float]] = field(init=False)
    readers_left: list[int] = field(init=False)

    def __post_init__(self) -> None:
        count, machine = len(self.shop.tasks), self.shop.machine
        self.starts, self.ends, self.devices = [0.0] * count, [0.0] * count, [-1] * count
        self.lines = [_Line() for _ in range(machine.links.count)]
        self.rooms = [_Room(limit) for limit in machine.limits]
        self.last_read = [{} for _ in range(count)] if machine.limits else []
        self.readers_left = [len(r) for r in self.shop.readers] if machine.limits else []

    @property
    def ns(self) -> float:
        """The end of the last task."""
        return max(self.ends, default=0.0)

    def place(self, k: int, devices: Sequence[int], optimistic: Array | None) -> bool:
        """Put a task where it ends first, what is expected after it included; False where there is no room."""
        best: tuple[float, float, int, list[_Sent]] | None = None
        for d in devices:
            start, messages = self._start(k, d)
            if start == math.inf:
                continue
            score = start + self.shop.tasks[k].ns[d] + (0.0 if optimistic is None else float(optimistic[d]))
            if best is None or score < best[0]:
                best = score, start, d, messages
        if best is None:
            return False
        _, start, d, messages = best
        self._commit(k, d, start, messages)
        return True

    def _start(self, k: int, d: int) -> tuple[float, list[_Sent]]:
        """The first time at which a task can start on a device, and the messages that it needs."""
        shop, ends = self.shop, self.ends
        pools = shop.machine.pools
        pool = pools[d]
        ready = 0.0
        messages: list[_Sent] = []
        needed = 0
        inputs = shop.inputs[k]
        for i in inputs if len(inputs) < 2 else sorted(inputs, key=ends.__getitem__):
            source = self.devices[i]
            if pools[source] == pool:
                arrives = ends[i]
            elif (i, pool) in self.sent:
                arrives = self.sent[i, pool][4]
            else:
                nbytes = shop.tasks[i].nbytes
                ns = shop.latency_of[source][d] + nbytes * shop.per_byte_of[source][d]
                wire = shop.machine.wires[source][d]
                begin = ends[i]
                for m in messages:
                    if shop.machine.wires[m[1]][d] == wire:
                        begin = max(begin, m[4])
                needed += nbytes
                if self.rooms:
                    begin = self.rooms[pool].free(begin, needed)
                if wire in self.wires and begin < math.inf:
                    begin = self.wires[wire].gap(begin, ns)
                arrives = begin + ns
                messages.append((i, source, d, begin, arrives))
            if arrives > ready:
                ready = arrives
        if self.rooms:
            ready = self.rooms[pool].free(ready, needed + shop.tasks[k].nbytes)
            if ready == math.inf:
                return ready, messages
        return self.lines[d].gap(ready, shop.tasks[k].ns[d]), messages

    def _commit(self, k: int, d: int, start: float, messages: Sequence[_Sent]) -> None:
        shop = self.shop
        end = start + shop.tasks[k].ns[d]
        self.starts[k], self.ends[k], self.devices[k] = start, end, d
        self.lines[d].take(start, end)
        for m in messages:
            self.sent[m[0], shop.machine.pools[d]] = m
            self.wires.setdefault(shop.machine.wires[m[1]][d], _Line()).take(m[3], m[4])
        if self.rooms:
            self._account(k, d, start, end, messages)

    def _account(self, k: int, d: int, start: float, end: float, messages: Sequence[_Sent]) -> None:
        """Room from now on; of what this was the last reader of, room until its end."""
        shop = self.shop
        pools = shop.machine.pools
        self.rooms[pools[d]].add(start, shop.tasks[k].nbytes)
        for i, source, _, begin, arrives in messages:
            self.rooms[pools[d]].add(begin, shop.tasks[i].nbytes)
            last = self.last_read[i]
            last[pools[source]] = max(last.get(pools[source], 0.0), arrives)
        for i in shop.inputs[k]:
            last = self.last_read[i]
            last[pools[d]] = max(last.get(pools[d], 0.0), end)
            self.readers_left[i] -= 1
            if not self.readers_left[i]:
                for pool, time in last.items():
                    self.rooms[pool].add(time, -shop.tasks[i].nbytes)

    def schedule(self) -> Schedule:
        """The schedule that was built."""
        some = zip(self.devices, self.starts, self.ends, strict=True)
        slots = tuple(Slot(k, d, start, end) for k, (d, start, end) in enumerate(some))
        messages = tuple(Message(*m) for m in self.sent.values())
        return Schedule(slots, messages, self.ns, peaks(self.shop.tasks, self.shop.machine, slots, messages))


def _improve(shop: _Shop, best: _Build, tries: int) -> _Build:
    """Simulated annealing over the order and the devices of tasks; the best of all that it sees."""
    rng = random.Random(0)
    least = (
        max(end + tail for end, tail in zip(_earliest_ends(shop), shop.tails, strict=True))
        if shop.tasks
        else 0.0
    )
    current = best
    for n in range(tries):
        if best.ns <= least * (1 + 1e-9):
            break
        ranks = [-start for start in current.starts]
        devices = current.devices.copy()
        change = _move if rng.random() < _MOVES else _reorder
        change(shop, current, ranks, devices, rng)
        heat = _HEAT * best.ns * (1 - n / tries) ** 2
        tried = shop.build(ranks, devices, cutoff=current.ns - heat * math.log(1 - rng.random()))
        if tried is not None:
            current = tried
            if current.ns < best.ns:
                best = current
    return best


def _earliest_ends(shop: _Shop) -> list[float]:
    ends = [0.0] * len(shop.tasks)
    for k, t in enumerate(shop.tasks):
        ends[k] = min(t.ns) + max((ends[i] for i in t.inputs), default=0.0)
    return ends


def _critical(shop: _Shop, b: _Build) -> list[int]:
    """A chain of tasks that ends last: each waits for the one before, as its reader or on its device."""
    k = max(range(len(b.ends)), key=b.ends.__getitem__)
    on_device = {
        (d, end): j for j, (d, end) in enumerate(zip(b.devices, b.ends, strict=True)) if end > b.starts[j]
    }
    pools = shop.machine.pools
    chain = [k]
    while b.starts[k] > 0 and len(chain) < len(b.ends):
        pool = pools[b.devices[k]]
        before = on_device.get((b.devices[k], b.starts[k]))
        for i in shop.inputs[k]:
            sent = b.sent.get((i, pool)) if pools[b.devices[i]] != pool else None
            if (b.ends[i] if sent is None else sent[4]) >= b.starts[k]:
                before = i
        if before is None:
            break
        k = before
        chain.append(k)
    return chain


def _move(shop: _Shop, b: _Build, ranks: list[float], devices: list[int], rng: random.Random) -> None:
    """Give a task, most often a critical one, another device; or some of its neighbours its own."""
    k = rng.choice(_critical(shop, b)) if rng.random() < 0.7 else rng.randrange(len(devices))
    others = [d for d in shop.possible[k] if d != devices[k]]
    if others and rng.random() < 0.8:
        near = [devices[i] for i in (*shop.inputs[k], *shop.readers[k]) if devices[i] in others]
        devices[k] = rng.choice(near) if near and rng.random() < 0.5 else rng.choice(others)
    if rng.random() < 0.4:
        for i in (*shop.inputs[k], *shop.readers[k]):
            if devices[k] in shop.possible[i] and rng.random() < 0.5:
                devices[i] = devices[k]


def _reorder(shop: _Shop, b: _Build, ranks: list[float], devices: list[int], rng: random.Random) -> None:
    """Let a critical task come before one that its device runs earlier."""
    k = rng.choice(_critical(shop, b))
    ready = max((b.ends[i] for i in shop.inputs[k]), default=0.0)
    some = [
        j
        for j, d in enumerate(b.devices)
        if d == b.devices[k] and ready < b.ends[j] and b.starts[j] < b.starts[k]
    ]
    other = rng.choice(some) if some else rng.randrange(len(ranks))
    ranks[k], ranks[other] = max(ranks[k], ranks[other]) + 1e-6, min(ranks[k], ranks[other])
