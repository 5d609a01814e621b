"""Functions compiled over several devices: as on one, without annotations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.compile.over_devices import OverDevices
from weft.errors import ArgumentError
from weft.ir.placement import Shard
from weft.testing import farm


@pytest.fixture(params=[2, 3])
def devices(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    with farm(request.param):
        yield [f"farm:{k}" for k in range(request.param)]


def trained(
    devices: list[str] | None, optimizer: str = "Adam", numerics: Literal["same"] | None = None
) -> tuple[list[float], nn.Module]:
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    found = getattr(weft.optim, optimizer)(model.parameters(), lr=0.05)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        found.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        found.step()
        return loss.detach()

    run = weft.compile(step, numerics=numerics, devices=devices)
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((2, 12, 9)).astype(np.float32) for _ in range(6)]
    losses = [run(weft.tensor(a[0, :, :6]), weft.tensor(a[1, :, :3])).item() for a in batches]
    return losses, model


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_training_step_is_spread_without_annotations(devices: list[str], optimizer: str) -> None:
    losses, model = trained(None, optimizer)
    spread, other = trained(devices, optimizer)
    np.testing.assert_allclose(spread, losses, rtol=1e-5)
    for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        np.testing.assert_allclose(q.numpy(), p.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
        assert str(q.device).startswith("mesh")
        assert q.is_leaf and q.grad is not None


def test_bits_are_those_of_one_device(devices: list[str]) -> None:
    with weft.device("farm:0"):
        losses, model = trained(None, "Adam", "same")
        spread, other = trained(devices, "Adam", "same")
    assert spread == losses
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(q.numpy(), p.numpy())


def test_large_batches_are_parted_where_computing_takes_longer_than_exchanging() -> None:
    with farm(4, flops=1e9, bandwidth=1e12):
        w = weft.tensor(np.ones((256, 256), np.float32))
        f = weft.compile(lambda x: (x @ w).relu().sum(), devices="farm:*")
        assert isinstance(f, OverDevices)
        x = weft.tensor(np.ones((512, 256), np.float32))
        assert [f(x).item() for _ in range(3)] == [512 * 256 * 256.0] * 3
        assert f.chosen is not None
        assert any(isinstance(p, Shard) for layout in f.chosen.layouts.values() for p in layout)
        assert f(x).device.type == "cpu"


def test_one_device_is_as_without(devices: list[str]) -> None:
    f = weft.compile(lambda x: x + 1, devices=["cpu:0"])
    assert f(weft.ones(2)).tolist() == [2.0, 2.0]


def test_what_is_asked_of_devices_is_checked(devices: list[str]) -> None:
    with pytest.raises(ArgumentError, match="devices is a list of names"):
        weft.compile(lambda x: x, devices="farm:0")
    with pytest.raises(ArgumentError, match="a device may be in a mesh once"):
        weft.compile(lambda x: x, devices=["farm:0", "farm:0"])


def test_without_reassociation_no_sum_is_split(devices: list[str]) -> None:
    x = weft.tensor(np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32))
    one = weft.compile(lambda x: x.softmax(1).sum(1), numerics="same")
    many = weft.compile(lambda x: x.softmax(1).sum(1), devices=devices, numerics="same")
    for _ in range(3):
        np.testing.assert_array_equal(many(x).numpy(), one(x).numpy())
    assert many.chosen is not None and not many.chosen.splits
