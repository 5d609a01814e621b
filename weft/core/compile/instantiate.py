"""Traced values over other tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.autograd.context import switched
from weft.autograd.value import Value, VjpRule
from weft.ir import graph
from weft.ir.graph import Node, toposort
from weft.ir.rewrite import over


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
            stays = not n.inputs or n.storage is not None
            moved[n] = n if stays else over(n, tuple([moved[i] for i in n.inputs]))
    made = dict(known)
    for v in order:
        if v in made:
            continue
        if not v.needs_grad:
            made[v] = Value(moved[v.node])
            continue
        if v.is_leaf:  # no placeholder: a tensor that only a rule has read
            made[v] = v
            continue
        rule = None if v.rule is None else _over(v, made, moved)
        inputs = tuple([made[x] for x in v.inputs])
        made[v] = Value(moved[v.node], True, v.op, v.attrs, inputs, rule)
    return [made[v] for v in values]


def _over(traced: Value, made: Mapping[Value, Value], moved: Mapping[Node, Node]) -> VjpRule:
    """The rule of a traced value, over the tensors of a call.

    A rule may hold values of the trace besides those that it is given, as what a Function saved for its backward: it
    is run on the traced values, and what it gives is instantiated in its turn.
    """

    def rule(g: Value, out: Value, *inputs: Value) -> tuple[Value | None, ...]:
        assert traced.rule is not None
        seed = Value(graph.buffer(g.shape, g.dtype, g.node.device, None), g.needs_grad)
        with switched(stand_ins=True):
            parts = traced.rule(seed, traced, *traced.inputs)
        known = {**made, seed: g, traced: out, **dict(zip(traced.inputs, inputs, strict=True))}
        found = iter(instantiate([p for p in parts if p is not None], known, moved))
        return tuple([None if p is None else next(found) for p in parts])

    return rule
