"""Schedules take on a simulated farm the time and the memory that they were planned with."""

from __future__ import annotations

import random

import numpy as np
import pytest

from weft.backends.dummy.farm import Farm
from weft.backends.dummy.rehearsal import Rehearsal
from weft.backends.dummy.simulation import Operation
from weft.scheduler.placing.links import Links
from weft.scheduler.placing.order import schedule
from weft.scheduler.placing.tasks import Machine, Message, Schedule, Slot, Task
from weft.testing import Link, all_to_all, groups


def random_tasks(rng: random.Random, devices: int) -> list[Task]:
    """A random DAG on devices of unequal speeds."""
    out: list[Task] = []
    for k in range(rng.randint(2, 40)):
        inputs = tuple(sorted(rng.sample(range(k), min(k, rng.choice([0, 1, 1, 2, 3])))))
        work = rng.uniform(1e3, 1e5)
        out.append(
            Task(f"t{k}", tuple(work / (d + 1) for d in range(devices)), inputs, rng.randint(1, 10**6))
        )
    return out


def machine_of(farm: Farm) -> Machine:
    """The farm as the scheduler has it: links, and wires by number."""
    n = len(farm.devices)
    topology = farm.topology
    assert topology is not None
    links = {(i, j): topology.link(i, j) for i in range(n) for j in range(n) if i != j}
    latency, per_byte = np.zeros((n, n)), np.zeros((n, n))
    for at, x in links.items():
        latency[at], per_byte[at] = 1e9 * x.alpha_s, 1e9 / x.bytes_per_second
    numbers = {name: k for k, name in enumerate(sorted({w for x in links.values() for w in x.wires}))}
    wires = tuple(tuple(numbers[links[i, j].wires[0]] if i != j else -1 for j in range(n)) for i in range(n))
    return Machine(Links(latency, per_byte), wires=wires)


def rehearsed(farm: Farm, tasks: list[Task], machine: Machine, planned: Schedule) -> Rehearsal:
    """The schedule on the farm: each device and each wire in the order of the plan, as early as it can be."""
    r = Rehearsal(farm)
    done: dict[tuple[int, int], Operation] = {}  # task and device -> what brings its result there
    uses: dict[tuple[int, int], list[Operation]] = {}
    busy: dict[tuple[str, int], Operation] = {}
    steps: list[Slot | Message] = sorted([*planned.slots, *planned.messages], key=lambda s: (s.start, s.end))
    for s in steps:
        if isinstance(s, Message):
            line = "wire", machine.wires[s.source][s.target]
            after = [done[s.task, s.source], *([busy[line]] if line in busy else [])]
            op = r.copy(s.source, s.target, tasks[s.task].nbytes, after)
            done[s.task, s.target] = op
            uses.setdefault((s.task, s.source), []).append(op)
        else:
            line = "device", s.device
            inputs = tasks[s.task].inputs
            after = [done[i, s.device] for i in inputs] + ([busy[line]] if line in busy else [])
            op = r.kernel(s.device, tasks[s.task].ns[s.device], after)
            done[s.task, s.device] = op
            for i in inputs:
                uses.setdefault((i, s.device), []).append(op)
        busy[line] = op
    for (task, device), op in done.items():
        r.memory(device, tasks[task].nbytes, op, uses.get((task, device), []))
    return r


@pytest.mark.parametrize("seed", range(16))
def test_a_schedule_takes_the_time_and_the_memory_that_it_was_planned_with(seed: int) -> None:
    rng = random.Random(seed)
    near, far = Link(2e-6, 50e9), Link(9e-6, 5e9)
    n = rng.choice([2, 3, 4])
    topology = all_to_all(near) if seed % 2 else groups(2, near, far)
    farm = Farm.of(n, topology=topology, launch_ns=0.0)
    tasks, machine = random_tasks(rng, n), machine_of(farm)
    planned = schedule(tasks, machine, 50)
    simulated = rehearsed(farm, tasks, machine, planned)
    assert simulated.makespan_ns == pytest.approx(planned.ns, rel=1e-9)
    peaks = list(simulated.peak_bytes().values())
    assert peaks == list(planned.peaks)
