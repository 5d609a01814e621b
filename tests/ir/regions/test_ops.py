"""The relations of primitives against brute force: every element is poisoned with NaN, and the result is looked at."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir import graph as g
from weft.ir.graph import Axes, Box, Node, Padding, Window
from weft.ir.index import Var
from weft.ir.ops import MOVEMENT, REDUCE, STRUCTURE, Op
from weft.ir.regions.boxes import Interval
from weft.ir.regions.graphs import needs, reaches
from weft.ir.regions.ops import ACCESSES
from weft.ir.regions.region import NOTHING, Region
from weft.testing.dependence import (
    at_runtime,
    dependence,
    indices,
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


def isolated(node: Node) -> Node:
    """The op on leaves of its own, of which none is another."""
    leaves = [i if i.dtype.is_int else leaf(*sizes(i)) for i in node.inputs]
    return g.intern(node.op, tuple(leaves), node.attrs, node.shape, node.dtype, node.device)


def box(*sides: tuple[Any, Any]) -> Region:
    return Region.of([tuple(Interval(*side) for side in sides)])


def agree(found: Region, shape: tuple[int, ...], wanted: np.ndarray) -> bool:
    """Nothing is missing, and where the answer is exact, nothing too many."""
    got = points(found, shape)
    return bool((got == wanted).all() if found.exact else (got | ~wanted).all())


def check(node: Node, random: Random) -> None:
    """Both directions, for each operand that is a number, with known bounds and with those of run time."""
    for k, x in enumerate(node.inputs):
        if x.dtype.is_int:
            continue
        of = dependence(node, x)
        wanted = some_region(random, sizes(node))
        needed = of[points(wanted, sizes(node))].any(0)
        changed = some_region(random, sizes(x))
        reached = of[..., points(changed, sizes(x))].any(-1)
        assert agree(needs(node, wanted)[k], sizes(x), needed), (node, node.attrs, k, wanted)
        assert agree(reaches(node, k, changed), sizes(node), reached), (node, node.attrs, k, changed)
        later, values = at_runtime(random, wanted)
        assert agree(needs(node, later)[k].at(values), sizes(x), needed), (node, node.attrs, k, later, values)
        later, values = at_runtime(random, changed)
        assert agree(reaches(node, k, later).at(values), sizes(node), reached), (
            node,
            node.attrs,
            k,
            later,
            values,
        )


@settings(max_examples=250, **QUIET)
@given(RANDOM)
def test_regions_are_what_poison_shows(random: Random) -> None:
    check(isolated(some_node(random, leaf(*some_shape(random)))), random)


def test_random_nodes_are_of_all_ops_that_have_a_rule_of_their_own() -> None:
    random = Random(0)
    seen = {some_node(random, leaf(*some_shape(random))).op for _ in range(600)}
    assert (MOVEMENT | STRUCTURE) - {Op.COPY, Op.LOOP, Op.CALL} <= seen and Op.SUM in seen


def test_every_op_has_a_relation() -> None:
    assert set(ACCESSES) == set(Op)


EXACT: dict[str, Node] = {
    "permute": g.apply(Op.PERMUTE, (leaf(2, 3, 4),), Axes((2, 0, 1))),
    "expand": g.apply(Op.EXPAND, (leaf(2, 1, 4),), None, (2, 3, 4)),
    "flip": g.apply(Op.FLIP, (leaf(3, 4),), Axes((1,))),
    "shrink": g.apply(Op.SHRINK, (leaf(6, 7),), Box((1, 2), (1, 1)), (2, 4)),
    "steps": g.apply(Op.SHRINK, (leaf(6, 7),), Box((1, 2), (2, 1)), (2, 4)),
    "pad": g.apply(Op.PAD, (leaf(3, 4),), Padding((1, 0), (2, 1), (0, 0))),
    "pad between": g.apply(Op.PAD, (leaf(3, 2),), Padding((1, 0), (2, 1), (1, 2))),
    "flatten": g.apply(Op.RESHAPE, (leaf(4, 6),), None, (24,)),
    "merge": g.apply(Op.RESHAPE, (leaf(2, 3, 4),), None, (2, 12)),
    "split": g.apply(Op.RESHAPE, (leaf(2, 12),), None, (2, 3, 4)),
    "other digits": g.apply(Op.RESHAPE, (leaf(6, 4),), None, (3, 8)),
    "digits that do not divide": g.apply(Op.RESHAPE, (leaf(4, 6),), None, (3, 8)),
    "of size one": g.apply(Op.RESHAPE, (leaf(4, 1, 6),), None, (4, 6, 1)),
    "sum": g.apply(Op.SUM, (leaf(2, 3, 4),), Axes((0, 2))),
    "concat": g.apply(Op.CONCAT, (leaf(2, 3), leaf(4, 3)), g.Along(0)),
    "update": g.apply(Op.UPDATE, (leaf(6, 7), leaf(2, 3)), Box((1, 2), (1, 1))),
    "transposed windows": g.apply(Op.UNSHEAR, (leaf(3, 1),), Window(0, 1, 2, 1), (6, 1)),
}


@pytest.mark.parametrize("name", EXACT)
def test_single_elements_are_followed_exactly(name: str) -> None:
    """Forwards and backwards, but for those that one element reaches in more boxes than a region has."""
    node = EXACT[name]
    inexact = 0
    for k, x in enumerate(node.inputs):
        of = dependence(node, x)
        for at in np.ndindex(*x.shape):
            found = reaches(node, k, box(*((i, i + 1) for i in at)))
            assert agree(found, sizes(node), of[(..., *at)])
            inexact += not found.exact
        for at in np.ndindex(*node.shape):
            found = needs(node, box(*((i, i + 1) for i in at)))[k]
            assert agree(found, sizes(x), of[at])
            inexact += not found.exact
    assert inexact == 0


def test_a_result_of_maxima_and_minima_depends_as_a_sum_does() -> None:
    """NaN poisons these too, so one rule may serve all reductions."""
    for op in sorted(REDUCE, key=str):
        node = g.apply(op, (leaf(3, 4),), Axes((1,)))
        check(node, Random(1))


def test_indices_of_gather_and_scatter_are_read_where_they_are() -> None:
    random = Random(2)
    gather = g.apply(Op.GATHER, (leaf(5, 3), indices(random, (2, 3), 5)), g.Along(0))
    assert needs(gather, box((0, 1), (1, 3))) == (
        Region(box((0, 5), (1, 3)).boxes, exact=False), box((0, 1), (1, 3))
    )  # fmt: skip
    assert reaches(gather, 1, box((1, 2), (0, 1))) == box((1, 2), (0, 1))
    scatter = g.apply(
        Op.SCATTER, (leaf(5, 3), indices(random, (2, 3), 5), leaf(2, 3)), g.ScatterCombine(0, Op.ADD)
    )
    assert reaches(scatter, 1, box((1, 2), (0, 1))) == Region(box((0, 5), (0, 1)).boxes, exact=False)


def test_examples() -> None:
    x = leaf(4, 6)
    flat = g.apply(Op.RESHAPE, (x,), None, (24,))
    assert repr(needs(flat, box((7, 20)))[0]) == "[2:3, 0:6] | [1:2, 1:6] | [3:4, 0:2]"
    assert reaches(flat, 0, box((1, 3), (0, 6))) == box((6, 18))
    padded = g.apply(Op.PAD, (x,), Padding((2, 0), (2, 0), (0, 0)))
    assert needs(padded, box((0, 2), (0, 6))) == (NOTHING,)
    assert needs(padded, box((0, 4), (1, 3))) == (box((0, 2), (1, 3)),)
    windows = g.apply(
        Op.SHEAR, (g.apply(Op.EXPAND, (leaf(10, 1),), None, (10, 3)),), Window(0, 1, 1, 1), (8, 3)
    )
    assert needs(windows, box((2, 4), (0, 3)))[0].boxes == box((2, 6), (0, 3)).boxes
    replaced = g.apply(Op.UPDATE, (x, leaf(2, 6)), Box((1, 0), (1, 1)))
    assert needs(replaced, box((1, 2), (0, 6))) == (NOTHING, box((0, 1), (0, 6)))
    assert needs(replaced, box((0, 1), (0, 6))) == (box((0, 1), (0, 6)), NOTHING)


def test_aligned_pieces_stay_exact_when_their_number_is_known_only_at_run_time() -> None:
    """What streams, shards and decodes: pieces of equal size by number, and single rows."""
    piece, row = Var("piece", 0, 3), Var("row", 0, 23)
    merged = g.apply(Op.RESHAPE, (leaf(8, 6, 5),), None, (48, 5))
    assert needs(merged, box((piece * 12, piece * 12 + 12), (0, 5))) == (
        box((piece * 2, piece * 2 + 2), (0, 6), (0, 5)),
    )
    assert reaches(merged, 0, box((piece * 2, piece * 2 + 2), (0, 6), (0, 5))) == box(
        (piece * 12, piece * 12 + 12), (0, 5)
    )
    flat = g.apply(Op.RESHAPE, (leaf(4, 6),), None, (24,))
    (found,) = needs(flat, box((row, row + 1)))
    assert found.exact and found.at({"row": 17}) == box((2, 3), (5, 6))
    steps = g.apply(Op.SHRINK, (leaf(24, 2),), Box((1, 0), (2, 1)), (8, 2))
    assert needs(steps, box((piece * 2, piece * 2 + 1), (0, 2))) == (
        box((piece * 4 + 1, piece * 4 + 2), (0, 2)),
    )


def test_runtime_sizes_are_bounds_of_regions() -> None:
    n = Var("n", 1, 9)
    x = g.buffer((n, 4), leaf(1).dtype, "cpu:0", None)
    wide = g.apply(Op.PAD, (x,), Padding((2, 0), (0, 0), (0, 0)))
    assert needs(wide, Region.whole(wide.shape)) == (Region.whole((n, 4)),)
    flat = g.apply(Op.RESHAPE, (x,), None, (n * 4,))
    assert needs(flat, Region.whole(flat.shape))[0].boxes == Region.whole((n, 4)).boxes
    total = g.apply(Op.SUM, (x,), Axes((0,)))
    assert needs(total, box((1, 2))) == (box((0, n), (1, 2)),)


def test_answers_to_an_inexact_question_are_inexact() -> None:
    x = leaf(4, 6)
    node = g.apply(Op.ADD, (x, x))
    asked = Region(box((0, 2), (0, 6)).boxes, exact=False)
    assert needs(node, asked) == (asked, asked) and reaches(node, 0, asked) == asked


def test_the_reference_is_what_the_brute_force_looks_at() -> None:
    x = leaf(2, 3)
    flipped = g.apply(Op.FLIP, (x,), Axes((1,)))
    assert dependence(flipped, x)[0, 0, 0].tolist() == [False, False, True]
    assert not np.isnan(evaluate([flipped])[0]).any()
