"""Layouts from those of leaves and wishes: random graphs compute what they did, known schemes are found, and what is
asked for is kept or refused."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from tests.scheduler.sharding.test_lower import (
    GRIDS,
    QUIET,
    RANDOM,
    check,
    lowered,
    mesh_of,
    some_layout,
)
from weft.errors import ArgumentError
from weft.ir.graph import Axes, Node, Target, Window, apply, toposort
from weft.ir.ops import Op
from weft.ir.placement import Layout, Partial, Replicate, Shard
from weft.scheduler.sharding.propagate import Placed, propagate
from weft.testing.dependence import dependence, leaf, sizes, some_node, some_shape

R, P = Replicate(), Partial()


@settings(max_examples=60, **QUIET)
@given(RANDOM)
def test_graphs_that_are_laid_out_by_cost_compute_what_they_did(random: Random) -> None:
    mesh = mesh_of(*random.choice(GRIDS))
    node = leaf(*some_shape(random))
    seen: list[Node] = []
    for _ in range(random.randint(1, 5)):
        node = some_node(random, node)
        if random.random() < 0.2:
            node = apply(Op.COPY, (node,), Target(mesh.name, some_layout(random, sizes(node), mesh)))
        seen.append(node)
    outputs = [node, *(n for n in seen[:-1] if random.random() < 0.2)]
    order = toposort(outputs, stop_at_storage=False)
    leaves = {n: some_layout(random, sizes(n), mesh) for n in order if n.storage is not None}
    placed = propagate(outputs, mesh, leaves)
    for n in order:
        if isinstance(n.attrs, Target):
            assert placed.layouts[n] == n.attrs.layout
    found = lowered(outputs, mesh, dict(placed.layouts), dict(placed.splits))
    check(outputs, mesh, dict(placed.layouts), found)


@settings(max_examples=60, **QUIET)
@given(RANDOM)
def test_placements_without_communication_are_found_where_brute_force_finds_them(random: Random) -> None:
    """Equal blocks of an axis of a result that depend on the same device's block of an axis of the operand only. (What
    the data of indices says is not known.)"""
    x = leaf(*some_shape(random))
    node = some_node(random, x)
    count = random.choice((2, 3, 4, 7))
    mesh = mesh_of(count)
    if node.op in (Op.GATHER, Op.SCATTER) or not sizes(x) or not sizes(node) or math.prod(sizes(node)) == 0:
        return
    depends = dependence(node, x)
    dim = random.randrange(len(sizes(x)))
    others = {n: (R,) for n in toposort([node], stop_at_storage=False) if n.storage is not None}
    for out in range(len(sizes(node))):
        layouts: dict[Node, Layout] = {**others, x: (Shard(dim),), node: (Shard(out),)}
        free = all(
            not depends[_block(node, out, k, count)][(..., *_beside(x, dim, k, count))].any()
            for k in range(count)
        )
        moved = [f for f in lowered([node], mesh, layouts).fetches if f.node is x]
        assert not free or not moved, (node, node.attrs, layouts)


def _side(n: int, k: int, count: int) -> tuple[int, int]:
    each = -(-n // count)
    return min(k * each, n), min(k * each + each, n)


def _block(node: Node, dim: int, k: int, count: int) -> tuple[slice, ...]:
    side = slice(*_side(sizes(node)[dim], k, count))
    return tuple(side if d == dim else slice(None) for d in range(len(sizes(node))))


def _beside(x: Node, dim: int, k: int, count: int) -> tuple[Any, ...]:
    lo, hi = _side(sizes(x)[dim], k, count)
    outside = np.array([i for i in range(sizes(x)[dim]) if not lo <= i < hi], np.int64)
    return tuple(outside if d == dim else slice(None) for d in range(len(sizes(x))))


# known schemes --------------------------------------------------------------------------------------------


def product(x: Node, w: Node) -> Node:
    """x @ w as `core` builds it."""
    (n, k), (_, m) = sizes(x), sizes(w)
    a = apply(Op.EXPAND, (apply(Op.RESHAPE, (x,), None, (n, 1, k)),), None, (n, m, k))
    turned = apply(Op.PERMUTE, (w,), Axes((1, 0)))
    b = apply(Op.EXPAND, (apply(Op.RESHAPE, (turned,), None, (1, m, k)),), None, (n, m, k))
    return apply(Op.SUM, (apply(Op.MUL, (a, b)),), Axes((2,)))


def moved_bytes(nodes: list[Node], placed: Placed, count: int) -> int:
    mesh = mesh_of(count)
    found = lowered(nodes, mesh, dict(placed.layouts), dict(placed.splits))
    check(nodes, mesh, dict(placed.layouts), found)
    return found.moved_bytes


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_rows_of_a_batch_stay_apart(count: int) -> None:
    x, w, v = leaf(9, 4), leaf(4, 5), leaf(5, 3)
    y = product(apply(Op.ABS, (product(x, w),)), v)
    placed = propagate([y], mesh_of(count), {x: (Shard(0),), w: (R,), v: (R,)})
    assert placed.layouts[y] == (Shard(0),)
    assert moved_bytes([y], placed, count) == 0


@pytest.mark.parametrize("count", [2, 4])
def test_columns_then_rows_of_weights_take_one_sum(count: int) -> None:
    """Megatron's pair: the terms of the second product are combined, nothing else moves."""
    x, w, v = leaf(8, 4), leaf(4, 8), leaf(8, 4)
    h = product(x, w)
    y = product(apply(Op.ABS, (h,)), v)
    out = apply(Op.COPY, (y,), Target("cpu:0", (R,)))
    placed = propagate([out], mesh_of(count), {x: (R,), w: (Shard(1),), v: (Shard(0),)})
    assert (placed.layouts[h], placed.layouts[y]) == ((Shard(1),), (P,))
    assert placed.splits == {y: (Shard(2),)}
    assert (
        moved_bytes([out], placed, count) == (count - 1) * count * 8 * 4 * 8
    )  # small: all terms to all devices


