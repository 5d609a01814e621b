"""Schedules of tasks in little memory: the values that leave, when, and how they come back.

    run 0, 1, 2 ... 40             values 1 to 20 are read again by tasks 20 to 40, in turn
    at task 12 memory is full:     of what is there, the value leaves that frees most bytes for the longest time, for
                                   the least time that it takes to have it back
    before task 33:                run 7 again (or copy value 7 back), for which others may have to leave

Tasks keep their order: others are run again in between. All the choices are made as memory fills up, so a walk is about
as long as its list of actions; walks with less memory than was asked for make up for what a layout cannot use.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from enum import Enum, auto
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

from weft.lazy_dataclass import dataclass
from weft.scheduler import memory

MOST_TIME = 8.0
"""The time that a walk may take with all it computes again, in times of all tasks and of a copy of each value."""

TRIES = 8
"""Walks with other amounts of memory, where the layout of one takes more than there is."""

LEAST_TRIES = 12
"""Walks by which the least memory is looked for, by bisection."""


@dataclass(frozen=True, slots=True)
class Task:
    """Work that reads values and makes others. `ns`: its time; `again`: it may be run more than once; `own`: bytes that
    it takes while it runs; `over`: pairs of a value made and one read that have the same memory where the second is
    not needed any more."""

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    ns: float
    again: bool = True
    own: int = 0
    over: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Transfer:
    """The time in which a value goes to a slower pool, and comes back."""

    out_ns: float
    back_ns: float


@dataclass(frozen=True)
class Problem:
    """Tasks in order over values of so many bytes. `until[v]`: the last task before which value v can be made again,
    since what that reads may be overwritten later. `transfers`: those of values that may be spilled. The values `begin`
    are in the slower pool before the first task, the values `end` have to be there after the last one."""

    tasks: tuple[Task, ...]
    nbytes: tuple[int, ...]
    until: tuple[int, ...]
    transfers: tuple[Transfer | None, ...] = ()
    begin: frozenset[int] = frozenset()
    end: frozenset[int] = frozenset()

    @cached_property
    def maker(self) -> dict[int, int]:
        """The task that makes each value."""
        return {v: k for k, t in enumerate(self.tasks) for v in t.writes}

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """The tasks that read each value, in order."""
        found: list[list[int]] = [[] for _ in self.nbytes]
        for k, t in enumerate(self.tasks):
            for v in dict.fromkeys(t.reads):
                found[v].append(k)
        return tuple(map(tuple, found))

    @cached_property
    def clock(self) -> tuple[float, ...]:
        """The time at which each task begins, and that at which all are done."""
        return tuple(accumulate((t.ns for t in self.tasks), initial=0.0))

    @cached_property
    def most_ns(self) -> float:
        """The time that a walk may take, with all it computes again and copies."""
        copies = sum([t.out_ns + t.back_ns for t in self.transfers if t is not None])
        return MOST_TIME * (self.clock[-1] + copies)

    @cached_property
    def recomputable(self) -> tuple[int, ...]:
        """The last task before which each value can be made again, where what that takes may have to be made again,
        too; -1: never."""
        last: list[int] = [-1] * len(self.nbytes)
        for k, t in enumerate(self.tasks):
            if not t.again:
                continue
            until = min([max(last[x], (self.uses[x] or (k,))[-1]) for x in t.reads], default=len(self.tasks))
            for v in t.writes:
                last[v] = min(until, self.until[v])
        return tuple(last)

    @cached_property
    def peak(self) -> int:
        """The bytes in use at most where every value is kept."""
        walk = _Walk(self, None)
        walk.run()
        return walk.peak

    @cached_property
    def floor(self) -> int:
        """The bytes of the task that takes most: less is never enough."""
        return max([_Walk(self, None).bytes_of(k) for k in range(len(self.tasks))], default=0)


class Kind(Enum):
    """The kind of an action."""

    RUN = auto()  # a task, by its number
    OUT = auto()  # a value is copied to the slower pool
    BACK = auto()  # and from it
    LEAVE = auto()  # its memory is free from here on


@dataclass(frozen=True, slots=True)
class Action:
    """A step of a schedule: what is done, with which task or value."""

    kind: Kind
    number: int


class Fate(Enum):
    """The way in which a value is there when it is read."""

    RECOMPUTED = "recomputed"
    SPILLED = "spilled"


@dataclass(frozen=True, slots=True)
class Left:
    """A value that left memory: why it was this one. `other_ns`: the time that the other way would have taken."""

    value: int
    fate: Fate
    nbytes: int
    absent_ns: float
    back_ns: float
    other_ns: float | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """Actions in order, the bytes that values take at most, the time of all tasks and copies, and what left."""

    actions: tuple[Action, ...]
    peak: int
    ns: float
    left: tuple[Left, ...]

    @property
    def is_plain(self) -> bool:
        """True where every task runs once, and no value leaves."""
        return not self.left

    @property
    def spills(self) -> bool:
        """True where a value goes to the slower pool."""
        return any(a.kind is Kind.OUT for a in self.actions)


Measure: TypeAlias = Callable[[Schedule], int]
"""The bytes that a schedule takes when it is laid out."""


def kept(problem: Problem) -> Schedule:
    """The schedule in which every value is kept."""
    walk = _Walk(problem, None)
    walk.run()
    return walk.schedule()


def within(problem: Problem, nbytes: int, fixed: int, measure: Measure) -> Schedule | None:
    """A schedule that takes at most `nbytes` by `measure`, of which `fixed` are no values of the problem; None where
    `least` needs more."""
    target = min(nbytes - fixed, problem.peak)
    for k in range(TRIES):
        found = _walked(problem, target) if target >= problem.floor else None
        if found is None:
            break
        taken = measure(found)
        if taken <= nbytes:
            return found
        target -= max(taken - nbytes, k * target // 64, memory.ALIGNMENT)
    fitting = [s for s, taken in _ever_less(problem, measure) if taken <= nbytes]
    return min(fitting, key=lambda s: s.ns, default=None)


def least(problem: Problem, measure: Measure) -> int:
    """The least bytes that a schedule was found to take."""
    return min(taken for _, taken in _ever_less(problem, measure))


def _ever_less(problem: Problem, measure: Measure) -> list[tuple[Schedule, int]]:
    """Schedules for ever less memory, and the bytes that each takes: the same ones, whatever is asked for."""
    whole = kept(problem)
    found = [(whole, measure(whole))]
    low, high = problem.floor, problem.peak - 1
    target = low
    for _ in range(LEAST_TRIES):
        if low > high:
            break
        walked = _walked(problem, target)
        if walked is None:
            low = target + 1
        else:
            found.append((walked, measure(walked)))
            high = target - 1
        target = (low + high) // 2
    return found


def walks(problem: Problem, nbytes: int) -> bool:
    """True where there is a walk in so much memory."""
    return _walked(problem, nbytes) is not None


def _walked(problem: Problem, nbytes: int) -> Schedule | None:
    walk = _Walk(problem, nbytes)
    return walk.schedule() if walk.run() else None


@dataclass(slots=True)
class _Walk:
    """One walk through the tasks, in memory of so many bytes (None: as many as it takes)."""

    problem: Problem
    limit: int | None
    there: dict[int, None] = field(default_factory=dict[int, None])
    held: dict[int, int] = field(default_factory=dict[int, int])
    """The number of tasks about to run that read a value."""
    outside: set[int] = field(default_factory=set[int])
    """Values that the slower pool has."""
    again_ns: dict[int, float] = field(default_factory=dict[int, float])
    """The time to have back a value that has left or is not needed any more, as it was then."""
    actions: list[Action] = field(default_factory=list[Action])
    left: list[Left] = field(default_factory=list[Left])
    used: int = 0
    peak: int = 0
    ns: float = 0.0
    at: int = 0

    def run(self) -> bool:
        """Walk; False where the memory does not suffice."""
        problem, most = self.problem, self.problem.most_ns
        self.outside.update(problem.begin)
        self.again_ns.update({v: self._recompute_ns(v) for v in problem.begin})
        for k in range(len(problem.tasks)):
            self.at = k
            if not self._perform(k) or self.ns > most > 0:
                return False
        return True

    def schedule(self) -> Schedule:
        return Schedule(tuple(self.actions), self.peak, self.ns, tuple(self.left))

    def bytes_of(self, k: int) -> int:
        """The bytes that a task takes with all that it reads and makes."""
        task, nbytes = self.problem.tasks[k], self.problem.nbytes
        shared = {r: w for w, r in task.over if nbytes[r] == nbytes[w]}
        whole = sum(nbytes[v] for v in dict.fromkeys((*task.reads, *task.writes)))
        return whole + task.own - sum(nbytes[w] for w in set(shared.values()))

    def _next_use(self, v: int) -> int | None:
        """The next task in order that reads a value."""
        uses = self.problem.uses[v]
        i = bisect_left(uses, self.at)
        return uses[i] if i < len(uses) else None

    def _perform(self, first: int) -> bool:
        """Run a task, and before it all those whose values it needs and that have left."""
        problem, stack = self.problem, [first]
        self._hold(first, 1)
        while stack:
            k = stack[-1]
            missing = next((v for v in problem.tasks[k].reads if v not in self.there), None)
            if missing is None:
                if not self._run(k, len(stack) == 1):
                    return False
                stack.pop()
                continue
            if missing in self.outside:
                if not self._make_room(problem.nbytes[missing]):
                    return False
                self._back(missing)
                continue
            maker = problem.maker[missing]
            if maker in stack or problem.recomputable[missing] < self.at:
                return False
            stack.append(maker)
            self._hold(maker, 1)
        return True

    def _hold(self, k: int, by: int) -> None:
        for v in dict.fromkeys(self.problem.tasks[k].reads):
            self.held[v] = self.held.get(v, 0) + by

    def _run(self, k: int, original: bool) -> bool:
        """Run a task whose values are all there."""
        task, nbytes = self.problem.tasks[k], self.problem.nbytes
        if original:
            self.at = k + 1  # whose own reads are not to come
        needed = task.own + sum(nbytes[v] for v in task.writes)
        taken: set[int] = set()
        for w, r in task.over:
            dies = self.held.get(r) == 1 and self._next_use(r) is None
            if dies and r not in taken and w not in taken and nbytes[r] == nbytes[w]:
                taken |= {w, r}
                needed -= nbytes[w]
        if not self._make_room(needed):
            return False
        self.peak = max(self.peak, self.used + needed)
        self.ns += task.ns
        self.actions.append(Action(Kind.RUN, k))
        self._hold(k, -1)
        for v in task.writes:
            if v in self.there:
                continue
            if self.held.get(v) or self._next_use(v) is not None:
                self._enter(v)
            elif v in self.problem.end:
                self._enter(v)
                self._drop(v)
            else:
                self.again_ns[v] = self._recompute_ns(v)
                self.actions.append(Action(Kind.LEAVE, v))
        for v in dict.fromkeys(task.reads):
            if not self.held.get(v) and self._next_use(v) is None:
                self._drop(v)
        return True

    def _enter(self, v: int) -> None:
        self.there[v] = None
        self.used += self.problem.nbytes[v]
        self.peak = max(self.peak, self.used)

    def _drop(self, v: int) -> None:
        if v in self.there:
            if v in self.problem.end:
                self._put(v)
            del self.there[v]
            self.used -= self.problem.nbytes[v]
            self.again_ns[v] = self._recompute_ns(v)
            self.actions.append(Action(Kind.LEAVE, v))

    def _put(self, v: int) -> None:
        """Have the slower pool have a value."""
        if v not in self.outside:
            transfer = self.problem.transfers[v]
            assert transfer is not None
            self.outside.add(v)
            self.ns += transfer.out_ns
            self.actions.append(Action(Kind.OUT, v))

    def _back(self, v: int) -> None:
        transfer = self.problem.transfers[v]
        assert transfer is not None
        self.ns += transfer.back_ns
        self.actions.append(Action(Kind.BACK, v))
        self._enter(v)

    def _make_room(self, nbytes: int) -> bool:
        """Have values leave until so many bytes are free."""
        while self.limit is not None and self.used + nbytes > self.limit:
            victim = self._victim()
            if victim is None:
                return False
            self._leave(victim)
        return True

    def _victim(self) -> Left | None:
        """The value that leaves next."""
        best: Left | None = None
        most = 0.0
        clock, problem = self.problem.clock, self.problem
        now = clock[min(self.at, len(problem.tasks) - 1)]
        for v in self.there:
            use = self._next_use(v)
            if self.held.get(v) or use is None:
                continue
            ns, fate, other = self._cheapest(v, use)
            if ns is None:
                continue
            absent = clock[use] - now + 1.0
            score = problem.nbytes[v] * absent / max(ns, 1.0)
            if score > most:
                best, most = Left(v, fate, problem.nbytes[v], absent, ns, other), score
        return best

    def _cheapest(self, v: int, use: int) -> tuple[float | None, Fate, float | None]:
        """The time that it takes to have a value back for a task, in which way, and that of the other way."""
        again = self._recompute_ns(v) if self.problem.recomputable[v] >= use else None
        transfer = self.problem.transfers[v] if self.problem.transfers else None
        if transfer is None:
            return again, Fate.RECOMPUTED, None
        spilled = transfer.back_ns + (0.0 if v in self.outside else transfer.out_ns)
        if again is not None and again <= spilled:
            return again, Fate.RECOMPUTED, spilled
        return spilled, Fate.SPILLED, again

    def _recompute_ns(self, v: int) -> float:
        """About the time to make a value again, with those of what it is made from that are not there."""
        k = self.problem.maker.get(v)
        if k is None:  # it was there before the first task
            transfer = self.problem.transfers[v]
            return 0.0 if transfer is None else transfer.back_ns
        reads: Iterable[int] = self.problem.tasks[k].reads
        gone = sum(self.again_ns.get(x, 0.0) for x in reads if x not in self.there)
        return self.problem.tasks[k].ns + gone

    def _leave(self, left: Left) -> None:
        v = left.value
        if left.fate is Fate.SPILLED:
            self._put(v)
            transfer = self.problem.transfers[v]
            assert transfer is not None
            self.again_ns[v] = transfer.back_ns
        else:
            self.again_ns[v] = self._recompute_ns(v)
        del self.there[v]
        self.used -= self.problem.nbytes[v]
        self.actions.append(Action(Kind.LEAVE, v))
        self.left.append(left)


def fates(schedule: Schedule) -> Sequence[Left]:
    """The values that left, each value once for each way, the largest first."""
    once = {(x.value, x.fate): x for x in schedule.left}
    return sorted(once.values(), key=lambda x: (-x.nbytes, x.value))
