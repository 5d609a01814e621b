"""Computing tensors together: those asked for, and those that will surely be wanted and share their work."""

from __future__ import annotations

from typing import TYPE_CHECKING
from weakref import ref

from weft.core import run, tracing
from weft.core.handle import recent

if TYPE_CHECKING:
    from weft.core.tensor import Tensor
    from weft.ir.graph import Node

_wanted: dict[int, ref[Tensor]] = {}
"""Tensors noted, by id: a weak set would compare tensors with `==`."""


def note(t: Tensor) -> None:
    """Have the next `realize` compute `t` as well, if it is alive then.

    For state that moves on at each step (running statistics), whose graph would grow from step to step, and for the
    loss of a backward pass, whose forward computation would be done again if it were asked for later. A function that
    is being traced computes all of its state anyway.
    """
    if tracing.current() is not None or t.value.node.device == run.META:
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
    nodes = [t.value.node for t in tensors]
    held = _held() if recent else None
    if not held:
        run.realize(nodes)
        for t in tensors:
            run.realize_value(t.value)
        return
    asked = [held.pop(n) for n in nodes if n in held]
    run.realize(nodes, list(held) if held else ())
    for t in tensors:
        run.realize_value(t.value)
    for holders in asked:
        for t in holders:
            run.realize_value(t.value)
    for node, holders in held.items():
        if node.storage is None:
            recent.extend(map(ref, holders))
        else:
            for t in holders:
                run.realize_value(t.value)


def _held() -> dict[Node, list[Tensor]]:
    """The values that are not computed yet but held by a tensor that somebody refers to, with these tensors."""
    noted = list(recent)
    recent.clear()
    held: dict[Node, list[Tensor]] = {}
    for entry in noted:
        t: Tensor | None = entry()
        if t is not None:
            node = t.value.node
            if node.storage is None and node.inputs:
                if node in held:
                    held[node].append(t)
                else:
                    held[node] = [t]
    return held
