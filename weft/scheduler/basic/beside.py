"""Plans built beside the program: one worker process that fills the cache on disk, from which they are taken.

The worker is a fresh interpreter of low priority. It lives as long as there is something to build, never longer
than this process. Whatever goes wrong there is logged, and the plan is built here instead.
"""
# Tests: tests/scheduler/test_beside.py

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import queue
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from weft import settings
from weft.backends.native_threads import wait_for
from weft.ir.dtypes import DType
from weft.ir.forks import forkable
from weft.ir.index import Var
from weft.lazy_dataclass import dataclass
from weft.logs import logger
from weft.scheduler.pickles import pickled
from weft.scheduler.signature import Key, Signature

JOBS_WAITING = 16
"""Jobs that wait for the worker at most; further ones are refused."""

Answer: TypeAlias = Callable[[bool | None], object]
"""A function that is called with True when a plan is on disk, with False when it could not be built, and with None when
the program ends before."""

NICENESS = 19
"""The priority of the worker: that which gives way to all others."""

_START = "import sys; sys.path[:] = {path!r}; from weft.scheduler.basic.worker import main; main({parent})"


@dataclass(frozen=True, slots=True)
class Task:
    """A graph by its signature's rows, to be planned for a device. `name`: that of the plan on disk; None: only the
    basic kernels are compiled. `variables`: the runtime variables in the rows."""

    rows: tuple[Any, ...]
    device: str
    name: str | None
    variables: tuple[Var, ...] = ()

    def signature(self) -> Signature:
        """The signature of the graph, whose leaves hold nothing."""
        leaves = sum(1 for r in self.rows[:-1] if r[0].__class__ is DType)
        return Signature(Key(self.rows), (), (None,) * leaves, self.variables, copies=False, homeless=False)


class _Worker:
    """A running worker, and what is to be called with the success of each of its jobs, in order."""

    def __init__(self) -> None:
        import subprocess  # few programs need a worker, and this takes longer to import than all else here

        code = _START.format(path=sys.path, parent=os.getpid())
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            process_group=0,  # Ctrl-C is for the program; in a session of its own, Linux would not weigh its niceness
        )
        # here, since Python takes longer to begin than the program's steps take
        os.setpriority(os.PRIO_PROCESS, self.process.pid, NICENESS)
        self.waiting: list[Answer] = []
        self.jobs: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.stopped = False
        threading.Thread(target=self.send, name="weft-plans-send", daemon=True).start()
        threading.Thread(target=self.listen, name="weft-plans", daemon=True).start()

    def give(self, data: bytes, done: Answer) -> None:
        """Queue a job: a worker that has just begun does not read yet, and pipes are short."""
        self.waiting.append(done)
        self.jobs.put(len(data).to_bytes(8, "little") + data)

    def send(self) -> None:
        """Write jobs to the worker, until it ends."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which `listen` hears
            while (data := wait_for(self.jobs.get)) is not None:
                wait_for(partial(self.process.stdin.write, data))
                wait_for(self.process.stdin.flush)
        with contextlib.suppress(OSError):
            self.process.stdin.close()

    def listen(self) -> None:
        """Hand on the worker's answers, a byte each, until it ends."""
        assert self.process.stdout is not None
        read = partial(self.process.stdout.read, 1)
        while answer := wait_for(read):
            with _lock:
                done = self.waiting.pop(0) if self.waiting else None  # none is left where it was stopped
            if done is not None:
                done(answer == b"+")
        with _lock:
            if _state and _state[0] is self:
                _state.clear()
            left, self.waiting = self.waiting, []
        self.jobs.put(None)
        code = self.process.wait()
        if left and not self.stopped:
            logger(__name__).warning(
                "the process that builds plans ended with %d; they are built here instead", code
            )
        for done in left:
            done(False)

    def stop(self) -> list[Answer]:
        """End the worker; what has no answer."""
        self.stopped = True
        with _lock:
            left, self.waiting = self.waiting, []
        self.process.kill()
        self.process.wait()
        return left


_lock = forkable(threading.Lock())
_state: list[_Worker] = []
"""The worker, while there is one."""


def _is_full() -> bool:
    return any(len(w.waiting) >= JOBS_WAITING for w in tuple(_state))


def ask(task: Task, done: Answer) -> bool:
    """Have a graph planned by the worker, and `done` called in another thread. False where it is not asked for: too
    much waits already."""
    try:
        if _is_full():  # packing takes longer
            return False
        data = pickled(task)
        with _lock:
            if not _state:
                _state.append(_Worker())
            if _is_full():
                return False
            _state[0].give(data, done)
    except (OSError, ValueError, pickle.PicklingError, TypeError, AttributeError) as error:
        logger(__name__).debug("no plan is built beside: %s", error)
        return False
    return True


def runs() -> bool:
    """True while there is a worker."""
    return bool(_state)


def available() -> bool:
    """True where a worker can be started: not where the program itself is the interpreter. And not beside processes
    that compute the same, whose results must not differ by when a plan takes over."""
    return (
        bool(sys.executable)
        and not getattr(sys, "frozen", False)
        and hasattr(os, "register_at_fork")
        and settings.world_size() == 1
    )


def has_processor() -> bool:
    """True where the program may use more than one processor: on one, the worker gets a sixtieth of it, and to start it
    takes longer than the first steps of many a program."""
    allowed = getattr(os, "sched_getaffinity", None)
    return (len(allowed(0)) if allowed is not None else os.cpu_count() or 1) > 1


@atexit.register
def stop() -> None:
    """End the worker, if there is one."""
    with _lock:
        workers = list(_state)
        _state.clear()
    for w in workers:
        for done in w.stop():
            done(None)


def _forget() -> None:
    """Leave the worker to the parent, in a process that was forked. What it builds for that is built here anew."""
    left = [done for w in _state for done in w.waiting]
    for w in _state:
        w.process.returncode = 0  # it is no child of this process: nothing is to be waited for
    _state.clear()
    for done in left:
        done(False)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
