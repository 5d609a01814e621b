"""Devices of unequal speeds: a training step takes hardly longer than its work over the sum of speeds."""
# Tests: weft/scheduler/placing/layouts.py

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from benchmarks.sharding import SPEEDS, network, step_ns, training
from weft.distributed.tensor import Replicate
from weft.ir.placement import Shard
from weft.testing import farm


@pytest.mark.parametrize(
    "optimizer, rows, width, link_bandwidth, most",
    [
        (weft.optim.SGD, 8192, 256, 1e11, 1.025),
        (weft.optim.Adam, 4096, 256, 1e11, 1.035),
        (weft.optim.Adam, 2048, 512, 16e9, 1.05),
    ],
)
def test_a_training_step_takes_its_work_over_the_sum_of_speeds(
    optimizer: Any, rows: int, width: int, link_bandwidth: float, most: float
) -> None:
    one = step_ns((1.0, 1.0), 1, optimizer, rows, width, link_bandwidth)
    assert step_ns(SPEEDS, len(SPEEDS), optimizer, rows, width, link_bandwidth) <= most * one / sum(SPEEDS)


def test_gradients_stay_where_they_are_made() -> None:
    with farm(4, speeds=SPEEDS, timing_only=True, link_bandwidth=16e9) as f:
        model = network(512, 3)
        run = weft.compile(training(model, weft.optim.Adam(model.parameters(), lr=0.01)), devices=f.names)
        for _ in range(4):
            run(weft.zeros(2048, 512), weft.zeros(2048, 512))
        weight = model[2].weight
        assert weight.placements == (Replicate(),)  # every device reads all of it, twice
        assert weight.grad.placements[0].is_shard(), (
            "its new values are made in blocks, which alone are fetched"
        )


def test_blocks_by_speed_have_the_bits_of_one_device() -> None:
    def trained(**devices: Any) -> tuple[list[np.ndarray[Any, Any]], Any]:
        model = network(32, 2)
        step = training(model, weft.optim.Adam(model.parameters(), lr=0.01))
        run = weft.compile(step, numerics="same", **devices)
        weft.manual_seed(1)
        for _ in range(5):
            run(weft.randn(650, 32), weft.randn(650, 32))
        return [np.asarray(p.numpy()) for p in model.parameters()], run

    one, _ = trained()
    with farm(4, speeds=SPEEDS, flops=1e8, link_bandwidth=1e12, launch_ns=0.0):
        found, run = trained(devices="farm:*")
        layouts = [d.form.layout for d in run.chosen.decisions if d.node.shape == (650, 32)]
        assert layouts and set(layouts) == {(Shard(0, (65, 195, 390, 650)),)}
    for a, b in zip(one, found, strict=True):
        np.testing.assert_array_equal(a, b)
