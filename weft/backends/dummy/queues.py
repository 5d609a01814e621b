"""Queues of simulated devices: what is ordered before what, and what time it is on each.

Work runs when it is started, so results never depend on luck. Whether they would on a real device is found with
vector clocks: each queue knows how far the others had come at the last event it waited for, and a use of memory that
another queue has written, without such knowledge, is an error. Source: Mattern, "Virtual time and global states", 1989.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.backends.protocol import Event


class DummyQueue:
    """Work in order, on a clock of its own."""

    __slots__ = ("host", "known", "name", "ns", "started")

    def __init__(self, name: str, host: Host) -> None:
        self.name, self.host = name, host
        self.started = 0
        self.known: dict[DummyQueue, int] = {}
        self.ns = 0.0

    def start(self) -> int:
        """One more piece of work, after all that the host has waited for; its number."""
        self.learn(self.host.known)
        self.started += 1
        self.known[self] = self.started
        return self.started

    def learn(self, known: Mapping[DummyQueue, int]) -> None:
        """From here on this queue comes after the work in `known`."""
        for q, number in known.items():
            if self.known.get(q, 0) < number:
                self.known[q] = number

    def comes_after(self, q: DummyQueue, number: int) -> bool:
        """True where what is started now is ordered after work `number` of queue `q`."""
        return self.known.get(q, 0) >= number

    def record(self) -> DummyEvent:
        """The point after all that was started so far."""
        self.learn(self.host.known)
        return DummyEvent(dict(self.known), self.ns, self.host)

    def wait(self, event: Event) -> None:
        """Order what is started from now on after `event`, also in simulated time."""
        if not isinstance(event, DummyEvent):
            raise ValueError(f"{self.name} cannot wait for {event!r}: it is no event of a simulated device")
        self.learn(event.known)
        self.ns = max(self.ns, event.ns)

    def synchronize(self) -> None:
        """The host has waited for this queue."""
        self.host.learn(self.known)

    def __repr__(self) -> str:
        return self.name


class Host:
    """The work that the host has waited for. The devices of one backend share it."""

    __slots__ = ("known",)

    def __init__(self) -> None:
        self.known: dict[DummyQueue, int] = {}

    def learn(self, known: Mapping[DummyQueue, int]) -> None:
        """The host has waited for the work in `known`."""
        for q, number in known.items():
            if self.known.get(q, 0) < number:
                self.known[q] = number


class DummyEvent:
    """A point in a queue's work. The first time somebody asks, it has not been reached; the next time it has."""

    __slots__ = ("_asked", "host", "known", "ns")

    def __init__(self, known: Mapping[DummyQueue, int], ns: float, host: Host) -> None:
        self.known, self.ns, self.host = known, ns, host
        self._asked = False

    def done(self) -> bool:
        """True where the work is done, as a host that does not wait would see it."""
        if all(self.host.known.get(q, 0) >= number for q, number in self.known.items()):
            return True
        if self._asked:
            self.wait()
        self._asked = True
        return False

    def wait(self) -> None:
        """The host has waited for it."""
        self.host.learn(self.known)
