"""DTensor, and new tensors on a mesh."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.distributed import init_device_mesh
from weft.distributed import tensor as dt
from weft.distributed.tensor import DTensor, Replicate, Shard
from weft.errors import ArgumentError


def test_every_tensor_on_a_mesh_is_an_instance() -> None:
    mesh = init_device_mesh("dummy", (2,))
    x = dt.ones(4, 2, device_mesh=mesh, placements=[Shard(0)])
    assert isinstance(x, DTensor) and isinstance(x, weft.Tensor)
    assert isinstance(x * 2, DTensor)
    assert not isinstance(x.full_tensor(), DTensor)
    assert not isinstance(3, DTensor)
    with pytest.raises(ArgumentError, match="distribute_tensor"):
        DTensor()


def test_new_tensors_are_what_they_are_on_one_device() -> None:
    mesh = init_device_mesh("dummy", (3,))
    for name in ("zeros", "ones", "rand", "randn"):
        weft.manual_seed(5)
        expected = getattr(weft, name)(4, 2).numpy()
        weft.manual_seed(5)
        x = getattr(dt, name)(4, 2, device_mesh=mesh, placements=[Shard(0)], requires_grad=True)
        assert np.array_equal(x.numpy(), expected)
        assert x.placements == (Shard(0),) and x.requires_grad and x.is_leaf
    assert dt.full((2, 2), 7, device_mesh=mesh).tolist() == [[7, 7], [7, 7]]
    assert dt.empty(2, device_mesh=mesh).placements == (Replicate(),)
