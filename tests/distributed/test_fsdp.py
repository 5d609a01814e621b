"""fully_shard: parameters in blocks over a mesh."""

from __future__ import annotations

import io

import numpy as np
import pytest

import weft
from tests.distributed.models import LanguageModel, perceptron
from weft.distributed import init_device_mesh
from weft.distributed.fsdp import fully_shard
from weft.distributed.tensor import DTensor, Replicate, Shard
from weft.errors import ArgumentError


def test_parameters_stay_the_same_objects_in_blocks() -> None:
    model = perceptron()
    before, values = list(model.parameters()), [p.numpy() for p in model.parameters()]
    mesh = init_device_mesh("dummy", (4,))
    assert fully_shard(model, mesh=mesh) is model
    assert all(p is q and p.requires_grad for p, q in zip(model.parameters(), before, strict=True))
    assert all(p.placements == (Shard(0),) for p in before)
    assert all(np.array_equal(p.numpy(), v) for p, v in zip(before, values, strict=True))
    assert [t.shape[0] for t in before[0].to_local()] == [4, 4, 4, 4]


def test_modules_inside_may_be_sharded_before() -> None:
    model = LanguageModel()
    mesh = init_device_mesh("dummy", (2,))
    fully_shard(model.block, mesh=mesh, shard_placement_fn=lambda p: Shard(p.ndim - 1))
    fully_shard(model, mesh=mesh)
    assert model.block.up.weight.placements == (Shard(1),)
    assert model.head.weight.placements == (Shard(0),)


def test_inputs_that_are_on_no_mesh_are_laid_out_by_rows() -> None:
    model = perceptron()
    x = weft.randn(5, 6)
    expected = model(x).numpy()
    fully_shard(model, mesh=init_device_mesh("dummy", (2,)))
    y = model(x)
    assert isinstance(y, DTensor)
    assert np.allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_over_two_dimensions_blocks_lie_along_the_second() -> None:
    model = fully_shard(perceptron(), mesh=init_device_mesh("dummy", (2, 2)))
    assert all(p.placements == (Replicate(), Shard(0)) for p in model.parameters())


def test_state_is_saved_whole_and_loaded_in_blocks() -> None:
    mesh = init_device_mesh("dummy", (3,))
    model, other = (fully_shard(perceptron(), mesh=mesh) for _ in range(2))
    optimizer = weft.optim.Adam(model.parameters())
    model(weft.randn(5, 6)).square().sum().backward()
    optimizer.step()
    file = io.BytesIO()
    weft.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    file.seek(0)
    saved = weft.load(file, map_location="cpu")
    other.load_state_dict(saved["model"])
    again = weft.optim.Adam(other.parameters())
    again.load_state_dict(saved["optimizer"])
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        assert q.placements == (Shard(0),)
        assert np.array_equal(p.numpy(), q.numpy())
        for name, t in optimizer.state[p].items():
            assert np.array_equal(again.state[q][name].numpy(), t.numpy())
            assert again.state[q][name].placements == t.placements == (Shard(0),)


def test_without_a_mesh_nothing_is_sharded() -> None:
    model = perceptron()
    with pytest.raises(ArgumentError, match="fully_shard: needs mesh="):
        fully_shard(model)
    with pytest.raises(ArgumentError, match="one or two dimensions"):
        fully_shard(model, mesh=init_device_mesh("dummy", (2, 1, 2)))
    assert not any(isinstance(p, DTensor) for p in model.parameters())
