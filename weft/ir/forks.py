"""Locks in a process that was forked while other threads held them: those threads are not there to release them."""

from __future__ import annotations

import os
from typing import Any, TypeVar

L = TypeVar("L")


def forkable(lock: L) -> L:
    """The lock, or condition, which is free in a forked process, whoever held it when that was made.

    For locks of tables that are whole at any moment; what one thread was doing to others is nothing to the child.
    """
    held: Any = lock
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=held._at_fork_reinit)  # noqa: SLF001  (as Python does with its own locks)
    return lock
