"""Lowered graphs against the global ones: random graphs, layouts, splits and meshes, exactly (numbers are whole)."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir.graph import Axes, Node, apply, buffer, toposort
from weft.ir.graph_verify import verify_graph
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard, boxes
from weft.scheduler.sharding import lower as lowering
from weft.scheduler.sharding.lower import Lowered, Split, lower
from weft.scheduler.sharding.terms import contraction
from weft.testing.dependence import leaf, sizes, some_node, some_shape
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
