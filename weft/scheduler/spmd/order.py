"""The order of steps that all devices of a mesh take, and whose events they wait for.

    move 3 along axis 1, of value 7      waits for step 2 on all devices of its row of the mesh, which gives value 7
    part 4                               waits for move 3 on its own device

Parts are on queue 0 of each device, moves on the last queue that is used, 1, if there is one. What a step knows is said
for all devices at once: (queue, axes, n) says that on all devices which differ from one in these coordinates, the first
n steps of that queue are done. Who waits for a step on all devices along some axes knows what these know, of all along
their axes and those.

Two values share memory where all that used the first is known to be done when the second is written, on the device
itself and on those that copy from it.
"""
# Tests: tests/scheduler/spmd/test_plan.py

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping
from dataclasses import field
from typing import NamedTuple, TypeAlias

from weft.lazy_dataclass import dataclass
from weft.scheduler.parts.cut import Compute, Cut, Exchange
from weft.scheduler.parts.order import value_bytes

Axes: TypeAlias = frozenset[int]
Clock: TypeAlias = dict[tuple[int, Axes], int]

START = -1
"""The number that stands for the earlier work of queue 0 among the steps."""

OWN: Axes = frozenset()

ROOMS_TRIED = 16
"""Slots that are looked at for a value, of those that hold it the smallest and longest free. To look at all took eight
times as long for a transformer's step of 32 layers, and saved 4 % of its memory."""


class Wait(NamedTuple):
    """A step, or START, whose events on all devices along some axes are waited for."""

    step: int
    axes: Axes


@dataclass(frozen=True, slots=True)
class AlikeStep:
    """A step on its queue; `records`: somebody waits for it."""

    work: Compute | Exchange
    queue: int
    waits: tuple[Wait, ...]
    records: bool


@dataclass(frozen=True, slots=True)
class AlikeOrder:
    """Steps in the order in which they are started on each device; the bytes of each slot, and the slot of each value,
    None for leaves. `starts`: events of earlier work are waited for; `ends`: what queue 0 waits for at the end."""

    cut: Cut
    steps: tuple[AlikeStep, ...]
    slots: tuple[int, ...]
    slot: tuple[int | None, ...]
    starts: bool
    ends: tuple[Wait, ...]

    @property
    def peak(self) -> int:
        """The bytes of a device that the values take."""
        return sum(self.slots)


@dataclass(slots=True)
class _Use:
    """A use of memory: by step number `count` of a queue, on all devices along some axes."""

    queue: int
    axes: Axes
    count: int


@dataclass(slots=True)
class _Room:
    number: int
    nbytes: int
    uses: list[_Use]


