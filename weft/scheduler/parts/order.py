"""The order in which steps are started, on which queues, who waits for whom, and which values share memory.

A *lane* is a queue of a device; what is started on one lane runs in order. Parts are on queue 0, what arrives from
other devices on the others, by where it is from. Of what could be started, that comes first which would run first by
the times of parts and links (timing.py). Another lane's work is waited for by an event: by the queue, where both are of
one backend, else by the host, which then knows all that came before. A device whose queue is synchronous (a CPU) runs
while the host waits: its parts are started when nothing else can be.

Two values may have the same memory where every step that used the first is known to be done when the second is
written: *known* by the order of lanes and the events that are waited for anyway, or by one more event of a step that
should be done by then. What arrives starts as late as nothing waits for it.
"""
# Tests: tests/scheduler/parts/test_plan.py, tests/scheduler/parts/test_verify.py

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum, auto
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from weft.backends.boxes import BoxCopy, Within, box_copy
from weft.backends.protocol import Borrower, BoxCopier, Device
from weft.backends.synchronous import SynchronousQueue
from weft.ir.graph import elements
from weft.ir.index import Int, high
from weft.lazy_dataclass import dataclass
from weft.scheduler.parts.cut import Compute, Cut, Exchange, Value
from weft.scheduler.parts.timing import Timed, Ways, begins, delayed

SMALL_BYTES = 1 << 16
"""The bytes up to which what the host has is copied on queue 0: an event costs as much (8 us of PoCL on Zen 5)."""


WAITS = 2
"""The rank of a step before which the host has to wait."""

LANES_KNOWN = 256
"""The number of lanes of which one lane knows how far they are; to forget one costs a wait, or memory, but no more."""


class Way(Enum):
    """The way of an exchange."""

    COPIED = auto()  # the target copies, on a queue of its own
    HOST = auto()  # through the host, which waits for the source
    LENT = auto()  # the target reads the source's memory where it is


class Lane(NamedTuple):
    """A queue of a device. A tuple, as clocks are looked up by it for every lane that a step knows of."""

    device: str
    queue: int = 0


Clock: TypeAlias = dict[Lane, int]
"""The number of steps of each lane that are known to be done."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step on its lane. `waits`: steps whose events its queue waits for, `host_waits`: those for which the host
    waits first. START - k is the work of earlier runs on queue 0 of device k. `records`: somebody waits for it."""

    work: Compute | Exchange
    lane: Lane
    way: Way = Way.COPIED
    waits: tuple[int, ...] = ()
    host_waits: tuple[int, ...] = ()
    records: bool = False
    copy: BoxCopy | None = None


@dataclass(frozen=True, slots=True)
class Slot:
    """Memory of a device for values that take turns; None bytes: as many as its one value has at run time."""

    device: str
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class Ordered:
    """Steps in the order in which they are started. `slot`: the memory of each value, None for leaves and what is
    lent. `starts`: devices whose earlier work is waited for; `ends`: at the end, queue 0 of a device waits for a step
    (None: the host does), so that what runs there later comes after all of this. `ns`: about what it takes, the host
    aside; `at`: about when each step starts and ends."""

    cut: Cut
    steps: tuple[Step, ...]
    slots: tuple[Slot, ...]
    slot: tuple[int | None, ...]
    devices: tuple[str, ...]
    starts: tuple[str, ...]
    ends: tuple[tuple[str | None, int], ...]
    synchronous: frozenset[str]
    ns: float = 0.0
    at: tuple[tuple[float, float], ...] = ()

    @property
    def exchanges(self) -> list[Step]:
        """The steps that move boxes."""
        return [s for s in self.steps if isinstance(s.work, Exchange)]

    def peak(self, device: str) -> int:
        """The bytes of a device's memory that the values take, where they are known."""
        return sum(s.nbytes or 0 for s in self.slots if s.device == device)


