"""Programs -> object files for the CPU.

What we render is unrolled, vectorized and hoisted already, so a handful of passes is enough: registers for stack
slots, common subexpressions, peepholes.

Many programs become several modules. LLVM works on one in a thread of its own, without the interpreter's lock, while
the programs of the next are lowered and written here:

    here      lower, write | lower, write | lower, write |
    beside                 | LLVM, part 0 | LLVM, part 1 | LLVM, part 2
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice

from weft.ir.forks import forkable
from weft.ir.loops import Program

from .llvm import Module
from .machine import usable_threads
from .render import Part, render_module, render_parts
from .targets import Target

PASSES = ("sroa", "instruction_combine", "simplify_cfg")
"""LLVM's passes, in order."""

_SWITCH_SECONDS = 0.0005
"""LLVM is called some 25 times for a module, and a thread that comes back from a call waits so long for the
interpreter's lock. Python's own 5 ms would take as long as LLVM itself."""

_beside = forkable(threading.Lock())
"""Held while a thread works beside: there is one at a time in a process."""


def compile_programs(programs: Sequence[Program], target: Target) -> bytes:
    """One object file that exports every program under its name and imports `render.IMPORTS`."""
    return compile_text(render_module(programs, target), target)


def compile_parts(programs: Iterable[Program], target: Target) -> list[tuple[Part, bytes]]:
    """The programs' modules, and an object file of each. What they are depends on the programs only."""
    parts = render_parts(programs, target)
    few = list(islice(parts, 2))
    if len(few) > 1 and len(usable_threads()) > 1 and _beside.acquire(blocking=False):
        try:
            return _compiled_beside(chain(few, parts), target)
        finally:
            _beside.release()
    return [(part, compile_text(part.text, target)) for part in chain(few, parts)]


def _compiled_beside(parts: Iterable[Part], target: Target) -> list[tuple[Part, bytes]]:
    """The parts, each compiled by another thread while the next are made here."""
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:  # the interpreter is ending: it cannot be told of threads any more
        return [(part, compile_text(part.text, target)) for part in parts]
    jobs: list[tuple[Part, Callable[[], bytes]]] = []
    with ThreadPoolExecutor(1, "weft-llvm") as worker, _switching_often():
        try:
            for part in parts:
                try:
                    job = worker.submit(compile_text, part.text, target).result
                except RuntimeError:  # the interpreter is ending: it starts no thread
                    job = partial(compile_text, part.text, target)
                jobs.append((part, job))
            return [(part, job()) for part, job in jobs]
        except BaseException:
            worker.shutdown(wait=False, cancel_futures=True)
            raise


@contextmanager
def _switching_often() -> Generator[None]:
    """Threads take short turns within the block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def compile_text(text: str, target: Target) -> bytes:
    """The object file of a module that `render` gave."""
    with Module(text) as module:
        module.run_passes(target, PASSES)
        return module.object(target, lean=True)


def assembly(programs: Sequence[Program], target: Target) -> str:
    """The code that `compile_programs` gives, as text."""
    with Module(render_module(programs, target)) as module:
        module.run_passes(target, PASSES)
        return module.assembly(target, lean=True)