@dataclass(slots=True)
class _Order:
    cut: Cut
    moves_on: int
    known: dict[int, Clock] = field(default_factory=dict[int, Clock])
    count: dict[int, int] = field(default_factory=dict[int, int])
    events: dict[int, Clock] = field(default_factory=dict[int, Clock])
    writer: dict[int, int] = field(default_factory=dict[int, int])
    free: list[_Room] = field(default_factory=list[_Room])
    taken: dict[int, _Room] = field(default_factory=dict[int, _Room])
    slots: list[int] = field(default_factory=list[int])

    def ordered(self) -> AlikeOrder:
        values = self.cut.values
        slot: list[int | None] = [None] * len(values)
        readers: dict[int, int] = {}
        for s in self.cut.steps:
            for v in s.reads:
                readers[v] = readers.get(v, 0) + 1
        self.count = {0: 1}
        self.known = {0: {(0, OWN): 1}}
        self.events = {START: {(0, OWN): 1}}
        uses: dict[int, list[_Use]] = {}
        found: list[tuple[Compute | Exchange, int, tuple[Wait, ...]]] = []
        for number, s in enumerate(self.cut.steps):
            queue = 0 if isinstance(s, Compute) else self.moves_on
            axes = OWN if isinstance(s, Compute) or s.move is None else frozenset(s.move.axes)
            waits = self._waits(s, queue, axes)
            clock = self.known.setdefault(queue, {})
            for w in waits:
                _learn(clock, w, self.events[w.step])
            here = self.count[queue] = clock[queue, OWN] = self.count.get(queue, 0) + 1
            self.events[number] = dict(clock)
            for v in s.results:
                self.writer[v] = number
                room = self._room(v, clock)
                slot[v] = room.number
                uses[v] = [_Use(queue, OWN, here)]
                if not values[v].output:
                    self.taken[v] = room
            for v in s.reads:
                uses.setdefault(v, []).append(_Use(queue, axes, here))
                readers[v] -= 1
                if not readers[v] and v in self.taken:
                    room = self.taken.pop(v)
                    room.uses = list({(u.queue, u.axes): u for u in uses[v]}.values())  # the last of each
                    insort(self.free, room, key=lambda r: r.nbytes)
            found.append((s, queue, waits))
        ends = self._ends(uses)
        waited = {w.step for _, _, of in found for w in of} | {w.step for w in ends}
        steps = [AlikeStep(s, q, of, k in waited) for k, (s, q, of) in enumerate(found)]
        return AlikeOrder(self.cut, tuple(steps), tuple(self.slots), tuple(slot), START in waited, ends)

    def _waits(self, s: Compute | Exchange, queue: int, axes: Axes) -> tuple[Wait, ...]:
        """The events that are not known to have come: of what the step reads, and of what was there before the run."""
        wanted: dict[Wait, None] = {}
        for v in s.reads:
            wanted[Wait(self.writer.get(v, START), axes)] = None
        if queue:
            wanted[Wait(START, OWN)] = None
        clock = dict(self.known.get(queue, {}))
        found: list[Wait] = []
        for w in sorted(wanted, key=lambda w: (w.step, len(w.axes)), reverse=True):
            if not self._is_known(clock, w):
                found.append(w)
                _learn(clock, w, self.events[w.step])
        return tuple(found)

    def _is_known(self, clock: Clock, w: Wait) -> bool:
        q = self._queue(w.step)
        return _knows(clock, _Use(q, w.axes, self.events[w.step][q, OWN]))

    def _queue(self, number: int) -> int:
        return 0 if number == START or isinstance(self.cut.steps[number], Compute) else self.moves_on

    def _room(self, v: int, clock: Clock) -> _Room:
        value = self.cut.values[v]
        nbytes = value_bytes(value)
        assert nbytes is not None, "devices that are alike have values of known sizes"
        if not value.output:
            first = bisect_left(self.free, nbytes, key=lambda r: r.nbytes)
            for k in range(first, min(first + ROOMS_TRIED, len(self.free))):
                if all(_knows(clock, u) for u in self.free[k].uses):
                    return self.free.pop(k)
        self.slots.append(nbytes)
        return _Room(len(self.slots) - 1, nbytes, [])

    def _ends(self, uses: Mapping[int, list[_Use]]) -> tuple[Wait, ...]:
        """The last steps that use memory of a device, on it or on others, and that queue 0 does not know to be done."""
        step_at = dict[tuple[int, int], int]()
        for number in self.events:
            step_at[self._queue(number), self.events[number][self._queue(number), OWN]] = number
        last: dict[tuple[int, Axes], int] = {}
        for of in uses.values():
            for u in of:
                last[u.queue, u.axes] = max(last.get((u.queue, u.axes), 0), u.count)
        clock = self.known[0]
        found: list[Wait] = []
        for (queue, axes), n in sorted(last.items(), key=lambda e: (-e[1], -len(e[0][1]))):
            w = Wait(step_at[queue, n], axes)
            if not self._is_known(clock, w):
                found.append(w)
                _learn(clock, w, self.events[w.step])
        return tuple(found)


def ordered_alike(cut: Cut, moves_on: int) -> AlikeOrder:
    """The order of a cut's steps, which all devices take. `moves_on`: the queue of moves."""
    return _Order(cut, moves_on).ordered()


def _knows(clock: Clock, u: _Use) -> bool:
    return any(n >= u.count and q == u.queue and u.axes <= axes for (q, axes), n in clock.items())


def _learn(clock: Clock, w: Wait, known: Clock) -> None:
    for (q, axes), n in known.items():
        key = (q, axes | w.axes) if w.axes else (q, axes)
        if clock.get(key, 0) < n:
            clock[key] = n
