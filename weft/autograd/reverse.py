"""The backward walk: from the gradients of some values to those of what they were computed from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import nullcontext

from weft.autograd.context import grad_mode
from weft.autograd.joins import total
from weft.autograd.value import HOOKS, Value
from weft.autograd.vjp import VJP
from weft.ir.garbage import not_collected


def gradients(
    outputs: Sequence[Value],
    seeds: Sequence[Value],
    inputs: Sequence[Value] | None,
    create_graph: bool,
    past: bool = True,
) -> dict[Value, Value]:
    """The gradient of sum(seed * output) for each of `inputs`, or for each leaf that needs one when that is None.

    `seeds` have the shapes and dtypes of `outputs`. The result is in the order of `inputs`, less those that no
    output depends on. With `create_graph` the gradients are on the tape themselves. Unless `past`, an input does not
    depend on the others: the walk ends at each. Each value is visited once, without recursion.
    """
    order = tape(outputs)
    wanted = dict.fromkeys([v for v in order if v.is_leaf] if inputs is None else inputs)
    useful = _leading_to(order, wanted)
    parts: dict[Value, list[Value]] = {}
    found: dict[Value, Value] = {}
    with grad_mode(create_graph), not_collected() if len(order) > _MANY else nullcontext():
        for output, seed in zip(outputs, seeds, strict=True):
            parts.setdefault(output, []).append(seed)
        for value in reversed(order):
            own = parts.pop(value, None)
            g = None if own is None else total(own)
            if g is not None and value in HOOKS:
                g = _hooked(g, value)
            if g is not None and value in wanted:
                found[value] = g
                if not past:
                    continue
            rule = value.rule or (VJP[value.op] if value.op else None)
            if g is None or rule is None or value not in useful:
                continue
            for x, part in zip(value.inputs, rule(g, value, *value.inputs), strict=True):
                if part is not None and x in useful:
                    parts.setdefault(x, []).append(part)
        # what is wanted may be none of the tape's values: a seed is its gradient where it is an output
        found.update((v, total(own)) for v, own in parts.items() if v in wanted)
    return {v: found[v] for v in wanted if v in found}


_MANY = 1000
"""So many values make new ones enough for the garbage collector to walk all there are several times."""


def _hooked(g: Value, value: Value) -> Value:
    """The gradient as the hooks of the value leave it."""
    for hook in list(HOOKS[value].values()):
        new = hook(g)
        g = g if new is None else new
    return g


def tape(outputs: Iterable[Value]) -> list[Value]:
    """The values under `outputs` that need gradients, inputs before users."""
    order: list[Value] = []
    seen: set[Value] = set()
    for output in outputs:
        stack: list[tuple[Value, bool]] = [(output, False)]
        while stack:
            value, inputs_done = stack.pop()
            if inputs_done:
                order.append(value)
            elif value not in seen:
                seen.add(value)
                stack.append((value, True))
                stack.extend((x, False) for x in value.inputs if x.needs_grad and x not in seen)
    return order


def _leading_to(order: Sequence[Value], wanted: Container[Value]) -> set[Value]:
    """The values of `order` from which one of `wanted` can be reached."""
    useful: set[Value] = set()
    for value in order:
        if value in wanted or any(x in useful for x in value.inputs):
            useful.add(value)
    return useful