def start_of(device: int) -> int:
    """The number that stands for the earlier work of device number `device` among the events."""
    return -1 - device


def value_bytes(v: Value) -> int | None:
    """The bytes of a value; None where they depend on runtime variables."""
    n = elements(v.shape)
    return n * v.dtype.itemsize if isinstance(n, int) else None


def fixed_copy(cut: Cut, x: Exchange) -> BoxCopy | None:
    """The bytes that an exchange copies; None where they depend on runtime variables."""
    start = x.box.start if x.box is not None else ()
    if any(not isinstance(n, int) for n in (*x.shape, *x.size, *start)):
        return None
    return bytes_of(cut, x, high)


def bytes_of(cut: Cut, x: Exchange, value: Callable[[Int], int]) -> BoxCopy:
    """The bytes that an exchange copies, where `value` gives integers for sizes."""
    shape, size = tuple([value(n) for n in x.shape]), tuple([value(n) for n in x.size])
    if x.box is None:
        source = Within.whole(shape)
    else:
        source = Within(shape, tuple([value(n) for n in x.box.start]), x.box.step)
    return box_copy(size, cut.values[x.source].dtype.itemsize, source, Within.whole(size))


def ordered(cut: Cut, devices: Mapping[str, Device], ways: Ways) -> Ordered:
    """The order for these steps on these devices."""
    return _Order(cut, devices, ways).ordered()


@dataclass(slots=True)
class _Room:
    """A slot while it is planned: who used it last, at which place on which lane."""

    number: int
    nbytes: int
    users: list[tuple[Lane, int]] = field(default_factory=list[tuple[Lane, int]])


