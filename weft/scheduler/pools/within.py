"""Plans by limit: for a graph whose plan was refused, one that computes some values again, or spills them.

A plan is made for the memory that is left when it is asked for, and taken again as long as that has not changed much.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from weft.backends import registry
from weft.backends.protocol import Device, Memory, Rounder
from weft.backends.storage import Storage
from weft.errors import MemoryPlanError
from weft.ir import numerics
from weft.ir.forks import forkable
from weft.ir.garbage import not_collected
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory
from weft.scheduler.build import Assembly, Job, Prepared, assembled, prepared
from weft.scheduler.loops import nbytes
from weft.scheduler.plan import Plan, Within
from weft.scheduler.pools import again, slow
from weft.scheduler.pools.order import reordered
from weft.scheduler.pools.schedule import Fate, Kind, Left, Schedule, fates, least, within
from weft.scheduler.pools.spilling import plan_of, split
from weft.scheduler.signature import Key, Signature, snapshot

GRAPHS_KEPT = 64
"""Graphs whose plans within limits are kept; the one used longest ago goes first."""

PLANS_KEPT = 4
"""Plans of a graph, for as many amounts of memory; the first one made goes first."""

ROOMIER = 1.25
"""The memory, in times of what a plan was made for, from which another one is made, which may be faster."""

ATTEMPTS = 6
"""Plans that are tried where the pool gives less than it seems to have: it keeps small blocks for their size."""

SLACK = 1 / 16
"""The part of what a pool seems to have by which the next one is smaller."""

WORTH_A_COPY = 1.1
"""The time, in times of what the plan that keeps all values takes, from which copies to a slower pool are weighed
against computing again: to plan both takes twice as long."""

NEVER = 1 << 62
"""The bytes of a schedule that cannot be laid out."""

R = TypeVar("R")
Replaces: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Fitted:
    """A plan that takes `nbytes` for results and workspace, was made for `room`, and takes about `ns`."""

    plan: Plan
    nbytes: int
    room: int
    ns: float

    def serves(self, room: int) -> bool:
        """True where it fits, and no other plan is expected to be faster."""
        return self.nbytes <= room and (room <= ROOMIER * self.room or self.plan.within is None)


_lock = forkable(threading.RLock())
_fitted: OrderedDict[tuple[Device, Key, Replaces], list[Fitted]] = OrderedDict()


def fitting(sig: Signature, device: Device, replaces: Replaces, room: int) -> Fitted | int:
    """The plan of a graph whose results and workspace take at most `room` bytes; the least that would do, where that
    is more. `replaces`: the outputs that take a leaf's memory."""
    key = device, sig.key, replaces
    with _lock:
        known = _fitted.setdefault(key, [])
        _fitted.move_to_end(key)
        while len(_fitted) > GRAPHS_KEPT:
            _fitted.popitem(last=False)
        found = min([f for f in known if f.serves(room)], key=lambda f: f.ns, default=None)
        if found is not None:
            return found
        with not_collected(), numerics.switched(sig.key.pinned):
            made = _built(sig, device, replaces, room)
        if isinstance(made, Fitted):
            known.append(made)
            del known[:-PLANS_KEPT]
        return made


def _built(sig: Signature, device: Device, replaces: Replaces, room: int) -> Fitted | int:
    own = snapshot(sig)
    given = prepared(Job(own.outputs, own.leaves, sig.variables, dict(replaces)), device)
    if _taken(given, device) <= room:
        return Fitted(assembled(given).plan({}), _taken(given, device), room, 0.0)
    made = reordered(given)
    found = again.tasks(made)
    problem, fixed = found.problem, results_bytes(made, device)

    def measure(schedule: Schedule) -> int:
        if not schedule.spills:
            return _taken(again.repeated(made, found, schedule), device)
        pieces = split(made, found, schedule)
        return NEVER if pieces is None else pieces.taken(lambda n: allocated(device, n))

    schedule = within(problem, room, fixed, measure)
    if schedule is None or schedule.ns > WORTH_A_COPY * problem.clock[-1]:
        transfers = tuple([slow.transfer(device, nbytes(n)) for n in found.values])
        spilling = replace(problem, transfers=transfers)
        options = [s for s in (schedule, within(spilling, room, fixed, measure)) if s is not None]
        if not options:
            return min(least(problem, measure), least(spilling, measure))
        schedule = min(options, key=lambda s: s.ns)
    taken = measure(schedule)
    number = {id(s): k for k, s in enumerate(given.specs)}
    ran = [number[id(made.specs[a.number])] for a in schedule.actions if a.kind is Kind.RUN]
    left = [(repr(found.values[x.value]), x) for x in fates(schedule)]
    notes = lines(left, room, taken, schedule.ns / problem.clock[-1], slow.name(device.info))
    pieces = split(made, found, schedule) if schedule.spills else None
    plan = plan_of(pieces) if pieces else assembled(again.repeated(made, found, schedule)).plan({})
    return Fitted(replace(plan, within=Within(tuple(ran), notes)), taken, room, schedule.ns)


