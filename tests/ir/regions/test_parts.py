"""A box of a result from boxes of its inputs is the result's box, for random ops and boxes, exactly."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir.graph import Node, apply
from weft.ir.ops import Op
from weft.ir.regions.boxes import IndexBox, Interval, full, holds
from weft.ir.regions.parts import PartsOf, parts_of, shrunk
from weft.ir.rewrite import rebuilt
from weft.testing.dependence import leaf, some_node, some_shape
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)


def some_box(random: Random, node: Node) -> IndexBox:
    sides: list[Interval] = []
    for n in node.shape:
        assert isinstance(n, int)
        lo, hi = sorted((random.randint(0, n), random.randint(0, n)))
        sides.append(Interval(0, n) if random.random() < 0.3 else Interval(lo, hi))
    return tuple(sides)


@settings(max_examples=400, **QUIET)
@given(RANDOM)
def test_a_part_is_made_from_the_boxes_that_it_names(random: Random) -> None:
    x = leaf(*some_shape(random))
    node = some_node(random, x)
    box = some_box(random, node)
    parts = parts_of(node, box)
    for i, part in zip(node.inputs, parts.inputs, strict=True):
        assert part is None or holds(full(i.shape), part)
    both = zip(node.inputs, parts.inputs, strict=True)
    made = parts.make([shrunk(i, full(i.shape), part) for i, part in both if part is not None])
    whole, got = evaluate([node, made])
    wanted = whole[tuple(slice(i.lo, i.hi) for i in box)]  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(got, wanted, err_msg=f"{node!r} {node.attrs} {box}")


@settings(max_examples=150, **QUIET)
@given(RANDOM)
def test_parts_found_for_a_node_make_those_of_nodes_that_are_alike(random: Random) -> None:
    x = leaf(*some_shape(random))
    node = some_node(random, x)
    (values,) = evaluate([x])
    (other,) = rebuilt([node], {x: numpy_leaf(values[::-1].copy() if values.ndim else values)})
    box, parts = some_box(random, node), PartsOf()
    first = parts[node, box]
    assert parts[node, box] is first
    both = zip(other.inputs, parts[other, box].inputs, strict=True)
    made = parts[other, box].make([shrunk(i, full(i.shape), part) for i, part in both if part is not None])
    whole, got = evaluate([other, made])
    wanted = whole[tuple(slice(i.lo, i.hi) for i in box)]  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(got, wanted, err_msg=f"{node!r} {node.attrs} {box}")


def test_a_walk_ends_once_at_each_box_that_others_are_made_from() -> None:
    x = leaf(8, 4)
    whole = full(x.shape)
    y = apply(Op.NEG, (x,), None, x.shape)
    both = apply(
        Op.ADD,
        (shrunk(y, whole, (Interval(0, 4), whole[1])), shrunk(y, whole, (Interval(4, 8), whole[1]))),
        None,
        (4, 4),
    )
    z = apply(Op.MUL, (both, both), None, (4, 4))
    box = (Interval(1, 3), Interval(0, 2))
    wanted = {(Interval(1, 3), box[1]), (Interval(5, 7), box[1])}
    for n in (x, y):
        ends = list(PartsOf().ends([(z, box), (z, box)], lambda m, _, n=n: m is n))
        assert all(m is n for m, _ in ends) and len(ends) == 2 and {b for _, b in ends} == wanted
    assert list(PartsOf().ends([(z, box)], lambda m, b: m is z)) == [(z, box)]
