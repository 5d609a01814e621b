"""distribute_module: parameters, inputs and outputs of modules on a mesh."""

from __future__ import annotations

from typing import Any

import numpy as np

import weft
from weft import nn
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor


def test_what_is_not_partitioned_is_on_each_device() -> None:
    mesh = init_device_mesh("dummy", (2,))
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))

    def partition(name: str, module: Any, mesh: DeviceMesh) -> None:
        if isinstance(module, nn.Linear):
            module.weight = nn.Parameter(distribute_tensor(module.weight, mesh, [Shard(0)]))

    assert distribute_module(model, mesh, partition) is model
    assert model[0].weight.placements == (Shard(0),)
    assert model[0].bias.placements == (Replicate(),)
    assert all(isinstance(t, DTensor) for t in (*model.parameters(), *model.buffers()))


def test_inputs_and_outputs_are_changed_where_they_pass() -> None:
    mesh = init_device_mesh("dummy", (2,))
    model = nn.Linear(3, 4)
    x = weft.randn(5, 3)
    expected = model(x).numpy()
    distribute_module(
        model, mesh, None,
        lambda m, inputs, mesh: tuple(distribute_tensor(t, mesh, [Shard(0)]) for t in inputs),
        lambda m, output, mesh: output.full_tensor(),
    )  # fmt: skip
    y = model(x)
    assert not isinstance(y, DTensor)
    assert np.allclose(y.numpy(), expected, rtol=1e-6)
