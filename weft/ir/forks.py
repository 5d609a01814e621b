"""Locks in a process that was forked while other threads held them: those threads are not there to release them."""
# Tests: tests/test_caches.py, tests/core/execute/test_threads.py

from __future__ import annotations

import os
import time
from typing import Any, TypeVar
from weakref import WeakSet

L = TypeVar("L")

_WAIT_SECONDS = 10.0
"""The time that a fork waits for locks: a whole compilation of LLVM may stand before it."""

_RETRY_SECONDS = 50e-6

_free: WeakSet[Any] = WeakSet()
_awaited: WeakSet[Any] = WeakSet()
_taken: list[Any] = []
"""The awaited locks that the fork under way holds."""


def forkable(lock: L) -> L:
    """The lock, or condition, which is free in a forked process, whoever held it when that was made.

    For locks of tables that are whole at any moment; what one thread was doing to others is nothing to the child.
    """
    _free.add(lock)
    return lock


def awaited(lock: L) -> L:
    """The lock, which a fork takes first, so that what it guards is whole in the child, and the lock free.

    For what is changed in several steps, such as memory being carved or the inside of a foreign library. A fork waits
    ten seconds at most; then the child has the lock free all the same, and what it guards as it was.
    """
    _awaited.add(lock)
    return lock


def _take() -> None:
    """Hold all awaited locks; all or none while waiting, since their holders may be waiting for each other."""
    give_up = time.monotonic() + _WAIT_SECONDS
    while True:
        for lock in list(_awaited):
            if not lock.acquire(blocking=False):
                break
            _taken.append(lock)
        else:
            return
        if time.monotonic() > give_up:
            return
        _give_back()
        time.sleep(_RETRY_SECONDS)


def _give_back() -> None:
    while _taken:
        _taken.pop().release()


def _renew() -> None:
    _taken.clear()
    for lock in [*_free, *_awaited]:
        lock._at_fork_reinit()  # noqa: SLF001  (as Python does with its own locks)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take, after_in_parent=_give_back, after_in_child=_renew)
