"""Computing tensors together: those asked for, and those that will surely be wanted and share their work."""
# Tests: tests/core/execute/test_threads.py

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import ref

from weft.core.args.handle import recent_tensors
from weft.core.execute import run, tracing

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor
    from weft.ir.graph import Node


class _Noted(threading.local):
    """Tensors that this thread noted, by id: a weak set would compare tensors with `==`. Data of the thread that
    computes, and no mode."""

    def __init__(self) -> None:
        self.wanted: dict[int, ref[Tensor]] = {}


_noted = _Noted()


def note(t: Tensor) -> None:
    """Have the next `realize` compute `t` as well, if it is alive then.

    For state that moves on at each step (running statistics), whose graph would grow from step to step, and for the
    loss of a backward pass, whose forward computation would be done again if it were asked for later. A function that
    is being traced computes all of its state anyway.
    """
    if tracing.current() is not None or t.value.node.device == run.META:
        return
    key, wanted = id(t), _noted.wanted
    wanted[key] = ref(t, lambda _: wanted.pop(key, None))


def realize(*tensors: Tensor) -> None:
    """Compute tensors now, in one plan, and keep the results. Nothing happens while a function is traced."""
    if tracing.current() is not None:
        return
    wanted = _noted.wanted
    if wanted:
        noted = [t for entry in list(wanted.values()) if (t := entry()) is not None]
        wanted.clear()
        tensors = (*tensors, *noted)
    nodes = [t.value.node for t in tensors]
    held = _held() if recent_tensors.tensors else None
    if not held:
        constants = run.realize(nodes)
        for t in tensors:
            run.realize_value(t.value, constants)
        return
    asked = [held.pop(n) for n in nodes if n in held]
    constants = run.realize(nodes, list(held) if held else ())
    for t in tensors:
        run.realize_value(t.value, constants)
    for holders in asked:
        for t in holders:
            run.realize_value(t.value, constants)
    for node, holders in held.items():
        if node.storage is None and node not in constants:
            recent_tensors.tensors.extend(map(ref, holders))
        else:
            for t in holders:
                run.realize_value(t.value, constants)


def _held() -> dict[Node, list[Tensor]]:
    """The values that are not computed yet but held by a tensor that somebody refers to, with these tensors."""
    noted = list(recent_tensors.tensors)
    recent_tensors.tensors.clear()
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
