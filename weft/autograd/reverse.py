"""The backward walk: from the gradients of some values to those of what they were computed from."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

from weft.autograd.context import switched
from weft.autograd.joins import total
from weft.autograd.passed import given_up
from weft.autograd.value import HOOKS, Value
from weft.autograd.vjp import VJP
from weft.ir.garbage import not_collected
from weft.ir.lines import noting


def gradients(
    outputs: Sequence[Value],
    seeds: Sequence[Value],
    inputs: Sequence[Value] | None,
    create_graph: bool,
    past: bool = True,
    order: Sequence[Value] | None = None,
) -> dict[Value, Value]:
    """The gradient of sum(seed * output) for each of `inputs`, or for each leaf that needs one when that is None.

    `seeds` have the shapes and dtypes of `outputs`. The result is in the order of `inputs`, less those that no
    output depends on. With `create_graph` the gradients are on the tape themselves. Unless `past`, an input does not
    depend on the others: the walk ends at each. Each value is visited once, without recursion. `order`: the tape of
    the outputs, where that is known. Nothing is cast within, whatever `autocast` is in effect.
    """
    if order is None:
        order = tape(outputs)
    wanted = dict.fromkeys([v for v in order if v.is_leaf] if inputs is None else inputs)
    useful = _leading_to(order, wanted)
    parts: dict[Value, list[Value]] = {}
    found: dict[Value, Value] = {}
    lines = noting()
    with switched(grad=create_graph, casts=None), not_collected() if len(order) > _MANY else nullcontext():
        for output, seed in zip(outputs, seeds, strict=True):
            parts.setdefault(output, []).append(seed)
        for value in reversed(order):
            own = parts.pop(value, None)
            if own is None:
                continue
            g = own[0] if len(own) == 1 else total(own)
            if _hooks.data and value in HOOKS:
                g = _hooked(g, value)
            if value in wanted:
                found[value] = g
                if not past:
                    continue
            rule, op = value.rule, value.op
            if rule is None and op is not None:
                rule = VJP[op]
            if rule is None or value not in useful:
                continue
            inputs = value.inputs
            if lines is not None:
                rule = partial(lines.following, value.node, rule)
            for x, part in zip(inputs, rule(g, value, *inputs), strict=True):
                if part is not None and x in useful:
                    own = parts.get(x)
                    if own is None:
                        parts[x] = [part]
                    else:
                        own.append(part)
        # what is wanted may be none of the tape's values: a seed is its gradient where it is an output
        found.update((v, total(own)) for v, own in parts.items() if v in wanted)
    return {v: found[v] for v in wanted if v in found}


_hooks: Any = HOOKS
"""Asked for its `data`, since a weak mapping says in a call of Python that it is empty."""

_MANY = 1000
"""So many values make new ones enough for the garbage collector to walk all there are several times."""


def _hooked(g: Value, value: Value) -> Value:
    """The gradient as the hooks of the value leave it."""
    for hook in list(HOOKS[value].values()):
        new = hook(g)
        g = g if new is None else new
    return g


def tape(outputs: Iterable[Value]) -> list[Value]:
    """The values under `outputs` that need gradients, inputs before users. GradError where a history is gone."""
    order: list[Value] = []
    seen: set[Value] = set()
    for output in outputs:
        stack: list[Value | None] = [output]
        path: list[Value] = []
        while stack:
            value = stack.pop()
            if value is None:
                order.append(path.pop())
            elif value not in seen:
                seen.add(value)
                inputs = value.inputs
                if not inputs:
                    if value.rule is given_up:
                        given_up()
                    order.append(value)
                    continue
                path.append(value)
                stack.append(None)
                for x in inputs:
                    if x.needs_grad and x not in seen:
                        stack.append(x)
    return order


def _leading_to(order: Sequence[Value], wanted: Container[Value]) -> set[Value]:
    """The values of `order` from which one of `wanted` can be reached."""
    useful: set[Value] = set()
    for value in order:
        if value in wanted:
            useful.add(value)
            continue
        for x in value.inputs:
            if x in useful:
                useful.add(value)
                break
    return useful
