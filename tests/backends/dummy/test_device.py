"""The simulated devices through the backend protocol."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest

from weft.backends.dummy.device import DummyBackend, DummyDevice, describe
from weft.backends.protocol import Backend, Commands, CopyBytes, Device, Launch
from weft.ir import dtypes
from weft.ir.expr import Const, Load, call
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, Program, Scope, Store
from weft.ir.ops import Op

F = dtypes.float32
N = Var("n", 1, 8)


def doubled() -> Program:
    i = Var("i", 0, 7)
    body = Loop(i, N, (Store("y", i, call(Op.MUL, Load(F, "x", (i,)), Const(F, 2))),))
    params = (Buffer("x", F, N, Scope.GLOBAL), Buffer("y", F, N, Scope.GLOBAL))
    return Program("doubled", params, frozenset("y"), (N,), (body,))


def test_any_number_of_devices_can_be_simulated() -> None:
    backend: Backend = DummyBackend([replace(describe(k), flops=1e9 * (k + 1)) for k in range(7)])
    assert backend.count() == 7 and backend.device(6).info.flops == 7e9


def test_a_plan_of_launches_and_copies() -> None:
    device: Device = DummyDevice(describe(0))
    codes, image = device.compile([doubled()])
    assert image == b"" and "for i in n" in codes[0].source
    commands = Commands(
        (Launch(0, (0, 2), (0,)), Launch(0, (2, 3), (0,)), CopyBytes(1, 3, 12)), 2, (0, 64), 128, 1
    )
    run = device.link(codes, commands)
    x, y = device.allocate(12), device.allocate(12)
    device.write(x, memoryview(np.array([1, 2, 3], np.float32)))
    run.run([x, y], [3])
    device.synchronize()
    assert np.frombuffer(device.read(y, 12), np.float32).tolist() == [4, 8, 12]


def test_uninitialized_memory_shows() -> None:
    device = DummyDevice(describe(0))
    assert np.isnan(np.frombuffer(device.read(device.allocate(4), 4), np.float32)).all()


def test_time_is_simulated() -> None:
    slow, fast = (
        DummyDevice(replace(describe(0), flops=f, bandwidth=b)) for f, b in ((1e6, 1e6), (1e9, 1e9))
    )
    times: list[list[int]] = []
    for device in (slow, fast):
        codes, _ = device.compile([doubled()])
        memories = [device.allocate(32), device.allocate(32)]
        times.append(
            device.link(codes, Commands((Launch(0, (0, 1), (0,)),), 2, (), 0, 1)).run_timed(memories, [8])
        )
        assert device.clock.launches == 1 and device.clock.ns == pytest.approx(times[-1][0], abs=1)
    # 64 bytes and 8 * (load and multiply) at a million a second each, after the launch
    assert times[0] == [1000 + 64_000 + 16_000] and times[1] == [1000 + 64 + 16]


def test_the_pool_has_an_end_and_gets_memory_back() -> None:
    device = DummyDevice(replace(describe(0), memory_bytes=100))
    kept = [device.allocate(60)]
    with pytest.raises(MemoryError, match="dummy:0 has 40 bytes free of 100, not 60"):
        device.allocate(60)
    kept.clear()
    gc.collect()
    device.allocate(60)
    assert device.pool.peak_bytes == 60
