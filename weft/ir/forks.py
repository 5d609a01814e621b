"""Locks in a process that was forked while other threads held them: those threads are not there to release them."""

from __future__ import annotations

import os
from typing import Any, TypeVar
from weakref import WeakSet

L = TypeVar("L")

_locks: WeakSet[Any] = WeakSet()


def forkable(lock: L) -> L:
    """The lock, or condition, which is free in a forked process, whoever held it when that was made.

    For locks of tables that are whole at any moment; what one thread was doing to others is nothing to the child.
    """
    _locks.add(lock)
    return lock


def _renew() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # noqa: SLF001  (as Python does with its own locks)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
