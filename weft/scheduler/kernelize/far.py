"""Far tensors: those that a kernel finds in memory, since its plan reads so much between two runs of it.

A model's weights are read once in each step. One of them might fit into a core's cache; all together they do not, so
each comes from memory (or from a cache that all cores share), and schedules ask for it ahead of where they read. In a
plan that reads little, asking for what is there already takes time.
"""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Node, elements
from weft.ir.ops import MOVEMENT, Op
from weft.scheduler.kernelize.facts import is_leaf

FAR_BYTES = 8 << 20
"""Inputs are far where they have more bytes in all: more than the second-level caches of some cores."""

MIN_BYTES = 64 << 10
"""The least bytes of a tensor that is far: smaller ones are read before what would be asked for comes."""

_IN_PLACE = MOVEMENT | {Op.UPDATE, Op.SCATTER}
"""Ops that leave most of their first operand where it is."""


def find_far(order: Sequence[Node]) -> frozenset[int]:
    """By id, the inputs of a graph that are far, and what comes of writing into these. `order` is topological. Sizes
    that are known at run time only do not count."""
    sizes: dict[int, int] = {}
    for n in order:
        size = elements(n.shape)
        if is_leaf(n) and isinstance(size, int):
            sizes[id(n)] = size * n.dtype.itemsize
    if sum(sizes.values()) <= FAR_BYTES:
        return frozenset()
    far = {k for k, nbytes in sizes.items() if nbytes >= MIN_BYTES}
    for n in order:
        if n.op in _IN_PLACE and n.inputs and id(n.inputs[0]) in far:
            far.add(id(n))
    return frozenset(far)
