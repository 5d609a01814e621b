"""Regions of random programs over all ops and dtypes: a changed element changes nothing outside of what it reaches."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir import dtypes as d
from weft.ir import graph as g
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.ir.regions.boxes import Interval
from weft.ir.regions.graphs import needs, reaches
from weft.ir.regions.region import Region
from weft.testing.dependence import points, sizes
from weft.testing.programs import GraphProgram, ProgramStep, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs


def isolated(step: ProgramStep, inputs: list[Node]) -> tuple[Node, list[Node]]:
    """The op of `step` on leaves like `inputs` that hold distinct numbers (indices stay as they are)."""
    leaves: list[Node] = []
    for k, x in enumerate(inputs):
        array = np.asarray(evaluate([x])[0])
        if x.op is not Op.BUFFER or not x.dtype.is_int:
            array = np.asarray(np.arange(array.size).reshape(array.shape) % 5 + k).astype(array.dtype)
        leaves.append(g.buffer(array.shape, x.dtype, "cpu:0", array))
    return ProgramStep(step.op, tuple(range(len(leaves))), step.attrs, step.shape, step.dtype).apply(
        list(leaves)
    ), leaves


def influences(node: Node, leaf: Node, at: tuple[int, ...]) -> np.ndarray:
    """Where the node's value changes with one element of a leaf."""
    original = leaf.storage
    before = evaluate([node])[0]
    leaf.storage = original.copy()
    leaf.storage[at] = (
        original[at] ^ True if leaf.dtype is d.bool_ else original[at] + np.array(1, original.dtype)
    )
    after = evaluate([node])[0]
    leaf.storage = original
    return before.view(np.uint8 if before.dtype.itemsize == 1 else f"u{before.dtype.itemsize}") != after.view(
        np.uint8 if after.dtype.itemsize == 1 else f"u{after.dtype.itemsize}"
    )


@settings(max_examples=30, suppress_health_check=list(HealthCheck), deadline=None)
@given(programs(max_steps=5), st.randoms(use_true_random=False))
def test_regions_contain_all_that_is_needed_and_reached(p: GraphProgram, random: Any) -> None:
    values = [numpy_leaf(a) for a in p.leaves]
    for step in p.steps:
        node = step.apply(values)
        values.append(node)
        if step.inputs:
            check(*isolated(step, [values[i] for i in step.inputs]), random)


def check(node: Node, leaves: list[Node], random: Any) -> None:
    if not node.inputs or any(not x.storage.size for x in (*leaves,)) or not np.prod(sizes(node)):
        return
    if any(x not in leaves for x in node.inputs):
        return  # the graph knew better: there is another op here
    boxes = [tuple(Interval(*sorted(random.sample(range(n + 1), 2))) for n in sizes(node)) for _ in range(3)]
    for k, x in enumerate(node.inputs):
        for _ in range(4):
            at = tuple(random.randrange(n) for n in sizes(x))
            changed = influences(node, x, at)
            reached = reaches(node, k, Region.of([tuple(Interval(i, i + 1) for i in at)]))
            assert (points(reached, sizes(node)) | ~changed).all()
            for box in boxes:
                if changed[tuple(slice(*side) for side in box)].any():
                    assert points(needs(node, Region.of([box]))[k], sizes(x))[at]
