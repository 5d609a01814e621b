"""A plan of parts, followed step by step: what is known to be done when, by lanes and events alone.

step 3 on opencl:0 queue 0 reads value 7, which step 2 on queue 1 gives: refused unless it waits for an event of step 2,
or of one that comes after it. Step 5 writes value 9 where value 7 was: refused unless all that read 7 is known by then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from weft.ir.errors import IRError
from weft.lazy_dataclass import dataclass
from weft.scheduler.parts.cut import Compute
from weft.scheduler.parts.order import Clock, Lane, Ordered, Step, Way, start_of


@dataclass(slots=True)
class _Use:
    """The use of a value's memory by a step: the lane, and its place there."""

    lane: Lane
    count: int


@dataclass(slots=True)
class _Memory:
    """A slot: the value that is there, and the uses of it and of all before it that have not been waited for."""

    holds: int | None = None
    uses: list[_Use] = field(default_factory=list[_Use])


def verify_parts(o: Ordered, kinds: Mapping[str, str]) -> None:
    """IRError for a step that reads what is not known to be there, writes what is still read, or waits for what is
    not started; for memory that is left in use by a queue that its device's first queue does not wait for. `kinds`:
    the backend of each device."""
    _Follower(o, kinds).follow()


class _Follower:
    def __init__(self, o: Ordered, kinds: Mapping[str, str]) -> None:
        self.o, self.kinds = o, kinds
        self.host: Clock = {}
        self.known: dict[Lane, Clock] = {}
        self.events: dict[int, Clock] = {}
        self.count: dict[Lane, int] = {}
        self.at: dict[int, _Use] = {}
        self.given: dict[int, _Use | None] = {}
        self.memory = [_Memory() for _ in o.slots]
        self.lent: dict[int, int] = {}
        self.left: dict[int, int] = {}
        self.unfinished: list[tuple[str, _Use]] = []
        for k, name in enumerate(o.devices):
            if name not in o.synchronous:
                lane = Lane(name)
                self.count[lane] = 1
                self.known[lane] = {lane: 1}
                self.at[start_of(k)] = _Use(lane, 1)
                if name in o.starts:
                    self.events[start_of(k)] = {lane: 1}

    def follow(self) -> None:
        o = self.o
        for k, v in enumerate(o.cut.values):
            if v.leaf:
                self.given[k] = (
                    self.at.get(start_of(o.devices.index(v.device))) if v.device in o.devices else None
                )
        for s in o.steps:
            if s.way is Way.LENT:
                (target,), (source,) = s.work.results, s.work.reads
                self.lent[target] = self.lent.get(source, source)
            for v in s.work.reads:
                v = self.lent.get(v, v)
                self.left[v] = self.left.get(v, 0) + 1
        for n, s in enumerate(o.steps):
            self._step(n, s)
        self._end()

    def _wait(self, n: int, numbers: tuple[int, ...], clock: Clock, on: str | None) -> None:
        for w in numbers:
            if w not in self.events:
                raise IRError(
                    f"step {n} waits for step {w}, which records no event before it", "plan of parts"
                )
            if on is not None and self.kinds[self.at[w].lane.device] != self.kinds[on]:
                raise IRError(
                    f"step {n} on {on} cannot wait for step {w} of another backend", "plan of parts"
                )
            _merge(clock, self.events[w])

    def _knows(self, clock: Clock, use: _Use | None) -> bool:
        if use is None or use.lane.device in self.o.synchronous:
            return True
        return max(clock.get(use.lane, 0), self.host.get(use.lane, 0)) >= use.count

    def _step(self, n: int, s: Step) -> None:
        o, lane = self.o, s.lane
        synchronous = lane.device in o.synchronous
        clock = self.known.setdefault(lane, {})
        self._wait(n, s.host_waits, self.host, None)
        self._wait(n, s.waits, clock, lane.device)
        _merge(clock, self.host)
        use = _Use(lane, self.count.get(lane, 0) + 1)
        by_host = synchronous or s.way is not Way.COPIED
        for v in s.work.reads:
            self._read(n, self.lent.get(v, v), self.host if by_host else clock, lane)
        for v in s.work.results if s.way is not Way.LENT else ():
            self._write(n, v, clock, use)
        if not synchronous:
            self.count[lane] = clock[lane] = use.count
        self.at[n] = use
        if s.records:
            self.events[n] = dict(clock)
        for v in s.work.reads:
            v = self.lent.get(v, v)
            self.left[v] -= 1
            slot = o.slot[v]
            if slot is not None:
                self.memory[slot].uses.append(use)
            if s.way is Way.COPIED:
                self.unfinished.append((o.cut.values[v].device, use))
        for v in s.work.results:
            self.unfinished.append((o.cut.values[v].device, use))

    def _read(self, n: int, v: int, clock: Clock, lane: Lane) -> None:
        if v not in self.given:
            raise IRError(f"step {n} reads value {v}, which no step before it gives", "plan of parts")
        slot, given = self.o.slot[v], self.given[v]
        if slot is not None and self.memory[slot].holds != v:
            raise IRError(f"step {n} reads value {v}, where another one is by now", "plan of parts")
        same = given is not None and given.lane == lane
        if not same and not self._knows(clock, given):
            raise IRError(f"step {n} reads value {v}, and no event says that it is there", "plan of parts")

    def _write(self, n: int, v: int, clock: Clock, use: _Use) -> None:
        o = self.o
        slot = o.slot[v]
        value = o.cut.values[v]
        if slot is None or o.slots[slot].device != value.device or v in self.given:
            raise IRError(f"step {n} gives value {v}, which has no memory of its own", "plan of parts")
        memory = self.memory[slot]
        first = self.at.get(start_of(o.devices.index(value.device)))
        if not self._knows(clock, first):
            raise IRError(f"step {n} writes memory that may be in use by earlier runs", "plan of parts")
        if memory.holds is not None and (self.left.get(memory.holds) or o.cut.values[memory.holds].output):
            raise IRError(
                f"step {n} writes value {v} over value {memory.holds}, which is needed", "plan of parts"
            )
        if not all(self._knows(clock, u) for u in memory.uses):
            raise IRError(
                f"step {n} writes value {v} over memory that another step may be using", "plan of parts"
            )
        memory.holds, memory.uses = v, [use]
        self.given[v] = use

    def _end(self) -> None:
        o = self.o
        for v in o.cut.outputs:
            slot = o.slot[v]
            if not o.cut.values[v].leaf and (slot is None or self.memory[slot].holds != v):
                raise IRError(f"the result {v} is not there at the end", "plan of parts")
        for device, n in o.ends:
            clock = self.host if device is None else self.known.setdefault(Lane(device), {})
            self._wait(n, (n,), clock, device)
        for device, use in self.unfinished:
            clock = self.known.get(Lane(device), {})
            if use.lane != Lane(device) and not self._knows({} if device in o.synchronous else clock, use):
                raise IRError(f"memory of {device} is still in use by {use.lane} at the end", "plan of parts")
        for s in o.steps:
            if isinstance(s.work, Compute) and s.work.device != s.lane.device:
                raise IRError(f"a part of {s.work.device} is on {s.lane}", "plan of parts")


def _merge(clock: Clock, known: Clock) -> None:
    for lane, n in known.items():
        clock[lane] = max(clock.get(lane, 0), n)
