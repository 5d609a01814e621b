"""Threads of Python that stay in one native call, and so touch no object while they do.

    NativeThread(loop, index)     is in `loop`, which lets go of the interpreter's lock
    is_away(frame)                whether such a thread runs nothing else

A thread is known by the code of its innermost frame: what Python runs in it otherwise, a finalizer at a collection of
garbage for one, has a frame of its own on top. None of them is in `threading`'s list, whose length tells whether
other threads may build graphs.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from types import FrameType


class NativeThread:
    """A running thread that makes one native call, `call(index)`. The process does not wait for it to end."""

    __slots__ = ("_running", "native_id")

    def __init__(self, call: Callable[[int], object], index: int) -> None:
        self._running, begun = _thread.allocate_lock(), _thread.allocate_lock()
        self._running.acquire()
        begun.acquire()
        self.native_id: int = 0
        """The system's number of the thread."""
        _thread.start_new_thread(self._run, (call, index, begun))
        begun.acquire()

    def _run(self, call: Callable[[int], object], index: int, begun: _thread.LockType) -> None:
        self.native_id = _thread.get_native_id()
        begun.release()
        try:
            stay(call, index)
        finally:
            self._running.release()

    def join(self, timeout: float = -1) -> bool:
        """Wait for the call's end, so many seconds at most; True when it came."""
        if not self._running.acquire(timeout=timeout):
            return False
        self._running.release()
        return True

    def is_alive(self) -> bool:
        """True as long as the call has not ended."""
        return self._running.locked()


def stay(call: Callable[[int], object], index: int) -> None:
    """Make one native call, and nothing else."""
    call(index)


_STAY = stay.__code__


def is_away(frame: FrameType) -> bool:
    """True for the innermost frame of a thread that is in its native call."""
    return frame.f_code is _STAY
