"""Plans by limit: for a graph whose plan was refused, one that computes some values again, or spills them.

A plan is made for the memory that is left when it is asked for, and taken again as long as that has not changed much.
"""

from __future__ import annotations

import math
import threading
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from weft import settings
from weft.backends import registry
from weft.backends.protocol import Device, Memory, Rounder, WorkspaceKeeper
from weft.backends.storage import Storage
from weft.errors import MemoryPlanError
from weft.ir import numerics
from weft.ir.forks import forkable
from weft.ir.garbage import not_collected
from weft.lazy_dataclass import dataclass
from weft.scheduler import memory
from weft.scheduler.assembly import Assembly, Job, Prepared, assembled
from weft.scheduler.build import prepared
from weft.scheduler.loops import nbytes
from weft.scheduler.plan import Plan, Within
from weft.scheduler.pools import again, slow
from weft.scheduler.pools.order import reordered
from weft.scheduler.pools.schedule import (
    Fate,
    Kind,
    Left,
    Measure,
    Problem,
    Schedule,
    Transfer,
    fates,
    least,
    walks,
    within,
)
from weft.scheduler.pools.spilling import plan_of, split
from weft.scheduler.pools.verify import verify_split
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
    """A plan that takes `nbytes` for results, workspace and movable state in memory, was made for `room`, and takes
    about `ns`. `rests`: the leaves that rest in the slower pool before it runs, and after."""

    plan: Plan
    nbytes: int
    room: int
    ns: float
    rests: frozenset[int] = frozenset()

    def serves(self, room: int) -> bool:
        """True where it fits, and no other plan is expected to be faster."""
        return self.nbytes <= room and (room <= ROOMIER * self.room or self.plan.within is None)


_lock = forkable(threading.RLock())
_fitted: OrderedDict[tuple[Device, Key, Replaces, tuple[int, ...]], list[Fitted]] = OrderedDict()


@dataclass(frozen=True, slots=True)
class State:
    """Leaves, by number, whose memory nobody but who runs the plan can see, and which it replaces: they may rest in the
    slower pool between runs. `nbytes`: what those take that are in memory now."""

    leaves: tuple[int, ...] = ()
    nbytes: int = 0


NO_STATE = State()


def fitting(
    sig: Signature, device: Device, replaces: Replaces, room: int, movable: tuple[int, ...] = ()
) -> Fitted | int:
    """The plan of a graph whose results, workspace and `movable` leaves take at most `room` bytes; the least that would
    do, where that is more. `replaces`: the outputs that take a leaf's memory."""
    key = device, sig.key, replaces, movable
    with _lock:
        known = _fitted.setdefault(key, [])
        _fitted.move_to_end(key)
        while len(_fitted) > GRAPHS_KEPT:
            _fitted.popitem(last=False)
        found = min([f for f in known if f.serves(room)], key=lambda f: f.ns, default=None)
        if found is not None:
            return found
        with not_collected(), numerics.switched(sig.key.pinned):
            made = _built(sig, device, replaces, room, movable)
        if isinstance(made, Fitted):
            known.append(made)
            del known[:-PLANS_KEPT]
        return made


def _built(
    sig: Signature, device: Device, replaces: Replaces, room: int, movable: tuple[int, ...]
) -> Fitted | int:
    own = snapshot(sig)
    given = prepared(Job(own.outputs, own.leaves, sig.variables, dict(replaces)), device)
    state = sum([freed(device, nbytes(own.leaves[i])) for i in movable])
    taken = _taken(given, device) + state
    if taken <= room:
        return Fitted(assembled(given).plan({}), taken, room, 0.0)
    made = reordered(given)
    options = _Options(
        made, device, room, {i: o for i, o in again.movable(made).items() if i in movable}, state
    )
    found = options.best()
    return options.least() if found is None else _fitted_by(found, given, made, device, room)


@dataclass(frozen=True, slots=True)
class _Option:
    """A schedule, for the tasks of a job, that takes so many bytes with movable state that stays in memory. `usual_ns`:
    the time of all tasks where nothing leaves."""

    tasks: again.Tasks
    schedule: Schedule
    taken: int
    usual_ns: float


