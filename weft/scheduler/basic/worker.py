"""The worker process: it builds the plans that it is asked for, and answers each with a byte when it is on disk."""
# Tests: tests/scheduler/test_beside.py

from __future__ import annotations

import logging
import os
import pickle
import queue
import select
import sys
import threading
from typing import BinaryIO

from weft.backends import registry
from weft.scheduler import disk_cache, realize
from weft.scheduler.assembly import Job
from weft.scheduler.basic.beside import Task
from weft.scheduler.basic.plan import basic
from weft.scheduler.programs import compiled
from weft.scheduler.signature import snapshot

IDLE_SECONDS = 20.0
"""The time without a job after which the worker ends."""

PROGRAMS_AT_ONCE = 32
"""Programs that are compiled between two visits to the disk: some 0.3 s of work, which the next process need not do
again where this one is over before."""

POLL_SECONDS = 1.0
"""The time after which the worker looks again for its parent."""


def main(parent: int) -> None:
    """Work for the process `parent`, as long as it lives and has something to do."""
    answers = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # what compilers print is no answer
    jobs: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_receive, args=(parent, jobs), daemon=True).start()
    while True:
        try:
            data = jobs.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return
        os.write(answers, b"+" if _succeeds(data) else b"-")


def _succeeds(data: bytes) -> bool:
    """Do a job; True where the plan is on disk."""
    try:
        return run(pickle.loads(data))
    except Exception:
        logging.getLogger(__name__).debug("a plan could not be built", exc_info=True)
        return False


def run(task: Task) -> bool:
    """Compile what a task asks for; True where it is on disk."""
    device, sig = registry.open_device(task.device), task.signature()
    if task.name is None:
        own = snapshot(sig)
        found = basic(Job(own.outputs, own.leaves, sig.variables, {}), device)
        compiled(found.algorithms if found is not None else (), device, at_once=PROGRAMS_AT_ONCE)
        return True
    if disk_cache.key_of(sig, {}, device) != task.name:  # the program's device is set up in another way
        return False
    if (
        disk_cache.load(task.name, device, sig.results(), sig.variables) is None
    ):  # who waited too long has built it
        realize.build_and_keep(device, sig, {}, task.name, PROGRAMS_AT_ONCE)
    return True


def _receive(parent: int, jobs: queue.Queue[bytes]) -> None:
    """Queue what the parent sends; end the process with it."""
    source: BinaryIO = sys.stdin.buffer
    fd = source.fileno()
    data = b""
    while os.getppid() == parent:
        if not select.select([fd], [], [], POLL_SECONDS)[0]:
            continue
        more = os.read(fd, 1 << 16)
        if not more:
            break
        data += more
        while len(data) >= 8 and len(data) >= 8 + (size := int.from_bytes(data[:8], "little")):
            jobs.put(data[8 : 8 + size])
            data = data[8 + size :]
    os._exit(0)
