"""Sums weighted by a maximum, block by block over devices: against the global graph, for random softmaxes."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.scheduler.sharding.test_lower import GRIDS, QUIET, lowered, mesh_of, some_layout
from weft.distributed import init_device_mesh, tensor
from weft.distributed.tensor import distribute_tensor
from weft.ir.dtypes import float64, to_numpy
from weft.ir.errors import IRError
from weft.ir.graph import Axes, Node, apply, arange, const, toposort
from weft.ir.numerics import switched
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Replicate, Shard, boxes
from weft.scheduler import meshes
from weft.scheduler.meshes import Search, searching
from weft.scheduler.sharding.lower import Lowered, Split
from weft.scheduler.sharding.online import Running, online
from weft.testing import farm
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate


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


@settings(max_examples=40, **QUIET)
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


def check(nodes: list[Node], mesh: Mesh, layouts: dict[Node, Layout], splits: dict[Node, Split]) -> Lowered:
    found = lowered(nodes, mesh, layouts, splits)
    for node, whole in zip(nodes, evaluate(nodes), strict=True):
        for value, box in zip(
            evaluate(found.locals[node]), boxes(layouts[node], node.shape, mesh), strict=True
        ):
            wanted = whole[tuple(slice(i.lo, i.hi) for i in box)]  # pyright: ignore[reportArgumentType]
            np.testing.assert_allclose(value, wanted, rtol=1e-12, atol=1e-300)
    return found


def plain() -> tuple[Node, list[Node]]:
    random = Random(0)
    random.random = lambda: 0.6  # type: ignore[method-assign]  # no mask, a division
    return attention(random, 1, 4, 8, 3, 4)


def test_rows_that_a_mask_leaves_nothing_of_in_a_block_take_nothing_from_it() -> None:
    """And rows that it leaves nothing of at all are NaN, as without blocks."""
    q, k, v = (numbers(Random(n), 1, 4, 4) for n in range(3))
    seen = np.tril(np.ones((1, 4, 4), bool), -1)
    x = product(q, k)
    x = apply(Op.WHERE, (numpy_leaf(seen), x, const(float("-inf"), x.dtype, x.shape)))
    e = apply(Op.EXP, (apply(Op.SUB, (x, spread(apply(Op.REDUCE_MAX, (x,), Axes((2,))), 2, 4))),))
    y = product(apply(Op.DIV, (e, spread(apply(Op.SUM, (e,), Axes((2,))), 2, 4))), v)
    layouts: dict[Node, Layout] = {
        n: (Shard(1),) if n is not v else (Shard(2),)
        for n in toposort([y], stop_at_storage=False)
        if n.storage is not None
    }
    layouts[y] = (Shard(1),)
    with np.errstate(invalid="ignore"):
        whole = evaluate([y])[0]
        assert np.isnan(whole[0, 0]).all() and np.isfinite(whole[0, 1:]).all()
        for split in (Running(3, True), Running(3, False)):
            check([y], mesh_of(4), layouts, {y: (split,)})


def test_a_ring_brings_each_block_by_itself_the_next_one_first() -> None:
    y, (q, k, v) = plain()
    layouts: dict[Node, Layout] = {q: (Shard(1),), k: (Shard(1),), v: (Shard(2),), y: (Shard(1),)}
    found = check([y], mesh_of(4), layouts, {y: (Running(3, True),)})
    first = [f for f in found.fetches if f.target == "dummy:0"]
    assert [f.source for f in first] == ["dummy:1", "dummy:1", "dummy:2", "dummy:2", "dummy:3", "dummy:3"]
    assert len(found.fetches) == 4 * 6 and not any(f.is_term for f in found.fetches)


def test_states_are_exchanged_where_each_device_has_a_block() -> None:
    """The maximum, the sum and the weighted sum of each row: rows of q are few, and k and v do not move."""
    y, (q, k, v) = plain()
    layouts: dict[Node, Layout] = {q: (Replicate(),), k: (Shard(1),), v: (Shard(2),), y: (Shard(1),)}
    found = check([y], mesh_of(4), layouts, {y: (Running(3, False),)})
    assert len(found.fetches) == 3 * 4 * 3 and all(f.is_term for f in found.fetches)
    assert found.moved_bytes == 4 * 3 * 8 * (1 + 1 + 4)


def test_sums_that_are_pinned_are_taken_whole() -> None:
    y, (q, k, v) = plain()
    layouts: dict[Node, Layout] = {q: (Shard(1),), k: (Shard(1),), v: (Shard(2),), y: (Shard(1),)}
    assert online(y) is not None
    with switched(True):
        assert online(y) is None
        with pytest.raises(IRError, match="no sum weighted by a maximum"):
            lowered([y], mesh_of(4), layouts, {y: (Running(3, True),)})


def other(kind: str) -> Node:
    """A sum that blocks have no states of."""
    _, (_, _, v) = plain()
    x = numbers(Random(1), 1, 4, 8)
    m = spread(apply(Op.REDUCE_MAX, (x,), Axes((2,))), 2, 8)
    e = apply(Op.EXP, (apply(Op.SUB, (x, m)),))
    match kind:
        case "the maximum of other numbers":
            m = spread(apply(Op.REDUCE_MAX, (apply(Op.NEG, (x,)),), Axes((2,))), 2, 8)
            return product(apply(Op.EXP, (apply(Op.SUB, (x, m)),)), v)
        case "twice":
            return product(apply(Op.MUL, (e, e)), v)
        case "a factor that knows the maximum":
            return product(apply(Op.MUL, (e, apply(Op.SUB, (x, m)))), v)
        case "plus one":
            return product(apply(Op.ADD, (e, const(1.0, e.dtype, e.shape))), v)
        case "over what varies":
            return product(apply(Op.DIV, (const(1.0, e.dtype, e.shape), e)), v)
        case _:  # along another axis
            m = spread(apply(Op.REDUCE_MAX, (x,), Axes((1,))), 1, 4)
            return product(apply(Op.EXP, (apply(Op.SUB, (x, m)),)), v)


@pytest.mark.parametrize(
    "kind",
    [
        "the maximum of other numbers", "twice", "a factor that knows the maximum", "plus one", "over what varies",
        "along another axis",
    ],
)  # fmt: skip
def test_what_has_no_states(kind: str) -> None:
    assert online(other(kind)) is None


@pytest.mark.parametrize("devices, shared_from, length", [(3, 16, 25), (4, 2, 32)])
def test_a_ring_that_is_found_runs(
    devices: int, shared_from: int, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a graph for each device, in blocks that are not equal, and by one for all."""
    monkeypatch.setattr(meshes, "SHARED_FROM", shared_from)
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(1, 2, length, 8)).astype(np.float32) for _ in range(3)]
    with farm(devices, flops=1e6, bandwidth=1e12, link_bandwidth=1e6, launch_ns=0.0) as made:
        mesh = init_device_mesh(made.names, (devices,))
        q, k, v = (distribute_tensor(weft.tensor(a), mesh, [tensor.Shard(2)]).realize() for a in arrays)
        with searching(Search(None)):
            y = weft.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            assert "blocks along axis 4 in turns, as they arrive (reassociates), searched" in str(
                weft.explain(y)
            )
            found = y.full_tensor().numpy()
    x = np.einsum("bhqd,bhkd->bhqk", *arrays[:2]) / np.sqrt(8)
    x = np.exp(np.where(np.tril(np.ones((length, length), bool)), x, -np.inf))
    np.testing.assert_allclose(found, x / x.sum(-1, keepdims=True) @ arrays[2], rtol=1e-5, atol=1e-6)
