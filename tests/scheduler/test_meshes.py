"""Graphs on meshes as graphs on their devices."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.distributed import init_device_mesh
from weft.distributed.tensor import Replicate, Shard, distribute_tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import float32
from weft.ir.graph import apply, buffer, toposort
from weft.ir.ops import Op
from weft.ir.placement import is_mesh
from weft.scheduler import meshes
from weft.scheduler.realize import default_device, realize

A = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_node_becomes_a_node_for_each_device() -> None:
    x = distribute_tensor(weft.tensor(A), init_device_mesh("dummy", (2,)), [Shard(0)]).realize()
    local = meshes.localized([(x * 2).value.node], default_device)
    (laid,) = local.found
    assert isinstance(laid, meshes.Laid)
    assert laid.shape == (4, 3)
    assert [n.device for n in laid.nodes] == ["dummy:0", "dummy:1"]
    assert [n.shape for n in laid.nodes] == [(2, 3), (2, 3)]
    assert local.fetches == ()


def test_what_a_device_lacks_is_fetched() -> None:
    mesh = init_device_mesh("dummy", (2,))
    x = distribute_tensor(weft.tensor(A), mesh, [Shard(0)]).realize()
    local = meshes.localized([weft.shard(x * 2, None, None).value.node], default_device)
    assert [(f.source, f.target, f.nbytes) for f in local.fetches] == [
        ("dummy:1", "dummy:0", 24), ("dummy:0", "dummy:1", 24),
    ]  # fmt: skip


def test_equal_structures_are_lowered_once_and_other_layouts_anew() -> None:
    mesh = init_device_mesh("dummy", (2,))

    def computed(placement: object) -> int:
        x = distribute_tensor(weft.tensor(A), mesh, [placement]).realize()
        assert np.allclose((x * 5 - 2).numpy(), A * 5 - 2)
        return len(meshes._templates)

    meshes._templates.clear()  # as many as are kept would not grow
    first = computed(Shard(0))
    assert computed(Shard(0)) == first
    assert computed(Shard(1)) == first + 2  # laying out is one, too


def test_kept_structures_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meshes, "LOWERED_KEPT", 2)
    x = distribute_tensor(weft.tensor(A), init_device_mesh("dummy", (2,)), [Shard(0)]).realize()
    for n in range(1, 5):
        y = x
        for _ in range(n):
            y = y.sin()
        y.realize()
        assert len(meshes._templates) <= 2


def test_what_is_kept_holds_no_values() -> None:
    x = distribute_tensor(weft.tensor(A), init_device_mesh("dummy", (2,)), [Shard(0)]).realize()
    (x + 7).realize()
    for template in meshes._templates.values():
        assert all(n.storage is None for places in template.leaves for n in places)


def test_two_meshes_meet_through_copies() -> None:
    one = init_device_mesh("dummy", (2,))
    two = init_device_mesh(["dummy:2", "dummy:3", "cpu"], (3,))
    x = distribute_tensor(weft.tensor(A), one, [Shard(0)])
    y = (x * 2).to(two.name) + 1
    z = distribute_tensor(y, two, [Shard(1)])
    back = (z * 3).to(one.name)
    assert np.allclose(back.numpy(), (A * 2 + 1) * 3)
    assert z.placements == (Shard(1),)


def test_free_axes_are_as_without_the_wish() -> None:
    mesh = init_device_mesh("dummy", (2, 2), mesh_dim_names=("a", "b"))
    x = distribute_tensor(weft.tensor(A), mesh, [Shard(0), Replicate()])
    y = distribute_tensor(x * 2 + 1, mesh["b"], [Shard(1)])
    assert y.placements == (Shard(0), Shard(1))
    assert np.allclose(y.numpy(), A * 2 + 1)


def test_no_local_node_is_on_a_mesh() -> None:
    mesh = init_device_mesh("dummy", (3,))
    x = distribute_tensor(weft.tensor(A), mesh, [Shard(0)]).realize()
    nodes = [((x @ x.T).softmax(-1).sum(0) * weft.tensor(2.0)).value.node]
    order = toposort(meshes.localized(nodes, default_device).nodes)
    assert len(order) > 10
    assert not any(is_mesh(n.device) for n in order)


def test_runtime_sizes_are_refused() -> None:
    x = distribute_tensor(weft.tensor(A), init_device_mesh("dummy", (2,)), [Shard(0)]).realize()
    with pytest.raises(ArgumentError, match="sizes on a mesh must be known, and n is a runtime variable"):
        (x[: weft.Variable("n", 1, 4)] * 2).realize()


def test_a_leaf_without_a_value_is_refused() -> None:
    nothing = buffer((2,), float32, init_device_mesh("dummy", (2,)).name, None)
    with pytest.raises(ArgumentError, match="it has no value"):
        realize([apply(Op.NEG, (nothing,))])