def test_gradients_of_replicated_weights_are_sums_over_the_batch() -> None:
    x, g = leaf(8, 3), leaf(8, 5)
    weight = product(apply(Op.PERMUTE, (x,), Axes((1, 0))), g)
    out = apply(Op.COPY, (weight,), Target("cpu:0", (R,)))
    placed = propagate([out], mesh_of(4), {x: (Shard(0),), g: (Shard(0),)})
    assert placed.layouts[weight] == (P,)


def test_uneven_blocks_are_followed() -> None:
    x = leaf(4, 6)
    uneven = Shard(0, (1, 1, 4))
    y = apply(Op.SUM, (x,), Axes((1,)))
    flat = apply(Op.CONTIGUOUS, (apply(Op.RESHAPE, (x,), None, (24,)),))
    placed = propagate([y, flat], mesh_of(3), {x: (uneven,)})
    assert placed.layouts[y] == (uneven,)
    assert placed.layouts[flat] == (Shard(0, (6, 6, 24)),)
    assert moved_bytes([y, flat], placed, 3) == 0


def test_a_halo_is_all_that_a_window_moves() -> None:
    x = leaf(8, 2)
    wide = apply(Op.EXPAND, (apply(Op.RESHAPE, (x,), None, (8, 2, 1)),), None, (8, 2, 3))
    y = apply(Op.SUM, (apply(Op.SHEAR, (wide,), Window(0, 2, 1, 1), (6, 2, 3)),), Axes((2,)))
    placed = propagate([y], mesh_of(2), {x: (Shard(0),)})
    assert placed.layouts[y] == (Shard(0),)
    assert (
        moved_bytes([y], placed, 2) == 2 * 2 * 8
    )  # of 6 places 3 each, over rows 0:5 and 3:8: a row from the other


def test_two_axes_of_a_mesh_are_decided_together() -> None:
    x, w = leaf(8, 6), leaf(6, 4)
    y = product(x, w)
    mesh = mesh_of(2, 2)
    placed = propagate([y], mesh, {x: (Shard(0), R), w: (R, Shard(1))})
    assert placed.layouts[y] == (Shard(0), Shard(1))
    assert lowered([y], mesh, dict(placed.layouts), dict(placed.splits)).moved_bytes == 0


# wishes ---------------------------------------------------------------------------------------------------


def test_what_is_asked_for_is_kept_whatever_it_costs() -> None:
    x = leaf(8, 4)
    y = apply(Op.CONTIGUOUS, (apply(Op.ABS, (x,)),))
    placed = propagate([y], mesh_of(2), {x: (Shard(0),)}, {y: (Shard(1),)})
    assert placed.layouts[y] == (Shard(1),)


def test_conflicts_name_both_sides() -> None:
    x = leaf(8, 4)
    y = apply(Op.COPY, (x,), Target("cpu:0", (Shard(0),)))
    with pytest.raises(ArgumentError, match=r"is laid out as \(Shard\(dim=0.*asked to be \(Replicate"):
        propagate([y], mesh_of(2), {x: (Shard(0),)}, {x: (R,)})
    with pytest.raises(ArgumentError, match=r"Shard\(dim=0.*asked to be \(Shard\(dim=1"):
        propagate([y], mesh_of(2), {x: (R,)}, {y: (Shard(1),)})


def test_what_cannot_be_is_refused_with_its_reason() -> None:
    x = leaf(8, 4)
    with pytest.raises(ArgumentError, match="2 axes"):
        propagate([apply(Op.ABS, (x,))], mesh_of(2), {x: (Shard(2),)})
    with pytest.raises(ArgumentError, match="nothing says"):
        propagate([apply(Op.ABS, (x,))], mesh_of(2), {})
    with pytest.raises(ArgumentError, match="no sum of terms"):
        propagate([apply(Op.ABS, (x,))], mesh_of(2), {x: (R,)}, {apply(Op.ABS, (x,)): (P,)})


def test_the_next_best_layout_and_its_price_are_told() -> None:
    x, w = leaf(8, 4), leaf(4, 5)
    y = product(x, w)
    choice = propagate([y], mesh_of(2), {x: (Shard(0),), w: (R,)}).choices[y]
    assert choice.chosen.moved_bytes == 0 and choice.next_best is not None
    assert choice.next_best.moved_bytes > 0
