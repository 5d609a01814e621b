"""The graph of a step: what is kept, with the boxes that a change reaches computed anew.

    new(K) = UPDATE(old(K), K computed on that box only)      for each kept node K, and each box of it that is reached

A box is pulled through the graph (`ir/regions/parts.py`) down to boxes of inputs and of what is kept, which are new
where they were computed anew. Sizes of boxes are numbers, where they begin may be runtime variables.
"""
# Tests: tests/sessions/test_step.py

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.ir import graph
from weft.ir.graph import Box, Node, Shape, apply
from weft.ir.index import Var, high
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.parts import PartsOf, Place, pulled, shrunk
from weft.ir.regions.region import NOTHING, Region


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """What a class of changes computes: `new` nodes for some kept ones, from the `old` leaves that stand for all of
    them. `variables`: where the change begins."""

    variables: tuple[Var, ...]
    new: Mapping[Node, Node]
    old: Mapping[Node, Node]
    dirty: Mapping[Node, Region]
    """The regions of kept nodes that may change."""


def leaf_for(n: Node, device: str) -> Node:
    """A leaf that stands for the value of a node."""
    return graph.buffer(n.shape, n.dtype, device, None)


def step_graph(
    kept: Sequence[Node],
    old: Mapping[Node, Node],
    dirty: Mapping[Node, Region],
    variables: tuple[Var, ...],
) -> StepGraph:
    """The graph for these dirty regions of the kept nodes, which are in the order of computation."""
    now: dict[Node, Node] = {}
    made: dict[Place, Node] = {}
    parts = PartsOf()

    def taken(node: Node, box: IndexBox) -> Node | None:
        if node in now:
            return shrunk(now[node], bx.full(node.shape), box)
        return shrunk(node, bx.full(node.shape), box) if node.op is Op.BUFFER else None

    new: dict[Node, Node] = {}
    found: dict[Node, Region] = {}
    for k in kept:
        boxes = dict.fromkeys([fixed(b, k.shape) for b in dirty.get(k, NOTHING).boxes])
        value = old[k]
        for box in boxes:
            part = pulled(k, box, taken, made, parts)
            at = tuple([i.lo for i in box])
            value = (
                part if part.shape == k.shape else apply(Op.UPDATE, (value, part), Box(at, (1,) * len(at)))
            )
        if boxes:
            new[k], found[k] = value, Region(tuple(boxes))
        now[k] = value
    return StepGraph(variables, new, old, found)


def fixed(box: IndexBox, shape: Shape) -> IndexBox:
    """A box around this one whose extents are numbers: an axis along which they vary is taken whole."""
    sides: list[Interval] = []
    for i, n in zip(box, shape, strict=True):
        size = i.hi - i.lo
        sides.append(i if isinstance(size, int) and size <= high(n) else Interval(0, n))
    return tuple(sides)
