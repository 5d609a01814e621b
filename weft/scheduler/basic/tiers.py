"""Tiers: a graph never seen runs on a basic plan at once, until its final plan is there, which is built beside.

    first run       basic plan: its programs are there already, or few and small
    later runs      the same, and a worker process builds the final plan
    then            the final plan

A basic plan is only taken where the final one would have to be built, and that would take longer.
"""
# Tests: tests/scheduler/test_tiers.py

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from weft.backends.protocol import Device
from weft.scheduler import disk_cache
from weft.scheduler.basic import beside
from weft.scheduler.basic.beside import Task
from weft.scheduler.basic.plan import basic
from weft.scheduler.build import Job
from weft.scheduler.plan import Plan
from weft.scheduler.programs import missing
from weft.scheduler.signature import Result, Signature, snapshot

PROGRAM_SECONDS = 0.03
"""The time in which a basic kernel's program is compiled."""

PIECE_SECONDS = 0.01
"""The time in which a final plan is built, for each distinct piece of the graph: fused kernels have about four of them,
and take 40 to 100 ms. GPT, ViT, ResNet-50 and MobileNetV3, Zen 5."""

ASK_AT_ONCE_SECONDS = 0.5
"""The building time from which the worker is asked when a graph first comes."""

RUNS_ASKED_AFTER = 4
"""Runs after which the worker is asked for the final plan of another one."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Final:
    """The final plan of a graph that runs on its basic one."""

    task: Task
    device: Device
    results: Sequence[Result]
    plan: Plan | None = None
    failed: bool = False
    """It cannot be built beside, and has to be built here."""
    _asked: bool = False
    _runs: int = 0

    def due(self) -> bool:
        """True where the basic plan has to give way; else this counts a run on it."""
        if self.plan is not None or self.failed:
            return True
        self._runs += 1
        if not self._asked and self._runs >= RUNS_ASKED_AFTER:
            self.ask()
        return False

    def ask(self) -> None:
        """Have it built, if there is room among what waits."""
        self._asked = True  # before anybody can answer
        self._asked = beside.ask(self.task, self._built)

    def _built(self, succeeded: bool) -> None:
        """Take the plan from the disk; in the thread that hears of it."""
        try:
            if succeeded and self.task.name is not None:
                found = disk_cache.load(self.task.name, self.device, self.results, ())
                self.plan = None if found is None else found.plan({})
        except Exception:
            log.warning("a plan that was built beside cannot be used", exc_info=True)
        self.failed = self.plan is None


def first(sig: Signature, device: Device, name: str) -> tuple[Plan, Final] | Task | None:
    """The basic plan for a graph whose final one, called `name`, would have to be built, and what takes over from it.

    Where it is better to build that now, None, or a task for `prepare` afterwards: with what it compiles, a graph that
    has such kernels need not wait the next time."""
    if device.info.kind != "cpu" or not beside.available():
        return None
    try:
        own = snapshot(sig)
        made = basic(Job(own.outputs, own.leaves, (), {}), device)
        if made is None:
            return None
        seconds = PIECE_SECONDS * made.distinct
        new = len(missing(made.algorithms, device))
        if new * PROGRAM_SECONDS > seconds / 2:
            return Task(sig.key.rows, device.info.name, None) if seconds >= ASK_AT_ONCE_SECONDS else None
        plan = made.plan(device)
    except Exception:  # whatever it is, the final plan does without
        log.warning("a graph has no basic plan, and waits for its final one", exc_info=True)
        return None
    final = Final(Task(sig.key.rows, device.info.name, name), device, sig.results())
    if seconds >= ASK_AT_ONCE_SECONDS:
        final.ask()
    return plan, final


def prepare(task: Task) -> None:
    """Have basic kernels compiled beside, for graphs that come later."""
    beside.ask(task, _nothing)


def _nothing(_: bool) -> None:
    """Programs that were compiled for later are waited for by nobody."""
