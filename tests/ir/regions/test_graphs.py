"""Regions through graphs of several ops, calls and loops, against poison; and what masks exclude."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.ir import graph as g
from weft.ir.calls import expand_calls, recorded
from weft.ir.graph import Node, toposort
from weft.ir.loop_body import LoopNode, Part, normal
from weft.ir.ops import Op
from weft.ir.regions.boxes import Interval
from weft.ir.regions.graphs import needed, needs, reached, reaches
from weft.ir.regions.region import NOTHING, Region
from weft.ir.rewrite import rebuilt
from weft.scheduler.kernelize.masks import find_masks, operand_uses
from weft.testing.dependence import (
    at_runtime,
    dependence,
    leaf,
    points,
    sizes,
    some_node,
    some_region,
    some_shape,
)
from weft.testing.reference import evaluate

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)


def box(*sides: tuple[Any, Any]) -> Region:
    return Region.of([tuple(Interval(*side) for side in sides)])


def unstored(node: Node) -> Node:
    """A placeholder in the place of a leaf, for graphs that are recorded."""
    return g.buffer(node.shape, node.dtype, node.device, None)


def holds(found: Region, shape: tuple[int, ...], wanted: np.ndarray) -> bool:
    return bool((points(found, shape) | ~wanted).all())


def check(root: Node, x: Node, random: Random) -> None:
    """Nothing is missing, from the result back to the leaf and from the leaf on to the result."""
    of = dependence(root, x)
    wanted, changed = some_region(random, sizes(root)), some_region(random, sizes(x))
    order = toposort([root], stop_at_storage=False)
    for asked, values in ((wanted, {}), at_runtime(random, wanted)):
        found = needed({root: asked}).get(x, NOTHING).at(values)
        assert holds(found, sizes(x), of[points(wanted, sizes(root))].any(0))
    for asked, values in ((changed, {}), at_runtime(random, changed)):
        found = reached({x: asked}, order)[root].at(values)
        assert holds(found, sizes(root), of[..., points(changed, sizes(x))].any(-1))


def some_graph(random: Random, x: Node) -> Node:
    """A few ops after another, and now and then the sum of two branches in one shape."""
    branches: list[Node] = []
    for _ in range(random.choice((1, 1, 2))):
        y = x
        for _ in range(random.randint(1, 4)):
            y = some_node(random, y)
        branches.append(y)
    if len(branches) == 1:
        return branches[0]
    flat = [g.apply(Op.RESHAPE, (b,), None, (g.elements(b.shape),)) for b in branches]
    return g.apply(Op.CONCAT, tuple(flat), g.Along(0))


@settings(max_examples=80, **QUIET)
@given(RANDOM)
def test_regions_through_graphs_are_what_poison_shows(random: Random) -> None:
    x = leaf(*some_shape(random))
    check(some_graph(random, x), x, random)


@settings(max_examples=25, **QUIET)
@given(RANDOM)
def test_calls_are_looked_into(random: Random) -> None:
    """One node for a graph has the regions of the graph."""
    x = leaf(*some_shape(random))
    hidden = unstored(x)
    root = some_graph(random, hidden)
    others = [n for n in toposort([root]) if n.op is Op.BUFFER and n is not hidden]
    inside = {n: unstored(n) for n in others}
    (opened,) = rebuilt([root], inside)
    calls = recorded([hidden, *inside.values()], [opened])
    if isinstance(calls, str):
        return
    call = calls[0].on([x, *others])
    if x not in call.inputs:
        return
    (plain,) = expand_calls([call], stop_at_storage=False)
    check(call, x, random)
    wanted = some_region(random, sizes(call))
    k = call.inputs.index(x)
    assert needs(call, wanted)[k] == needed({plain: wanted}).get(x, NOTHING)
    changed = some_region(random, sizes(x))
    assert reaches(call, k, changed) == reached({x: changed}, toposort([plain], stop_at_storage=False))[plain]


CARRY, ROWS = 0, 1
"""The inputs of `loops`: where the carry starts, and the rows."""


def loops(reverse: bool) -> dict[str, Node]:
    """A carry (3, 2) that each step mixes along its last axis and adds row t + 1 of x (6, 3, 2) to: all results."""
    start, x, w = leaf(3, 2), leaf(6, 3, 2), leaf(2, 2)
    carry, row = (g.buffer((3, 2), start.dtype, "cpu:0", None) for _ in range(2))
    wide = g.apply(Op.EXPAND, (g.apply(Op.RESHAPE, (carry,), None, (3, 2, 1)),), None, (3, 2, 2))
    weights = g.apply(Op.EXPAND, (g.apply(Op.RESHAPE, (w,), None, (1, 2, 2)),), None, (3, 2, 2))
    mixed = g.apply(Op.SUM, (g.apply(Op.ADD, (wide, weights)),), g.Axes((1,)))
    after, alone = g.apply(Op.ADD, (mixed, row)), g.apply(Op.ADD, (row, row))
    rows = g.apply(Op.SHRINK, (x,), g.Box((1, 0, 0), (1, 1, 1)), (5, 3, 2))
    outs = (g.apply(Op.ADD, (after, row)), alone)
    body, fixed = normal((carry,), (row,), (after,), outs, (start, rows), 5, reverse)
    results = {
        "final": LoopNode(body, Part.FINAL, 0),
        "history": LoopNode(body, Part.HISTORY, 0),
        "stack": LoopNode(body, Part.STACK, 0),
        "alone": LoopNode(body, Part.STACK, 1),
    }
    return {name: g.apply(Op.LOOP, fixed, attrs) for name, attrs in results.items()}


@pytest.mark.parametrize("reverse", [False, True])
def test_loops_pass_regions_from_step_to_step(reverse: bool) -> None:
    random = Random(3)
    for n in loops(reverse).values():
        for k, x in enumerate(n.inputs):
            of = dependence(n, x)
            for _ in range(12):
                wanted, changed = some_region(random, sizes(n)), some_region(random, sizes(x))
                assert holds(needs(n, wanted)[k], sizes(x), of[points(wanted, sizes(n))].any(0))
                assert holds(reaches(n, k, changed), sizes(n), of[..., points(changed, sizes(x))].any(-1))


ROW_OF_STEP_3 = box((4, 5), (1, 2), (0, 1))


def test_rows_of_a_batch_and_steps_before_stay_apart_in_a_loop() -> None:
    """Row 1 of the batch, changed for step 3: reaches row 1 only, and what is made from step 3 on."""
    made = loops(reverse=False)
    found = {name: reaches(n, ROWS, ROW_OF_STEP_3).boxes for name, n in made.items()}
    assert found["final"] == box((1, 2), (0, 2)).boxes
    assert found["history"] == box((4, 6), (1, 2), (0, 2)).boxes  # row t + 1 is made by step t
    assert found["stack"] == box((3, 5), (1, 2), (0, 2)).boxes
    assert found["alone"] == box((3, 4), (1, 2), (0, 1)).boxes
    assert reaches(made["history"], CARRY, box((1, 2), (0, 1))).boxes == box((0, 6), (1, 2), (0, 2)).boxes
    needed_of = needs(made["history"], box((0, 3), (1, 2), (0, 1)))
    assert needed_of[CARRY].boxes == box((1, 2), (0, 2)).boxes
    assert needed_of[ROWS].boxes == box((1, 3), (1, 2), (0, 2)).boxes
    assert needs(made["alone"], box((3, 4), (1, 2), (0, 1))) [:2] == (
        Region((), exact=False), Region(ROW_OF_STEP_3.boxes, exact=False)
    )  # fmt: skip


def test_a_loop_that_runs_backwards_reaches_the_rows_before() -> None:
    made = loops(reverse=True)
    found = {name: reaches(n, ROWS, ROW_OF_STEP_3).boxes for name, n in made.items()}
    assert found["history"] == box((0, 4), (1, 2), (0, 2)).boxes  # row t is made by step t
    assert found["stack"] == box((0, 4), (1, 2), (0, 2)).boxes
    assert found["alone"] == box((3, 4), (1, 2), (0, 1)).boxes
    assert needs(made["stack"], box((3, 4), (1, 2), (0, 1)))[ROWS].boxes == box((4, 6), (1, 2), (0, 2)).boxes


# masks ----------------------------------------------------------------------------------------------------------------


def attention(scores_first: bool) -> tuple[Node, list[Node]]:
    """Causal attention of 6 positions over its queries, keys and values."""
    size, rng = 6, np.random.default_rng(5)
    given = [weft.tensor(rng.standard_normal((size, 4))) for _ in range(3)]
    q, k, v = given
    i, j = weft.arange(size)[:, None], weft.arange(size)[None]
    lowest = -float("inf")
    s = q @ k.T
    s = weft.where(j <= i, s, lowest) if scores_first else weft.where(j > i, lowest, s)
    (root,) = expand_calls([(s.softmax(-1) @ v).value.node])
    return root, [t.value.node for t in given]


@pytest.mark.parametrize("scores_first", [True, False])
def test_a_token_reaches_the_rows_from_its_own_on(scores_first: bool) -> None:
    """And a row needs the keys and values up to its own: softmax over what the mask leaves."""
    root, leaves = attention(scores_first)
    order = toposort([root])
    used = operand_uses(find_masks(order, frozenset({id(root)})))
    for t in range(6):
        row = box((t, t + 1), (0, 4))
        ahead, so_far = box((t, 6), (0, 4)), box((0, t + 1), (0, 4))
        q, k, v = (reached({x: row}, order, used)[root] for x in leaves)
        assert q.boxes == row.boxes and k.boxes == v.boxes == ahead.boxes
        found = needed({root: row}, used)
        assert [found[x].boxes for x in leaves] == [row.boxes, so_far.boxes, so_far.boxes]
    everything = Region.whole((6, 4))
    assert reached({leaves[1]: box((3, 4), (0, 4))}, order)[root].boxes == everything.boxes


def test_masks_exclude_no_more_than_poison_shows() -> None:
    root, leaves = attention(scores_first=True)
    order = toposort([root])
    used = operand_uses(find_masks(order, frozenset({id(root)})))
    for x in leaves:
        original = x.storage
        for t in range(6):
            values = np.array(original.numpy())
            before = evaluate([root], given={x: values})[0]
            values[t] += 1.0
            changed = evaluate([root], given={x: values})[0] != before
            assert holds(reached({x: box((t, t + 1), (0, 4))}, order, used)[root], (6, 4), changed)


def test_a_where_needs_what_it_chooses() -> None:
    x, y = leaf(4, 5), leaf(4, 5)
    rows = g.apply(Op.EXPAND, (g.apply(Op.RESHAPE, (g.arange(4),), None, (4, 1)),), None, (4, 5))
    first = g.apply(Op.LT, (rows, g.const(2, rows.dtype, (4, 5))))
    node = g.apply(Op.WHERE, (first, x, y))
    used = operand_uses(find_masks([], frozenset()))
    found = needs(node, Region.whole((4, 5)), used)
    assert found[1:] == (box((0, 2), (0, 5)), box((2, 4), (0, 5)))
    assert reaches(node, 2, box((1, 3), (0, 1)), used) == box((2, 3), (0, 1))