class _Order:
    """The state of one planning: what each lane and the host know."""

    def __init__(self, cut: Cut, devices: Mapping[str, Device], ways: Ways) -> None:
        self.cut, self.devices, self.links = cut, devices, ways
        self.names = tuple(devices)
        self.number = {name: k for k, name in enumerate(self.names)}
        self.synchronous = frozenset(
            name for name, d in devices.items() if isinstance(d.queue(0), SynchronousQueue)
        )
        self.kinds = {name: d.info.kind for name, d in devices.items()}
        self.known: dict[Lane, Clock] = {}
        self.host: Clock = {}
        self.count: Clock = {}
        self.events: dict[int, tuple[Lane, Clock]] = {}
        self.steps: list[Step] = []
        self.writer: dict[int, int] = {}  # value -> the step, or start, that gives it
        self.origin: dict[int, int] = {}  # what is lent -> the value whose memory it is
        self.readers: dict[int, int] = {}
        self.slots: list[Slot] = []
        self.slot: list[int | None] = [None] * len(cut.values)
        self.rooms: dict[str, list[_Room]] = {name: [] for name in devices}
        self.taken: dict[int, _Room] = {}
        self.used: dict[int, list[tuple[Lane, int]]] = {}
        self.times: list[tuple[float, float]] = []  # of each step of the cut: about when it starts and ends
        self.issued: dict[tuple[Lane, int], int] = {}  # a place on a lane -> the step
        self.ends: list[float] = []
        self.at: list[tuple[float, float]] = []
        for k, name in enumerate(self.names):
            lane = Lane(name)
            if name in self.synchronous:
                continue
            self.count[lane] = 1
            self.known[lane] = {lane: 1}
            self.events[start_of(k)] = lane, {lane: 1}

    def ordered(self) -> Ordered:
        steps = self.cut.steps
        ways = [self._way(s) if isinstance(s, Exchange) else Way.COPIED for s in steps]
        lanes = [self._lane(s) for s in steps]
        giver = {v: k for k, s in enumerate(steps) for v in s.results}
        for s, way in zip(steps, ways, strict=True):
            if isinstance(s, Exchange) and way is Way.LENT:
                self.origin[s.target] = self.origin.get(s.source, s.source)
        for s in steps:
            for v in self._reads(s):
                self.readers[v] = self.readers.get(v, 0) + 1
        left = [len({giver[v] for v in s.reads if v in giver}) for s in steps]
        users: list[list[int]] = [[] for _ in steps]
        for k, s in enumerate(steps):
            for g in {giver[v] for v in s.reads if v in giver}:
                users[g].append(k)
        timed = self._timed(giver, lanes, ways)
        at = begins(timed)
        whole_ns = max([b + s.ns for b, s in zip(at, timed, strict=True)], default=0.0)
        at = delayed(timed, at, [isinstance(s, Exchange) for s in steps])
        self.times = [(b, b + s.ns) for b, s in zip(at, timed, strict=True)]
        ready: list[tuple[int, float, int]] = []  # those that the host need not wait for, a heap
        held: list[tuple[float, int]] = []

        def sort_out(numbers: Iterable[int]) -> None:
            for k in numbers:
                blocks = self._blocks(steps[k], lanes[k], ways[k])
                if blocks == WAITS:
                    heappush(held, (at[k], k))
                else:
                    heappush(ready, (blocks, at[k], k))

        sort_out(k for k, n in enumerate(left) if not n)
        while ready or held:
            if ready:
                k = heappop(ready)[2]
                self._issue(k, lanes[k], ways[k])
            else:
                (_, k), *others = held
                self._issue(k, lanes[k], ways[k])
                held.clear()
                sort_out([other for _, other in others])  # for what the host knows by now
            for u in users[k]:
                left[u] -= 1
            sort_out([u for u in users[k] if not left[u]])
        ends = self._ends()
        waited = {w for s in self.steps for w in (*s.waits, *s.host_waits)} | {n for _, n in ends}
        final = [
            Step(s.work, s.lane, s.way, s.waits, s.host_waits, n in waited, s.copy)
            for n, s in enumerate(self.steps)
        ]
        starts = tuple([name for k, name in enumerate(self.names) if start_of(k) in waited])
        return Ordered(
            self.cut, tuple(final), tuple(self.slots), tuple(self.slot), self.names, starts, ends,
            self.synchronous, whole_ns, tuple(self.at),
        )  # fmt: skip

    def _timed(self, giver: Mapping[int, int], lanes: Sequence[Lane], ways: Sequence[Way]) -> list[Timed]:
        """The steps as they are timed."""
        timed: list[Timed] = []
        for s, lane, way in zip(self.cut.steps, lanes, ways, strict=True):
            after = tuple({giver[v] for v in s.reads if v in giver})
            if isinstance(s, Compute):
                timed.append(Timed(s.ns, after, (lane,)))
            elif way is Way.LENT:
                timed.append(Timed(0.0, after, ()))
            else:
                wires = self.links.link(self.cut, s).wires
                timed.append(Timed(self.links.ns(self.cut, s), after, (lane, *wires)))
        return timed

    def _lane(self, s: Compute | Exchange) -> Lane:
        if isinstance(s, Compute):
            return Lane(s.device)
        source, device = self.cut.values[s.source].device, self.cut.values[s.target].device
        if source == device:
            return Lane(device)
        copy = fixed_copy(self.cut, s)
        if copy is not None and copy.nbytes <= SMALL_BYTES and source in self.synchronous:
            return Lane(device)  # it waits for nothing, and is there before an event could say so
        others = self.devices[device].info.queues - 1
        if others < 1:
            return Lane(device)
        return Lane(device, 1 + (self.number[source] - self.number[device] - 1) % others)

    def _way(self, x: Exchange) -> Way:
        """The way of an exchange: no copy where the target is done with the memory when the run is."""
        values = self.cut.values
        source, target = values[x.source].device, values[x.target].device
        origin, device = self.devices[source], self.devices[target]
        if (
            target in self.synchronous
            and source != target
            and isinstance(device, Borrower)
            and origin.info.host_memory
            and not values[x.target].output
            and self._is_run(x)
        ):
            return Way.LENT
        there = source in self.synchronous and origin.info.host_memory
        straight = isinstance(device, BoxCopier) and (self.kinds[source] == self.kinds[target] or there)
        return Way.COPIED if straight else Way.HOST

    def _is_run(self, x: Exchange) -> bool:
        """True where the box is one run of bytes, aligned as its elements are."""
        copy = fixed_copy(self.cut, x)
        if copy is None or not copy.nbytes:
            return False
        return not copy.counts and copy.source.offset % self.cut.values[x.source].dtype.itemsize == 0

    def _reads(self, s: Compute | Exchange) -> list[int]:
        """The values whose memory a step reads."""
        return [self.origin.get(v, v) for v in s.reads]

    def _given(self, v: int) -> int | None:
        """The step, or start, after which a value is there; None for what is there anyway."""
        if v in self.writer:
            return self.writer[v]
        device = self.cut.values[v].device
        return None if device in self.synchronous else start_of(self.number[device])

    def _knows(self, clock: Clock, number: int, host: Clock) -> bool:
        lane, made = self.events[number]
        return self._at_least(clock, lane, made[lane], host)

    def _at_least(self, clock: Clock, lane: Lane, count: int, host: Clock) -> bool:
        return lane.device in self.synchronous or max(clock.get(lane, 0), host.get(lane, 0)) >= count

    def _missing(self, s: Compute | Exchange, lane: Lane, way: Way) -> tuple[list[int], list[int]]:
        """The events that the lane has to wait for, and those that the host has to."""
        clock = self.known.get(lane, {})
        waits: list[int] = []
        host: list[int] = []
        numbers = {self._given(v): None for v in s.reads}
        if lane.device not in self.synchronous and lane.queue:
            numbers[start_of(self.number[lane.device])] = None  # after which its memory is free to use
        heard, told = dict(clock), dict(self.host)
        for n in sorted([n for n in numbers if n is not None and n in self.events], reverse=True):
            by_host = way is not Way.COPIED or lane.device in self.synchronous
            at = self.events[n][0]
            by_host = (by_host and at.device != lane.device) or self.kinds[at.device] != self.kinds[
                lane.device
            ]
            if not self._knows(told if by_host else heard, n, told):
                (host if by_host else waits).append(n)
                _learn(told if by_host else heard, self.events[n][1])
        return waits, host

    def _blocks(self, s: Compute | Exchange, lane: Lane, way: Way) -> int:
        """0: the host goes on at once; 1: it computes; WAITS: it waits for another device first."""
        if self._missing(s, lane, way)[1]:
            return WAITS
        return int(lane.device in self.synchronous)

    def _issue(self, k: int, lane: Lane, way: Way) -> None:
        s = self.cut.steps[k]
        waits, host_waits = self._missing(s, lane, way)
        for n in host_waits:
            _learn(self.host, self.events[n][1])
        clock = self.known.setdefault(lane, {})
        for n in waits:
            _learn(clock, self.events[n][1])
        number = len(self.steps)
        if lane.device not in self.synchronous:
            _learn(clock, self.host)
            self.count[lane] = self.count.get(lane, 0) + 1
        at = (lane, self.count.get(lane, 0))
        for v in s.results if way is not Way.LENT else ():
            self.writer[v] = number
            waits += self._take(v, clock, at, self.times[k][0])
        if lane.device not in self.synchronous:
            clock[lane] = self.count[lane]
            _bounded(clock, lane)
            self.events[number] = lane, dict(clock)
            self.issued[at] = number
        self.ends.append(self.times[k][1])
        self.at.append(self.times[k])
        for v in self._reads(s):
            self.used.setdefault(v, []).append(at)
            self.readers[v] -= 1
            if not self.readers[v] and v in self.taken:
                room = self.taken.pop(v)
                room.users = self.used.pop(v)
                self.rooms[self.cut.values[v].device].append(room)
        copy = fixed_copy(self.cut, s) if isinstance(s, Exchange) else None
        self.steps.append(Step(s, lane, way, tuple(waits), tuple(host_waits), copy=copy))

    def _take(self, v: int, clock: Clock, at: tuple[Lane, int], start: float) -> list[int]:
        """Find memory for a value that a step of this clock writes, which starts at about that time. Given are steps to
        wait for: those by which the memory should be free by then anyway."""
        waits: list[int] = []
        value, nbytes = self.cut.values[v], value_bytes(self.cut.values[v])
        self.used[v] = [at]
        if not value.output and nbytes is not None:
            free = self.rooms[value.device]
            large = sorted([r for r in free if r.nbytes >= nbytes], key=lambda r: r.nbytes)
            room = next(
                (r for r in large if all(self._at_least(clock, *u, self.host) for u in r.users)), None
            )
            if room is None and nbytes >= SMALL_BYTES:
                due = ((r, w) for r in large if (w := self._due(r, clock, at[0], start)))
                room, waits = next(due, (None, waits))
                for n in waits:
                    _learn(clock, self.events[n][1])
            if room is not None:
                free.remove(room)
            else:
                room = self._new_room(value.device, nbytes)
            self.slot[v] = room.number
            self.taken[v] = room
            return waits
        self.slot[v] = self._new_room(value.device, nbytes).number
        return waits

    def _due(self, room: _Room, clock: Clock, lane: Lane, start: float) -> list[int]:
        """The steps that a lane has to wait for to have a room, if all of them are expected to end before `start`."""
        users = [u for u in room.users if not self._at_least(clock, *u, self.host)]
        numbers = [self.issued[u] for u in users if u in self.issued]
        kind = self.kinds[lane.device]
        here = lane.device not in self.synchronous and all(self.kinds[at.device] == kind for at, _ in users)
        ready = len(numbers) == len(users) and all(self.ends[n] <= start for n in numbers)
        return sorted(numbers, reverse=True) if here and ready else []

    def _new_room(self, device: str, nbytes: int | None) -> _Room:
        self.slots.append(Slot(device, nbytes))
        return _Room(len(self.slots) - 1, nbytes or 0)

    def _ends(self) -> tuple[tuple[str | None, int], ...]:
        """The last steps of lanes, for which queues 0 of the devices wait whose memory they use."""
        last: dict[tuple[str, Lane], int] = {}
        for n, s in enumerate(self.steps):
            if s.lane.device in self.synchronous:
                continue
            reads = self._reads(s.work) if s.way is Way.COPIED else ()  # the host has read it
            for v in (*reads, *s.work.results):
                last[self.cut.values[v].device, s.lane] = n
        foreign = [
            (
                not (self.kinds[device] != self.kinds[lane.device] or device in self.synchronous),
                -n,
                device,
                lane,
            )
            for (device, lane), n in last.items()
        ]
        ends: dict[tuple[str | None, int], None] = {}
        for straight, at, device, lane in sorted(
            foreign, key=lambda e: e[:3]
        ):  # what the host knows, all know
            clock = self.known.get(Lane(device), {}) if straight else self.host
            if lane != Lane(device) and not self._knows(clock, -at, self.host):
                ends[device if straight else None, -at] = None
                _learn(clock, self.events[-at][1])
        return tuple(ends)


def copy_queue(device: Device) -> int:
    """The queue on which what comes from other devices arrives."""
    return 1 if device.info.queues > 1 else 0


def _learn(clock: Clock, known: Clock) -> None:
    for lane, n in known.items():
        if clock.get(lane, 0) < n:
            clock.pop(lane, None)
            clock[lane] = n


def _bounded(clock: Clock, own: Lane) -> None:
    """Forget the lanes that were heard of longest ago."""
    if len(clock) > LANES_KNOWN:
        for lane in list(clock)[: len(clock) - LANES_KNOWN]:
            if lane != own:
                del clock[lane]
