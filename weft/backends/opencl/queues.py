"""Command queues and events."""

from __future__ import annotations

from collections import deque
from typing import Any

from weft.backends.protocol import Event

from .driver import failed, pyopencl


class OpenCLEvent:
    """A point in a queue's work."""

    __slots__ = ("handle",)

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def done(self) -> bool:
        """True where all the work before it is done."""
        cl = pyopencl()
        return self.handle.command_execution_status <= cl.command_execution_status.COMPLETE

    def wait(self) -> None:
        """On the host."""
        cl = pyopencl()
        try:
            self.handle.wait()
        except cl.Error as error:
            raise failed("finish a run", error) from error


class OpenCLQueue:
    """One command queue, in order."""

    __slots__ = ("_finished", "_kept", "_ordered", "_started", "handle")

    def __init__(self, context: Any) -> None:
        cl = pyopencl()
        self.handle = cl.CommandQueue(context, properties=cl.command_queue_properties.PROFILING_ENABLE)
        self._started = self._finished = self._ordered = 0
        self._kept: deque[tuple[Any, tuple[Any, ...]]] = deque()

    @property
    def busy(self) -> bool:
        """True where something was started since the host last waited."""
        return self._started != self._finished

    def started(self) -> None:
        """Something has been put on the queue: to be said afterwards, since another thread may be waiting meanwhile."""
        self._started += 1

    def has_news(self) -> bool:
        """True where something was started since it was last asked."""
        seen, self._ordered = self._ordered, self._started
        return seen != self._ordered

    def keep(self, event: Any, things: tuple[Any, ...]) -> None:
        """Keep things until the driver's event, of this queue, is done; those of what is done by now go."""
        self._kept.append((event, things))
        self._let_go()

    def _let_go(self) -> None:
        """Forget what was kept for work that is done."""
        complete = pyopencl().command_execution_status.COMPLETE
        while self._kept and self._kept[0][0].command_execution_status <= complete:
            self._kept.popleft()

    def record(self) -> OpenCLEvent:
        """The point after all that was started so far."""
        cl = pyopencl()
        event = cl.enqueue_marker(self.handle)
        self.handle.flush()
        return OpenCLEvent(event)

    def wait(self, event: Event, news: bool = True) -> None:
        """Order what is started from now on after `event`: the host waits where it is of another device, whose events
        the driver does not know here. `news`: other queues are to come after this, too."""
        if not isinstance(event, OpenCLEvent):
            raise ValueError(f"not an event of OpenCL: {event!r}")
        if event.handle.context != self.handle.context:
            event.wait()
            return
        pyopencl().enqueue_barrier(self.handle, wait_for=[event.handle])
        self.started()
        if not news:
            self._ordered += 1

    def synchronize(self) -> None:
        """Wait for all that was started."""
        seen = self._started
        if seen == self._finished:
            return
        cl = pyopencl()
        try:
            self.handle.finish()
        except cl.Error as error:
            raise failed("finish a run", error) from error
        finally:
            self._finished = max(self._finished, seen)
        self._let_go()
