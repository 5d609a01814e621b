"""Lowered graphs against the global ones: random graphs, layouts, splits and meshes, exactly (numbers are whole)."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir.dtypes import DType, bfloat16, bool_, float32, float64, int8, to_numpy, uint64
from weft.ir.errors import IRError
from weft.ir.graph import Along, Axes, Box, Node, Target, apply, buffer, const, toposort
from weft.ir.graph_verify import verify_graph
from weft.ir.numerics import switched
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard, boxes
from weft.scheduler.sharding import lower as lowering
from weft.scheduler.sharding.lower import Lowered, Split, lower
from weft.scheduler.sharding.terms import additions, contraction
from weft.testing.dependence import leaf, sizes, some_node, some_shape
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)
HOME = "cpu:0"  # of the leaves that tests make: here the name of the mesh
GRIDS = ((1,), (2,), (3,), (4,), (7,), (2, 2), (3, 2), (2, 1, 2))


def mesh_of(*grid: int) -> Mesh:
    return Mesh(HOME, tuple(f"dummy:{k}" for k in range(math.prod(grid))), grid)


def some_layout(random: Random, shape: tuple[int, ...], mesh: Mesh) -> Layout:
    return tuple(some_placement(random, shape, n, k == 0) for k, n in enumerate(mesh.shape))


def some_placement(random: Random, shape: tuple[int, ...], count: int, outermost: bool) -> Placement:
    if not shape or random.random() < 0.25:
        return Replicate()
    dim = random.randrange(len(shape))
    if outermost and random.random() < 0.3:
        ends = sorted(random.randint(0, shape[dim]) for _ in range(count - 1))
        return Shard(dim, (*ends, shape[dim]))
    return Shard(dim)


def local_leaves(node: Node, layout: Layout, mesh: Mesh) -> list[Node]:
    """Its shards, as leaves on the devices."""
    found: list[Node] = []
    for device, box in zip(mesh.devices, boxes(layout, node.shape, mesh), strict=True):
        part = node.storage[tuple(slice(i.lo, i.hi) for i in box)]
        found.append(buffer(part.shape, node.dtype, device, part))
    return found


def lowered(
    nodes: list[Node], mesh: Mesh, layouts: dict[Node, Layout], splits: dict[Node, Split] | None = None
) -> Lowered:
    leaves = [n for n in toposort(nodes, stop_at_storage=False) if n.storage is not None]
    shards = {n: local_leaves(n, layouts[n], mesh) for n in leaves if n.device == mesh.name}
    found = lower(nodes, mesh, layouts, shards, splits)
    for of in found.locals.values():
        assert [n.device for n in of] == list(mesh.devices)
    verify_graph([n for of in found.locals.values() for n in of])
    return found


def check(nodes: list[Node], mesh: Mesh, layouts: dict[Node, Layout], found: Lowered) -> None:
    """Every device has the box of each result that its layout says; terms add up to it."""
    for node, whole in zip(nodes, evaluate(nodes), strict=True):
        values = evaluate(found.locals[node])
        where = boxes(layouts[node], node.shape, mesh)
        for value, box in zip(values, where, strict=True):
            if not any(isinstance(p, Partial) for p in layouts[node]):
                wanted = whole[tuple(slice(i.lo, i.hi) for i in box)]  # pyright: ignore[reportArgumentType]
                np.testing.assert_array_equal(value, wanted)


def some_split(random: Random, node: Node, mesh: Mesh) -> Split:
    found = contraction(node)
    assert found is not None
    shape = sizes(node.inputs[found.number])
    split: list[Shard | None] = []
    for k, n in enumerate(mesh.shape):
        p = some_placement(random, shape, n, k == 0)
        axis = random.choice(found.axes)
        bounds = p.bounds if isinstance(p, Shard) and p.dim == axis else None
        split.append(Shard(axis, bounds) if random.random() < 0.6 else None)
    return tuple(split)


@settings(max_examples=150, **QUIET)
@given(RANDOM)
def test_lowered_graphs_compute_what_the_global_ones_do(random: Random) -> None:
    mesh = mesh_of(*random.choice(GRIDS))
    node = leaf(*some_shape(random))
    inner: list[Node] = []
    for _ in range(random.randint(1, 5)):
        node = some_node(random, node)
        inner.append(node)
        if contraction(node) is None and sizes(node) and random.random() < 0.3:
            node = apply(Op.SUM, (node,), Axes((random.randrange(len(sizes(node))),)))
            inner.append(node)
    outputs = [node, *(n for n in inner[:-1] if random.random() < 0.2)]
    layouts: dict[Node, Layout] = {}
    splits: dict[Node, Split] = {}
    for n in toposort(outputs, stop_at_storage=False):
        decided = n.storage is not None or n in outputs or contraction(n) is not None
        if n.device is not None and (decided or random.random() < 0.2):
            layouts[n] = some_layout(random, sizes(n), mesh)
            if contraction(n) is not None and random.random() < 0.7:
                splits[n] = some_split(random, n, mesh)
                if n not in outputs and random.random() < 0.5:
                    kept = zip(layouts[n], splits[n], strict=True)
                    found = contraction(n)
                    assert found is not None
                    layouts[n] = tuple(p if s is None else Partial(found.op) for p, s in kept)
    before = lowering.SHARED_BYTES
    lowering.SHARED_BYTES = random.choice((0, before))
    try:
        check(outputs, mesh, layouts, lowered(outputs, mesh, layouts, splits))
    finally:
        lowering.SHARED_BYTES = before


# terms ----------------------------------------------------------------------------------------------------------------


def arrays_of(dtype: DType, *shape: int) -> Any:
    rng = np.random.default_rng(2)
    return numpy_leaf(rng.integers(0, 2 if dtype is bool_ else 5, shape).astype(to_numpy(dtype)))


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8, uint64, bool_], ids=lambda d: d.name)
@pytest.mark.parametrize("op", [Op.SUM, Op.PROD, Op.REDUCE_MAX, Op.REDUCE_MIN], ids=lambda op: op.name)
def test_terms_of_every_reduction_and_dtype(op: Op, dtype: DType) -> None:
    if dtype is bool_ and op in (Op.SUM, Op.PROD):
        return
    x, mesh = arrays_of(dtype, 3, 5), mesh_of(4)  # blocks of 2, 2, 1 and 0
    y = apply(op, (x,), Axes((1,)))
    layouts: dict[Node, Layout] = {x: (Shard(1),), y: (Replicate(),)}
    check([y], mesh, layouts, lowered([y], mesh, layouts, {y: (Shard(1),)}))


@pytest.mark.parametrize("dtype", [float32, bool_, int8], ids=lambda d: d.name)
def test_rows_of_a_table_in_blocks_are_found_whatever_the_index(dtype: DType) -> None:
    """An index out of range counts as the first row, or the last; -0.0 stays what it is."""
    table, mesh = arrays_of(dtype, 7, 2), mesh_of(3)
    if dtype is float32:
        table.storage[3] = -0.0
    index = numpy_leaf(np.array([[-2, 6], [0, 9], [3, 3], [5, 2]], np.int64))
    y = apply(Op.GATHER, (table, index), Along(0))
    layouts: dict[Node, Layout] = {table: (Shard(0),), index: (Replicate(),), y: (Shard(0),)}
    found = lowered([y], mesh, layouts, {y: (Shard(0),)})
    check([y], mesh, layouts, found)
    got = np.concatenate(evaluate(found.locals[y])).astype(np.float32)
    assert dtype is not float32 or np.signbit(got[2]).all()


def test_terms_of_16_bit_sums_are_rounded_once() -> None:
    """256 + 1 is 256 in bfloat16: a sum that is rounded in between loses all the ones."""
    x, mesh = numpy_leaf(np.array([256] + [1] * 7, to_numpy(bfloat16))), mesh_of(4)
    y = apply(Op.SUM, (x,), Axes((0,)))
    layouts: dict[Node, Layout] = {x: (Shard(0),), y: (Replicate(),)}
    found = lowered([y], mesh, layouts, {y: (Shard(0),)})
    (whole,) = evaluate([y])
    assert [float(v) for v in evaluate(found.locals[y])] == [float(whole)] * 4


def test_kept_terms_add_up() -> None:
    x, mesh = leaf(6, 4), mesh_of(3)
    y = apply(Op.SUM, (x,), Axes((0,)))
    layouts: dict[Node, Layout] = {x: (Shard(0),), y: (Partial(),)}
    found = lowered([y], mesh, layouts, {y: (Shard(0),)})
    assert not found.fetches
    np.testing.assert_array_equal(sum(evaluate(found.locals[y])), evaluate([y])[0])


def test_a_large_sum_that_all_need_is_combined_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each device gets (n - 1) / n of the terms, and of the sum, instead of all n - 1 terms."""
    x, mesh = leaf(8, 12), mesh_of(4)
    y = apply(Op.SUM, (x,), Axes((0,)))
    layouts: dict[Node, Layout] = {x: (Shard(0),), y: (Replicate(),)}
    small = lowered([y], mesh, layouts, {y: (Shard(0),)})
    monkeypatch.setattr(lowering, "SHARED_BYTES", 0)
    large = lowered([y], mesh, layouts, {y: (Shard(0),)})
    for found in (small, large):
        check([y], mesh, layouts, found)
    assert small.moved_bytes == 4 * 3 * 12 * 8
    assert large.moved_bytes == 4 * 2 * 3 * 3 * 8
    scattered: dict[Node, Layout] = {x: (Shard(0),), y: (Shard(0),)}
    assert lowered([y], mesh, scattered, {y: (Shard(0),)}).moved_bytes == 4 * 3 * 3 * 8


