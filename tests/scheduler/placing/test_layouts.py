"""Layouts that are chosen without annotations: what they compute, what is found, and what it says about it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from tests.scheduler.sharding.test_lower import some_addition
from weft.autograd.value import Value
from weft.backends.dummy.device import DummyBackend, describe
from weft.core.tensor.tensor import wrap
from weft.errors import ArgumentError, MemoryPlanError
from weft.ir.calls import expand_calls
from weft.ir.dtypes import float32
from weft.ir.graph import Axes, Node, Target, apply, buffer, toposort
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Replicate, Shard, boxes
from weft.scheduler.placing import layouts
from weft.scheduler.placing.layouts import Chosen, Rates, choose, described
from weft.scheduler.placing.links import Links
from weft.scheduler.sharding.lower import lower
from weft.scheduler.sharding.terms import contraction
from weft.testing.dependence import leaf, sizes, some_node, some_shape
from weft.testing.reference import evaluate

HOME = "cpu:0"  # where the leaves of the graphs are: here the name of the mesh
R, S0, S1 = Replicate(), Shard(0), Shard(1)
QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}


def stored(*shape: int) -> weft.Tensor:
    """A leaf without data."""
    return wrap(Value(buffer(shape, float32, HOME, object())))


def mesh_of(*grid: int) -> Mesh:
    return Mesh(HOME, tuple(f"dummy:{k}" for k in range(math.prod(grid))), grid)


def chosen(nodes: Sequence[Node], mesh: Mesh, latency: float = 1000, **options: Any) -> Chosen:
    count = len(mesh.devices)
    rates = options.pop("rates", [Rates(1e12, 1e12)] * count)
    return choose(nodes, mesh, rates, Links.uniform(count, latency, 50e9), **options)


def shards(node: Node, layout: Layout, mesh: Mesh) -> list[Node]:
    where = zip(mesh.devices, boxes(layout, sizes(node), mesh), strict=True)
    parts = [(d, node.storage[tuple(slice(i.lo, i.hi) for i in box)]) for d, box in where]
    return [buffer(part.shape, node.dtype, d, part) for d, part in parts]


@settings(max_examples=40, **QUIET)
@given(st.randoms(use_true_random=False))
def test_what_is_chosen_computes_what_the_graph_does(random: Random) -> None:
    mesh = mesh_of(*random.choice(((2,), (3,), (4,), (2, 2))))
    node = leaf(*some_shape(random, 3))
    for _ in range(random.randint(1, 4)):
        node = some_node(random, node)
        if contraction(node) is None and sizes(node) and random.random() < 0.4:
            node = apply(Op.SUM, (node,), Axes((random.randrange(len(sizes(node))),)))
    if random.random() < 0.5:
        node, _ = some_addition(random)
    speeds = [Rates(random.choice((1.0, 1e3)), 1e3, 0.0) for _ in mesh.devices]
    found = chosen([node], mesh, latency=0.0, rates=speeds)
    leaves = [n for n in toposort([node], stop_at_storage=False) if n.storage is not None]
    own = {n: shards(n, found.layouts[n], mesh) for n in leaves if n in found.layouts}
    lowered = lower([node], mesh, found.layouts, own, found.splits)
    (whole,) = evaluate([node])
    where = boxes(found.layouts[node], sizes(node), mesh)
    for value, box in zip(evaluate(lowered.locals[node]), where, strict=True):
        np.testing.assert_array_equal(value, whole[tuple(slice(i.lo, i.hi) for i in box)])


def test_small_graphs_exchange_nothing() -> None:
    x = stored(8, 8)
    (y,) = expand_calls([(x @ x).value.node])
    mesh = mesh_of(4)
    found = chosen([y], mesh, latency=1e6)
    assert not lower([y], mesh, found.layouts, leaf_shards([y], found, mesh), found.splits).fetches


def training_step(batch: int, width: int, inner: int) -> tuple[dict[str, Node], list[tuple[Node, Node]]]:
    """An MLP of two layers, its gradients, and both weights after a step; updates as `choose` takes them."""
    x = stored(batch, width)
    w = [stored(width, inner).requires_grad_(), stored(inner, width).requires_grad_()]
    loss = ((x @ w[0]).relu() @ w[1]).square().sum()
    loss.backward()
    new = [v.detach() - 0.1 * v.grad for v in w]
    made = expand_calls([t.value.node for t in (loss, *new, x, *w)])
    names = dict(zip(("loss", "w0'", "w1'", "x", "w0", "w1"), made, strict=True))
    return names, [(names["w0'"], names["w0"]), (names["w1'"], names["w1"])]


def plan(batch: int, width: int, inner: int, mesh: Mesh, **options: Any) -> tuple[dict[str, Node], Chosen]:
    names, updates = training_step(batch, width, inner)
    return names, chosen([names[k] for k in ("loss", "w0'", "w1'")], mesh, updates=updates, **options)


def test_large_batches_are_data_parallel() -> None:
    names, found = plan(65536, 128, 128, mesh_of(4))
    assert found.choice.gap < 1e-6
    assert found.layouts[names["x"]] == (S0,)
    sums = [n for n in found.layouts if n.op is Op.SUM]
    assert [found.layouts[n] for n in sums if len(sizes(n)) == 2 and sizes(n)[0] == 65536] == [(S0,)] * 3
    gradients = [found.splits[n] for n in sums if sizes(n) == (128, 128)]
    assert gradients == [(S0,), (S0,)]  # terms of the batch, added up


def test_large_weights_are_cut_by_columns_and_then_by_rows() -> None:
    names, found = plan(64, 4096, 8192, mesh_of(4))
    assert found.layouts[names["w0"]] == (S1,)
    assert found.layouts[names["w1"]] == (S0,)
    sums = [n for n in found.layouts if n.op is Op.SUM]
    assert [found.layouts[n] for n in sums if sizes(n) == (64, 8192)] == [(S1,), (S1,)]
    assert [sizes(n) for n in found.splits] == [(64, 4096)]  # one all-reduce, after the rows


def test_less_memory_shards_weights() -> None:
    mesh = mesh_of(4)
    names, free = plan(65536, 128, 128, mesh, limit=1 << 40)
    assert free.layouts[names["w1"]] == (R,)  # forward and backward read it
    names, tight = plan(65536, 128, 128, mesh, limit=free.choice.nbytes[0] - 3 * 128 * 128)
    assert isinstance(tight.layouts[names["w1"]][0], Shard)
    assert tight.choice.ns > free.choice.ns
    with pytest.raises(MemoryPlanError, match="pool 0 is too small"):
        plan(65536, 128, 128, mesh, limit=1000)


def test_sums_of_floats_are_not_split_where_bits_must_stay() -> None:
    _, found = plan(65536, 128, 128, mesh_of(4), reassociates=False)
    assert not found.splits
    assert found.choice.ns > plan(65536, 128, 128, mesh_of(4))[1].choice.ns
    x = [stored(64, 65536) for _ in range(2)]
    (y,) = expand_calls([(x[0].sum(1) + x[1].sum(1)).value.node])
    given: dict[Node, Layout] = {t.value.node: (S1,) for t in x}
    assert chosen([y], mesh_of(4), given=given).splits[y] == (Partial(),)
    assert not chosen([y], mesh_of(4), given=given, reassociates=False).splits


def test_faster_devices_get_larger_blocks() -> None:
    x, w = stored(4000, 256), stored(256, 256)
    y, node = expand_calls([(x @ w).value.node, x.value.node])
    speeds = [Rates(k * 1e11, 1e13, 0.0) for k in (1, 2, 3, 4)]
    found = chosen([y], mesh_of(4), rates=speeds)
    assert found.layouts[y] == found.layouts[node] == (Shard(0, (400, 1200, 2400, 4000)),)


def test_wishes_are_kept_and_everything_else_follows() -> None:
    names, _ = training_step(4096, 128, 128)
    wish: dict[Node, Layout] = {names["x"]: (R,), names["w0"]: (S1,)}
    found = chosen([names["loss"]], mesh_of(4), given=wish)
    assert {n: found.layouts[n] for n in wish} == wish


def test_terms_are_kept_where_they_are_asked_for() -> None:
    (y,) = expand_calls([(stored(64, 64) @ stored(64, 64)).value.node])
    found = chosen([y], mesh_of(4), given={y: (Partial(),)})
    assert found.layouts[y] == (Partial(),) and found.splits[y] == (Shard(2),)
    (x,) = [n for n in toposort([y]) if n.op is Op.MUL]
    with pytest.raises(ArgumentError, match="is no sum of terms"):
        chosen([x], mesh_of(4), given={x: (Partial(),)})


def test_copies_with_a_layout_are_wishes() -> None:
    x = stored(64, 64).value.node
    y = apply(Op.COPY, (x,), Target(HOME, (S1,)), x.shape, x.dtype)
    found = chosen([apply(Op.ADD, (y, y))], mesh_of(4))
    assert found.layouts[y] == (S1,)


def leaf_shards(nodes: Sequence[Node], found: Chosen, mesh: Mesh) -> dict[Node, list[Node]]:
    """Leaves without data, as the layouts say."""
    own: dict[Node, list[Node]] = {}
    for n in toposort(nodes):
        if n.storage is not None:
            where = zip(mesh.devices, boxes(found.layouts[n], sizes(n), mesh), strict=True)
            own[n] = [buffer(tuple(i.hi - i.lo for i in b), n.dtype, d, object()) for d, b in where]
    return own


@pytest.mark.parametrize("wish", ["data", "weights"])
def test_prices_are_the_bytes_that_lowering_moves(wish: str) -> None:
    """Where computing takes no time, and a byte a nanosecond, the price is what a device receives."""
    mesh = mesh_of(4)
    names, updates = training_step(512, 64, 64)
    nodes = [names[k] for k in ("loss", "w0'", "w1'")]
    x, w0, w1 = ((S0,), (R,), (R,)) if wish == "data" else ((R,), (S1,), (S0,))
    given = {names["x"]: x, names["w0"]: w0, names["w1"]: w1, names["w0'"]: w0, names["w1'"]: w1}
    rates = [Rates(1e30, 1e30, 0.0)] * 4
    found = choose(nodes, mesh, rates, Links.uniform(4, 0, 1e9), given=given, updates=updates)
    lowered = lower(nodes, mesh, found.layouts, leaf_shards(nodes, found, mesh), found.splits)
    received = [sum(f.nbytes for f in lowered.fetches if f.target == d) for d in mesh.devices]
    assert max(received) > 0
    assert found.choice.ns == pytest.approx(max(received), rel=0.02)


def test_tensors_without_elements_are_laid_out_too() -> None:
    (y,) = expand_calls([(stored(0, 4) @ stored(4, 3)).value.node])
    assert chosen([y], mesh_of(3)).layouts[y]
    assert chosen([y], mesh_of(1)).choice.gap == 0


def test_both_axes_of_a_mesh_are_decided_together() -> None:
    names, found = plan(8192, 1024, 4096, mesh_of(2, 2))
    assert found.choice.gap < 1e-3
    assert found.layouts[names["x"]] != (R, R)


def test_each_decision_names_the_price_of_what_was_not_taken() -> None:
    names, found = plan(4096, 64, 64, mesh_of(2))
    for d in found.decisions:
        assert d.form.layout == found.layouts[d.node]
        extra = [ns for _, ns in d.others]
        assert extra == sorted(extra) and (not extra or extra[0] >= -1e-6)
    of = {d.node: d for d in found.decisions}
    assert len(of[names["w0"]].others) == 2


def test_equal_layers_are_studied_once() -> None:
    def studies(layers: int) -> int:
        x = stored(64, 32)
        for _ in range(layers):
            x = x + (x @ stored(32, 64)).relu() @ stored(64, 32)
        chooser_studies.clear()
        chosen(expand_calls([x.value.node]), mesh_of(2))
        return len(chooser_studies)

    chooser_studies: list[object] = []
    original = layouts._Chooser._study

    def counted(self: Any, *args: Any) -> Any:
        chooser_studies.append(None)
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layouts._Chooser, "_study", counted)
        assert studies(6) == studies(12)


def test_devices_are_described_by_themselves_and_their_links() -> None:
    farm = DummyBackend([describe(k, "farm", flops=1e12 * (k + 1)) for k in range(3)], "farm")
    rates, between = described([farm.device(k) for k in range(3)])
    assert [r.flops for r in rates] == [1e12, 2e12, 3e12]
    assert between.send_ns(0, 1, 16_000) == pytest.approx(1000 + 1000)  # 16 GB/s to the host
    assert between.send_ns(2, 2, 16_000) == 0


def test_rates_are_of_the_devices_of_the_mesh() -> None:
    x = expand_calls([stored(4).value.node])
    with pytest.raises(ArgumentError, match="has 4 devices, 1 rates"):
        choose(x, mesh_of(4), [Rates(1, 1)], Links.uniform(4, 0, 1e9))


def test_what_is_laid_out_in_another_way_may_be_computed_in_parts() -> None:
    """A step of momentum whose new weight is asked for on every device: each computes its block, and fetches others."""
    w, m, g = (stored(512, 512).value.node for _ in range(3))
    new = apply(Op.SUB, (w, apply(Op.ADD, (m, g))))
    y = apply(Op.COPY, (new,), Target(HOME, (R,)), new.shape, new.dtype)
    rates = [Rates(1e9, 1e12, 0.0)] * 4  # computing is dear
    found = chosen([y], mesh_of(4), latency=0.0, rates=rates, given={w: (R,), m: (S0,), g: (S0,)})
    assert found.layouts[new] == (S0,) and found.layouts[y] == (R,)


def test_pinned_sums_cost_what_others_do() -> None:
    """A product is two operations for each of its terms, also where no device may add up a part of them."""
    mesh = Mesh("cpu:0", ("sim:0", "sim:1"), (2,))
    x, w = (Value(buffer((64, 64), float32, "cpu:0", object())) for _ in range(2))
    y = (wrap(x) @ wrap(w)).value.node
    with weft.numerics("same"):
        pinned = (wrap(x) @ wrap(w)).value.node
        same = choose([*expand_calls([pinned])], mesh, [Rates(1e9, 1e12, 0.0)] * 2, Links.uniform(2, 0, 1e15))
    free = choose([*expand_calls([y])], mesh, [Rates(1e9, 1e12, 0.0)] * 2, Links.uniform(2, 0, 1e15))
    assert same.choice.ns == free.choice.ns == pytest.approx(64 * 64 * 64 * 2 / 2, rel=1e-6)
