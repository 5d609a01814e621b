"""Tiers: a graph never seen runs on a basic plan at once, until its final plan is there, which is built beside.

    first run       basic plan: its programs are there already, or few and small
    later runs      the same, and a worker process builds the final plan
    then            the final plan

A basic plan is only taken where the final one would have to be built, and that would take longer: most of it is
compiling, so it goes by how many of its programs are missing. It is kept on disk:
a program that is over before the final one is there finds it the next time.
"""
# Tests: tests/scheduler/test_tiers.py

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

from weft import disk_cache as files
from weft.backends.protocol import Device
from weft.ir.index import Var
from weft.lazy_dataclass import dataclass
from weft.logs import logger
from weft.scheduler import disk_cache
from weft.scheduler.basic import beside
from weft.scheduler.basic.beside import Task
from weft.scheduler.families import Wanted
from weft.scheduler.plan import KernelInfo, Plan
from weft.scheduler.signature import Result, Signature, snapshot
from weft.scheduler.unrolled import Item, Repeat, Unrolled

PIECE_SECONDS, ROW_SECONDS = 3.5e-3, 4e-4
"""The time in which a final plan is built, for each distinct piece of the graph and for each of its rows: fused kernels
have two to four pieces, and those of layers alike are compiled once. Steps of nine models, Sapphire Rapids."""

MISSING_SHARE = 4
"""The part of the building time that may go by in compiling what a basic plan lacks: it was estimated, and the plan's
runs take longer."""

SMALL_SHARE = 2
"""The same for small graphs, which may lack one program in any case: their runs take next to nothing beside building,
and programs are there for the next graph, too, as a final plan is not."""

SMALL_ROWS = 128
"""Rows of small graphs, at most: where the last ones lacked too many programs, few of the next are tried."""

MOST_UNTRIED = 31
"""Small graphs after each other that are not tried, at most."""

ASK_AT_ONCE_SECONDS = 0.5
"""The building time from which the worker is asked for the plan of a new graph at once: it is nothing for short
scripts."""

ASKED_SHARE = 0.5
"""The part of its building time that runs on the basic plan have to take in this process before the worker is asked for
another one: programs that differ from step to step have hundreds of graphs that come a few times, and one that is over
in that time loses more by asking, and by the worker beside it, than it gains."""

NOTED_SHARE = 0.25
"""The part of its building time, with a compiler's, after which the time of runs on the basic plan is left to the next
process again: a file is written then."""

PATIENCE = 4.0
"""The multiple of its building time that runs on the basic plan may take until the final one is built here, since the
worker has only what is left of the machine, and ends with the program. Such a run takes up to twice as long, so by
then they have lost twice what building does. Those of earlier processes count."""

COMPILER_SECONDS = 0.1
"""The time in which a compiler is there, in a process that has none."""

_ahead: ContextVar[bool] = ContextVar("basic_plans_ahead", default=False)


@dataclass(slots=True)
class _Luck:
    """The number of small graphs that are left out before one is tried again: on an empty cache they all lack programs,
    and to find out takes a tenth of building their plans."""

    pause: int = 0
    passed: int = 0

    def tries(self) -> bool:
        """True where the next one is tried."""
        self.passed = self.passed + 1 if self.passed < self.pause else 0
        return not self.passed

    def note(self, lacked: bool) -> None:
        """Learn from one that was tried."""
        self.pause = min(2 * self.pause + 1, MOST_UNTRIED) if lacked else 0


_luck = _Luck()


@contextmanager
def ahead() -> Generator[None]:
    """A block in which each new graph gets a basic plan, whatever has to be compiled for it, and no final one is asked
    for: its programs are for other graphs."""
    token = _ahead.set(True)
    try:
        yield
    finally:
        _ahead.reset(token)


@dataclass(slots=True)
class Final:
    """The final plan of a graph that runs on its basic one: its `name` on disk, and the `task` of building it, which is
    made when that is to be done."""

    name: str
    task: Callable[[], Task]
    device: Device
    results: Sequence[Result]
    variables: tuple[Var, ...]
    seconds: float
    """The time in which it is expected to be built."""
    spent: float = 0.0
    """The time that runs on the basic plan took, in earlier processes as well."""
    plan: Plan | Unrolled | None = None
    """With `Unrolled`, a plan for each number of steps of its loops."""
    failed: bool = False
    """It cannot be built beside, and has to be built here."""
    _before: float = field(init=False, default=0.0)
    """The time of runs in earlier processes."""
    _noted: float = field(init=False, default=0.0)
    """The time of runs that the next process knows of."""
    _asked: bool = False

    def __post_init__(self) -> None:
        self._before = self._noted = self.spent

    def due(self) -> bool:
        """True where the basic plan has to give way."""
        if self.plan is not None or self.failed:
            return True
        if self.spent - self._noted > NOTED_SHARE * (self.seconds + COMPILER_SECONDS):
            self._note_spent()
        if not self._asked and self.spent - self._before >= ASKED_SHARE * self.seconds:
            self.ask()
        return self.patience_ends()

    def patience_ends(self) -> bool:
        """True where it was waited for long enough."""
        return self.spent > PATIENCE * (self.seconds + COMPILER_SECONDS)

    def ask(self) -> None:
        """Have it built, if there is room among what waits, and a processor for the worker."""
        self._asked = True  # before anybody can answer
        if beside.has_processor():
            self._asked = beside.ask(self.task(), self._built)

    def _built(self, succeeded: bool | None) -> None:
        """Take the plan from the disk; in the thread that hears of it."""
        if succeeded is None:
            self._note_spent()
            return
        try:
            if succeeded:
                found = disk_cache.load(self.name, self.device, self.results, self.variables)
                self.plan = None if found is None else found.settled()
        except Exception:
            log = logger(__name__)
            log.warning("a plan that was built beside cannot be used", exc_info=True)
        self.failed = self.plan is None
        if self.plan is not None and _spent(self.name):
            files.discard("waits", _name(self.name))

    def _note_spent(self) -> None:
        """Leave to the next process how long runs took."""
        self._noted = self.spent
        files.put("waits", _name(self.name), struct.pack("<d", self.spent))


