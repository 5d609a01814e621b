"""Tiers: a graph never seen runs on a basic plan at once, until its final plan is there, which is built beside.

    first run       basic plan: its programs are there already, or few and small
    later runs      the same, and a worker process builds the final plan
    then            the final plan

A basic plan is only taken where the final one would have to be built, and that would take longer. It is kept on disk:
a program that is over before the final one is there finds it the next time.
"""
# Tests: tests/scheduler/test_tiers.py

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from weft.backends.protocol import Device
from weft.disk_cache import digest
from weft.lazy_dataclass import dataclass
from weft.scheduler import disk_cache
from weft.scheduler.basic import beside
from weft.scheduler.basic.beside import Task
from weft.scheduler.plan import Plan
from weft.scheduler.signature import Result, Signature, snapshot

PROGRAM_SECONDS = 0.02
"""The time in which a basic kernel's program is compiled."""

PIECE_SECONDS = 0.011
"""The time in which a final plan is built, for each distinct piece of the graph: fused kernels have two to four of
them. GPT, ViT, ResNet-50, MobileNetV3 and DenseNet-121, Sapphire Rapids."""

WORTH_SECONDS = 0.2
"""The building time from which a graph is worth a basic plan; others wait for their final one."""

ASK_AT_ONCE_SECONDS = 0.5
"""The building time from which the worker is asked when a graph first comes."""

RUNS_ASKED_AFTER = 4
"""Runs after which the worker is asked for the final plan of another one."""

PATIENCE = 4.0
"""The multiple of its building time that a final plan is waited for, since the worker has only what is left of the
machine: then it is built here. A run on the basic plan takes up to twice as long, so waiting has cost about as much."""

_ahead: ContextVar[bool] = ContextVar("basic_plans_ahead", default=False)


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
    """The final plan of a graph that runs on its basic one."""

    task: Task
    device: Device
    results: Sequence[Result]
    seconds: float
    """The time in which it is expected to be built."""
    plan: Plan | None = None
    failed: bool = False
    """It cannot be built beside, and has to be built here."""
    _asked: float | None = None
    """The time at which it was asked for."""
    _runs: int = 0

    def due(self) -> bool:
        """True where the basic plan has to give way; else this counts a run on it."""
        if self.plan is not None or self.failed:
            return True
        self._runs += 1
        if self._asked is None:
            if self._runs >= RUNS_ASKED_AFTER:
                self.ask()
            return False
        return time.monotonic() - self._asked > PATIENCE * self.seconds

    def ask(self) -> None:
        """Have it built, if there is room among what waits."""
        self._asked = time.monotonic()  # before anybody can answer
        if not beside.ask(self.task, self._built):
            self._asked = None

    def _built(self, succeeded: bool) -> None:
        """Take the plan from the disk; in the thread that hears of it."""
        try:
            if succeeded and self.task.name is not None:
                found = disk_cache.load(self.task.name, self.device, self.results, ())
                self.plan = None if found is None else found.plan({})
        except Exception:
            import logging

            log = logging.getLogger(__name__)
            log.warning("a plan that was built beside cannot be used", exc_info=True)
        self.failed = self.plan is None


def first(sig: Signature, device: Device, name: str) -> tuple[Plan, Final] | Task | None:
    """The basic plan for a graph whose final one, called `name`, would have to be built, and what takes over from it.

    Where it is better to build that now, None, or a task for `prepare` afterwards: with what it compiles, a graph that
    has such kernels need not wait the next time."""
    if device.info.kind != "cpu" or not beside.available():
        return None
    try:
        found = _kept(sig, device, name) or _made(sig, device, name)
    except Exception:  # whatever it is, the final plan does without
        import logging

        log = logging.getLogger(__name__)
        log.warning("a graph has no basic plan, and waits for its final one", exc_info=True)
        return None
    if not isinstance(found, tuple):
        return found
    plan, seconds = found
    final = Final(Task(sig.key.rows, device.info.name, name), device, sig.results(), seconds)
    if seconds >= ASK_AT_ONCE_SECONDS and not _ahead.get():
        final.ask()
    return plan, final


def _kept(sig: Signature, device: Device, name: str) -> tuple[Plan, float] | None:
    """The basic plan that an earlier process made, and in what time the final one is expected to be built."""
    found = disk_cache.load(_name(name), device, sig.results(), ())
    if found is None:
        return None
    plan = found.plan({})
    return plan, PIECE_SECONDS * len(set(plan.steps))


def _made(sig: Signature, device: Device, name: str) -> tuple[Plan, float] | Task | None:
    """A basic plan, and in what time the final one is expected to be built; or as `first`."""
    # Here, since a process that finds its basic plans on disk needs no compiler.
    from weft.scheduler.basic.plan import draft
    from weft.scheduler.build import Job

    own = snapshot(sig)
    found = draft(Job(own.outputs, own.leaves, (), {}))
    seconds = 0.0 if found is None else PIECE_SECONDS * found.distinct
    if found is None or (seconds < WORTH_SECONDS and not _ahead.get()):
        return None
    made = found.kernels(device, None if _ahead.get() else int(seconds / 2 / PROGRAM_SECONDS))
    if made is None:
        return Task(sig.key.rows, device.info.name, None) if seconds >= ASK_AT_ONCE_SECONDS else None
    plan, where = made.plan(device)
    if where is not None:
        disk_cache.store(_name(name), plan, where)
    return plan.plan({}), seconds


def _name(final: str) -> str:
    """The name of a graph's basic plan on disk, by that of its final one."""
    return digest("basic", final)


def prepare(task: Task) -> None:
    """Have basic kernels compiled beside, for graphs that come later."""
    beside.ask(task, _nothing)


def _nothing(_: bool) -> None:
    """Programs that were compiled for later are waited for by nobody."""
