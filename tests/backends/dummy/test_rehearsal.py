"""Plans of times and bytes alone take the time that devices would."""

from __future__ import annotations

import random
from typing import Any

import pytest

from weft.backends.dummy.device import DummyBackend
from weft.backends.dummy.farm import Farm
from weft.backends.dummy.rehearsal import Rehearsal
from weft.backends.dummy.simulation import Operation
from weft.backends.protocol import Commands, CopyBytes
from weft.testing import Link, all_to_all, fat_tree, host_staged, ring

LINK = Link(1e-6, 1e9)


def described(count: int = 4, **more: Any) -> Farm:
    fields: dict[str, Any] = {
        "launch_ns": 100.0,
        "bandwidth": 2e9,
        "topology": ring(count, LINK),
        "timing_only": True,
    }
    return Farm.of(count, **{**fields, **more})  # fmt: skip


def test_a_pipeline_of_two_stages_takes_the_time_of_one_and_what_cannot_overlap() -> None:
    r = Rehearsal(described(2))
    for _ in range(4):
        first = r.kernel(0, 5000.0, name="first")
        r.kernel(1, 5000.0, [r.copy(0, 1, 3000, [first])], name="second")
    assert r.makespan_ns == pytest.approx(100 + 5000 + 1000 + 3000 + 100 + 4 * 5000)
    assert r.timeline().overlap_ns(["farm:0"], ["0->1"]) == pytest.approx(3 * 3000)


@pytest.mark.parametrize("seed", range(12))
def test_times_are_those_of_the_devices(seed: int) -> None:
    rng = random.Random(seed)
    topology = [ring(4, LINK), all_to_all(LINK), fat_tree(2, LINK, Link(3e-6, 5e8), 1), host_staged(LINK)][
        seed % 4
    ]
    farm = described(topology=topology, pools=["a", "a", "", ""] if seed % 3 == 0 else None)
    r, backend = Rehearsal(farm), DummyBackend(farm)
    sizes = [rng.randint(100, 5000) for _ in range(40)]
    runs = [[d.link([], Commands((CopyBytes(1, 0, n),), 2, (), 0)) for n in sizes] for d in backend.devices]
    last: dict[tuple[int, int], Operation] = {}
    for k, nbytes in enumerate(sizes):
        queue, target = rng.randrange(3), rng.randrange(4)
        device, line = backend.device(target), (target, queue)
        after = [last[line]] if line in last else []
        if rng.random() < 0.5 and last:
            other = rng.choice(list(last))
            if other != line:
                device.queue(queue).wait(backend.device(other[0]).queue(other[1]).record())
                after.append(last[other])
        room = device.allocate(nbytes)
        if rng.random() < 0.5:
            runs[target][k].run([device.allocate(nbytes), room], (), queue)
            last[line] = r.kernel(target, nbytes, after)
        else:
            origin = rng.choice([j for j in range(4) if j != target])
            source = backend.device(origin).allocate(nbytes)
            assert device.copy_from(room, backend.device(origin), source, nbytes, queue)
            last[line] = r.copy(origin, target, nbytes, after)
    assert r.makespan_ns == pytest.approx(backend.makespan_ns)
    plan, simulated = r.timeline(), backend.timeline()
    assert plan.resources == simulated.resources
    assert [plan.busy_ns(x) for x in plan.resources] == pytest.approx(
        [simulated.busy_ns(x) for x in plan.resources]
    )


def test_peaks_are_of_what_is_there_at_once() -> None:
    r = Rehearsal(described(3, pools=["one", "one", ""], launch_ns=50.0))
    a = r.kernel(0, 1000.0)
    b = r.kernel(1, 500.0, [a])
    c = r.kernel(2, 500.0, [a, b])
    r.memory(0, 10, a, [b])
    r.memory(1, 7, b)  # stays
    r.memory(0, 10, c, [c])  # when the first is gone
    r.memory(2, 5, c, [c])
    assert r.peak_bytes() == {"one": 17, "farm:2": 5}


def test_ten_thousand_steps_on_a_thousand_devices() -> None:
    r = Rehearsal(described(1000, topology=fat_tree(125, LINK, uplinks=25)))
    steps: list[Operation | None] = [None] * 1000
    for _ in range(5):
        sent = [
            r.copy(k, (k + 125) % 1000, 2000, [x for x in (steps[k],) if x is not None]) for k in range(1000)
        ]
        steps = [r.kernel(k, 300.0, [sent[k - 125]]) for k in range(1000)]
    assert r.makespan_ns >= 5 * (1000 + 2000 + 100 + 300)
    assert r.timeline().busy_ns("farm:0") == pytest.approx(5 * 300)
