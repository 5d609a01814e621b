"""In the mode "same", ten steps of Adam have the bits of one device: forward, backward, weights and moments."""
# Tests: weft/scheduler/sharding/lower.py

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import weft
from tests.distributed.models import LanguageModel, Trained, perceptron, trained
from tests.distributed.test_training import adam, tensor_parallel
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.fsdp import fully_shard
from weft.distributed.tensor import Placement, Replicate, Shard, distribute_module
from weft.testing import farm

STEPS = 10


@cache
def on_one(make: Any, rows: int) -> Trained:
    return trained(make, adam, steps=STEPS, rows=rows)


@pytest.fixture(autouse=True)
def same() -> Iterator[None]:
    with weft.numerics("same"):
        yield


def check(make: Any, rows: int, mesh: DeviceMesh, spread: Any, batch: Placement) -> None:
    found = trained(make, adam, spread, mesh, batch, steps=STEPS, rows=rows)
    one = on_one(make, rows)
    assert found.losses == one.losses
    pairs = zip(one.model.named_parameters(), found.model.parameters(), strict=True)
    for (name, p), q in pairs:
        own, other = one.optimizer.state[p], found.optimizer.state[q]
        for what, a, b in [
            ("it", p, q),
            ("its gradient", p.grad, q.grad),
            *((k, own[k], other[k]) for k in own),
        ]:
            np.testing.assert_array_equal(
                np.asarray(b.numpy()), np.asarray(a.numpy()), err_msg=f"{name}: {what}"
            )


BATCHES, COLUMNS, ONCE = "batches", "columns and rows", "nothing twice"


@pytest.mark.parametrize(
    "world, rows, ways",
    [
        (1, 8, [ONCE]), (2, 13, [BATCHES, COLUMNS]), (3, 13, [BATCHES, ONCE]), (4, 8, [COLUMNS, ONCE]),
        (8, 13, [BATCHES, ONCE]),
    ],
)  # fmt: skip
def test_ten_steps_have_the_bits_of_one_device(world: int, rows: int, ways: list[str]) -> None:
    """In blocks that are equal and in such that are not."""
    with farm(world) as made:
        mesh = init_device_mesh(made.names, (world,))
        spread: dict[str, Any] = {
            BATCHES: lambda m: distribute_module(m, mesh),
            COLUMNS: lambda m: tensor_parallel(perceptron, m, mesh),
            ONCE: lambda m: fully_shard(m, mesh=mesh),
        }
        for way in ways:
            check(perceptron, rows, mesh, spread[way], Replicate() if way == COLUMNS else Shard(0))


def test_ten_steps_of_a_transformer_have_the_bits_of_one_device() -> None:
    with farm(3) as made:
        mesh = init_device_mesh(made.names, (3,))
        check(LanguageModel, 5, mesh, lambda m: fully_shard(m, mesh=mesh), Shard(0))
