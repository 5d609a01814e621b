"""Schedules are possible, no slower than those of HEFT and PEFT, and hide what can be hidden."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from weft.errors import ArgumentError, MemoryPlanError
from weft.scheduler.placing.links import Links
from weft.scheduler.placing.order import heft, peft, schedule
from weft.scheduler.placing.tasks import Machine, Schedule, Task


def random_tasks(
    rng: np.random.Generator, count: int, devices: int, sent: float, nbytes: bool = False
) -> list[Task]:
    tasks = []
    speed = rng.uniform(1, 3, devices)
    for k in range(count):
        ns = rng.uniform(10, 100) * speed * rng.uniform(0.8, 1.2, devices)
        if devices > 1 and rng.random() < 0.1:
            ns[int(rng.integers(devices))] = math.inf
        inputs = rng.integers(max(0, k - 8), k, rng.integers(1, 4)).tolist() if k > 2 else []
        size = int(rng.integers(1, 100)) if nbytes else int(sent * rng.uniform(10, 100))
        tasks.append(Task(f"t{k}", tuple(ns.tolist()), tuple(inputs), size))
    return tasks


def check(tasks: list[Task], machine: Machine, s: Schedule) -> None:
    """A schedule, step by step: inputs are there, nothing overlaps, and pools have the peaks that it says."""
    busy: dict[object, list[tuple[float, float]]] = {}
    for k, slot in enumerate(s.slots):
        assert slot.task == k and slot.end == pytest.approx(slot.start + tasks[k].ns[slot.device])
        busy.setdefault(("device", slot.device), []).append((slot.start, slot.end))
    there: dict[tuple[int, int], float] = {(k, machine.pools[x.device]): x.end for k, x in enumerate(s.slots)}
    held = {(k, machine.pools[x.device]): [x.start, 0.0] for k, x in enumerate(s.slots)}
    for m in s.messages:
        assert s.slots[m.task].device == m.source and m.start >= s.slots[m.task].end - 1e-9
        assert m.end == pytest.approx(
            m.start + machine.links.send_ns(m.source, m.target, tasks[m.task].nbytes)
        )
        assert (m.task, machine.pools[m.target]) not in there, "sent once"
        there[m.task, machine.pools[m.target]] = m.end
        held[m.task, machine.pools[m.target]] = [m.start, 0.0]
        busy.setdefault(("wire", machine.wires[m.source][m.target]), []).append((m.start, m.end))
    for m in s.messages:
        held[m.task, machine.pools[m.source]][1] = max(held[m.task, machine.pools[m.source]][1], m.end)
    for k, slot in enumerate(s.slots):
        for i in tasks[k].inputs:
            assert there[i, machine.pools[slot.device]] <= slot.start + 1e-9
            end = held[i, machine.pools[slot.device]]
            end[1] = max(end[1], slot.end)
    for some in busy.values():
        for (_, end), (start, _) in itertools.pairwise(sorted(some)):
            assert end <= start + 1e-9
    for pool in range(machine.pool_count):
        mine = [(a, b or math.inf, tasks[k].nbytes) for (k, p), (a, b) in held.items() if p == pool]
        at = [sum(n for a, b, n in mine if a <= t < b) for t, _, _ in mine]
        assert s.peaks[pool] == max(at, default=0)
    assert s.ns == max(x.end for x in s.slots)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_schedules_are_possible_and_no_slower_than_their_rivals(devices: int) -> None:
    rng = np.random.default_rng(devices)
    for sent in (0.1, 1.0, 4.0):
        tasks = random_tasks(rng, 20, devices, sent)
        machine = Machine(Links.uniform(devices, 5, 1e9))
        found = schedule(tasks, machine, tries=60)
        check(tasks, machine, found)
        for rival in (heft(tasks, machine), peft(tasks, machine)):
            assert rival is not None
            check(tasks, machine, rival)
            assert found.ns <= rival.ns


def test_search_finds_what_ranks_do_not() -> None:
    rng = np.random.default_rng(11)
    ratios = []
    for _ in range(6):
        tasks = random_tasks(rng, 24, 4, 4.0)
        machine = Machine(Links.uniform(4, 5, 1e9))
        rivals = [s.ns for s in (heft(tasks, machine), peft(tasks, machine)) if s is not None]
        ratios.append(schedule(tasks, machine, tries=400).ns / min(rivals))
    assert np.mean(ratios) < 0.95


def test_small_graphs_get_the_best_schedule() -> None:
    rng = np.random.default_rng(2)
    for _ in range(6):
        tasks = [Task(f"t{k}", tuple(float(x) for x in rng.integers(1, 9, 2))) for k in range(6)]
        machine = Machine(Links.uniform(2, 0, 1e9))
        every = itertools.product((0, 1), repeat=6)
        best = min(
            max(sum(t.ns[d] for t, x in zip(tasks, w, strict=True) if x == d) for d in (0, 1)) for w in every
        )
        assert schedule(tasks, machine).ns == best


def test_unequal_devices_share_equal_tasks_by_speed() -> None:
    tasks = [Task(f"t{k}", (12.0, 6.0, 4.0, 3.0)) for k in range(200)]
    found = schedule(tasks, Machine(Links.uniform(4, 0, 1e9)), tries=0)
    assert found.ns <= 1.05 * 200 * 12 / 10


def test_devices_of_one_pool_exchange_nothing() -> None:
    tasks = [Task("a", (5.0, math.inf), (), 1000), Task("b", (math.inf, 5.0), (0,), 10)]
    apart = schedule(tasks, Machine(Links.uniform(2, 7, 1e9)))
    assert (apart.ns, len(apart.messages)) == (5 + 1007 + 5, 1)
    together = schedule(tasks, Machine(Links.uniform(2, 7, 1e9), pools=(0, 0)))
    assert (together.ns, together.messages, together.peaks) == (10, (), (1010,))


def test_links_that_are_shared_carry_one_message_at_a_time() -> None:
    only = [(5.0, *[math.inf] * 3), (math.inf, 5.0, *[math.inf] * 2), (*[math.inf] * 3, 1.0)]
    tasks = [Task("a", only[0], (), 100), Task("b", only[1], (), 100), Task("c", only[2], (0, 1))]
    links = Links.uniform(4, 0, 1e9)
    assert schedule(tasks, Machine(links)).ns == 5 + 100 + 1
    one = Machine(links, wires=((0,) * 4,) * 4)
    found = schedule(tasks, one)
    assert found.ns == 5 + 200 + 1
    check(tasks, one, found)


def test_collectives_run_beside_what_is_computed() -> None:
    """Backward of 32 layers with an all-reduce each, as long as the layer: only the last one shows."""
    tasks: list[Task] = []
    for k in range(32):
        tasks.append(Task(f"layer{k}", (100.0, math.inf), (2 * k - 2,) if k else ()))
        tasks.append(Task(f"reduce{k}", (math.inf, 100.0), (2 * k,)))
    found = schedule(tasks, Machine(Links.uniform(2, 0, 1e9), pools=(0, 0)), tries=50)
    hidden = 64 * 100 - found.ns
    assert hidden >= 0.9 * 31 * 100


@pytest.mark.parametrize("devices", [1, 3])
def test_no_pool_gets_more_than_its_limit(devices: int) -> None:
    rng = np.random.default_rng(devices)
    tight = 0
    for _ in range(8):
        tasks = random_tasks(rng, 16, devices, 1.0, nbytes=True)
        links = Links.uniform(devices, 5, 1e9)
        free = schedule(tasks, Machine(links), tries=0)
        limit = int(max(free.peaks) * 0.9)
        machine = Machine(links, limits=(limit,) * devices)
        try:
            found = schedule(tasks, machine, tries=40)
        except MemoryPlanError as e:
            assert "would do" in str(e)
            continue
        check(tasks, machine, found)
        assert max(found.peaks) <= limit
        tight += 1
    assert tight


def test_what_does_not_fit_is_named_with_limits_that_do() -> None:
    tasks = [Task("a", (1.0,), (), 60), Task("b", (1.0,), (), 60), Task("c", (1.0,), (0, 1), 10)]
    with pytest.raises(MemoryPlanError, match="pool 0: limit 100 bytes, 130 would do"):
        schedule(tasks, Machine(Links.uniform(1, 0, 1e9), limits=(100,)))
    assert schedule(tasks, Machine(Links.uniform(1, 0, 1e9), limits=(130,))).peaks == (130,)


def test_order_saves_memory_where_time_does_not_ask() -> None:
    """Two chains whose beginnings are large: one after the other fits where both beginnings do not."""
    tasks = [
        Task("a", (1.0,), (), 100), Task("b", (1.0,), (), 100),
        Task("c", (1.0,), (0,), 1), Task("d", (1.0,), (1,), 1),
    ]  # fmt: skip
    machine = Machine(Links.uniform(1, 0, 1e9), limits=(110,))
    found = schedule(tasks, machine)
    check(tasks, machine, found)
    assert found.peaks == (102,)


def test_tasks_that_read_what_comes_later_are_refused() -> None:
    machine = Machine(Links.uniform(1, 0, 1e9))
    with pytest.raises(ArgumentError, match="tasks read what is before them"):
        schedule([Task("a", (1.0,), (0,))], machine)
    with pytest.raises(ArgumentError, match="runs on none of 1 devices"):
        schedule([Task("a", (math.inf,))], machine)
    assert schedule([], machine).ns == 0
