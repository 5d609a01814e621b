"""Threads of Python that stay in one native call, and so touch no object while they do.

    NativeThread(loop, index)     is in `loop`, which lets go of the interpreter's lock
    is_away(frame)                whether such a thread runs nothing else
    wait_for(call)                what a thread of weft's own waits for; it goes on when no `undisturbed` block runs
    undisturbed()                 a block in which those threads stay where they are; True where there are no others

A thread is known by the code of its innermost frame: what Python runs in it otherwise, a finalizer at a collection of
garbage for one, has a frame of its own on top. None of them is in `threading`'s list, whose length tells whether
other threads may build graphs.
"""

from __future__ import annotations

import _thread
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

from weft.ir.forks import forkable

T = TypeVar("T")

MAX_LOOKS, SECONDS_BETWEEN_LOOKS = 50, 0.001
"""Looks at threads that do not wait yet: a thread that starts needs some milliseconds beside one that runs."""


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


_awake = forkable(threading.RLock())
"""Held by blocks that no waiting thread may disturb."""


def wait_for(call: Callable[[], T]) -> T:
    """The result of a call that waits in native code, for a thread that has no tensors. What Python might run in it
    afterwards, a finalizer at a collection of garbage, is not to come while memory is written over."""
    found = _wait(call)
    with _awake:
        return found


def _wait(call: Callable[[], T]) -> T:
    return call()


@contextmanager
def undisturbed() -> Generator[bool]:
    """A block during which all other threads stay in native code, where it is given True. One of weft's own that has
    just begun, or has just been told something, is given time to wait again."""
    for _ in range(MAX_LOOKS):
        if others_wait():
            break
        time.sleep(SECONDS_BETWEEN_LOOKS)
    with _awake:
        yield others_wait()


def others_wait() -> bool:
    """True where no other thread runs Python now, but for those of weft's own that wait."""
    frames = _frames()
    try:
        return sum([f.f_code is not _STAY and f.f_code is not _WAIT for f in frames.values()]) == 1
    finally:
        del frames


_WAIT = _wait.__code__
_frames = sys._current_frames  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