def results_bytes(made: Prepared, device: Device) -> int:
    """The bytes of results that take new memory, as the pool counts them."""
    assembly = Assembly(made)
    fresh = [n for k, n in enumerate(made.job.outputs) if k not in assembly.replaces]
    return sum([allocated(device, nbytes(n)) for n in fresh])


def _taken(made: Prepared, device: Device) -> int:
    """The bytes that a plan takes for results in new memory and its workspace, as the pool counts them."""
    assembly = Assembly(made)
    fresh = [n for k, n in enumerate(made.job.outputs) if k not in assembly.replaces]
    work = memory.plan(assembly.requests).nbytes
    return sum([allocated(device, nbytes(n)) for n in fresh]) + (allocated(device, work) if work else 0)


def allocated(device: Device, size: int) -> int:
    """The bytes that a pool counts for memory of a size."""
    return device.rounded_bytes(size) if isinstance(device, Rounder) else size


def run(sig: Signature, device: Device, memories: list[Memory], refused: MemoryPlanError) -> list[Storage]:
    """The values of a graph whose plan was `refused`, within the memory that is left."""
    return attempted(sig, device, (), refused, lambda found: found.plan.run(memories))


def attempted(
    sig: Signature,
    device: Device,
    replaces: Replaces,
    refused: MemoryPlanError,
    start: Callable[[Fitted], R],
    more: int = 0,
) -> R:
    """The result of `start` for the plan of a graph within the memory that is left, and `more` that it has already;
    where the pool gives less than it seems to have, for a smaller one. MemoryPlanError where there is none."""
    if sig.variables:
        raise refused  # whose values say how much memory it takes
    slack = 0
    for _ in range(ATTEMPTS):
        _let_go(refused)
        room = room_on(device) + more - slack
        found = fitting(sig, device, replaces, room)
        if not isinstance(found, Fitted):
            raise MemoryPlanError(f"{refused.message}. {remedy(device, found - more, sig)}") from refused
        if found.plan.within is None and not slack:
            raise refused  # it is not for want of memory
        try:
            return start(found)
        except MemoryPlanError as error:
            refused = error
        slack += max(int(room * SLACK), memory.ALIGNMENT)
    raise refused


def room_on(device: Device) -> int:
    """The bytes that results and a workspace may take."""
    return registry.available_bytes(device) - _idle(device)


def _idle(device: Device) -> int:
    return device.idle_bytes() if isinstance(device, Rounder) else 0


def _let_go(error: BaseException) -> None:
    """Forget the local variables of what has failed: memory for results, the workspace of before."""
    at: BaseException | None = error
    while at is not None:
        traceback.clear_frames(at.__traceback__)
        at = at.__cause__  # not its context, which may be the caller's own


def remedy(device: Device, needed: int, sig: Signature) -> str:
    """The limit that would do, and how many devices would; what the graph reads stays in memory in any case."""
    limit = registry.memory_limit(device)
    used = device.used_bytes() + _idle(device)
    stays = min(sum(map(nbytes, sig.leaves)), used)
    devices = math.ceil((used + needed) / max(limit, 1))
    return (
        f"With values computed again where they are read, {needed:,} bytes would do: a limit of {used + needed:,} for "
        f"{device.info.memory_pool}, where {used:,} of {limit:,} are in use, {stays:,} of them by what it reads and "
        f"updates, which stays; or {max(devices, 2)} devices, if all is shared out evenly"
    )


def lines(
    left: Sequence[tuple[str, Left]], room: int, taken: int, longer: float, pool: str
) -> tuple[str, ...]:
    """The values that leave memory, and why; `pool`: where those go that are spilled."""
    head = (
        f"within {room:,} bytes: takes {taken:,}, {len(left)} values leave memory in between, about "
        f"{100 * (longer - 1):.0f} % longer"
    )
    return (head, *[_line(name, x, pool) for name, x in left])


def _line(name: str, x: Left, pool: str) -> str:
    way, other = (
        ("recomputed", "to spill it")
        if x.fate is Fate.RECOMPUTED
        else (f"spilled to {pool}", "to recompute it")
    )
    price = "" if x.other_ns is None else f"; {x.other_ns / 1e3:,.1f} us {other}"
    return (
        f"    {name}: {way}, {x.nbytes:,} bytes free for {x.absent_ns / 1e3:,.1f} us, back in "
        f"{x.back_ns / 1e3:,.1f} us{price}"
    )
