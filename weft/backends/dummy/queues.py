"""Queues of simulated devices: what is ordered before what, and what time it is on each.

Work runs when it is started, so results never depend on luck. Whether they would on a real device is found with
vector clocks: each queue knows how far the others had come at the last event it waited for, and a use of memory that
another queue has written, without such knowledge, is an error. Source: Mattern, "Virtual time and global states", 1989.

A clock is an array with a number for each queue of the farm; it is never changed, only replaced, so that whoever keeps
one shares it. A queue's own number stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from weft.backends.dummy.simulation import Operation, Resource, Simulation
from weft.backends.protocol import Event

VectorClock: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
_NOTHING: VectorClock = np.zeros(0, np.int32)


class DummyQueue:
    """Work in order. `check` raises where the device does not answer any more."""

    __slots__ = ("_heard", "after", "check", "host", "index", "known", "last", "name", "number")

    def __init__(self, name: str, host: Host, check: Callable[[], None]) -> None:
        self.name, self.host, self.check = name, host, check
        self.index = host.admit()
        self.number = 0
        self.known = _NOTHING
        self.last: Operation | None = None
        self.after: list[Operation] = []
        self._heard = 0

    @property
    def ns(self) -> float:
        """The simulated time at which all that was started is done. Asking goes through all events there are."""
        self.host.simulation.run()
        return self.host.simulation.end_ns(self._operations())

    def start(self) -> DummyEvent:
        """One more piece of work, after all that the host has waited for: the point at which it is done."""
        self._hear()
        self.number += 1
        return DummyEvent(self, self.number, self.known, (Operation(),))

    def submit(
        self, work: DummyEvent, name: str, latency_ns: float, busy_ns: float, resources: tuple[Resource, ...]
    ) -> None:
        """Let simulated time pass for work that was started."""
        (operation,) = work.operations
        self.host.simulation.submit(
            name, latency_ns, busy_ns, resources, self._operations(), self.host.ns, operation
        )
        self.last, self.after = operation, []

    def comes_after(self, point: DummyEvent) -> bool:
        """True where what is started now is ordered after that point."""
        return point.queue is self or _includes(self.known, point)

    def record(self) -> DummyEvent:
        """The point after all that was started so far."""
        self._hear()
        return DummyEvent(self, self.number, self.known, tuple(self._operations()))

    def wait(self, event: Event) -> None:
        """Order what is started from now on after `event`, also in simulated time. ValueError for a foreign one."""
        if not isinstance(event, DummyEvent) or event.queue.host is not self.host:
            raise ValueError(f"{self.name} cannot wait for {event!r}: it is no event of this backend")
        if not self.comes_after(event):
            self.known = event.joined_to(self.known)
            self.number += 1  # who comes after later work comes after this wait
            self.after += event.operations

    def synchronize(self) -> None:
        """The host has waited for this queue. DeviceError for a device that is lost."""
        self.check()
        self.host.wait(self.record())

    def _hear(self) -> None:
        """Let what is started or recorded now come after all that the host has waited for."""
        if self._heard != self.host.version:
            self.known, self._heard = _joined(self.known, self.host.known), self.host.version
            self.number += 1

    def _operations(self) -> list[Operation]:
        """The work that the next piece comes after."""
        return self.after if self.last is None else [self.last, *self.after]

    def __repr__(self) -> str:
        return self.name


class Host:
    """The thread that starts all work: what it has waited for, and what time it is there.

    `issue_ns` passes at each call that starts something. The devices of one backend share the host.
    """

    __slots__ = ("issue_ns", "known", "ns", "queues", "simulation", "thread", "version")

    def __init__(self, simulation: Simulation | None = None, issue_ns: float = 0.0) -> None:
        self.simulation, self.issue_ns = simulation or Simulation(), issue_ns
        self.thread = self.simulation.resource("host")
        self.known, self.version, self.queues, self.ns = _NOTHING, 0, 0, 0.0

    def admit(self) -> int:
        """The number of a new queue."""
        self.queues += 1
        return self.queues - 1

    def issue(self, name: str) -> None:
        """Time passes while work of that name is started."""
        if self.issue_ns:
            self.simulation.note(self.thread, self.ns, self.ns + self.issue_ns, name)
            self.ns += self.issue_ns

    def wait(self, point: DummyEvent) -> None:
        """The host has waited for that point: it comes after all that was before it, and no earlier."""
        if not _includes(self.known, point):
            self.known, self.version = point.joined_to(self.known), self.version + 1
        self.ns = max(self.ns, self.simulation.end_ns(point.operations))


class DummyEvent:
    """A point in a queue's work: after its number `number`, and what was known there.

    The first time somebody asks, it has not been reached; the next time it has.
    """

    __slots__ = ("_asked", "known", "number", "operations", "queue")

    def __init__(
        self, queue: DummyQueue, number: int, known: VectorClock, operations: tuple[Operation, ...]
    ) -> None:
        self.queue, self.number, self.known, self.operations = queue, number, known, operations
        self._asked = False

    def done(self) -> bool:
        """True where the work is done, as a host that does not wait would see it."""
        if _includes(self.queue.host.known, self):
            return True
        if self._asked:
            self.wait()
        self._asked = True
        return False

    def wait(self) -> None:
        """The host has waited for it. DeviceError for a device that is lost."""
        self.queue.check()
        self.queue.host.wait(self)

    def joined_to(self, known: VectorClock) -> VectorClock:
        """The clock of who has known `known` and comes after this point."""
        out = _joined(known, self.known, self.queue.host.queues)
        out[self.queue.index] = max(out[self.queue.index], self.number)
        return out


def _includes(known: VectorClock, point: DummyEvent) -> bool:
    """True where who knows `known` comes after that point."""
    index = point.queue.index
    return not point.number or (index < known.size and bool(known[index] >= point.number))


def _joined(a: VectorClock, b: VectorClock, size: int = 0) -> VectorClock:
    """The later of both for each queue, with room for so many queues."""
    if a.size == b.size >= size:
        return np.maximum(a, b)
    out = np.zeros(max(a.size, b.size, size), np.int32)
    out[: a.size] = a
    np.maximum(out[: b.size], b, out=out[: b.size])
    return out
