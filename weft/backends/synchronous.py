"""Queues of a device whose runs and copies are finished when they return: nothing is ever left to wait for."""
# Tests: tests/scheduler/test_realize.py

from __future__ import annotations

from weft.backends.protocol import Event


class FinishedEvent:
    """A point in work that is done already."""

    __slots__ = ()

    def done(self) -> bool:
        """True."""
        return True

    def wait(self) -> None:
        """Nothing to wait for."""


class SynchronousQueue:
    """The one queue of such a device."""

    __slots__ = ()

    def record(self) -> FinishedEvent:
        """A point that lies behind."""
        return FinishedEvent()

    def wait(self, event: Event) -> None:
        """Wait on the host for what another queue of this backend still has to do."""
        event.wait()

    def synchronize(self) -> None:
        """Nothing to wait for."""


def only_queue(number: int, device: str) -> SynchronousQueue:
    """Queue 0. ValueError for any other."""
    if number:
        raise ValueError(f"{device} has one queue, number 0: there is no queue {number}")
    return SynchronousQueue()


def check_range(what: str, nbytes: int, offset: int, size: int) -> None:
    """ValueError unless `nbytes` bytes from `offset` on lie within `size` bytes."""
    if offset < 0 or nbytes < 0 or offset + nbytes > size:
        raise ValueError(
            f"{what}: bytes {offset} to {offset + nbytes} are not inside a memory of {size} bytes"
        )
