"""A process that runs one framework, and does what lines of JSON on its input say.

    {"do": "open", "where": ..., "threads": ..., "processors": [...], "busy": false}   -> {"versions": {...}}
    {"do": "build", "workload": ..., "seconds": s}     -> {"check": ...}  the first result, to compare; calibrated so
                                                       that a round takes about s seconds
    {"do": "round"}                                    -> {"seconds": per run}
    {"do": "drop"}                                     -> {}
    {"do": "limits"}                                   -> what the machine does at best (weft only)

Every answer is one line of JSON; one with "error" says why there is no other, one with "absent" that the framework has
nothing for this workload.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.frameworks.run import Array, Run
from benchmarks.variants import load
from benchmarks.workloads import workload as known

SAMPLES = 512
"""Elements of each result that are compared one by one."""

SHORT = 0.05
"""Seconds: a run that takes less is run once before each round, since the others have used the caches meanwhile."""


def check_of(results: Sequence[Array]) -> list[dict[str, Any]]:
    """What is compared between frameworks: shape, mean magnitude, some elements."""
    out: list[dict[str, Any]] = []
    for a in results:
        flat = np.asarray(a).astype(np.float64).ravel()
        at = np.random.default_rng(0).integers(0, flat.size, SAMPLES)
        out.append({
            "shape": [n for n in a.shape if n != 1], "mean": float(np.abs(flat).mean()), "some": flat[at].tolist(),
        })  # fmt: skip
    return out


def agree(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerance: float) -> str | None:
    """Why two checks are not of the same result; None when they are."""
    if [x["shape"] for x in a] != [x["shape"] for x in b]:
        return f"shapes {[x['shape'] for x in a]} and {[x['shape'] for x in b]}"
    for x, y in zip(a, b, strict=True):
        size = max(np.abs(y["some"]).max(), 1e-30)
        worst = float(np.abs(np.subtract(x["some"], y["some"])).max() / size)
        if not worst <= tolerance:
            return f"results differ by {worst:.1e} of the largest"
        if not abs(x["mean"] - y["mean"]) <= tolerance * max(y["mean"], 1e-30):
            return f"mean magnitudes {x['mean']:.6g} and {y['mean']:.6g}"
    return None


class Worker:
    """The framework of this process, and the workload that it runs now."""

    def __init__(self) -> None:
        self.framework: Any = None
        self.run: Run | None = None
        self.runs, self.warm = 1, False
        self.clock = time.perf_counter

    def open(self, where: str, threads: int, processors: Sequence[int], busy: bool = False) -> dict[str, Any]:
        self.clock = time.process_time if busy else time.perf_counter
        if processors and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, processors)
        self.framework = load(where, threads)
        return {"versions": self.framework.versions()}

    def build(self, workload: str, seconds: float) -> dict[str, Any]:
        w = known(workload)
        make = getattr(self.framework, w.kind, None)
        self.run = None if make is None else make(*w.inputs())
        if self.run is None:
            return {"absent": True}
        start = time.perf_counter()
        first = self.run.call()
        taken = time.perf_counter() - start
        check = check_of(self.run.results(first))
        del first
        for _ in range(2):
            one = _timed(self.run.call, 1)
        if one < seconds:
            one = _timed(self.run.call, max(1, int(0.2 * seconds / max(one, 1e-7))))
        self.runs, self.warm = max(1, round(seconds / max(one, 1e-7))), one < SHORT
        return {"check": check, "first": taken, "one": one}

    def round(self) -> dict[str, Any]:
        assert self.run is not None
        if self.warm:
            self.run.call()
        return {"seconds": _timed(self.run.call, self.runs, self.clock)}

    def drop(self) -> dict[str, Any]:
        self.run = None
        gc.collect()
        return {}

    def limits(self) -> dict[str, Any]:
        found = self.framework.limits()
        return {**asdict(found), "text": str(found)}


def _timed(call: Callable[[], Any], runs: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds per run."""
    start = clock()
    for _ in range(runs):
        call()
    return (clock() - start) / runs


def end_with_parent() -> None:
    """Have the system end this process when the runner ends: stopped, it would not notice by itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main() -> None:
    """Answers until the input ends."""
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what frameworks print is no answer
    worker = Worker()
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = getattr(worker, command.pop("do"))(**command)
        except Exception as error:  # noqa: BLE001  (whatever a framework raises is this workload's result)
            answer = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
