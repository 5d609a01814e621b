"""Order within a queue, events between queues."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends.protocol import Commands, Device, Executable, Launch
from weft.ir import dtypes
from weft.ir.expr import Const, Load, call
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, Program, Scope, Store
from weft.ir.ops import Op
from weft.scheduler.lowering import optimized
from weft.testing.conformance.harness import Array, Harness

F = dtypes.float32
N = 1 << 16


def increment(device: Device) -> Executable:
    """y = x + 1, as a plan of memories x and y."""
    i = Var("i", 0, N - 1)
    body = Loop(i, N, (Store("y", i, call(Op.ADD, Load(F, "x", (i,)), Const(F, 1))),))
    params = (Buffer("x", F, N, Scope.GLOBAL), Buffer("y", F, N, Scope.GLOBAL))
    program = Program("increment", params, frozenset("y"), (), (body,))
    codes, _ = device.compile([optimized(program, device.info)])
    return device.link(codes, Commands((Launch(0, (0, 1)),), 2, (), 0))


def zeros() -> Array:
    """N zeros."""
    return np.zeros(N, np.float32)


def test_one_queue_is_in_order(harness: Harness) -> None:
    """A chain of runs on two memories, started without waiting, and a read after it."""
    device = harness.device
    plan = increment(device)
    a, b = harness.put(zeros()), harness.put(zeros())
    for _ in range(20):
        plan.run([a, b])
        plan.run([b, a])
    assert np.all(harness.get(a, zeros()) == 40)


def test_writes_and_runs_take_turns(harness: Harness) -> None:
    """A write after a run does not reach what the run reads; one before it does."""
    device = harness.device
    plan = increment(device)
    a = harness.put(zeros())
    outs = [harness.put(zeros()) for _ in range(10)]
    for k, out in enumerate(outs):
        device.write(a, np.full(N, k, np.float32).data)
        plan.run([a, out])
    for k, out in enumerate(outs):
        assert np.all(harness.get(out, zeros()) == k + 1)


def test_events(device: Device, harness: Harness) -> None:
    """An event is done once it was waited for, and everything after a wait of the device."""
    plan, queue = increment(device), device.queue()
    a, b = harness.put(zeros()), harness.put(zeros())
    plan.run([a, b])
    event = queue.record()
    event.wait()
    assert event.done()
    plan.run([b, a])
    last = queue.record()
    device.synchronize()
    assert last.done()
    queue.wait(last)
    queue.synchronize()
    assert np.all(harness.get(a, zeros()) == 2)


def test_waiting_is_for_all_of_it(device: Device, harness: Harness) -> None:
    """After a long chain on the last queue, the host waits, and then reads through the first one, which did not."""
    plan, last = increment(device), device.info.queues - 1
    a, b = harness.put(zeros()), harness.put(zeros())
    queue = device.queue(last)
    done = 0
    for wait in (lambda: queue.record().wait(), queue.synchronize, device.synchronize):
        device.synchronize()
        for _ in range(20):
            plan.run([a, b], (), last)
            plan.run([b, a], (), last)
        wait()
        done += 40
        assert np.all(harness.get(a, zeros()) == done)


def test_an_event_comes_by_itself(device: Device, harness: Harness) -> None:
    """Work that was started is done at some time, without anybody waiting for it."""
    plan = increment(device)
    a, b = harness.put(zeros()), harness.put(zeros())
    plan.run([a, b])
    event = device.queue().record()
    asked = 0
    while not event.done():
        asked += 1
        assert asked < 10_000_000
    assert np.all(harness.get(b, zeros()) == 1)


def test_queues_wait_for_events(device: Device, harness: Harness) -> None:
    """A chain that changes its queue at every step, ordered by events alone."""
    count = device.info.queues
    plan = increment(device)
    a, b = harness.put(zeros()), harness.put(zeros())
    device.synchronize()
    previous = None
    for k in range(24):
        number = k % count
        queue = device.queue(number)
        if previous is not None:
            queue.wait(previous)
        plan.run([a, b] if k % 2 == 0 else [b, a], (), number)
        previous = queue.record()
    assert previous is not None
    last = 23 % count
    got = np.frombuffer(bytes(device.read(a, 4 * N, 0, last)), np.float32)
    assert np.all(got == 24)


def test_queues_are_numbered(device: Device, harness: Harness) -> None:
    """As many as the description says; others are refused wherever a number is taken."""
    count = device.info.queues
    for number in range(count):
        device.queue(number).synchronize()
    plan, a = increment(device), harness.put(zeros())
    for number in (count, -1):
        for use in (
            lambda: device.queue(number),
            lambda: device.write(a, memoryview(b"1234"), 0, number),
            lambda: device.read(a, 4, 0, number),
            lambda: plan.run([a, a], (), number),
        ):
            with pytest.raises(ValueError):
                use()
