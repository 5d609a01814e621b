"""Layouts: boxes against torch.chunk's sizes, nesting, bounds, and what is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from weft.ir.dtypes import float32
from weft.ir.errors import IRError
from weft.ir.graph import Target, apply, buffer
from weft.ir.graph_text import show_graph
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Replicate, Shard, boxes, check


def grid(*shape: int) -> Mesh:
    return Mesh("mesh:0", tuple(f"dummy:{k}" for k in range(int(np.prod(shape)))), shape)


def sides(layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> list[tuple[Any, ...]]:
    return [tuple((i.lo, i.hi) for i in b) for b in boxes(layout, shape, mesh)]


@pytest.mark.parametrize("size", [0, 1, 3, 8, 13])
@pytest.mark.parametrize("devices", [1, 2, 4, 7])
def test_blocks_are_those_of_torch_chunk(size: int, devices: int) -> None:
    torch = pytest.importorskip("torch")
    chunks = [len(c) for c in torch.arange(size).chunk(devices)] if size else []
    found = sides((Shard(0),), (size,), grid(devices))
    assert [hi - lo for ((lo, hi),) in found] == chunks + [0] * (devices - len(chunks))


def test_an_axis_that_two_mesh_axes_shard_is_parted_from_left_to_right() -> None:
    found = sides((Shard(0), Shard(0)), (10,), grid(2, 3))
    assert found == [((0, 2),), ((2, 4),), ((4, 5),), ((5, 7),), ((7, 9),), ((9, 10),)]


def test_shards_of_two_axes_and_replicas() -> None:
    found = sides((Shard(1), Shard(0)), (4, 5), grid(2, 2))
    assert found == [((0, 2), (0, 3)), ((2, 4), (0, 3)), ((0, 2), (3, 5)), ((2, 4), (3, 5))]
    assert sides((Replicate(), Partial()), (4, 5), grid(2, 2)) == [((0, 4), (0, 5))] * 4


def test_bounds_are_kept_as_they_are() -> None:
    assert sides((Shard(0, (1, 1, 9)),), (9,), grid(3)) == [((0, 1),), ((1, 1),), ((1, 9),)]
    nested = sides((Shard(0), Shard(0, (4, 5))), (9,), grid(2, 2))
    assert nested == [((0, 4),), ((4, 5),), ((5, 9),), ((9, 9),)]


@pytest.mark.parametrize("mesh", [grid(5), grid(2, 3)])
def test_every_element_is_held(mesh: Mesh) -> None:
    shape = (7, 4)
    options = [Replicate(), Shard(0), Shard(1)]
    for layout in itertools.product(options, repeat=len(mesh.shape)):
        held = np.zeros(shape, int)
        for box in boxes(layout, shape, mesh):
            held[tuple(slice(i.lo, i.hi) for i in box)] += 1
        replicas = np.prod([n for n, p in zip(mesh.shape, layout, strict=True) if p == Replicate()])
        assert (held == replicas).all()


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ((Shard(0), Shard(0)), "2 placements"),
        ((Shard(2),), "2 axes"),
        ((Shard(-1),), "2 axes"),
        ((Shard(0, (1, 2)),), "does not part 3"),
        ((Shard(0, (2, 1, 3)),), "does not part 3"),
        ((Partial(Op.SUB),), "does not combine"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(layout: Layout, reason: str) -> None:
    with pytest.raises(IRError, match=reason):
        check(layout, (3, 4), grid(3))


def test_a_layout_that_fits_is_not_refused() -> None:
    check((Shard(0, (0, 2, 3)),), (3, 4), grid(3))
    check((Shard(0), Shard(0, (1, 9))), (3, 4), grid(3, 2))
    check((Partial(Op.MAX),), (), grid(3))


def test_a_mesh_has_each_device_once_in_a_grid() -> None:
    with pytest.raises(IRError, match="2 devices"):
        Mesh("mesh:0", ("a", "b"), (3,))
    with pytest.raises(IRError, match="twice"):
        Mesh("mesh:0", ("a", "a"), (2,))
    with pytest.raises(IRError, match="name"):
        Mesh("mesh:0", ("a", "b"), (2,), ("x", "y"))
    assert [grid(2, 3).coordinates(k) for k in (0, 2, 3)] == [(0, 0), (0, 2), (1, 0)]


def test_a_copy_with_a_layout_is_kept_on_its_own_device() -> None:
    x = buffer((4,), float32, "mesh:0", None)
    assert apply(Op.COPY, (x,), Target("mesh:0")) is x
    laid = apply(Op.COPY, (x,), Target("mesh:0", (Shard(0),)))
    assert laid.op is Op.COPY and laid.device == "mesh:0"
    assert laid is not apply(Op.COPY, (x,), Target("mesh:0", (Replicate(),)))
    assert "layout=(Shard(dim=0" in show_graph([laid])
