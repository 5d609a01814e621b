"""A device that slows down gets less to do, if that lasts: layouts are chosen anew, and nothing else changes."""
# Tests: weft/core/compile/over_devices.py

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.distributed.test_speeds import network, training
from weft.backends.dummy.device import DummyDevice
from weft.backends.dummy.faults import Faults
from weft.core.compile import over_devices
from weft.distributed.tensor import Replicate
from weft.ir.placement import Shard
from weft.scheduler.placing import load
from weft.testing import farm


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_devices, "WATCHED_EVERY", 2)


def steps(faults: Sequence[Faults], count: int, change: int) -> tuple[list[float], Any]:
    """The times of steps on four devices, which have these faults from step `change` on; the compiled function."""
    with farm(4, timing_only=True, link_bandwidth=1e11) as f:
        model = network(128, 2)
        optimizer = weft.optim.Adam(model.parameters(), lr=0.01)
        step = weft.compile(training(model, optimizer), devices=f.names)
        x, y = weft.zeros(2048, 128), weft.zeros(2048, 128)
        times: list[float] = []
        for k in range(count):
            if k == change:
                for device, its in zip(f.devices, faults, strict=False):
                    device.faults = its
            before = f.host.ns
            step(x, y)
            for device in f.devices:
                device.synchronize()
            times.append(f.host.ns - before)
        return times, step


def test_a_device_that_slows_down_for_good_gets_less_to_do() -> None:
    times, step = steps([Faults(slower=3.0)], 100, change=10)
    usual, slow, after = (min(times[k : k + 2]) for k in (8, 10, 98))  # one of two is timed
    assert slow > 2.5 * usual
    assert step.slower == (3.0, 1.0, 1.0, 1.0)
    assert after <= 1.1 * usual * 4 / (3 + 1 / 3)


def test_a_device_that_recovers_gets_its_part_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "WINDOW", 4)
    with farm(2, timing_only=True, link_bandwidth=1e11) as f:
        model = network(128, 2)
        step: Any = weft.compile(
            training(model, weft.optim.SGD(model.parameters(), lr=0.01)), devices=f.names
        )
        x, y = weft.zeros(2048, 128), weft.zeros(2048, 128)
        seen: list[tuple[float, ...]] = []
        for slower in (1.0, 2.0, 1.0):
            f.device(1).faults = Faults(slower=slower)
            for _ in range(30):
                step(x, y)
            seen.append(step.slower)
    assert seen == [(), (1.0, 2.0), (1.0, 1.0)]


def test_noise_changes_nothing() -> None:
    _, step = steps([Faults(noise=0.9, seed=k) for k in range(4)], 200, change=0)
    assert step.slower == ()


def test_values_are_those_of_one_device_throughout() -> None:
    def trained(devices: list[str] | None, slow: DummyDevice | None = None) -> tuple[list[weft.Tensor], Any]:
        model = network(16, 2)
        optimizer = weft.optim.Adam(model.parameters(), lr=0.01)
        run: Any = weft.compile(training(model, optimizer), numerics="same", devices=devices)
        weft.manual_seed(1)
        for k in range(50):
            if slow is not None and k == 4:
                slow.faults = Faults(slower=4.0)
            run(weft.randn(96, 16), weft.randn(96, 16))
        state = [m for p in model.parameters() for m in optimizer.state[p].values()]
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [*model.parameters(), *grads, *state], run

    one, _ = trained(None)
    with farm(3, flops=1e7, link_bandwidth=1e12, launch_ns=0.0) as f:
        found, run = trained(f.names, f.device(2))
        assert run.slower == (1.0, 1.0, 4.0)
        blocks = {d.form.layout for d in run.chosen.decisions if d.node.shape == (96, 16)}
        assert blocks == {(Shard(0, (43, 86, 96)),)}
        for a, b in zip(one, found, strict=True):
            np.testing.assert_array_equal(np.asarray(a.numpy()), np.asarray(b.numpy()))


def test_blocks_of_arguments_change_where_state_stays_as_it_is() -> None:
    with farm(2, flops=1e7, link_bandwidth=1e10, launch_ns=0.0) as f:
        weight = weft.randn(16, 16).realize()
        run: Any = weft.compile(lambda x: (x @ weight).relu(), devices=f.names)
        x, times, placements = weft.randn(240, 16), list[float](), list[Any]()
        for k in range(50):
            if k == 10:
                f.device(0).faults = Faults(slower=3.0)
            before = f.host.ns
            np.testing.assert_allclose(run(x).numpy(), np.maximum(x.numpy() @ weight.numpy(), 0), atol=1e-5)
            times.append(f.host.ns - before)
            placements.append(weight.placements if k > 4 else None)
        assert run.slower == (3.0, 1.0) and placements[6] == placements[-1] == (Replicate(),)
        slow, after = (min(times[k : k + 2]) for k in (10, 48))
        assert after <= 1.1 * slow / 2  # a quarter and three quarters, of what was a half each