@dataclass(frozen=True, slots=True)
class _Options:
    """The ways in which a job may keep within `room`: with more or less state at rest, computing again or spilling.
    `movable`: the leaves that may rest, each with the output that replaces it; `state`: the bytes of those that may be
    in memory, whether they may rest in this plan or not."""

    made: Prepared
    device: Device
    room: int
    movable: Mapping[int, int]
    state: int

    def best(self) -> _Option | None:
        """The quickest of those that keep within the room; None where there is none. State moves where the rest has to
        be computed again or copied without."""
        first = self._quicker(0)
        if not self.movable or (first is not None and first.schedule.ns <= WORTH_A_COPY * first.usual_ns):
            return first
        order = self._order()
        some, enough = self._fewest(order, False), self._fewest(order, True)
        found = [first, self._quicker(enough, order)]
        while some < enough:
            found.append(self._quicker(some, order))
            if found[-1] is not None:
                break
            some *= 2
        if all(o is None for o in found):
            found.append(self._quicker(len(order), order))
        return min([o for o in found if o is not None], key=lambda o: o.schedule.ns, default=None)

    def least(self) -> int:
        """The least room for which there is an option."""
        found: list[int] = []
        order = sorted(self.movable)
        for count in {0, len(order)}:
            tasks, rest = self._tasks(count, order)
            for problem in (tasks.problem, self._spilling(tasks)):
                found.append(least(problem, self._measure(tasks)) + rest)
        return min(found)

    def _order(self) -> list[int]:
        """The leaves that may rest: first those that free most for the longest, for the time that copies take."""
        tasks = again.tasks(self.made, self.movable, self._transfer)
        clock, uses = tasks.problem.clock, tasks.problem.uses
        used: dict[int, list[int]] = {}
        cost: dict[int, float] = {}
        freed: dict[int, int] = {}
        for v, leaf in tasks.rests.items():
            transfer = tasks.problem.transfers[v]
            assert transfer is not None
            used.setdefault(leaf, []).extend(uses[v])
            if v in tasks.problem.end:
                used[leaf].append(tasks.problem.maker[v])
            cost[leaf] = cost.get(leaf, 0.0) + (
                transfer.back_ns if v in tasks.problem.begin else transfer.out_ns
            )
            freed[leaf] = tasks.problem.nbytes[v]

        def score(leaf: int) -> float:
            there = clock[max(used[leaf]) + 1] - clock[min(used[leaf])]
            return freed[leaf] * (clock[-1] - there) / max(cost[leaf], 1.0)

        return sorted(used, key=lambda leaf: (-score(leaf), leaf))

    def _fewest(self, order: Sequence[int], keeps: bool) -> int:
        """The fewest leaves at rest with which there seems to be room, where everything else is kept or not."""
        low, high = 1, len(order)
        while low < high:
            count = (low + high) // 2
            tasks, rest = self._tasks(count, order)
            room = self.room - rest - results_bytes(self.made, self.device)
            if tasks.problem.peak <= room if keeps else walks(self._spilling(tasks), room):
                high = count
            else:
                low = count + 1
        return low

    def _tasks(self, count: int, order: Sequence[int]) -> tuple[again.Tasks, int]:
        """The tasks with the first leaves of the order at rest, and the bytes of state that stays."""
        first = sorted(order[:count])
        resting = {i: self.movable[i] for i in first}
        tasks = again.tasks(self.made, resting, self._transfer)
        moved = sum([freed(self.device, nbytes(self.made.job.leaves[i])) for i in resting])
        return tasks, self.state - moved

    def _quicker(self, count: int, order: Sequence[int] = ()) -> _Option | None:
        """The quicker way with so many leaves at rest: computing again alone, or spilling too."""
        tasks, rest = self._tasks(count, order)
        measure, fixed = self._measure(tasks), results_bytes(self.made, self.device)
        usual = tasks.problem.clock[-1]
        found = within(tasks.problem, self.room - rest, fixed, measure)
        if found is None or found.ns > WORTH_A_COPY * usual:
            options = [found, within(self._spilling(tasks), self.room - rest, fixed, measure)]
            found = min([s for s in options if s is not None], key=lambda s: s.ns, default=None)
        return None if found is None else _Option(tasks, found, measure(found) + rest, usual)

    def _spilling(self, tasks: again.Tasks) -> Problem:
        """The tasks, whose values may all go to the slower pool."""
        return replace(tasks.problem, transfers=tuple([self._transfer(nbytes(n)) for n in tasks.values]))

    def _transfer(self, size: int) -> Transfer:
        return slow.transfer(self.device, size)

    def _measure(self, tasks: again.Tasks) -> Measure:
        def measure(schedule: Schedule) -> int:
            if not schedule.spills:
                return _taken(again.repeated(self.made, tasks, schedule), self.device)
            pieces = split(self.made, tasks, schedule)
            return NEVER if pieces is None else pieces.taken(lambda n: allocated(self.device, n))

        return measure


