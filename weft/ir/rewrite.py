"""Graphs made anew from graphs: one walk, inputs before users, that says of each node what takes its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from weft.ir import graph
from weft.ir.graph import Node, toposort
from weft.ir.lines import Lines, noting

Over: TypeAlias = Callable[[Node, tuple[Node, ...]], Node]
"""over(node, inputs): what takes the place of a node, whose inputs have become these."""


def over(n: Node, inputs: tuple[Node, ...]) -> Node:
    """A node's op on other inputs of the same shapes and dtypes."""
    if inputs == n.inputs:  # nodes are equal where they are one
        return n
    return graph.intern(n.op, inputs, n.attrs, n.shape, n.dtype, graph.device_over(n, inputs))


def rewritten(
    roots: Sequence[Node], rule: Over, known: Mapping[Node, Node] | None = None, stop_at_storage: bool = True
) -> list[Node]:
    """The roots, rewritten. Leaves, and values that are stored if asked, stay; `known` are replaced."""
    made = dict(known or {})
    if (lines := noting()) is not None:
        rule = partial(_followed, lines, rule)
    for n in toposort(roots, stop_at_storage, known=made):
        stays = not n.inputs or (stop_at_storage and n.storage is not None)
        made[n] = n if stays else rule(n, tuple([made[i] for i in n.inputs]))
    return [made[r] for r in roots]


def _followed(lines: Lines, rule: Over, n: Node, inputs: tuple[Node, ...]) -> Node:
    """The node that takes the place of one, at the line of that."""
    return lines.following(n, rule, n, inputs)


def rebuilt(roots: Sequence[Node], new: Mapping[Node, Node]) -> list[Node]:
    """The graph under `roots` with some nodes replaced by others of the same shape and dtype."""
    return rewritten(roots, over, new)