# additions of terms ---------------------------------------------------------------------------------------------------


def some_addition(random: Random) -> tuple[Node, list[Node]]:
    """Sums and other values, changed in linear ways, added up; and the sums."""
    shape = tuple(random.choice((2, 4, 6)) for _ in range(random.randint(1, 2)))
    sums: list[Node] = []

    def summand() -> Node:
        if sums and random.random() < 0.25:
            return random.choice((leaf(*shape), apply(Op.ABS, (leaf(*shape),)), const(3.0, float64, shape)))
        axis = random.randint(0, len(shape))
        of = leaf(*shape[:axis], random.choice((2, 4, 6)), *shape[axis:])
        sums.append(apply(Op.SUM, (of,), Axes((axis,))))
        return sums[-1]

    def changed(n: Node) -> Node:
        match random.randrange(8):
            case 0:
                return apply(Op.NEG, (n,))
            case 1:
                other = apply(Op.EXPAND, (const(2.0, float64, (1,) * len(shape)),), None, shape)
                return apply(Op.MUL, random.choice(((n, other), (other, n))))
            case 2:
                flat = apply(Op.RESHAPE, (n,), None, (math.prod(shape),))
                return apply(Op.RESHAPE, (flat,), None, shape)
            case 3:
                back = tuple(reversed(range(len(shape))))
                turned = apply(Op.PERMUTE, (n,), Axes(back))
                return apply(Op.PERMUTE, (turned,), Axes(back))
            case _:
                return n

    node = changed(summand())
    for _ in range(random.randint(1, 4)):
        pair = node, changed(summand())
        node = changed(apply(random.choice((Op.ADD, Op.ADD, Op.SUB)), random.choice((pair, pair[::-1]))))
    pair = changed(node), summand()
    return apply(Op.ADD, pair), sums


