"""Threads of Python that stay in one native call, and so touch no object while they do.

    threading.Thread(target=stay, args=(loop, index))     is in `loop`, which lets go of the interpreter's lock
    is_away(frame)                                        whether such a thread runs nothing else

A thread is known by the code of its innermost frame: what Python runs in it otherwise, a finalizer at a collection of
garbage for one, has a frame of its own on top.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType


def stay(call: Callable[[int], object], index: int) -> None:
    """Make one native call, and nothing else."""
    call(index)


_STAY = stay.__code__


def is_away(frame: FrameType) -> bool:
    """True for the innermost frame of a thread that is in its native call."""
    return frame.f_code is _STAY
