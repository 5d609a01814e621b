"""Traced values over other tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.autograd.value import Value
from weft.ir import graph
from weft.ir.graph import Node, toposort


def instantiate(
    values: Sequence[Value], known: Mapping[Value, Value], nodes: Mapping[Node, Node]
) -> list[Value]:
    """Traced values over other tensors: graph and tape with placeholders replaced, as if the ops were applied anew."""
    order: list[Value] = []
    seen: set[Value] = set()
    stack: list[tuple[Value, bool]] = [(v, False) for v in reversed(values)]
    while stack:
        v, done = stack.pop()
        if done:
            order.append(v)
        elif v not in seen:
            seen.add(v)
            stack.append((v, True))
            if v.needs_grad and v not in known:
                stack.extend((x, False) for x in v.inputs)
    moved: dict[Node, Node] = dict(nodes)
    moved.update({old.node: new.node for old, new in known.items()})
    for n in toposort([v.node for v in order]):
        if n not in moved:
            moved[n] = (
                n
                if not n.inputs or n.storage is not None
                else graph.intern(
                    n.op, tuple([moved[i] for i in n.inputs]), n.attrs, n.shape, n.dtype, n.device
                )
            )
    made = dict(known)
    for v in order:
        if v not in made:
            inputs = tuple([made[x] for x in v.inputs]) if v.needs_grad else ()
            made[v] = Value(moved[v.node], v.needs_grad, v.op if v.needs_grad else None, v.attrs, inputs)
    return [made[v] for v in values]
