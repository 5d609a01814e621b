"""A process that runs one program once: what its first argument, a line of JSON, says; it prints a line of JSON.

    {"framework": "weft" | "torch", "program": ..., "seed": ..., "small": ..., "threads": ..., "processors": [...],
     "limit": seconds, "modules": [...]}

`modules` are imported before: those that weft imports at first use (see first_use.py).
The answer has the seconds of the preparation, of each step and of the end (what was put off until results are read),
bytes, and what is compared: samples of each step's value, and of what the program returns.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.programs import PROGRAMS
from benchmarks.worker import check_of, end_with_parent

SAMPLES = 8
"""Elements of each step's value that are compared, beside the mean of their magnitudes."""


def opened(framework: str, threads: int, modules: Sequence[str] = ()) -> Any:
    """weft, with `modules`, or torch, with everything imported that it imports at first use."""
    if framework == "weft":
        for name in ("weft.nn", "weft.optim", "llvmlite.binding", *modules):
            if find_spec(name.partition(".")[0]) is not None:
                importlib.import_module(name)
        return importlib.import_module("weft")
    torch = importlib.import_module("torch")
    torch.set_num_threads(threads)
    weight = torch.nn.Parameter(torch.zeros(4, 4))
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
        optimizer = kind([weight])
        (torch.ones(4, 4) @ weight).sum().backward()
        optimizer.step()  # the first optimizer imports torch's compiler
    return torch


def samples(value: Any) -> list[float]:
    """A step's value in a few numbers."""
    flat = np.asarray(value, np.float64).ravel()
    return [float(np.abs(flat).mean()), *flat[:: -(-flat.size // SAMPLES)].tolist()]


class Memory:
    """Bytes of this process, beyond those that it had before."""

    def __init__(self) -> None:
        gc.collect()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forgets the peak
        self.before = self._now()

    def _now(self) -> int:
        with suppress(OSError):
            pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE")
        return self._peak()

    def _peak(self) -> int:
        with suppress(OSError):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def held(self) -> int:
        """What is held now."""
        return self._now() - self.before

    def peak(self) -> int:
        """The most that was held at a time; never nothing, since it is divided by."""
        return max(1, self._peak() - self.before)


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """The program's times, memory and results; `stopped` where it took longer than the limit."""
    if asked["processors"] and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, asked["processors"])
    program = PROGRAMS[asked["program"]]
    T = opened(asked["framework"], asked["threads"], asked.get("modules", ()))
    memory, held = Memory(), dict[int, int]()
    taken, values, final = list[float](), list[list[float]](), list[Any]()
    start = time.perf_counter()
    steps = program.start(T, asked["seed"], asked["small"])
    next(steps)
    setup = time.perf_counter() - start
    end = 0.0
    while sum(taken) < asked["limit"]:
        start = time.perf_counter()
        try:
            value = next(steps)
        except StopIteration as done:
            end, final = time.perf_counter() - start, list(done.value)
            break
        taken.append(time.perf_counter() - start)
        values.append(samples(value))
        if len(taken).bit_count() == 1:
            held[len(taken)] = memory.held()
    else:
        steps.close()
        return {"setup": setup, "steps": taken, "values": values, "stopped": True, "peak": memory.peak()}
    grown = memory.held() - held[1 << max(0, len(taken).bit_length() - 2)]
    peak = memory.peak()  # before results are compared, which takes memory of its own
    return {
        "setup": setup, "steps": taken, "end": end, "values": values, "final": check_of(final), "peak": peak,
        "grown": max(0, grown), "version": str(T.__version__),
    }  # fmt: skip


def main(given: Sequence[str]) -> None:
    """One run."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    try:
        answer = run(json.loads(given[0]))
    except Exception as error:  # noqa: BLE001  (whatever a framework raises is this program's result)
        answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