def kept_in_terms(
    random: Random, sums: list[Node], axes: list[int], mesh: Mesh, layouts: dict[Node, Layout]
) -> dict[Node, Split]:
    """Have most of the sums be kept in terms along these axes of the mesh, some along others; their splits."""
    splits: dict[Node, Split] = {}
    for s in sums:
        found = contraction(s)
        assert found is not None
        if random.random() < 0.8:
            kept = axes if random.random() < 0.8 else [random.randrange(len(mesh.shape))]
            splits[s] = tuple(Shard(found.axes[0]) if m in kept else None for m in range(len(mesh.shape)))
            layouts[s] = tuple(Partial() if m in kept else p for m, p in enumerate(layouts[s]))
    return splits


@settings(max_examples=150, **QUIET)
@given(RANDOM)
def test_additions_take_terms_as_they_are(random: Random) -> None:
    mesh = mesh_of(*random.choice(((2,), (3,), (4,), (2, 2), (3, 2))))
    top, sums = some_addition(random)
    out = random.choice((top, apply(Op.ABS, (top,)), apply(Op.SUM, (top,), Axes((0,)))))
    layouts = {
        n: some_layout(random, sizes(n), mesh)
        for n in toposort([out], stop_at_storage=False)
        if n.storage is not None or n in (out, top, *sums)
    }
    axes = [m for m in range(len(mesh.shape)) if random.random() < 0.7] or [0]
    splits = kept_in_terms(random, sums, axes, mesh, layouts)
    splits[top] = tuple(Partial() if m in axes else None for m in range(len(mesh.shape)))
    if top is not out and random.random() < 0.3:
        layouts[top] = tuple(Partial() if m in axes else p for m, p in enumerate(layouts[top]))
    before = lowering.SHARED_BYTES
    lowering.SHARED_BYTES = random.choice((0, before))
    try:
        check([out], mesh, layouts, lowered([out], mesh, layouts, splits))
    finally:
        lowering.SHARED_BYTES = before


def two_sums(dtype: DType) -> tuple[Node, list[Node], dict[Node, Layout], dict[Node, Split]]:
    leaves = [arrays_of(dtype, 8, 4) for _ in range(2)]
    sums = [apply(Op.SUM, (x,), Axes((0,))) for x in leaves]
    beside = arrays_of(dtype, 4)
    top = apply(Op.ADD, (apply(Op.ADD, tuple(sums)), beside))
    layouts: dict[Node, Layout] = {top: (Shard(0),), beside: (Replicate(),)}
    splits: dict[Node, Split] = {top: (Partial(),)}
    for x, s in zip(leaves, sums, strict=True):
        layouts[x], layouts[s], splits[s] = (Shard(0),), (Partial(),), (Shard(0),)
    return top, sums, layouts, splits


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8])
def test_terms_are_added_before_they_are_combined(dtype: DType) -> None:
    top, sums, layouts, splits = two_sums(dtype)
    assert additions(toposort([top]), {top}) == {
        top.inputs[0]: tuple(sums)
    }  # what is beside them comes after
    found = lowered([top], mesh_of(4), layouts, splits)
    check([top], mesh_of(4), layouts, found)
    assert all(f.node is top and f.is_term for f in found.fetches)
    assert len(found.fetches) == 4 * 3  # a reduce-scatter of one sum


