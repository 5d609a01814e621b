"""Writes to tensors: how many there were, and what is known of elements until the next one."""
# Tests: tests/core/test_surface.py, tests/core/execute/test_threads.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from weft.ir.graph import Node

known_ranges: WeakKeyDictionary[Node, tuple[int, int]] = WeakKeyDictionary()
"""The smallest and the largest element of nodes in memory that were used as indices, until they are written over."""

written_steps = [0]
"""The number of steps of compiled functions that wrote in place."""


def count_step() -> None:
    """A step of a compiled function has written tensors over in place."""
    written_steps[0] += 1


def version(t: Any) -> int:
    """The number of writes to `t`; for what compiled functions update, with all their steps that write."""
    own = t.__dict__
    return own.get("_writes", 0) + (written_steps[0] if "_stepped" in own else 0)
