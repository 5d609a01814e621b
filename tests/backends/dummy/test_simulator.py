"""Simulated devices as they are meant to be used in tests: any number, set speeds, faults, and no access unchecked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.dummy.device import DummyBackend, DummyDevice, describe
from weft.backends.dummy.faults import Faults
from weft.backends.protocol import Bounds, Commands, CopyBytes, Executable, Launch
from weft.ir import dtypes
from weft.ir.expr import Const, Load, call
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, Program, Scope, Store
from weft.ir.ops import Op

F = dtypes.float32


def plan(device: DummyDevice, size: int = 4, steps: Any = (Launch(0, (0, 1)),)) -> Executable:
    """y = x + 1 on `size` elements."""
    i = Var("i", 0, size - 1)
    body = Loop(i, size, (Store("y", i, call(Op.ADD, Load(F, "x", (i,)), Const(F, 1))),))
    params = (Buffer("x", F, size, Scope.GLOBAL), Buffer("y", F, size, Scope.GLOBAL))
    codes, _ = device.compile([Program("plus", params, frozenset("y"), (), (body,))])
    return device.link(codes, Commands(tuple(steps), 2, (), 0))


def zeros(device: DummyDevice, queue: int = 0) -> Any:
    memory = device.allocate(16)
    device.write(memory, memoryview(bytes(16)), 0, queue)
    return memory


@pytest.fixture
def device() -> DummyDevice:
    return DummyDevice(describe(0))


@pytest.fixture
def farm() -> Iterator[DummyBackend]:
    backend = DummyBackend([describe(k, "farm", flops=1e9 * (k + 1)) for k in range(20)], "farm")
    registry.register(backend)
    yield backend
    registry.unregister("farm")


def test_a_farm_is_used_by_name(farm: DummyBackend) -> None:
    x = weft.tensor(np.arange(6, dtype=np.float32), device="farm:19")
    assert ((x + 1).to("farm:3") * 2).tolist() == [2, 4, 6, 8, 10, 12]
    assert farm.device(19).clock.launches == farm.device(3).clock.launches == 1
    assert sum(s.name.startswith("farm:") for s in weft.devices()) == 20


def test_a_device_that_binds_few_buffers() -> None:
    registry.register(DummyBackend([describe(0, "few", bounds=Bounds(parameters=8))], "few"))
    try:
        with weft.device("few"):
            parts = [weft.tensor(np.arange(4.0) + k) for k in range(20)]
            stacked = weft.stack(parts)
            assert (
                sum(parts, start=weft.zeros(4)).tolist()
                == stacked.sum(0).tolist()
                == [190.0, 210.0, 230.0, 250.0]
            )
    finally:
        registry.unregister("few")


def test_what_is_registered_can_be_replaced(farm: DummyBackend) -> None:
    first = registry.open_device("farm:0")
    registry.register(DummyBackend(name="farm"))
    assert registry.open_device("farm:0") is not first
    registry.unregister("farm")
    with pytest.raises(weft.DeviceError, match="there is no backend 'farm'"):
        registry.open_device("farm:0")


# --- validation


def test_use_after_free_and_double_free(device: DummyDevice) -> None:
    memory = zeros(device)
    device.free(memory)
    with pytest.raises(ValueError, match=r"double free: memory 1 of dummy:0 \(16 bytes\) was freed before"):
        device.free(memory)
    with pytest.raises(ValueError, match=r"use after free: memory 1 of dummy:0 \(16 bytes\) was freed"):
        plan(device).run([zeros(device), memory])


def test_out_of_bounds(device: DummyDevice) -> None:
    with pytest.raises(ValueError, match="out of bounds: bytes 0 to 20 of memory 1"):
        plan(device, 5).run([zeros(device), zeros(device)])
    with pytest.raises(ValueError, match="out of bounds: bytes 0 to 17"):
        plan(device, 4, [CopyBytes(0, 1, 17)]).run([zeros(device), zeros(device)])
    with pytest.raises(ValueError, match="a memory cannot have -1 bytes"):
        device.allocate(-1)


def test_memory_of_another_device(device: DummyDevice) -> None:
    other = DummyDevice(describe(1))
    with pytest.raises(ValueError, match=r"memory 1 of dummy:1 \(16 bytes\) is used on dummy:0"):
        plan(device).run([zeros(device), zeros(other)])


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Launch(1, (0, 1)), "names program 1 of 1"),
        (Launch(0, (0, 2)), "names slot 2 of 2"),
        (CopyBytes(-1, 0, 4), "names slot -1 of 2"),
        (Launch(0, (0, 1), (0,)), "names variable 0 of 0"),
        (Launch(0, (0,)), "plus takes 2 memories and 0 variables"),
    ],
)
def test_commands_are_validated_when_linked(device: DummyDevice, step: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plan(device, 4, [step])


def test_missing_synchronization(device: DummyDevice) -> None:
    run, a, b, c = plan(device), zeros(device), zeros(device), zeros(device)
    device.synchronize()
    run.run([a, b], (), 0)
    with pytest.raises(
        ValueError,
        match=r"missing synchronization: memory 2 .* is read by queue 1 of dummy:0 after it was "
        r"written by queue 0 of dummy:0: record an event there and wait for it here",
    ):
        run.run([b, c], (), 1)
    device.queue(1).wait(device.queue(0).record())
    run.run([b, c], (), 1)
    with pytest.raises(ValueError, match=r"is written by queue 0 of dummy:0 after it was read by queue 1"):
        run.run([a, b], (), 0)
    device.queue(1).synchronize()  # the host comes after it, and so does what the host starts then
    run.run([a, b], (), 0)
    with pytest.raises(ValueError, match=r"missing synchronization: memory 3 .* is read by queue 2"):
        device.write(c, memoryview(bytes(16)), 0, 3)
        device.read(c, 16, 0, 2)


def test_events_order_transitively(device: DummyDevice) -> None:
    run = plan(device)
    a, b, c = (zeros(device) for _ in range(3))
    device.synchronize()
    run.run([a, b], (), 0)
    device.queue(1).wait(device.queue(0).record())
    event = device.queue(1).record()
    assert not event.done() and not device.queue(0).record().done()
    device.queue(2).wait(event)
    run.run([b, c], (), 2)
    assert np.frombuffer(device.read(c, 16, 0, 2), np.float32).tolist() == [2] * 4
    assert event.done()


def test_a_copy_between_devices_waits_for_what_made_the_source(farm: DummyBackend) -> None:
    one, two = farm.device(0), farm.device(1)
    run, a, b, target = plan(one), zeros(one), zeros(one), two.allocate(16)
    run.run([a, b], (), 0)
    assert two.copy_from(target, one, b, 16)
    assert np.frombuffer(two.read(target, 16), np.float32).tolist() == [1] * 4


# --- faults


def test_allocations_fail_when_told_to(farm: DummyBackend) -> None:
    farm.device(5).faults = Faults(allocations=frozenset({1}))
    x = weft.tensor([1.0, 2.0], device="farm:5")
    with pytest.raises(
        weft.MemoryPlanError, match="farm:5 fails an allocation of 8 bytes, as it was told to"
    ):
        (x + 1).realize()
    assert (x + 1).tolist() == [2, 3]


def test_launches_fail_when_told_to(farm: DummyBackend) -> None:
    device = farm.device(6)
    x = weft.tensor([1.0, 2.0], device="farm:6")
    device.faults = Faults(launches=frozenset({0}))
    with pytest.raises(weft.DeviceError, match=r"farm:6: the launch of .* failed, as it was told to"):
        (x + 1).realize()
    assert (x + 1).tolist() == [2, 3]


def test_copies_are_slow_when_told_to() -> None:
    info = describe(0, launch_ns=0.0, link_bandwidth=1e9)
    times: list[float] = []
    for slow in ({}, {1: 10.0}):
        device = DummyDevice(info)
        device.faults = Faults(slow_copies=slow)
        memory = device.allocate(1000)
        for _ in range(3):
            device.write(memory, memoryview(bytes(1000)))
        times.append(device.clock.ns)
    assert times == [3000, 12000]


def test_launches_take_longer_when_told_to() -> None:
    def launched(**faults: Any) -> list[int]:
        device = DummyDevice(describe(0, launch_ns=0.0, flops=1e6, bandwidth=1e18))
        run, memories = plan(device), [zeros(device), zeros(device)]
        device.faults = Faults(**faults)
        return [run.run_timed(memories)[0] for _ in range(50)]

    (usual,) = set(launched())
    assert set(launched(slower=2.5)) == {round(2.5 * usual)}
    noisy = launched(slower=2.0, noise=0.1, seed=3)
    assert noisy == launched(slower=2.0, noise=0.1, seed=3) != launched(slower=2.0, noise=0.1, seed=4)
    assert 1.8 * usual <= min(noisy) < 1.9 * usual and 2.1 * usual < max(noisy) <= 2.2 * usual


# --- time


def test_queues_run_at_the_same_time() -> None:
    device = DummyDevice(describe(0, launch_ns=1000.0, bandwidth=1e18, flops=1e18, link_bandwidth=1e18))
    run = plan(device)
    pairs = [(zeros(device), zeros(device)) for _ in range(3)]
    device.synchronize()
    start = device.host.ns
    for k, pair in enumerate(pairs):
        run.run(pair, (), k)
    assert [round(device.queue(k).ns - start) for k in range(3)] == [1000] * 3
    device.queue(1).wait(device.queue(0).record())
    run.run(pairs[1], (), 1)
    assert device.queue(1).ns == pytest.approx(device.queue(0).ns + 1000)


def test_a_bound_on_one_memory() -> None:
    device = DummyDevice(describe(0, bounds=Bounds(buffer_bytes=64)))
    with pytest.raises(MemoryError, match="memories of at most 64 bytes"):
        device.allocate(65)


def test_a_device_without_some_dtypes(farm: DummyBackend) -> None:
    small = frozenset({dtypes.float32, dtypes.int32, dtypes.uint32, dtypes.bool_})
    registry.register(DummyBackend([describe(0, "farm", dtypes=small, native=frozenset({Op.ADD}))], "farm"))
    x = weft.tensor([1.0, 2.0], device="farm")
    assert (x + 1).tolist() == [2, 3]
    for act in (
        lambda: weft.tensor([1, 2], device="farm"),
        lambda: x.to(weft.float64).realize(),
        lambda: weft.tensor([1.0], dtype=weft.float64, device="cpu").to("farm").realize(),
    ):
        with pytest.raises(
            weft.DTypeError, match=r"farm:0 has no (int64: use int32|float64: use float32), or"
        ):
            act()
    with pytest.raises(weft.DeviceError, match="farm:0 has no sqrt of float32, nor what it could be made of"):
        x.sqrt().realize()
