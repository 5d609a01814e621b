"""Edits of what was looked at before: of modules, and of tensors that functions captured.

What was found of them as they were is found anew only where there was an edit since: one comparison, however many
modules and tensors there are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.autograd.value import Value
    from weft.core.views.views import ViewOf


class Edits:
    """Edits of one kind, anywhere in the process.

    `latest()`: a number; of two calls that give equal ones, there was no edit in between. `note()` says that there was
    one, after it was made. Each is one call of a C function, which no interrupt and no other thread divides.
    """

    __slots__ = ("latest", "note")

    def __init__(self) -> None:
        left: Any = iter(range(sys.maxsize))
        self.latest: Callable[[], int] = left.__length_hint__
        self.note: Callable[[], object] = left.__next__


modules = Edits()
"""Attributes, members and hooks of any module were set or taken off."""

tensors = Edits()
"""A tensor that was marked as captured stands for another value, or begins to share its elements. Steps that write over
these do not count."""

elements = Edits()
"""The elements of a storage whose writes somebody watches (`ownership.watch_writes`) were, or are, written over: the
tensor has another storage object."""

CAPTURED = "_captured"
"""The attribute by which a tensor is marked."""


def capture(t: Any) -> None:
    """From here on, what `t` stands for is looked at again after an edit only: mark it before looking."""
    t.__dict__[CAPTURED] = True


def stand_for(t: Any, value: Value) -> None:
    """Have `t` stand for another value: noted even where an interrupt comes in between."""
    try:
        t.value = value
    finally:
        if CAPTURED in t.__dict__:
            tensors.note()


def share(t: Any, look: ViewOf | None) -> None:
    """Have `t` share elements as `look` says."""
    try:
        t.look = look
    finally:
        if look is not None:
            look.shared.boxes = None  # where it looked before is where it is looked for
        if CAPTURED in t.__dict__:
            tensors.note()
