"""Simulated time: work on resources, each of which does one piece of work at a time.

    an operation   is ready when all that it comes after is done, and the host has issued it
                   waits `latency_ns` (a launch, the first byte of a copy), which occupies nothing
                   occupies its resources together for `busy_ns`, as soon as all are free

Who comes first is served first; at equal times, what was issued first. Nothing is decided in the order of the calls:
events are gone through in the order of their times, and only as far as somebody asks, so that what is issued later,
but ready sooner, is served sooner.
"""
# Tests: tests/backends/dummy/test_farm.py

from __future__ import annotations

import threading
from collections.abc import Iterable
from heapq import heapify, heappop, heappush

from weft.backends.timeline import Span, Timeline
from weft.ir.forks import forkable

OPEN_OPERATIONS = 1 << 14
"""The most operations that await that somebody asks what time it is, where nothing is recorded."""

_FINISH, _ARRIVAL = 0, 1  # at equal times a resource becomes free before it is asked for


class Resource:
    """A thing that does one piece of work at a time: a device's compute units, one direction of a wire."""

    __slots__ = ("busy", "free_ns", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name, self.busy, self.free_ns = name, False, 0.0
        self.waiting: list[tuple[float, int, Operation]] = []

    def __repr__(self) -> str:
        return self.name


class Operation:
    """A piece of work. `end_ns` is below 0 until it is known; of what is never submitted, it stays so."""

    __slots__ = (
        "begin_ns", "busy_ns", "end_ns", "followers", "latency_ns", "name", "number", "pending", "ready_ns",
        "resources",
    )  # fmt: skip

    def __init__(self) -> None:
        self.name, self.number, self.pending = "", -1, 0
        self.latency_ns = self.busy_ns = self.ready_ns = 0.0
        self.begin_ns = self.end_ns = -1.0
        self.resources: tuple[Resource, ...] = ()
        self.followers: list[Operation] = []


class Simulation:
    """The resources and operations of one farm. `recorded`: keep all operations, for a timeline."""

    def __init__(self, recorded: bool = False) -> None:
        self.recorded, self.origin_ns = recorded, 0.0
        self._resources: dict[str, Resource] = {}
        self._events: list[tuple[float, int, int, Operation]] = []
        self._done: list[Operation] = []
        self._count = self._open = 0
        self._now_ns = 0.0
        self._lock = forkable(threading.RLock())

    def resource(self, name: str) -> Resource:
        """The resource of that name."""
        found = self._resources.get(name)
        if found is None:
            found = self._resources.setdefault(name, Resource(name))
        return found

    def submit(
        self,
        name: str,
        latency_ns: float,
        busy_ns: float,
        resources: tuple[Resource, ...],
        after: Iterable[Operation] = (),
        issued_ns: float = 0.0,
        operation: Operation | None = None,
    ) -> Operation:
        """An operation, or what becomes of the one given, that comes after others and after the host has issued it."""
        op = Operation() if operation is None else operation
        op.name, op.latency_ns, op.busy_ns, op.resources = name, latency_ns, busy_ns, resources
        with self._lock:
            op.number = number = self._count
            self._count = number + 1
            ready, pending = issued_ns, 0
            for before in after:
                if before.end_ns >= 0:
                    if before.end_ns > ready:
                        ready = before.end_ns
                elif before.number >= 0:
                    before.followers.append(op)
                    pending += 1
            op.ready_ns, op.pending = ready, pending
            if not pending:
                heappush(self._events, (ready + latency_ns, _ARRIVAL, number, op))
            self._open += 1
            if self._open > OPEN_OPERATIONS and not self.recorded:
                self.run()
        return op

    def end_ns(self, operations: Iterable[Operation]) -> float:
        """The time by which all of these are done: the events until then are gone through."""
        latest = 0.0
        with self._lock:
            for op in operations:
                while op.end_ns < 0 <= op.number:
                    if self._events:
                        self._advance()
                    else:  # an interrupt came between: what it left open ends now
                        self._finish(op, self._now_ns)
                latest = max(latest, op.end_ns)
        return latest

    def run(self) -> float:
        """Go through all events; the time of the last."""
        with self._lock:
            while self._events:
                self._advance()
            self._open = 0
            return self._now_ns

    def note(self, resource: Resource, begin_ns: float, end_ns: float, name: str) -> None:
        """Record work that needed no simulation: the host's own."""
        if self.recorded:
            op = Operation()
            op.name, op.resources, op.begin_ns, op.end_ns = name, (resource,), begin_ns, end_ns
            self._done.append(op)

    def clear(self, ns: float = 0.0) -> None:
        """Do all that is open, and let the timeline begin anew there, but not before `ns`."""
        with self._lock:
            self.origin_ns = max(self.run(), ns)
            self._done.clear()

    def timeline(self) -> Timeline:
        """All that was done since the beginning, or since `clear`."""
        self.run()
        return Timeline(
            tuple([Span(r.name, op.begin_ns, op.end_ns, op.name) for op in self._done for r in op.resources]),
            self.origin_ns,
        )

    def _advance(self) -> None:
        """Go through the next event; of ends at the same time, through all."""
        events = self._events
        ns, kind, _, op = heappop(events)
        if kind == _ARRIVAL:
            self._start(op, ns)
            return
        freed = self._finish(op, ns)
        while events and events[0][0] == ns and events[0][1] == _FINISH:
            freed += self._finish(heappop(events)[3], ns)
        first = [(r.waiting[0][:2], k) for k, r in enumerate(freed) if r.waiting]
        heapify(first)
        while first:
            k = heappop(first)[1]
            r = freed[k]
            if r.waiting and not r.busy:
                arrived, _, waiting = heappop(r.waiting)
                self._start(waiting, arrived)
                if r.waiting:
                    heappush(first, (r.waiting[0][:2], k))

    def _finish(self, op: Operation, ns: float) -> tuple[Resource, ...]:
        """Note the end of an operation, let arrive what comes after it, and give its resources free."""
        op.end_ns = ns
        if ns > self._now_ns:
            self._now_ns = ns
        self._open -= 1
        if self.recorded:
            self._done.append(op)
        for r in op.resources:
            r.busy, r.free_ns = False, ns
        for follower in op.followers:
            if follower.ready_ns < ns:
                follower.ready_ns = ns
            follower.pending -= 1
            if not follower.pending:
                arrival = follower.ready_ns + follower.latency_ns
                heappush(self._events, (arrival, _ARRIVAL, follower.number, follower))
        op.followers = []
        return op.resources

    def _start(self, op: Operation, arrived_ns: float) -> None:
        """Let an operation that has arrived occupy its resources, or wait for one that is busy."""
        begin = arrived_ns
        for r in op.resources:
            if r.busy:
                heappush(r.waiting, (arrived_ns, op.number, op))
                return
            if r.free_ns > begin:
                begin = r.free_ns
        for r in op.resources:
            r.busy = True
        op.begin_ns = begin
        heappush(self._events, (begin + op.busy_ns, _FINISH, op.number, op))
