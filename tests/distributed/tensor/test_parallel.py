"""Tensor parallelism: layers by columns and rows."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft import nn
from weft.distributed import init_device_mesh
from weft.distributed.tensor import Replicate, Shard
from weft.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from weft.errors import ArgumentError, DTypeError

MESH = init_device_mesh("dummy", (2,))


@pytest.mark.parametrize(
    ("style", "weight", "bias", "out"),
    [
        (ColwiseParallel(), Shard(0), Shard(0), Shard(1)),
        (ColwiseParallel(output_layouts=Replicate()), Shard(0), Shard(0), Replicate()),
        (RowwiseParallel(), Shard(1), Replicate(), Replicate()),
        (
            RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
            Shard(1),
            Replicate(),
            Shard(0),
        ),
    ],
)
def test_linear_layers(style: object, weight: object, bias: object, out: object) -> None:
    layer, x = nn.Linear(4, 6), weft.randn(3, 4)
    expected = layer(x).numpy()
    assert parallelize_module(layer, MESH, style) is layer
    assert (layer.weight.placements, layer.bias.placements) == ((weight,), (bias,))
    y = layer(x)
    assert y.placements == (out,)
    assert np.allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("style", "weight"), [(ColwiseParallel(), Shard(1)), (RowwiseParallel(), Shard(0))])
def test_embeddings(style: object, weight: object) -> None:
    layer, ids = nn.Embedding(5, 4), weft.tensor([[0, 4], [2, 2]])
    expected = layer(ids).numpy()
    parallelize_module(layer, MESH, style)
    assert layer.weight.placements == (weight,)
    assert np.array_equal(layer(ids).numpy(), expected)


def test_layers_of_each_position() -> None:
    layer, x = nn.LayerNorm(4), weft.randn(2, 6, 4)
    expected = layer(x).numpy()
    parallelize_module(layer, MESH, SequenceParallel())
    y = layer(x)
    assert (layer.weight.placements, y.placements) == ((Replicate(),), (Shard(1),))
    assert np.allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_inputs_and_outputs_are_prepared() -> None:
    model = nn.Identity()
    parallelize_module(
        model, MESH, PrepareModuleInput(input_layouts=Shard(0), desired_input_layouts=Replicate())
    )
    assert model(weft.ones(4)).placements == (Replicate(),)
    parallelize_module(
        model, MESH, PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    )
    assert model(weft.ones(4)).placements == (Shard(0),)
    with pytest.raises(ArgumentError, match="same length"):
        PrepareModuleInput(input_layouts=(Shard(0),), desired_input_layouts=())


def test_other_dimensions_of_the_mesh_are_left_alone() -> None:
    mesh = init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))
    layer, x = nn.Linear(4, 6), weft.randn(3, 4)
    expected = layer(x).numpy()
    parallelize_module(layer, mesh["tp"], ColwiseParallel())
    laid = weft.distributed.tensor.distribute_tensor(x, mesh["dp"], [Shard(0)])
    y = layer(laid)
    assert y.placements == (Shard(0), Shard(1))
    assert np.allclose(y.numpy(), expected, rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with pytest.raises(ArgumentError, match=r"no submodule of Sequential is called 'x\.y'"):
        parallelize_module(model, MESH, {"x.y": ColwiseParallel()})
    with pytest.raises(DTypeError, match="ColwiseParallel: only Linear and Embedding are known, got ReLU"):
        parallelize_module(model, MESH, {"1": ColwiseParallel()})
    with pytest.raises(ArgumentError, match=r"one dimension, .* as mesh\['tp'\]"):
        parallelize_module(model, init_device_mesh("dummy", (2, 2)), {"0": ColwiseParallel()})
    with pytest.raises(ArgumentError, match="needs a mesh"):
        parallelize_module(model, None, {"0": ColwiseParallel()})
