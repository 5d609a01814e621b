"""The graph of any device against the global one: random graphs, layouts and splits, exactly (numbers are whole)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.scheduler.sharding.test_lower import kept_in_terms, some_addition, two_sums
from tests.scheduler.sharding.test_online import attention
from weft.backends.dummy.device import describe
from weft.ir.dtypes import bfloat16, float32, int8
from weft.ir.errors import IRError
from weft.ir.graph import Along, Axes, Node, ScatterCombine, apply, intern, toposort
from weft.ir.index import Var
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard, boxes
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import Interval
from weft.scheduler.parts.cut import Compute, cut
from weft.scheduler.parts.moves import Moved, Pieces, bindings, verify_move
from weft.scheduler.parts.proof import prove
from weft.scheduler.sharding import lower as by_device
from weft.scheduler.sharding.lower import Split
from weft.scheduler.sharding.online import Running, online
from weft.scheduler.sharding.terms import contraction
from weft.scheduler.spmd import lower as lowering
from weft.scheduler.spmd.lower import Alike, UnlikeError, lower_alike
from weft.testing.dependence import leaf, sizes, some_node
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
HOME = "cpu:0"  # of the leaves that tests make: here the name of the mesh
R, S0, S1 = Replicate(), Shard(0), Shard(1)


def mesh_of(*grid: int) -> Mesh:
    return Mesh(HOME, tuple(f"dummy:{k}" for k in range(math.prod(grid))), grid)


def moved(move: Moved, sources: Sequence[np.ndarray[Any, Any]], shape: Sequence[Any], k: int) -> Any:
    """What device k gets, with NaN-like garbage where nothing arrives."""
    out = np.full(tuple(shape), 77, sources[0].dtype)
    for p in Pieces(move).of(k):
        source = sources[p.source].reshape(p.at.shape)
        at = tuple(slice(a, a + n) for a, n in zip(p.at.start, p.size, strict=True))
        to = tuple(slice(a, a + n) for a, n in zip(p.to.start, p.size, strict=True))
        out[to] = source[at]
    return out


def values_of(found: Alike, layouts: Mapping[Node, Layout]) -> dict[Node, list[Any]]:
    """The value of each asked node on each device, by the reference."""
    mesh, count = found.mesh, len(found.mesh.devices)
    known: list[dict[Node, Any]] = [{} for _ in range(count)]
    for n, own in found.leaves.items():
        held = boxes(layouts[n], n.shape, mesh) if n in layouts else [bx.full(n.shape)] * count
        for k, box in enumerate(held):
            whole = n.storage
            known[k][own] = whole[tuple(slice(i.lo, i.hi) for i in box)]
    for n in toposort(list(found.locals.values()), stop_at_storage=False):
        if isinstance(n.attrs, Moved):
            verify_move(n.attrs)
            (x,) = n.inputs
            sources = [evaluate([x], bindings(mesh.shape, k), known[k])[0] for k in range(count)]
            for k in range(count):
                known[k][n] = moved(n.attrs, sources, n.shape, k)
    return {
        n: [evaluate([own], bindings(mesh.shape, k), known[k])[0] for k in range(count)]
        for n, own in found.locals.items()
    }


def check(nodes: Sequence[Node], layouts: Mapping[Node, Layout], found: Alike) -> None:
    for node, whole in zip(nodes, evaluate(nodes), strict=True):
        if any(isinstance(p, Partial) for p in layouts[node]):
            continue
        where = boxes(layouts[node], node.shape, found.mesh)
        for value, box in zip(values_of(found, layouts)[node], where, strict=True):
            np.testing.assert_array_equal(value, whole[tuple(slice(i.lo, i.hi) for i in box)])


def some_layout(random: Random, shape: tuple[int, ...], mesh: Mesh) -> Layout:
    left, found = list(shape), list[Placement]()
    for n in mesh.shape:
        dims = [d for d, size in enumerate(left) if size and size % n == 0]
        if not dims or random.random() < 0.25:
            found.append(R)
            continue
        d = random.choice(dims)
        left[d] //= n
        found.append(Shard(d))
    return tuple(found)


def some_split(random: Random, node: Node, mesh: Mesh) -> Split:
    of = contraction(node)
    assert of is not None
    shape = sizes(node.inputs[of.number])
    found = some_layout(random, tuple(n if d in of.axes else 1 for d, n in enumerate(shape)), mesh)
    return tuple(p if isinstance(p, Shard) and random.random() < 0.8 else None for p in found)


def some_graph(random: Random, mesh: Mesh) -> tuple[Node, dict[Node, Layout], dict[Node, Split]]:
    """A graph, layouts of what is stored or cut in it, and splits of some of its cuts."""
    node = leaf(*(random.choice((1, 2, 4, 6)) for _ in range(random.randint(1, 3))))
    for _ in range(random.randint(1, 4)):
        node = some_node(random, node)
        if contraction(node) is None and sizes(node) and random.random() < 0.4:
            node = apply(Op.SUM, (node,), Axes((random.randrange(len(sizes(node))),)))
    layouts: dict[Node, Layout] = {}
    splits: dict[Node, Split] = {}
    for n in toposort([node], stop_at_storage=False):
        decided = n.storage is not None or n is node or contraction(n) is not None
        if n.device is not None and (decided or random.random() < 0.2):
            layouts[n] = some_layout(random, sizes(n), mesh)
            if contraction(n) is not None and random.random() < 0.7:
                splits[n] = some_split(random, n, mesh)
                if n is not node and random.random() < 0.5:
                    of, kept = contraction(n), zip(layouts[n], splits[n], strict=True)
                    assert of is not None
                    layouts[n] = tuple(p if s is None else Partial(of.op) for p, s in kept)
    return node, layouts, splits


def test_the_graph_of_any_device_computes_what_the_global_one_does() -> None:
    tried: Counter[bool] = Counter()

    @settings(max_examples=150, **QUIET)
    @given(st.randoms(use_true_random=False))
    def lowered(random: Random) -> None:
        mesh = mesh_of(*random.choice(((2,), (4,), (2, 2), (2, 3), (2, 1, 2))))
        node, layouts, splits = some_graph(random, mesh)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(lowering, "SHARED_BYTES", random.choice((0, by_device.SHARED_BYTES)))
            patch.setattr(lowering, "FOLDED", random.choice((1, 16)))
            try:
                found = lower_alike([node], mesh, layouts, splits)
            except UnlikeError:
                tried[False] += 1
                return
        tried[True] += 1
        check([node], layouts, found)

    lowered()
    assert tried[True] > tried[False]


@settings(max_examples=100, **QUIET)
@given(st.randoms(use_true_random=False))
def test_additions_take_terms_as_they_are(random: Random) -> None:
    mesh = mesh_of(*random.choice(((2,), (4,), (2, 2), (2, 3))))
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
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lowering, "SHARED_BYTES", random.choice((0, by_device.SHARED_BYTES)))
        try:
            found = lower_alike([out], mesh, layouts, splits)
        except UnlikeError:
            return
    check([out], layouts, found)


@pytest.mark.parametrize("dtype", [float32, bfloat16, int8])
def test_terms_are_added_before_they_are_combined(dtype: Any) -> None:
    top, _, layouts, splits = two_sums(dtype)
    found = lower_alike([top], mesh_of(4), layouts, splits)
    check([top], layouts, found)
    (move,) = [n for n in toposort(list(found.locals.values())) if isinstance(n.attrs, Moved)]
    assert isinstance(move.attrs, Moved) and move.attrs.pattern == "reduce-scatter"
    outputs, leaves = list(found.locals.values()), list(found.leaves.values())
    prove(cut(outputs, leaves, lambda _: describe(0), found.mesh.devices[0]), outputs, leaves)


def whole(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("dtype", [float32, bfloat16])
@pytest.mark.parametrize("layout", [(R, R), (S0, S1), (S0, S0), (R, S1), (Partial(), Partial())])
def test_terms_are_added_axis_after_axis(layout: Layout, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "SHARED_BYTES", 0)
    mesh = mesh_of(2, 3)
    of = numpy_leaf(whole(6, 6, 6))
    y = apply(Op.SUM, (apply(Op.CAST, (of,), None, None, dtype),), Axes((1,)))
    z = apply(Op.ADD, (y, y))
    layouts: dict[Node, Layout] = {of: (R, R), y: layout, z: (S0, R)}
    found = lower_alike([z], mesh, layouts, {y: (S1, S1)})
    (got,) = values_of(found, layouts).values()
    for k, value in enumerate(got):
        rows = slice(3 * (k // 3), 3 * (k // 3) + 3)
        np.testing.assert_array_equal(value.astype(np.float32), 2 * whole(6, 6, 6).sum(1)[rows])


def test_blocks_that_do_not_come_out_even_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowering, "SHARED_BYTES", 0)
    x = numpy_leaf(whole(8, 7))
    y = apply(Op.SUM, (x,), Axes((0,)))
    layouts: dict[Node, Layout] = {x: (S0,), y: (R,)}
    check([y], layouts, lower_alike([y], mesh_of(4), layouts, {y: (S0,)}))
    x = numpy_leaf(whole(8, 9))
    y = apply(Op.SUM, (x,), Axes((0,)))
    layouts = {x: (S0, S1), y: (R, S0)}  # 3 elements each, of which both devices that share them add up 2
    check([y], layouts, lower_alike([y], mesh_of(2, 3), layouts, {y: (S0, None)}))


@pytest.mark.parametrize("layout", [(R,), (S0,)])
def test_rows_of_a_table_in_blocks_and_their_gradient(layout: Layout) -> None:
    table, ids = numpy_leaf(whole(8, 4)), numpy_leaf(np.array([[-2], [0], [3], [4], [7], [9]]))
    index = apply(Op.EXPAND, (ids,), None, (6, 4))
    rows = apply(Op.GATHER, (table, index), Along(0))
    layouts: dict[Node, Layout] = {table: (S0,), ids: (R,), rows: (R,)}
    check([rows], layouts, lower_alike([rows], mesh_of(4), layouts, {rows: (S0,)}))
    src = numpy_leaf(whole(6, 4))
    grown = apply(Op.SCATTER, (table, index, src), ScatterCombine(0, Op.ADD))
    layouts = {table: (R,), ids: (R,), src: (S0,), grown: layout}
    check([grown], layouts, lower_alike([grown], mesh_of(2), layouts, {grown: (S0,)}))


def test_leaves_of_one_device_are_copied_in_boxes() -> None:
    one = numpy_leaf(whole(8, 4))
    mesh = Mesh("mesh:0", tuple(f"dummy:{k}" for k in range(4)), (4,))
    y = apply(Op.COPY, (one,), lowering.Target("mesh:0", (S0,)))
    z = apply(Op.ADD, (y, y))
    layouts: dict[Node, Layout] = {y: (S0,), z: (S0,)}
    found = lower_alike([z], mesh, layouts)
    (copied,) = [n for n in toposort(list(found.locals.values())) if isinstance(n.attrs, Moved)]
    assert isinstance(copied.attrs, Moved) and copied.attrs.origin == HOME
    check([z], layouts, found)
    with pytest.raises(UnlikeError, match="is on one device"):
        lower_alike([one], mesh, layouts)


def test_what_devices_would_compute_in_their_own_way_is_refused() -> None:
    x = numpy_leaf(whole(6, 4))
    y = apply(Op.ADD, (x, x))
    with pytest.raises(UnlikeError, match="6 elements in 4 blocks"):
        lower_alike([y], mesh_of(4), {x: (S0,), y: (R,)})
    with pytest.raises(UnlikeError, match="no layout"):
        lower_alike([y], mesh_of(2), {x: (S0,)})


def test_patterns_have_their_names() -> None:
    x = numpy_leaf(whole(8, 8))
    y, z = apply(Op.NEG, (x,)), apply(Op.SUM, (x,), Axes((0,)))

    def name(node: Node, layouts: dict[Node, Layout], splits: dict[Node, Split]) -> list[str]:
        found = lower_alike([node], mesh_of(4), layouts, splits)
        return [n.attrs.pattern for n in toposort(list(found.locals.values())) if isinstance(n.attrs, Moved)]

    assert name(y, {x: (S0,), y: (R,)}, {}) == ["all-gather"]
    assert name(y, {x: (S0,), y: (S1,)}, {}) == ["all-to-all"]
    assert name(z, {x: (S0,), z: (S0,)}, {z: (S0,)}) == ["reduce-scatter"]
    assert name(z, {x: (S0,), z: (R,)}, {z: (S0,)}) == ["all-reduce"]


def test_moves_that_leave_gaps_are_refused() -> None:
    at = Var("at0", 0, 3)
    good = Moved(
        "dummy:0", grid=(4,), held=(Interval(at * 2, at * 2 + 2),), wanted=(Interval(0, 8),), axes=(0,)
    )
    verify_move(good)
    for fault in (
        replace(good, held=(Interval(at * 3, at * 3 + 2),)),  # a gap
        replace(good, held=(Interval(at * 2, at * 2 + 1),)),
        replace(good, held=(Interval(at * 2 + 1, at * 2 + 3),)),  # the first is missing
        replace(good, wanted=(Interval(0, 9),)),
        replace(good, axes=()),  # nobody else is asked
        replace(good, stacked=True),  # of terms, all have to have the box
    ):
        with pytest.raises(IRError):
            verify_move(fault)


def test_seeded_faults_of_cuts_and_moves_are_refused() -> None:
    """Steps of the graph of any device, with one fault each: none is taken for the graph."""
    x, w = numpy_leaf(whole(16, 8)), numpy_leaf(whole(8, 16))
    h = apply(Op.SUM, (apply(Op.MUL, (expanded(x, 2), expanded(w, 0))),), Axes((1,)))
    y = apply(Op.SUM, (apply(Op.MUL, (apply(Op.NEG, (h,)), h)),), Axes((1,)))
    mesh = mesh_of(2, 4)
    layouts: dict[Node, Layout] = {x: (S0, S0), w: (S0, S1), h: (S0, R), y: (R, R)}
    low = lower_alike([y], mesh, layouts, {y: (None, S1)})
    outputs, leaves = list(low.locals.values()), list(low.leaves.values())
    good = cut(outputs, leaves, lambda _: describe(0), mesh.devices[0])
    prove(good, outputs, leaves)
    rng, refused = Random(0), 0
    for _ in range(200):
        steps = list(good.steps)
        k = rng.randrange(len(steps))
        s = steps[k]
        if isinstance(s, Compute):
            if rng.random() < 0.5 or len(s.inputs) < 2:
                del steps[k]
            else:
                (a, u), (b, v), *_ = s.inputs.items()
                if u == v:
                    continue
                steps[k] = replace(s, inputs={**s.inputs, a: v, b: u})
        else:
            assert s.moved is not None and s.move is not None
            steps[k] = replace(s, moved=faulty(s.moved, s.move, rng))
        with pytest.raises(IRError):
            prove(replace(good, steps=tuple(steps)), outputs, leaves)
        refused += 1
    assert refused > 150


def expanded(n: Node, axis: int) -> Node:
    shape = [*sizes(n)[:axis], 1, *sizes(n)[axis:]]
    grown = apply(Op.RESHAPE, (n,), None, tuple(shape))
    return apply(Op.EXPAND, (grown,), None, (16, 8, 16))


def faulty(n: Node, move: Moved, rng: Random) -> Node:
    """The same move with another formula."""

    def shifted(box: bx.IndexBox) -> bx.IndexBox:
        k = rng.randrange(len(box))
        by = rng.choice((-1, 1))
        return tuple(Interval(i.lo + by, i.hi + by) if j == k else i for j, i in enumerate(box))

    match rng.randrange(5 if move.wanted else 2):
        case 0:
            other = replace(move, stacked=not move.stacked)
        case 1:
            other = replace(move, axes=tuple(m for m in range(len(move.grid)) if m not in move.axes))
        case 2:
            other = replace(move, held=shifted(move.held))
        case 3:
            other = replace(move, wanted=shifted(move.wanted))
        case _:
            other = replace(move, origin="cpu:0")
    return intern(n.op, n.inputs, other, n.shape, n.dtype, n.device)


@settings(max_examples=25, **QUIET)
@given(st.randoms(use_true_random=False))
def test_attention_in_blocks_on_any_device(random: Random) -> None:
    """A ring, states that are combined, and both along two axes of a mesh."""
    grid = random.choice(((2,), (3,), (4,), (2, 2), (2, 3)))
    mesh, n = mesh_of(*grid), math.prod(grid)
    rows, columns = n * random.choice((1, 2)), n * random.choice((1, 2))
    node, leaves = attention(random, random.choice((1, n)), rows, columns, random.choice((1, 3)), n)
    of = online(node)
    assert of is not None

    def laid(x: Node) -> Layout:
        found: list[Placement] = []
        for _ in grid:
            dims = [d for d, s in enumerate(sizes(x)) if s % n == 0 and Shard(d) not in found]
            found.append(Shard(random.choice(dims)) if dims and random.random() < 0.7 else R)
        return tuple(found)

    layouts = {x: laid(x) for x in (*leaves, node)}
    ways = (None, Running(of.axis, True), Running(of.axis, False))
    found = lower_alike([node], mesh, layouts, {node: tuple([random.choice(ways) for _ in grid])})
    (whole,) = evaluate([node])
    held = boxes(layouts[node], node.shape, mesh)
    for value, box in zip(values_of(found, layouts)[node], held, strict=True):
        wanted = whole[tuple(slice(i.lo, i.hi) for i in box)]  # pyright: ignore[reportArgumentType]
        np.testing.assert_allclose(value, wanted, rtol=1e-12)


def test_a_turn_of_a_ring_is_one_formula() -> None:
    node, (q, k, v) = attention(Random(3), 1, 4, 8, 3, 4)
    layouts: dict[Node, Layout] = {q: (S1,), k: (S1,), v: (Shard(2),), node: (S1,)}
    found = lower_alike([node], mesh_of(4), layouts, {node: (Running(3, True),)})
    patterns = Counter(n.attrs.pattern for n in found.moves if isinstance(n.attrs, Moved))
    assert patterns == {"ring": 6}
    from_next = [Pieces(n.attrs).of(0)[0].source for n in found.moves if isinstance(n.attrs, Moved)]
    assert sorted(from_next) == [1, 1, 2, 2, 3, 3]
