"""Farms of simulated devices: their times are those of a calculation by hand, with and without the values."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends.costs import CostModel
from weft.backends.dummy.device import DummyBackend, DummyDevice
from weft.backends.dummy.farm import Farm, describe
from weft.backends.dummy.pool import DummyMemory
from weft.backends.dummy.queues import DummyEvent, DummyQueue, Host
from weft.backends.dummy.simulation import Operation, Resource, Simulation
from weft.backends.links import links
from weft.backends.protocol import Commands, Executable, Launch
from weft.backends.registry import open_device
from weft.ir import dtypes
from weft.ir.expr import Const, Load, call
from weft.ir.index import Var
from weft.ir.loops import Buffer, Loop, Program, Scope, Store
from weft.ir.ops import Op
from weft.testing import (
    Faults,
    Link,
    all_to_all,
    farm,
    fat_tree,
    groups,
    host_staged,
    ring,
    switch,
)

F = dtypes.float32
LINK = Link(1e-6, 1e9)
"""1,000 ns, and 1 ns a byte."""

EXACT: dict[str, Any] = {"launch_ns": 100.0, "bandwidth": 1e9, "flops": 1e18, "link_bandwidth": 1e9}
"""Devices that take 100 ns for a launch and 1 ns for a byte."""


def opened(count: int = 4, **description: Any) -> DummyBackend:
    return DummyBackend(Farm.of(count, **{**EXACT, "timing_only": True, **description}))


def plus(device: DummyDevice, size: int = 1000) -> Executable:
    """y = x + 1: 8 bytes an element, so 100 + 8 * size ns on such devices."""
    i = Var("i", 0, size - 1)
    body = Loop(i, size, (Store("y", i, call(Op.ADD, Load(F, "x", (i,)), Const(F, 1))),))
    params = (Buffer("x", F, size, Scope.GLOBAL), Buffer("y", F, size, Scope.GLOBAL))
    codes, _ = device.compile([Program("plus", params, frozenset("y"), (), (body,))])
    return device.link(codes, Commands((Launch(0, (0, 1)),), 2, (), 0))


def memories(backend: DummyBackend, nbytes: int, count: int = 1) -> list[list[DummyMemory]]:
    """Memories of each device, written and waited for; time begins after that."""
    out = [[d.allocate(nbytes) for _ in range(count)] for d in backend.devices]
    for device, mine in zip(backend.devices, out, strict=True):
        for m in mine:
            device.write(m, memoryview(bytes(nbytes)))
    backend.clear()
    return out


def copies(backend: DummyBackend, pairs: Sequence[tuple[int, int]], nbytes: int = 1000) -> float:
    """The time of copies that are all started at once, each into a memory and on a queue of its own."""
    sources = memories(backend, nbytes)
    used: dict[int, int] = {}
    for origin, target in pairs:
        device = backend.device(target)
        queue = used[target] = used.get(target, -1) + 1
        assert device.copy_from(
            device.allocate(nbytes), backend.device(origin), sources[origin][0], nbytes, queue
        )
    return backend.makespan_ns


# --- topologies


@pytest.mark.parametrize(
    ("topology", "pairs", "ns"),
    [
        (None, [(0, 1), (1, 0), (2, 1)], 100 + 1000),
        (all_to_all(LINK), [(0, 1), (1, 0), (2, 1), (0, 3)], 2000),
        (all_to_all(LINK), [(0, 1), (0, 1)], 3000),  # the latencies at the same time, the bytes one after another
        (all_to_all(LINK, {(0, 1): Link(5e-6, 1e8)}), [(0, 1), (1, 0)], 15_000),
        (all_to_all(LINK, {(k, 3): Link(0, 1e9, ("door",)) for k in (0, 1, 2)}), [(0, 3), (1, 3), (2, 3)], 3000),
        (switch(LINK), [(0, 1), (1, 2), (2, 3), (3, 0)], 2000),
        (switch(LINK), [(0, 3), (1, 3), (2, 3)], 4000),
        (switch(LINK), [(0, 1), (0, 2)], 3000),
        (ring(4, LINK), [(0, 1), (1, 2), (2, 3), (3, 0), (1, 0)], 2000),
        (ring(4, LINK), [(0, 2)], 3000),  # two latencies, but the bytes flow through
        (ring(4, LINK), [(0, 1), (0, 2), (2, 3)], 3000),  # the second comes to 0->1 when the first leaves it
        (ring(4, LINK), [(0, 3), (3, 2)], 2000),  # backwards is shorter
        (groups(2, LINK, Link(1e-6, 1e8)), [(0, 1), (2, 3)], 2000),
        (groups(2, LINK, Link(1e-6, 1e8)), [(0, 2), (1, 3)], 21_000),
        (groups(2, LINK, Link(1e-6, 1e8)), [(0, 2), (3, 1)], 11_000),
        (fat_tree(2, LINK), [(0, 2), (1, 3), (2, 0), (3, 1)], 2000),
        (fat_tree(2, LINK, uplinks=1), [(0, 2), (1, 3)], 3000),
        (fat_tree(2, LINK, Link(1e-6, 5e8)), [(0, 2), (1, 2)], 5000),
        (fat_tree(2, LINK), [(0, 1), (2, 3)], 2000),
        (host_staged(LINK), [(0, 1)], 4000),
        (host_staged(LINK, Link(2e-6, 5e8)), [(0, 1), (2, 3)], 3000 + 2 * 3000),
    ],
)  # fmt: skip
def test_copies_take_the_time_that_their_wires_leave(topology: Any, pairs: Any, ns: float) -> None:
    assert copies(opened(topology=topology), pairs) == pytest.approx(ns)


def test_a_ring_all_gather_takes_a_step_for_each_other_device() -> None:
    n, nbytes = 5, 700
    backend = opened(n, topology=ring(n, LINK))
    held = memories(backend, nbytes, n)
    for step in range(n - 1):
        for k, device in enumerate(backend.devices):
            block, left = (k - 1 - step) % n, (k - 1) % n
            assert device.copy_from(held[k][block], backend.device(left), held[left][block], nbytes, 1)
    assert backend.makespan_ns == pytest.approx((n - 1) * (1000 + nbytes))
    timeline = backend.timeline()
    assert timeline.resources == [f"{k}->{(k + 1) % n}" for k in range(n)]
    assert timeline.busy_ns("0->1") == pytest.approx((n - 1) * nbytes)


# --- overlap


def test_a_copy_goes_on_beside_the_computation() -> None:
    backend = opened(2, topology=all_to_all(LINK))
    held = memories(backend, 4000, 3)
    one, run = backend.device(1), plus(backend.device(1))
    one.copy_from(held[1][2], backend.device(0), held[0][0], 4000, 1)  # 5,000 ns
    run.run([held[1][0], held[1][1]])  # 8,100 ns
    assert backend.makespan_ns == pytest.approx(8100)
    assert backend.timeline().overlap_ns(["0->1"], ["farm:1"]) == pytest.approx(4000)
    one.queue(0).wait(one.queue(1).record())
    run.run([held[1][2], held[1][1]])
    assert backend.makespan_ns == pytest.approx(8100 + 8100)


def test_a_copy_waits_for_what_made_its_source_and_for_nothing_else() -> None:
    backend = opened(2, topology=all_to_all(LINK))
    held = memories(backend, 4000, 3)
    zero, one = backend.devices
    run = plus(zero)
    run.run([held[0][0], held[0][1]])  # until 8,100
    run.run([held[0][0], held[0][2]])  # until 16,200
    one.copy_from(held[1][0], zero, held[0][1], 4000)
    assert one.queue().ns - backend.host.simulation.origin_ns == pytest.approx(8100 + 5000)
    assert backend.makespan_ns == pytest.approx(16_200)
    with pytest.raises(
        ValueError, match=r"is written by queue 0 of farm:0 after it was read by queue 0 of farm:1"
    ):
        run.run([held[0][0], held[0][1]])
    zero.queue().wait(one.queue().record())
    run.run([held[0][0], held[0][1]])


def test_what_is_issued_later_but_ready_sooner_goes_first() -> None:
    backend = opened(2, topology=all_to_all(LINK))
    held = memories(backend, 4000, 3)
    zero, one = backend.devices
    plus(zero).run([held[0][0], held[0][1]])
    one.copy_from(held[1][0], zero, held[0][1], 4000, 0)  # after 8,100
    one.copy_from(held[1][1], zero, held[0][2], 4000, 1)  # at once
    assert backend.makespan_ns == pytest.approx(8100 + 5000)
    spans = [s for s in backend.timeline().spans if s.resource == "0->1"]
    begun = [s.begin_ns - backend.timeline().origin_ns for s in spans]
    assert begun == pytest.approx([1000, 9100])


def test_launches_of_several_queues_share_the_device_but_not_their_latencies() -> None:
    backend = opened(1)
    held = memories(backend, 4000, 4)
    run = plus(backend.device(0))
    run.run(held[0][:2], (), 0)
    run.run(held[0][2:], (), 1)
    assert backend.makespan_ns == pytest.approx(100 + 2 * 8000)


def test_the_host_takes_time_and_waits() -> None:
    backend = opened(2, issue_ns=300.0)
    held = memories(backend, 4000, 2)
    runs = [plus(d) for d in backend.devices]
    for k in range(2):
        runs[k].run(held[k])
    assert backend.makespan_ns == pytest.approx(2 * 300 + 8100)  # the second is issued 300 ns after the first
    backend.device(1).synchronize()
    runs[0].run(held[0])
    assert backend.makespan_ns == pytest.approx(2 * 300 + 8100 + 300 + 8100)
    assert [s.end_ns - s.begin_ns for s in backend.timeline().spans if s.resource == "host"] == [300.0] * 3


def test_speeds_are_those_of_computing_and_of_memory() -> None:
    backend = opened(3, speeds=[1, 2, 4])
    held = memories(backend, 4000, 2)
    for device, mine in zip(backend.devices, held, strict=True):
        plus(device).run(mine)
    origin = backend.host.simulation.origin_ns
    assert [d.clock.ns - origin for d in backend.devices] == pytest.approx([8100, 4100, 2100])


# --- without values


def trained(timing_only: bool) -> tuple[float, dict[str, int], int]:
    """A few training steps whose tensors go from device to device: time, peaks, and spans of the timeline."""
    with farm(3, timing_only=timing_only, topology=ring(3, LINK), issue_ns=200.0, speeds=[1, 2, 3]) as f:
        weft.manual_seed(0)
        first, second = nn.Linear(6, 5).to("farm:0"), nn.Linear(5, 3).to("farm:2")
        optimizers = [weft.optim.AdamW(m.parameters(), lr=0.1) for m in (first, second)]
        x = weft.tensor(np.ones((4, 6), np.float32), device="farm:1")
        weft.synchronize()
        f.clear()
        for _ in range(2):
            loss = second(first(x.to("farm:0")).relu().to("farm:2")).square().mean()
            for o in optimizers:
                o.zero_grad()
            loss.backward()
            for o in optimizers:
                o.step()
        weft.synchronize()
        return f.makespan_ns, dict(f.peak_bytes()), len(f.timeline().spans)


def test_times_and_peaks_are_the_same_with_and_without_values() -> None:
    executed, counted = trained(False), trained(True)
    assert executed == counted and executed[0] > 0 and executed[2] > 10


def test_without_values_none_can_be_read_and_nothing_is_allocated() -> None:
    with farm(1, timing_only=True, memory_bytes=1 << 50) as f:
        x = weft.tensor(np.zeros(1 << 20, np.float32), device="farm:0")
        y = (x[:, None] + x).realize()
        assert f.peak_bytes() == {"farm:0": (4 << 40) + (4 << 20)}
        with pytest.raises(
            weft.DeviceError, match=r"farm:0 computes nothing \(timing_only\): there are no values to read"
        ):
            y.tolist()
        with pytest.raises(weft.MemoryPlanError):
            weft.ones(1 << 30, 1 << 30, device="farm:0").realize()


def test_without_values_uses_of_memory_are_checked_all_the_same() -> None:
    backend = opened(1)
    device = backend.device(0)
    a, b, c = memories(backend, 4000, 3)[0]
    plus(device).run([a, b], (), 0)
    with pytest.raises(ValueError, match="missing synchronization"):
        plus(device).run([b, c], (), 1)
    with pytest.raises(ValueError, match="out of bounds"):
        plus(device, 1001).run([a, b])


def test_a_thousand_devices_take_no_memory_and_few_events() -> None:
    backend = opened(1000, topology=fat_tree(125, LINK, uplinks=25), memory_bytes=80 << 30)
    held = memories(backend, 1 << 30, 2)
    for k, device in enumerate(backend.devices):
        device.copy_from(held[k][1], backend.device((k + 125) % 1000), held[(k + 125) % 1000][0], 1 << 30, 1)
    # a leaf's 125 copies go out by 25 uplinks, and come in by 25
    assert backend.makespan_ns == pytest.approx(1000 + 5 * (1 << 30))
    assert set(backend.peak_bytes().values()) == {2 << 30}
    assert len(backend.timeline().spans) == 4000


# --- memory


def test_peaks_are_of_the_pool_to_the_byte() -> None:
    backend = opened(2)
    device = backend.device(0)
    kept = [device.allocate(100), device.allocate(23)]
    device.free(kept[0])
    device.allocate(7)
    assert backend.peak_bytes() == {"farm:0": 123, "farm:1": 0}
    backend.clear()
    assert backend.peak_bytes() == {"farm:0": 23, "farm:1": 0}


def test_devices_that_share_a_pool_share_its_memories_and_its_limit() -> None:
    backend = opened(
        3, pools=["host", "host", ""], memory_bytes=10_000, timing_only=False, topology=ring(3, LINK)
    )
    one, two, three = backend.devices
    assert backend.peak_bytes() == {"host": 0, "farm:2": 0}
    a, b = one.allocate(4000), two.allocate(4000)
    one.write(a, memoryview(np.full(1000, 2, np.float32)))
    with pytest.raises(ValueError, match="missing synchronization"):
        plus(two).run([a, b])
    two.queue().wait(one.queue().record())
    plus(two).run([a, b])
    two.synchronize()
    assert np.frombuffer(one.read(b, 8), np.float32).tolist() == [3, 3]
    with pytest.raises(MemoryError, match="host has 2000 bytes free of 10000, not 4000"):
        one.allocate(4000)
    with pytest.raises(ValueError, match="is used on farm:2"):
        plus(three).run([a, b])
    assert links(one, two) == Link(1e-7, 5e8, ("farm:0",))
    before = backend.host.ns
    assert one.copy_from(a, two, b, 500) and one.queue().ns - before == pytest.approx(100 + 1000)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"speeds": [1, 2]}, "speeds: 2 values for 3 devices"),
        ({"pools": ["a", "a", ""], "memory_bytes": [1, 2, 3]}, "share the pool 'a' differ in memory_bytes: 1 and 2"),
        ({"faults": {3: Faults()}}, "faults of device 3 of a farm of 3"),
    ],
)  # fmt: skip
def test_descriptions_that_cannot_be_are_refused(description: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Farm.of(3, **description)


def test_devices_of_another_farm_are_reached_through_the_host_only() -> None:
    with farm(2, "left") as left, farm(2, "right") as right:
        with pytest.raises(ValueError, match="is no event of this backend"):
            left.device(0).queue().wait(right.device(0).queue().record())
        x = weft.tensor([1.0, 2.0], device="left:0")
        assert (x.to("right:1") + 1).tolist() == [2, 3]
        memory = left.device(0).allocate(4)
        assert not left.device(0).copy_from(memory, right.device(0), right.device(0).allocate(4), 4)
    with pytest.raises(weft.DeviceError, match="there is no backend 'left'"):
        open_device("left:0")


def test_links_are_stated() -> None:
    with farm(3, topology=ring(3, LINK), **EXACT) as f:
        cpu = open_device("cpu")
        assert links(f.device(0), f.device(1)) == Link(1e-6, 1e9, ("0->1",))
        assert links(f.device(0), cpu) == Link(1e-7, 1e9, ("0->host",))
        assert links(cpu, f.device(2)) == Link(1e-7, 1e9, ("host->2",))


# --- faults


def chain(f: DummyBackend, steps: int = 12) -> int:
    """The number of steps that succeed of launches on device 1."""
    x = weft.tensor([1.0, 2.0], device="farm:1").realize()
    for k in range(steps):
        try:
            x = (x + 1).realize()
        except weft.DeviceError:
            return k
    return steps


def test_a_lost_device_names_itself_and_the_step_and_never_answers_again() -> None:
    with farm(2) as f:
        x, y = (weft.tensor([1.0, 2.0], device=f"farm:{k}").realize() for k in range(2))
        memory = f.device(1).allocate(8)
        f.device(1).faults = Faults(lost_at=3)
        for _ in range(3):
            y = (y + 1).realize()
        with pytest.raises(
            weft.DeviceError,
            match=r"farm:1: the launch of \w+ failed at step 3: the device was lost at step 3",
        ):
            (y + 1).realize()
        lost = r"farm:1.* was lost at step 3"
        for use in (
            lambda: y.tolist(),
            lambda: (y + 2).realize(),
            lambda: x.to("farm:1").realize(),
            lambda: y.to("farm:0").realize(),
            lambda: f.device(1).copy_from(memory, f.device(0), f.device(0).allocate(8), 8),
            lambda: f.device(1).queue().synchronize(),
            lambda: f.device(1).queue().record().wait(),
        ):
            with pytest.raises(weft.DeviceError, match=lost):
                use()
        assert (x + 1).tolist() == [2, 3]


def test_a_lasting_fault_leaves_memory_to_be_read() -> None:
    with farm(2) as f:
        x = weft.tensor([1.0, 2.0], device="farm:1").realize()
        f.device(1).faults = Faults(lasting_from=0)
        for number in range(3):
            with pytest.raises(weft.DeviceError, match=f"failed at step {number}, as all do from step 0 on"):
                (x + number).realize()
        assert x.tolist() == [1, 2]
        assert (x.to("farm:0") + 1).tolist() == [2, 3]


def test_random_faults_are_those_of_their_seed_and_pass() -> None:
    def failed(seed: int) -> list[int]:
        with farm(2, faults={1: Faults(chance=0.3, seed=seed)}) as f:
            device = f.device(1)
            memory, out = device.allocate(4), list[int]()
            for k in range(40):
                try:
                    device.write(memory, memoryview(b"1234"))
                except weft.DeviceError as error:
                    assert f"farm:1: a copy to it failed, as it was told to, at step {k}" in str(error)
                    out.append(k)
            return out

    first, again, other = failed(1), failed(1), failed(2)
    assert first == again != other and 3 < len(first) < 25


def test_a_copy_fails_by_its_number() -> None:
    with farm(2, faults={1: Faults(copies=frozenset({1}))}):
        x = weft.tensor([1.0, 2.0], device="farm:0").realize()
        assert x.to("farm:1").realize().shape == (2,)
        with pytest.raises(
            weft.DeviceError, match="farm:1: a copy from farm:0 failed, as it was told to, at step 1"
        ):
            (x + 0.5).to("farm:1").realize()
        assert (x + 0.5).to("farm:1").tolist() == [1.5, 2.5]


def test_the_faults_of_a_description_count_anew_in_each_farm() -> None:
    described = Farm.of(2, faults={1: Faults(lost_at=4)})
    assert [farmed(described) for _ in range(2)] == [3, 3]  # the first step is the copy to it


def farmed(described: Farm) -> int:
    with farm(described) as f:
        return chain(f)


# --- against plain models


def plain(work: list[tuple[float, float, set[int], list[int], float]]) -> list[float]:
    """The ends of operations (latency, busy, resources, after, issued): at each time, whoever has arrived and finds its
    resources free begins, the earliest first."""
    ends: dict[int, float] = {}
    begun: dict[int, float] = {}
    free: dict[int, float] = {}
    while len(begun) < len(work):
        arrivals: list[tuple[float, int]] = []
        for k, (latency, _, _, after, issued) in enumerate(work):
            if k not in begun and all(b in ends for b in after):
                arrivals.append((max([issued, *(ends[b] for b in after)]) + latency, k))
        # the earliest beginning; of equal ones, who arrived first
        begin, _, k = min(
            (max([at, *(free.get(r, 0.0) for r in work[k][2])]), (at, k), k) for at, k in arrivals
        )
        begun[k] = begin
        ends[k] = begin + work[k][1]
        for r in work[k][2]:
            free[r] = ends[k]
    return [ends[k] for k in range(len(work))]


@pytest.mark.parametrize("seed", range(40))
def test_simulated_times_are_those_of_a_plain_model(seed: int) -> None:
    rng = random.Random(seed)

    def time(most: int) -> float:  # whole numbers give many equal times
        return float(rng.randint(1, most)) if seed % 2 else rng.random() * most

    work: list[tuple[float, float, set[int], list[int], float]] = []
    for k in range(rng.randint(1, 40)):
        after = rng.sample(range(k), min(k, rng.choice([0, 0, 1, 2, 3])))
        wires = set(rng.sample(range(4), rng.choice([0, 1, 1, 2, 3])))
        work.append((rng.choice([0.0, time(20)]), time(10), wires, after, time(30)))
    simulation = Simulation()
    resources: list[Resource] = [simulation.resource(str(k)) for k in range(4)]
    made: list[Operation] = []
    for latency, busy, wires, after, issued in work:
        made.append(
            simulation.submit(
                "", latency, busy, tuple([resources[r] for r in wires]), [made[b] for b in after], issued
            )
        )
    asked = rng.randrange(len(made))
    assert simulation.end_ns([made[asked]]) == pytest.approx(plain(work)[asked])
    simulation.run()
    assert [op.end_ns for op in made] == pytest.approx(plain(work))


@pytest.mark.parametrize("turned", [False, True])
def test_of_what_becomes_free_at_once_who_came_first_gets_all(turned: bool) -> None:
    simulation = Simulation()
    one, two = (simulation.resource(x) for x in "ab")
    for wire in (two, one) if turned else (one, two):
        simulation.submit("", 0.0, 10.0, (wire,))
    both = simulation.submit("", 1.0, 10.0, (one, two))
    later = [simulation.submit("", 2.0, 10.0, (wire,)) for wire in (one, two)]
    simulation.run()
    assert both.begin_ns == 10.0 and [x.begin_ns for x in later] == [20.0, 20.0]


def test_work_that_an_interrupt_left_open_holds_nothing_up() -> None:
    simulation = Simulation()
    wire = (simulation.resource("wire"),)
    done = simulation.submit("", 0.0, 5.0, wire)
    simulation.run()
    lost = [simulation.submit("", 0.0, 5.0, wire) for _ in range(3)]
    simulation._advance()
    simulation._events.clear()  # as if its end had not been noted
    later = simulation.submit("", 1.0, 2.0, wire, lost)
    assert simulation.end_ns([done]) == 5.0 and simulation.end_ns([*lost, later]) >= 5.0
    assert simulation.end_ns([simulation.submit("", 1.0, 2.0, wire, [later], 100.0)]) == 103.0


def test_nothing_is_kept_where_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.backends.dummy.simulation.OPEN_OPERATIONS", 10)
    simulation = Simulation()
    for _ in range(100):
        simulation.submit("", 1.0, 1.0, ())
    assert len(simulation._events) <= 10 and not simulation._done
    assert simulation.timeline().spans == ()


@pytest.mark.parametrize("seed", range(40))
def test_vector_clocks_know_what_comes_after_what(seed: int) -> None:
    rng = random.Random(seed)
    host = Host()
    queues = [DummyQueue(str(k), host, lambda: None) for k in range(4)]
    # a plain model: for each queue, and for the host, all the work that is known to be before
    before: list[set[int]] = [set() for _ in queues]
    waited: set[int] = set()
    points: list[tuple[DummyEvent, int]] = []
    events: list[tuple[DummyEvent, set[int]]] = []
    for number in range(120):
        k = rng.randrange(len(queues))
        match rng.choice(["work", "work", "record", "wait", "wait", "host", "queue"]):
            case "work":
                before[k] |= waited
                for point, made in points:
                    queues[k].start() if rng.random() < 0.01 else None
                    assert queues[k].comes_after(point) == (made in before[k]) or made in waited
                point = queues[k].start()
                queues[k].submit(point, "", 0.0, rng.random(), ())
                before[k].add(number)
                points.append((point, number))
            case "record":
                before[k] |= waited
                events.append((queues[k].record(), set(before[k])))
            case "wait" if events:
                event, known = rng.choice(events)
                queues[k].wait(event)
                before[k] |= known
            case "host" if events:
                event, known = rng.choice(events)
                event.wait()
                waited |= known
                assert event.done()
            case "queue" if rng.random() < 0.2:
                queues[k].synchronize()
                before[k] |= waited
                waited |= before[k]
            case _:
                pass


def test_costs_are_those_of_the_clock_unless_they_are_given() -> None:
    assert describe(0).costs.gather_cycles == describe(0).costs.copy_cycles == 1 / 64  # lanes of float32
    assert describe(0, vector_bytes=32).costs.seek_cycles == 1 / 8
    assert describe(0, costs=CostModel()).costs == CostModel()
