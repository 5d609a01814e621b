"""Where the time goes between a call and its first result: compilation by phase, with cold and with warm caches.

A thread looks at the stacks of all others every half millisecond, and adds the time since to the phase of the innermost
frame that belongs to one. Nothing is patched; phases are places in the source tree. Each case runs in its own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from types import FrameType
from typing import Any

from benchmarks.results import ROOT, say
from benchmarks.runner import processors

SAMPLE_SECONDS = 0.0005

PHASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("imports", ("<frozen importlib",)),
    ("parse LLVM IR", ("llvmlite/binding/module.py",)),
    ("optimize LLVM IR", ("llvmlite/binding/newpassmanagers.py",)),
    ("generate code", ("llvmlite/binding/targets.py",)),
    ("load code", ("llvmlite/binding/orcjit.py",)),
    ("run", ("weft/backends/cpu/runner.py",)),
    ("kernelize", ("weft/scheduler/kernelize/",)),
    ("schedule", ("weft/scheduler/optimize/", "weft/ir/kernel/transforms/")),
    ("lower", ("weft/ir/kernel/",)),
    ("expand", ("weft/ir/math/",)),
    ("passes", ("weft/ir/passes/",)),
    ("write LLVM IR", ("weft/backends/llvm/", "weft/backends/cpu/render.py")),
    ("disk", ("weft/disk_cache.py", "weft/scheduler/disk_cache.py")),
    ("plan", ("weft/scheduler/",)),
    ("trace", ("weft/core/", "weft/nn/", "weft/optim/", "weft/autograd/", "weft/ir/graph")),
)
"""Phase -> where its code is. Helpers that several phases use belong to no phase: then the caller's counts."""

NAMES = (*(name for name, _ in PHASES), "other")


WAITING = ("/threading.py", "/queue.py", "/concurrent/futures/_base.py")


def phase_of(frame: FrameType | None) -> str | None:
    """The phase of the innermost frame that belongs to one; None for a thread that waits for another."""
    if frame is not None and frame.f_code.co_filename.replace(os.sep, "/").endswith(WAITING):
        return None
    while frame is not None:
        path = frame.f_code.co_filename.replace(os.sep, "/")
        for name, places in PHASES:
            if any(p in path for p in places):
                return name
        frame = frame.f_back
    return "other"


class Sampler:
    """Counts phases of all threads that are in the package, from start to stop."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, float] = defaultdict(float)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Sampler:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(SAMPLE_SECONDS)
        self._start = time.perf_counter()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)

    def _watch(self) -> None:
        mine = threading.get_ident()
        idle = {t.ident for t in threading.enumerate() if t.name.startswith("weft-")}
        last = time.perf_counter()
        while not self._stop.is_set():
            time.sleep(SAMPLE_SECONDS)
            now = time.perf_counter()
            for ident, frame in sys._current_frames().items():  # noqa: SLF001  (the only way to see other threads)
                phase = None if ident == mine or ident in idle else phase_of(frame)
                if phase is not None:
                    # by time, not by number: this thread may have had to wait for a call that keeps the interpreter
                    self.counts[phase] += now - last
            last = now

    def shares(self) -> dict[str, float]:
        """Seconds of each phase: its share of the samples, of the whole time."""
        whole = sum(self.counts.values()) or 1
        return {name: self.counts[name] / whole * self.seconds for name in NAMES if self.counts[name]}


def _products() -> Callable[[], Any]:
    import weft

    pairs = [(weft.randn(n, n).realize(), weft.randn(n, n).realize()) for n in range(500, 520)]
    return lambda: [weft.compile(lambda a, b: a @ b)(a, b) for a, b in pairs]


def _softmaxes() -> Callable[[], Any]:
    import weft

    inputs = [weft.randn(64, n).realize() for n in range(500, 520)]
    return lambda: [weft.compile(lambda x: x.softmax(-1))(x) for x in inputs]


def _workload(name: str) -> Callable[[], Any]:
    from benchmarks.frameworks.with_weft import Weft
    from benchmarks.workloads import WORKLOADS

    w = WORKLOADS[name]
    return getattr(Weft(1), w.kind)(*w.inputs()).call


CASES: dict[str, tuple[Callable[[], Callable[[], Any]], int]] = {
    "matrix product": (_products, 20),
    "softmax": (_softmaxes, 20),
    "MLP training step": (lambda: _workload("MLP training step"), 1),
    "convnet training step": (lambda: _workload("convnet training step"), 1),
    "GPT-2 small forward": (lambda: _workload("GPT-2 small forward, 128"), 1),
}
"""Name -> what makes the call, and how many things of the kind it compiles."""


def sample(name: str) -> dict[str, Any]:
    """In this process: seconds of the first call, by phase, and of the second."""
    make, count = CASES[name]
    call = make()
    with Sampler() as sampler:
        call()
    call()  # state made by the first call may be traced now
    start = time.perf_counter()
    call()
    again = time.perf_counter() - start
    phases = {n: s / count for n, s in sampler.shares().items()}
    return {"seconds": sampler.seconds / count, "again": again / count, "phases": phases}


def measure(names: list[str]) -> list[dict[str, Any]]:
    """Every case in fresh processes, with cold caches and then with those that the first left."""
    rows: list[dict[str, Any]] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
            for caches in ("cold", "warm"):
                found = _in_a_process(name, folder)
                rows.append({"what": name, "caches": caches, **found})
                say(f"{name}, {caches} caches: first result after {found['seconds'] * 1e3:.1f} ms")
    return rows


def _in_a_process(name: str, folder: str) -> dict[str, Any]:
    environment = {**os.environ, "WEFT_CACHE_DIR": folder, "PYTHONPATH": str(ROOT), "WEFT_NUM_THREADS": "1"}
    pinned = processors(1)
    code = f"""
import os, json
{f"os.sched_setaffinity(0, {pinned})" if pinned else ""}
import weft
weft.zeros(1).realize()  # the device is open
from benchmarks.phases import sample
print(json.dumps(sample({name!r})))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])
