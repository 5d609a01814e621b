"""Work that makes many objects and no garbage: Python's collector would walk them again and again, and find nothing."""
# Tests: tests/test_scale.py, tests/core/execute/test_threads.py

from __future__ import annotations

import gc
import os
import threading

from weft.ir.forks import awaited

NEW_OBJECTS = 20_000
"""Objects made, less those gone, from which on Python's collector walks the new ones: more than a step of training a
large model makes, which are gone with its graph."""

DEFAULTS = (700, 2000)
"""The numbers that interpreters begin with, where no program has said how often its objects shall be walked."""


def expect_graphs() -> None:
    """Have Python's collector wait for `NEW_OBJECTS` where it runs as often as interpreters begin with.

    A graph is many objects that live until it is computed, so the collector would walk each a few times, and then all
    that the program has, since so many have survived: 7 to 25 percent of the time of training steps."""
    first, *others = gc.get_threshold()
    if gc.isenabled() and first in DEFAULTS:
        gc.set_threshold(NEW_OBJECTS, *others)


_lock = awaited(threading.RLock())
_resting: set[int] = set()
"""The blocks that run, by id."""

_was_enabled = False


class not_collected:  # noqa: N801  (reads as what it does)
    """Python's cyclic garbage collector rests within the block, in all threads; afterwards it is as it was before.

    A block whose end an interrupt prevents ends when it is forgotten.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        global _was_enabled
        with _lock:
            if not _resting:
                _was_enabled = gc.isenabled()
                gc.disable()
            _resting.add(id(self))

    def __exit__(self, *error: object) -> None:
        with _lock:
            _resting.discard(id(self))
            if not _resting and _was_enabled:
                gc.enable()

    def __del__(self) -> None:
        if id(self) in _resting:
            self.__exit__()


def _resume_in_child() -> None:
    """The blocks of threads that the child does not have would keep the collector off for ever."""
    if _resting:
        _resting.clear()
        if _was_enabled:
            gc.enable()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_resume_in_child)
