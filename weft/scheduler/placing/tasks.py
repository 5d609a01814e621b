"""Tasks, the machine that runs them, and schedules: which task runs where and when, and what is sent.

A task runs on one device, from when all that it reads is in that device's pool. A result is sent once to each pool
that needs it, over the link between two devices, which carries one message at a time; devices of one pool need none.
A result takes room in its pool from the start of its task, and a copy from the start of its message, until the last
task or message that reads it ends; results that none reads stay. A collective is a task on a device of its own, whose
pool is shared with those that take part.
"""
# Tests: tests/scheduler/placing/test_order.py

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.scheduler.placing.links import Links


@dataclass(frozen=True, slots=True)
class Task:
    """Work that is not parted: its time on each device (inf where it cannot run), the tasks before it whose results it
    reads, and the bytes of its own result."""

    name: str
    ns: tuple[float, ...]
    inputs: tuple[int, ...] = ()
    nbytes: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """Devices with links; `pools`: that of each device, by default one each; `limits`: bytes of each pool.

    `wires`: for each ordered pair of devices, the number of the link that it uses, where several use the same.
    """

    links: Links
    pools: tuple[int, ...] = ()
    limits: tuple[int, ...] = ()
    wires: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.pools:
            object.__setattr__(self, "pools", tuple(range(self.links.count)))
        if not self.wires:
            n = self.links.count
            object.__setattr__(self, "wires", tuple(tuple(i * n + j for j in range(n)) for i in range(n)))
        if len(self.pools) != self.links.count:
            raise ArgumentError(f"{len(self.pools)} pools of {self.links.count} devices")
        if self.limits and len(self.limits) != self.pool_count:
            raise ArgumentError(f"{len(self.limits)} limits of {self.pool_count} pools")

    @property
    def pool_count(self) -> int:
        """The number of pools."""
        return max(self.pools) + 1


@dataclass(frozen=True, slots=True)
class Slot:
    """A task on its device."""

    task: int
    device: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Message:
    """A task's result on its way from its device to another."""

    task: int
    source: int
    target: int
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Slots in the order of tasks, messages, the end of the last slot, and the most bytes in each pool."""

    slots: tuple[Slot, ...]
    messages: tuple[Message, ...]
    ns: float
    peaks: tuple[int, ...]


def check_tasks(tasks: Sequence[Task], machine: Machine) -> None:
    """Raise an ArgumentError where tasks are no DAG in order, or a task runs nowhere."""
    for k, t in enumerate(tasks):
        if len(t.ns) != machine.links.count or all(ns == float("inf") for ns in t.ns):
            raise ArgumentError(f"{t.name} runs on none of {machine.links.count} devices: {t.ns}")
        if any(not 0 <= i < k for i in t.inputs):
            raise ArgumentError(f"{t.name}, task {k}, reads {t.inputs}: tasks read what is before them")


def peaks(
    tasks: Sequence[Task], machine: Machine, slots: Sequence[Slot], messages: Iterable[Message]
) -> tuple[int, ...]:
    """The most bytes in each pool at any time."""
    last: dict[tuple[int, int], float] = {}
    first = {(s.task, machine.pools[s.device]): s.start for s in slots}

    def read(task: int, device: int, end: float) -> None:
        key = task, machine.pools[device]
        last[key] = max(last.get(key, 0.0), end)

    for m in messages:
        first[m.task, machine.pools[m.target]] = m.start
        read(m.task, m.source, m.end)
    for s in slots:
        for i in tasks[s.task].inputs:
            read(i, s.device, s.end)
    events: list[list[tuple[float, int]]] = [[] for _ in range(machine.pool_count)]
    for (task, pool), start in first.items():
        events[pool].append((start, tasks[task].nbytes))
        if (task, pool) in last:
            events[pool].append((last[task, pool], -tasks[task].nbytes))
    found: list[int] = []
    for some in events:
        held = most = 0
        for _, change in sorted(some):  # what ends where another begins is gone: negative changes come first
            held += change
            most = max(most, held)
        found.append(most)
    return tuple(found)
