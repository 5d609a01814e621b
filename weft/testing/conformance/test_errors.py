"""Errors are reported, and harm nothing."""

from __future__ import annotations

import numpy as np
import pytest

import weft
from weft.backends.protocol import Device
from weft.backends.registry import open_backend, open_device
from weft.testing.conformance.harness import Harness
from weft.testing.conformance.test_queues import increment, zeros


def test_there_is_no_such_device(device_name: str) -> None:
    """A number too high: a DeviceError that says which there are."""
    kind = device_name.partition(":")[0]
    with pytest.raises(weft.DeviceError, match=f"there is no device {kind}:999"):
        open_device(f"{kind}:999")
    assert open_backend(kind).count() >= 1


def test_memory_of_others(device: Device, harness: Harness) -> None:
    """Memory of another backend is a ValueError in every place."""
    other = open_device("dummy:0" if device.info.kind != "dummy" else "cpu:0")
    stranger, own = other.allocate(1 << 18), harness.put(zeros())
    plan = increment(device)
    for use in (
        lambda: device.write(stranger, memoryview(b"1234")),
        lambda: device.read(stranger, 4),
        lambda: device.free(stranger),
        lambda: plan.run([own, stranger]),
    ):
        with pytest.raises(ValueError):
            use()
    plan.run([own, own])
    assert np.all(harness.get(own, zeros()) == 1)


def test_freed_memory_in_a_run(device: Device, harness: Harness) -> None:
    """A run on freed memory is a ValueError before anything starts."""
    plan, own, freed = increment(device), harness.put(zeros()), harness.put(zeros())
    plan.run([own, freed])
    device.free(freed)
    with pytest.raises(ValueError):
        plan.run([own, freed])
    assert np.all(harness.get(own, zeros()) == 0)


@pytest.mark.parametrize("count", (0, 1, 3))
def test_wrong_number_of_memories(device: Device, harness: Harness, count: int) -> None:
    """A plan takes as many as it was linked for."""
    plan, own = increment(device), harness.put(zeros())
    with pytest.raises(ValueError):
        plan.run([own] * count)


def test_wrong_number_of_variables(device: Device, harness: Harness) -> None:
    """And as many variables."""
    plan, own = increment(device), harness.put(zeros())
    with pytest.raises(ValueError):
        plan.run([own, own], [1])


def test_a_workspace_that_does_not_fit(device: Device, device_name: str) -> None:
    """A computation beyond the limit is refused, and the next one works."""
    x = weft.tensor(np.ones((128, 128), np.float32), device=device_name)
    with weft.memory_limit(device.used_bytes() + (1 << 13), device_name), pytest.raises(weft.MemoryPlanError):
        (x @ x + 1).exp().realize()
    assert float((x @ x).sum()) == 128.0**3
