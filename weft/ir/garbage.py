"""Work that makes many objects and no garbage: Python's collector would walk them again and again, and find nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

_lock = threading.Lock()
_depth = 0
_was_enabled = False


@contextmanager
def not_collected() -> Generator[None]:
    """Python's cyclic garbage collector rests within the block, in all threads; afterwards it is as it was before."""
    global _depth, _was_enabled
    with _lock:
        if not _depth:
            _was_enabled = gc.isenabled()
            gc.disable()
        _depth += 1
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if not _depth and _was_enabled:
                gc.enable()
