"""Models trained on meshes of simulated devices are those that one device trains."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import weft
from tests.distributed.models import LanguageModel, Trained, perceptron, trained
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.fsdp import fully_shard
from weft.distributed.tensor import Replicate, Shard, distribute_module
from weft.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def sgd(parameters: Any) -> Any:
    return weft.optim.SGD(parameters, lr=0.1, momentum=0.9)


def adam(parameters: Any) -> Any:
    return weft.optim.Adam(parameters, lr=0.01)


@cache
def on_one(make: Any, optimizer: Any) -> Trained:
    return trained(make, optimizer)


COLUMNS_AND_ROWS = {
    perceptron: {"0": ColwiseParallel, "2": RowwiseParallel},
    LanguageModel: {
        "embedding": RowwiseParallel, "block.[qkv]": ColwiseParallel, "block.out": RowwiseParallel,
        "block.up": ColwiseParallel, "block.down": RowwiseParallel, "head": ColwiseParallel,
    },
}  # fmt: skip


def tensor_parallel(make: Any, model: Any, mesh: DeviceMesh) -> None:
    parallelize_module(model, mesh, {name: style() for name, style in COLUMNS_AND_ROWS[make].items()})
    distribute_module(model, mesh)


@pytest.mark.parametrize(
    ("make", "optimizer", "sizes"),
    [(perceptron, sgd, (3,)), (perceptron, adam, (2, 4)), (LanguageModel, adam, (3,))],
    ids=["perceptron-sgd", "perceptron-adam", "transformer"],
)
class TestTraining:
    def test_by_batches(self, make: Any, optimizer: Any, sizes: tuple[int, ...]) -> None:
        for n in sizes:
            mesh = init_device_mesh("dummy", (n,))
            found = trained(make, optimizer, lambda m, mesh=mesh: distribute_module(m, mesh), mesh, Shard(0))
            found.assert_like(on_one(make, optimizer))
            assert all(p.placements == (Replicate(),) for p in found.model.parameters())

    def test_by_columns_and_rows(self, make: Any, optimizer: Any, sizes: tuple[int, ...]) -> None:
        for n in sizes:
            mesh = init_device_mesh("dummy", (n,))
            found = trained(
                make, optimizer, lambda m, mesh=mesh: tensor_parallel(make, m, mesh), mesh, Replicate()
            )
            found.assert_like(on_one(make, optimizer))
            if make is perceptron:
                first, bias, second, _ = found.model.parameters()
                assert (first.placements, bias.placements, second.placements) == (
                    (Shard(0),),
                    (Shard(0),),
                    (Shard(1),),
                )
                assert found.optimizer.state[second].popitem()[1].placements == (Shard(1),)

    def test_with_nothing_twice(self, make: Any, optimizer: Any, sizes: tuple[int, ...]) -> None:
        for n in sizes:
            mesh = init_device_mesh("dummy", (n,))
            found = trained(make, optimizer, lambda m, mesh=mesh: fully_shard(m, mesh=mesh), mesh, Shard(0))
            found.assert_like(on_one(make, optimizer))
            for p in found.model.parameters():
                assert p.placements == p.grad.placements == (Shard(0),)
                assert all(t.placements == (Shard(0),) for t in found.optimizer.state[p].values())


def test_a_compiled_step_trains_the_same() -> None:
    mesh = init_device_mesh("dummy", (2,))
    found = trained(perceptron, adam, lambda m: fully_shard(m, mesh=mesh), mesh, Shard(0), compiled=True)
    found.assert_like(on_one(perceptron, adam))
    assert all(p.placements == (Shard(0),) for p in found.model.parameters())


def test_two_dimensions_are_for_two_kinds_of_parallelism() -> None:
    mesh = init_device_mesh("dummy", (2, 2), mesh_dim_names=("dp", "tp"))

    def spread(model: Any) -> None:
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])

    found = trained(perceptron, sgd, spread, mesh["dp"], Shard(0))
    found.assert_like(on_one(perceptron, sgd))
    first, _, second, _ = found.model.parameters()
    assert first.placements == (Shard(0), Shard(0))
    assert second.placements == (Shard(0), Shard(1))


def test_devices_may_be_of_different_kinds() -> None:
    mesh = init_device_mesh(["cpu", "dummy:1"], (2,))
    found = trained(perceptron, sgd, lambda m: fully_shard(m, mesh=mesh), mesh, Shard(0))
    found.assert_like(on_one(perceptron, sgd))