def test_what_others_read_is_no_summand_in_terms() -> None:
    top, (a, b), _, _ = two_sums(float32)
    assert not additions(toposort([top, a]), {top, a})
    assert not additions(toposort([apply(Op.MUL, (top, b))]), {top})
    squared = apply(Op.MUL, (a, a))
    assert not additions(toposort([apply(Op.ADD, (squared, b))]), ())


def test_pinned_additions_of_floats_keep_their_order() -> None:
    with switched(True):
        for dtype, allowed in ((float32, False), (int8, True)):
            top, _, layouts, splits = two_sums(dtype)
            assert bool(additions(toposort([top]), {top})) == allowed
            layouts |= {n: (Replicate(),) for n in splits if n.dtype.is_float}
            if not allowed:
                with pytest.raises(IRError, match="adds up no terms"):
                    lowered([top], mesh_of(4), layouts, {top: splits[top]})


# what is fetched ------------------------------------------------------------------------------------------------------


def test_nothing_is_fetched_twice() -> None:
    """Two readers of overlapping rows, and one of all."""
    x, mesh = leaf(8, 3), mesh_of(2)

    def rows(first: int, size: int) -> Node:
        return apply(Op.SHRINK, (x,), Box((first, 0), (1, 1)), (size, 3))

    whole = apply(Op.SUM, (x,), Axes((0,)))
    outs = [apply(Op.ADD, (rows(0, 6), rows(2, 6))), apply(Op.ABS, (rows(1, 6),)), whole]
    layouts: dict[Node, Layout] = {
        x: (Shard(0),),
        **{n: (Shard(0),) for n in outs[:2]},
        whole: (Replicate(),),
    }
    found = lowered(outs, mesh, layouts)
    check(outs, mesh, layouts, found)
    assert [(f.source, f.target, f.nbytes) for f in found.fetches] == [
        ("dummy:1", "dummy:0", 4 * 3 * 8),
        ("dummy:0", "dummy:1", 4 * 3 * 8),
    ]


def test_single_devices_give_to_meshes_and_take_from_them() -> None:
    mesh = Mesh("mesh:0", ("dummy:0", "dummy:1", "dummy:2"), (3,))
    x = leaf(7, 2)  # on cpu:0
    inside = apply(Op.COPY, (apply(Op.ABS, (x,)),), Target("mesh:0", (Shard(0),)))
    doubled = apply(Op.ADD, (inside, inside))
    back = apply(Op.ADD, (apply(Op.COPY, (doubled,), Target("cpu:0")), x))
    layouts: dict[Node, Layout] = {inside: (Shard(0),), doubled: (Shard(0),)}
    found = lower([back], mesh, layouts, {})
    np.testing.assert_array_equal(evaluate([found.others[back]])[0], evaluate([back])[0])
    assert found.others[back].device == "cpu:0"
    assert [f.nbytes for f in found.fetches if f.target == "cpu:0"] == [3 * 16, 3 * 16, 16]
    assert sum(f.nbytes for f in found.fetches if f.source == "cpu:0") == 7 * 16


def test_replicas_are_asked_in_turn() -> None:
    """On a grid of 2 by 2, what the other column has comes from the same row."""
    x, mesh = leaf(4, 2), mesh_of(2, 2)
    y = apply(Op.CONTIGUOUS, (x,))
    layouts: dict[Node, Layout] = {x: (Replicate(), Shard(0)), y: (Replicate(), Replicate())}
    found = lowered([y], mesh, layouts)
    pairs = {(f.source, f.target) for f in found.fetches}
    assert pairs == {
        ("dummy:1", "dummy:0"),
        ("dummy:0", "dummy:1"),
        ("dummy:3", "dummy:2"),
        ("dummy:2", "dummy:3"),
    }


def test_what_has_no_layout_is_named() -> None:
    x = leaf(4)
    y = apply(Op.ABS, (x,))
    with pytest.raises(IRError, match="no layout"):
        lower([y], mesh_of(2), {y: (Shard(0),)}, {})
    with pytest.raises(IRError, match="no split"):
        lower([y], mesh_of(2), {x: (Shard(0),), y: (Partial(),)}, {})
    with pytest.raises(IRError, match="no sum of terms"):
        lower([y], mesh_of(2), {x: (Shard(0),), y: (Shard(0),)}, {}, {y: (Shard(0),)})