def _fitted_by(found: _Option, given: Prepared, made: Prepared, device: Device, room: int) -> Fitted:
    """The plan by an option. `given`: the job with its kernels in their own order."""
    tasks, schedule = found.tasks, found.schedule
    number = {id(s): k for k, s in enumerate(given.specs)}
    ran = [number[id(made.specs[a.number])] for a in schedule.actions if a.kind is Kind.RUN]
    left = [(repr(tasks.values[x.value]), x) for x in fates(schedule)]
    pool = slow.name(device.info)
    notes = lines(left, room, found.taken, schedule.ns / found.usual_ns, pool) + state_lines(
        tasks, schedule, pool
    )
    pieces = split(made, tasks, schedule) if schedule.spills else None
    if pieces is not None and settings.verify():
        verify_split(pieces)
    plan = plan_of(pieces) if pieces else assembled(again.repeated(made, tasks, schedule)).plan({})
    rests = frozenset(tasks.rests.values())
    return Fitted(replace(plan, within=Within(tuple(ran), notes)), found.taken, room, schedule.ns, rests)


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


def freed(device: Device, size: int) -> int:
    """The bytes that a pool counts no more once memory of a size is given back."""
    return device.freed_bytes(size) if isinstance(device, Rounder) else size


def run(sig: Signature, device: Device, memories: list[Memory], refused: MemoryPlanError) -> list[Storage]:
    """The values of a graph whose plan was `refused`, within the memory that is left."""
    return attempted(sig, device, (), refused, lambda found: found.plan.run(memories))


def attempted(
    sig: Signature,
    device: Device,
    replaces: Replaces,
    refused: MemoryPlanError,
    start: Callable[[Fitted], R],
    beside: Callable[[], tuple[int, State]] = lambda: (0, NO_STATE),
) -> R:
    """The result of `start` for the plan of a graph within the memory that is left, what it has already, and that of
    its state, which are asked for `beside` each attempt: one that failed may have put state to rest. Where the pool
    gives less than it seems to have, for a smaller one. MemoryPlanError where there is none."""
    if sig.variables:
        raise refused  # whose values say how much memory it takes
    slack = 0
    for _ in range(ATTEMPTS):
        let_go(refused)
        if isinstance(device, WorkspaceKeeper):
            device.give_up_workspace()
        more, state = beside()
        room = room_on(device) + more + state.nbytes - slack
        found = fitting(sig, device, replaces, room, state.leaves)
        if not isinstance(found, Fitted):
            text = remedy(device, found - more - state.nbytes, sig, state)
            raise MemoryPlanError(f"{refused.message}. {text}") from refused
        if found.plan.within is None and not slack and not state.leaves:
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


def let_go(error: BaseException) -> None:
    """Forget the local variables of what has failed: memory for results, the workspace of before."""
    at: BaseException | None = error
    while at is not None:
        traceback.clear_frames(at.__traceback__)
        at = at.__cause__  # not its context, which may be the caller's own


def remedy(device: Device, needed: int, sig: Signature, state: State = NO_STATE) -> str:
    """The limit that would do, and how many devices would; what the graph reads, but for `state`, stays in memory in
    any case."""
    limit = registry.memory_limit(device)
    used = device.used_bytes() + _idle(device)
    moves = set(state.leaves)
    stays = min(sum([nbytes(n) for i, n in enumerate(sig.leaves) if i not in moves]), used)
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


def state_lines(tasks: again.Tasks, schedule: Schedule, pool: str) -> tuple[str, ...]:
    """The state that rests in the slower pool between runs, and what moving it takes."""
    problem = tasks.problem
    if not tasks.rests:
        return ()
    moved, ns = 0, 0.0
    for a in schedule.actions:
        transfer = problem.transfers[a.number] if a.kind in (Kind.OUT, Kind.BACK) else None
        if transfer is not None and a.number in tasks.rests:
            moved += problem.nbytes[a.number]
            ns += transfer.out_ns if a.kind is Kind.OUT else transfer.back_ns
    size = sum([problem.nbytes[v] for v in problem.begin])
    head = (
        f"{len(problem.begin)} tensors of state rest in {pool} between runs, {size:,} bytes in all; {moved:,} bytes "
        f"are copied in a run, in about {ns / 1e3:,.1f} us"
    )
    return (head, *[f"    {tasks.values[v]!r}: {problem.nbytes[v]:,} bytes" for v in sorted(problem.begin)])


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