def first(sig: Signature, device: Device, name: str) -> tuple[Unrolled, Final] | Task | None:
    """The basic plan for a graph whose final one, called `name`, would have to be built, and what takes over from it.

    Where it is better to build that now, None, or a task for `prepare` afterwards: with what it compiles, a graph that
    has such kernels need not wait the next time."""
    if not _may_wait(device):
        return None
    try:
        kept = _kept(sig, device, name)
        found = kept or _made(sig, device, name)
    except Exception:  # whatever it is, the final plan does without
        log = logger(__name__)
        log.warning("a graph has no basic plan, and waits for its final one", exc_info=True)
        return None
    if not isinstance(found, tuple):
        return found
    plan, seconds = found
    task = Task(sig.key.rows, device.info.name, name, sig.variables)
    spent = _spent(name) if kept else 0.0
    final = Final(name, lambda: task, device, sig.results(), sig.variables, seconds, spent)
    if final.patience_ends():
        return None
    if seconds >= ASK_AT_ONCE_SECONDS and not kept and not _ahead.get():
        final.ask()
    return plan, final


def _may_wait(device: Device) -> bool:
    """True where final plans may be waited for."""
    return device.info.kind == "cpu" and beside.available()


def left(wanted: Wanted, device: Device) -> tuple[Unrolled, Final] | None:
    """As `first`, for a graph whose basic plan an earlier process left; None where that is not there. The nodes of the
    graph are not made."""
    if not _may_wait(device):
        return None
    name = wanted.name
    plan = disk_cache.load(_name(name), device, wanted.results, wanted.variables)
    if plan is None:
        return None

    def task() -> Task:
        return Task(wanted.rows(), device.info.name, name, wanted.variables)

    seconds = _time(len(set(_kernels(plan.items))), wanted.count)
    return plan, Final(name, task, device, wanted.results, wanted.variables, seconds, _spent(name))


def _kernels(items: Sequence[Item]) -> Iterator[KernelInfo]:
    """The kernels of steps, those of loops once."""
    for i in items:
        if isinstance(i, Repeat):
            yield from _kernels(i.patterns[0])
        else:
            yield i[1]


def _kept(sig: Signature, device: Device, name: str) -> tuple[Unrolled, float] | None:
    """The basic plan that an earlier process made, and in what time the final one is expected to be built."""
    found = disk_cache.load(_name(name), device, sig.results(), sig.variables)
    if found is None:
        return None
    return found, _seconds(sig, len(set(_kernels(found.items))))


def _seconds(sig: Signature, pieces: int) -> float:
    """The time in which the final plan of a graph of so many distinct pieces is expected to be built."""
    return _time(pieces, len(sig.key.rows))


def _time(pieces: int, rows: int) -> float:
    return PIECE_SECONDS * pieces + ROW_SECONDS * rows


def _spent(name: str) -> float:
    """The time that runs on the basic plan took in earlier processes."""
    data = files.get("waits", _name(name))
    return 0.0 if data is None or len(data) != 8 else struct.unpack("<d", data)[0]


def _made(sig: Signature, device: Device, name: str) -> tuple[Unrolled, float] | Task | None:
    """A basic plan, and in what time the final one is expected to be built; or as `first`."""
    # Here, since a process that finds its basic plans on disk needs no compiler.
    from weft.scheduler.assembly import Job
    from weft.scheduler.basic.kernels import PROGRAM_SECONDS
    from weft.scheduler.basic.plan import draft

    ahead = _ahead.get()
    small = len(sig.key.rows) <= SMALL_ROWS and not ahead
    if small and not _luck.tries():
        return None
    own = snapshot(sig)
    found = draft(Job(own.outputs, own.leaves, sig.variables, {}))
    if found is None:
        return None
    seconds = _seconds(sig, found.distinct)
    most = int(seconds / (SMALL_SHARE if small else MISSING_SHARE) / PROGRAM_SECONDS)
    made = found.kernels(device, None if ahead else max(most, int(small)))
    if small:
        _luck.note(made is None)
    if made is None:
        worth = seconds >= ASK_AT_ONCE_SECONDS or beside.runs()
        return Task(sig.key.rows, device.info.name, None, sig.variables) if worth else None
    plan, where = made.plan(device)
    if where is not None:
        disk_cache.store(_name(name), plan, where)
    return plan, seconds


def _name(final: str) -> str:
    """The name of a graph's basic plan on disk, by that of its final one."""
    return files.digest("basic", final)


def prepare(task: Task) -> None:
    """Have basic kernels compiled beside, for graphs that come later, where there is a processor for that."""
    if beside.has_processor():
        beside.ask(task, _nothing)


def _nothing(_: bool | None) -> None:
    """Programs that were compiled for later are waited for by nobody."""
