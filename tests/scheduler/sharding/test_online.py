"""Sums weighted by a maximum, block by block over devices: against the global graph, for random softmaxes."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.sharding.test_lower import GRIDS, QUIET, lowered, mesh_of, some_layout
from weft.ir.dtypes import float32, float64, to_numpy
from weft.ir.errors import IRError
from weft.ir.graph import Axes, Node, apply, arange, const, toposort
from weft.ir.numerics import switched
from weft.ir.ops import Op
from weft.ir.placement import Layout, Replicate, Shard, boxes
from weft.scheduler.sharding.lower import Split, is_running
from weft.scheduler.sharding.online import Running, online
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate

T0, T1 = Running(0, True), Running(1, True)


def numbers(random: Random, *shape: int) -> Node:
    rng = np.random.default_rng(random.randrange(1 << 30))
    return numpy_leaf(rng.normal(0, 8, shape).astype(to_numpy(float64)))


def spread(n: Node, axis: int, size: int) -> Node:
    """A new axis of that size."""
    one = apply(Op.RESHAPE, (n,), None, (*n.shape[:axis], 1, *n.shape[axis:]))
    return apply(Op.EXPAND, (one,), None, (*n.shape[:axis], size, *n.shape[axis:]))


def product(a: Node, b: Node) -> Node:
    """a b^T of (..., rows, inner) and (..., columns, inner)."""
    rank = len(a.shape)
    both = spread(a, rank - 1, int(b.shape[-2])), spread(b, rank - 2, int(a.shape[-2]))  # type: ignore[arg-type]
    return apply(Op.SUM, (apply(Op.MUL, both),), Axes((rank,)))


def attention(
    random: Random, heads: int, rows: int, columns: int, inner: int, width: int
) -> tuple[Node, list[Node]]:
    """A softmax of scores, perhaps masked, and what it weighs; its leaves."""
    q, k = numbers(random, heads, rows, inner), numbers(random, heads, columns, inner)
    v = numbers(random, heads, width, columns)
    x = product(q, k)
    if random.random() < 0.5:
        at, of = arange(rows), arange(columns)
        seen = apply(Op.LE, (spread(of, 0, rows), spread(at, 1, columns)))
        x = apply(Op.WHERE, (spread(seen, 0, heads), x, const(float("-inf"), x.dtype, x.shape)))
    m = apply(Op.REDUCE_MAX, (x,), Axes((2,)))
    e = apply(Op.EXP, (apply(Op.SUB, (x, spread(m, 2, columns))),))
    if random.random() < 0.8:
        total = spread(apply(Op.SUM, (e,), Axes((2,))), 2, columns)
        if random.random() < 0.3:
            e = apply(Op.MUL, (e, apply(Op.RECIP, (total,))))
        else:
            e = apply(Op.DIV, (e, total))
    return product(e, v), [q, k, v]


def some_running(random: Random, axis: int, count: int) -> Split:
    kinds = [random.choice((None, Running(axis, True), Running(axis, False))) for _ in range(count)]
    return tuple(kinds)


@settings(max_examples=80, **QUIET)
@given(st.randoms(use_true_random=False))
def test_blocks_in_any_order_on_any_device_are_the_softmax_as_a_whole(random: Random) -> None:
    mesh = mesh_of(*random.choice(GRIDS))
    heads, rows, columns = random.choice((1, 2, 3)), random.randint(1, 7), random.randint(2, 9)
    node, leaves = attention(random, heads, rows, columns, random.choice((1, 3)), random.choice((1, 4)))
    of = online(node)
    assert of is not None
    layouts: dict[Node, Layout] = {n: some_layout(random, n.shape, mesh) for n in leaves}  # type: ignore[arg-type]
    layouts[node] = some_layout(random, node.shape, mesh)  # type: ignore[arg-type]
    splits = {node: some_running(random, of.axis, len(mesh.shape))}
    check([node], mesh, layouts, splits)


def check(nodes: list[Node], mesh: Any, layouts: dict[Node, Layout], splits: dict[Node, Split]) -> Any:
    found = lowered(nodes, mesh, layouts, splits)
    for node, whole in zip(nodes, evaluate(nodes), strict=True):
        for value, box in zip(
            evaluate(found.locals[node]), boxes(layouts[node], node.shape, mesh), strict=True
        ):
            wanted = whole[tuple(slice(i.lo, i.hi) for i in box)]  # pyright: ignore[reportArgumentType]
            np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-300)
    return found
