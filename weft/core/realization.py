"""Computing tensors together: those asked for, and those that will surely be wanted and share their work."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from weft.core import run, tracing

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

_wanted: dict[int, ref[Tensor]] = {}
"""Tensors noted, by id: a weak set would compare tensors with `==`."""


def note(t: Tensor) -> None:
    """Have the next `realize` compute `t` as well, if it is alive then.

    For state that moves on at each step (running statistics), whose graph would grow from step to step, and for the
    loss of a backward pass, whose forward computation would be done again if it were asked for later. A function that
    is being traced computes all of its state anyway.
    """
    if tracing.current() is not None:
        return
    key = id(t)
    _wanted[key] = ref(t, lambda _: _wanted.pop(key, None))


def realize(*tensors: Tensor) -> None:
    """Compute tensors now, in one plan, and keep the results. Nothing happens while a function is traced."""
    if tracing.current() is not None:
        return
    if _wanted:
        noted = [t for t in (entry() for entry in _wanted.values()) if t is not None]
        _wanted.clear()
        tensors = (*tensors, *noted)
    run.realize([t.value.node for t in tensors])
    for t in tensors:
        run.realize_value(t.value)
