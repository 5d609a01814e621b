"""What changes reach wherever they begin, against poison; layers, masks and classes of starts."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import weft
from weft.ir import graph as g
from weft.ir.calls import expand_calls
from weft.ir.graph import Node, toposort
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.reach import BOX_WORK, Reach, cheapest
from weft.ir.regions.region import Region
from weft.scheduler.kernelize.masks import find_masks, operand_uses
from weft.testing.dependence import covered, dependence, leaf, moving, places, sizes, some_node, some_shape

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)


def box(*sides: tuple[Any, Any]) -> IndexBox:
    return tuple(Interval(*side) for side in sides)


def some_graph(random: Random, x: Node) -> Node:
    """A few ops after another, and now and then two branches side by side."""
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


@settings(max_examples=80, phases=(Phase.explicit, Phase.reuse, Phase.generate), **QUIET)
@given(RANDOM)
def test_nothing_that_a_change_reaches_is_left_out_wherever_it_begins(random: Random) -> None:
    x = leaf(*some_shape(random))
    root = some_graph(random, x)
    of = dependence(root, x)
    changed, variables = moving(random, sizes(x))
    dirty = Reach(toposort([root], stop_at_storage=False)).dirty({x: changed})
    for at in places(random, variables):
        truth = of[..., covered(changed.boxes, sizes(x), at)].any(-1)
        bounds = dirty.bounds_at(at, [root])
        assert all(lo <= at[name] <= hi for name, (lo, hi) in bounds.items())
        for placed in (
            dirty.placed(),
            dirty.placed(bounds),
            dirty.placed({name: (i, i) for name, i in at.items()}),
        ):
            found = covered(placed.boxes.get(root, ()), sizes(root), placed.values(at))
            assert (found | ~truth).all(), (root, changed, at)


def test_a_window_reaches_as_many_elements_at_an_edge_as_elsewhere() -> None:
    """Three elements of a padded axis are averaged: [t - 1 : t + 2], which lies further inside at the ends."""
    x = leaf(8)
    padded = g.apply(Op.PAD, (x,), g.Padding((1,), (1,), (0,)))
    wide = g.apply(Op.EXPAND, (g.apply(Op.RESHAPE, (padded,), None, (10, 1)),), None, (10, 3))
    windows = g.apply(Op.SHEAR, (wide,), g.Window(0, 1, 1, 1), (8, 3))
    root = g.apply(Op.SUM, (windows,), g.Axes((1,)))
    t = Var("t", 0, 7)
    dirty = Reach(toposort([root], stop_at_storage=False)).dirty({x: Region((box((t, t + 1)),))})
    placed = dirty.placed()
    ((side,),) = placed.boxes[root]
    assert side.hi - side.lo == 3 and side.lo in placed.variables
    found = [placed.values({"t": i})[side.lo.name] for i in range(8)]  # pyright: ignore[reportAttributeAccessIssue]
    assert found == [0, 0, 1, 2, 3, 4, 5, 5]
    inside = dirty.placed({"t": (2, 6)})
    ((side,),) = inside.boxes[root]
    assert inside.starts.tables == {} and bx.at((side,), {"t": 4}) == box((3, 6))


def causal(layers: int, size: int, heads: bool = False) -> tuple[Node, Node]:
    """Layers of causal attention over (size, 4), each added to what it is computed from."""
    x = weft.tensor(np.random.default_rng(2).standard_normal((size, 4)).astype(np.float32))
    h, i, j = x, weft.arange(size)[:, None], weft.arange(size)[None]
    for _ in range(layers):
        h = h + weft.where(j <= i, h @ h.T, -float("inf")).softmax(-1) @ h
    (root,) = expand_calls([h.value.node])
    return root, x.value.node


def reach_of(root: Node) -> tuple[Reach, list[Node]]:
    order = toposort([root])
    return Reach(order, operand_uses(find_masks(order, frozenset({id(root)})))), order


def test_a_token_reaches_the_rows_from_its_own_on_through_any_number_of_layers() -> None:
    root, x = causal(3, 16)
    reach, _ = reach_of(root)
    t = Var("t", 0, 15)
    dirty = reach.dirty({x: Region((box((t, t + 1), (0, 4)),))})
    for at in range(16):
        assert dirty.placed({"t": (at, at)}).boxes[root] == (box((at, 16), (0, 4)),)
    assert dirty.placed({"t": (8, 15)}).boxes[root] == (box((8, 16), (0, 4)),)


def test_starts_share_a_class_as_long_as_little_work_is_wasted() -> None:
    root, x = causal(2, 512)
    reach, order = reach_of(root)
    t = Var("t", 0, 511)
    dirty = reach.dirty({x: Region((box((t, t + 1), (0, 4)),))})
    classes = {dirty.bounds_at({"t": at}, order)["t"] for at in range(3, 512, 4)}
    assert sum(hi + 1 - lo for lo, hi in classes) == 512  # they do not overlap
    assert 2 < len(classes) < 10 and (0, 255) in classes


def test_layers_that_repeat_are_looked_up() -> None:
    few, many = causal(3, 8), causal(30, 8)
    counts: list[int] = []
    for root, x in (few, many):
        reach, _ = reach_of(root)
        t = Var("t", 0, 7)
        reach.dirty({x: Region((box((t, t + 1), (0, 4)),))})
        counts.append(len(reach._met))  # pyright: ignore[reportPrivateUsage]
    assert counts[0] == counts[1]


def product(rows: int, inner: int, columns: int) -> tuple[Node, Node, Node]:
    a, b = weft.rand(rows, inner).realize(), weft.rand(inner, columns).realize()
    (root,) = expand_calls([(a @ b).value.node])
    return root, a.value.node, b.value.node


def test_rows_and_columns_of_a_product_stay_apart_where_that_is_less_work() -> None:
    """A cross of large parts without its double part; of moving parts with it; and one box where they are small."""
    root, a, b = product(256, 64, 256)
    reach, _ = reach_of(root)
    row, column = Region((box((100, 101), (0, 64)),)), Region((box((0, 64), (7, 9)),))
    found = reach.dirty({a: row, b: column}).placed().boxes[root]
    assert (
        sorted(map(bx.volume, found)) == [2 * 100, 2 * 155, 256]
        or sum(map(bx.volume, found)) == 256 + 2 * 256
    )
    t = Var("t", 0, 255)
    moved = reach.dirty({a: Region((box((t, t + 1), (0, 64)),)), b: column}).placed().boxes[root]
    assert set(moved) == {box((t, t + 1), (0, 256)), box((0, 256), (7, 9))}
    small, a, b = product(8, 4, 8)
    reach, _ = reach_of(small)
    both = {a: Region((box((1, 2), (0, 4)),)), b: Region((box((0, 4), (7, 8)),))}
    assert reach.dirty(both).placed().boxes[small] == (box((0, 8), (0, 8)),)


def test_boxes_are_computed_at_the_least_work() -> None:
    rows, columns = box((40, 60), (0, 100)), box((0, 100), (40, 60))
    around = (box((0, 100), (0, 100)),)
    assert cheapest([rows, columns], 1) == around
    assert set(cheapest([rows, columns], BOX_WORK // 1000)) == {
        rows,
        columns,
    }  # what is double costs less than a box
    apart = cheapest([rows, columns], BOX_WORK)
    assert sum(map(bx.volume, apart)) == 2000 + 2000 - 400 and len(apart) == 3
    assert cheapest([rows, rows], 1) == (rows,)


@settings(max_examples=60, phases=(Phase.explicit, Phase.reuse, Phase.generate), **QUIET)
@given(RANDOM)
def test_nothing_that_a_box_needs_is_left_out_wherever_it_begins(random: Random) -> None:
    x = leaf(*some_shape(random))
    root = some_graph(random, x)
    of = dependence(root, x)
    wanted, variables = moving(random, sizes(root))
    found = Reach(toposort([root], stop_at_storage=False)).needed({root: wanted})
    for at in places(random, variables):
        truth = of[covered(wanted.boxes, sizes(root), at)].any(0)
        assert (covered(found.at(x, at).boxes, sizes(x), at) | ~truth).all(), (root, wanted, at)
        placed = found.placed()
        assert (covered(placed.boxes.get(x, ()), sizes(x), placed.values(at)) | ~truth).all()


def test_of_what_a_token_reaches_a_row_needs_one() -> None:
    """Row t of the last layer, after token t: row t of every layer, and of the weights, wherever that is."""
    root, x = causal(3, 16)
    t = Var("t", 0, 15)
    row = g.apply(Op.SHRINK, (root,), g.Box((t, 0), (1, 1)), (1, 4))
    reach, order = reach_of(row)
    dirty = reach.dirty({x: Region((box((t, t + 1), (0, 4)),))})
    assert dirty.placed().boxes[row] == (box((0, 1), (0, 4)),)
    both = dirty & reach.needed({row: Region.whole((1, 4))})
    placed = both.placed()
    for n in order:
        if n.shape == (16, 4) and n in placed.boxes:
            assert placed.boxes[n] == (box((t, t + 1), (0, 4)),)
        if n.op is Op.EXP:
            (weights,) = placed.boxes[n]
            assert weights[0] == Interval(t, t + 1)
    assert both.at(root, {"t": 5}).boxes == (box((5, 6), (0, 4)),)
