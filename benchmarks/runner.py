"""Processes that take turns: every variant builds a workload, then they run it round by round.

One after the other would compare the machine of this minute with that of the next: on a shared one, memory is a third
slower for minutes at a time. A process that is not at its turn is stopped, so its idle threads cannot spin.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from benchmarks.results import ROOT, Results, ratio, say
from benchmarks.variants import Variant
from benchmarks.worker import agree
from benchmarks.workloads import Workload, workload

LIMIT = 120.0
"""Seconds in which a process has to answer."""

LONG = 0.25
"""Runs that take longer have fewer rounds."""

ROUND_SECONDS = 0.02


class LostError(RuntimeError):
    """A process ended, or did not answer in time."""


class Process:
    """One variant in a process of its own."""

    def __init__(self, variant: Variant, threads: int, processors: Sequence[int], busy: bool = False) -> None:
        self.variant, self.threads, self.processors = variant, threads, list(processors)
        self.busy = busy
        self.child: subprocess.Popen[bytes] | None = None
        self.versions: dict[str, str] = {}

    def start(self) -> None:
        """Open the framework. LostError when that fails."""
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        # what is timed is a steady state, which final plans are
        environment = {**self.variant.environ(self.threads), "PYTHONPATH": path, "WEFT_TIERS": "0"}
        self.child = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, cwd=ROOT, env=environment,
        )  # fmt: skip
        answer = self.ask(
            "open", where=self.variant.where, threads=self.threads, processors=self.processors, busy=self.busy
        )
        if "error" in answer:
            raise LostError(answer["error"])
        self.versions = answer["versions"]

    def ask(self, do: str, limit: float = LIMIT, **arguments: Any) -> dict[str, Any]:
        """Let it run until it has answered. LostError when it does not."""
        child = self.child
        if child is None:
            self.start()
            child = self.child
        assert child is not None and child.stdin is not None and child.stdout is not None
        self._signal("SIGCONT")
        try:
            child.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            child.stdin.flush()
            ready, _, _ = select.select([child.stdout], [], [], limit)
            line = child.stdout.readline() if ready else b""
        except OSError as error:
            self.close()
            raise LostError(f"the process ended: {error}") from error
        if not line:
            self.close()
            raise LostError("the process ended" if ready else f"no answer to {do} in {limit:.0f} s")
        self._signal("SIGSTOP")
        return json.loads(line)

    def _signal(self, name: str) -> None:
        """Stop it, or let it go on, where the system can."""
        if self.child is not None and hasattr(signal, name):
            with suppress(ProcessLookupError):
                self.child.send_signal(getattr(signal, name))

    def close(self) -> None:
        """End it."""
        if self.child is not None:
            self.child.kill()
            self.child.wait()
            self.child = None


class Group:
    """The processes of all variants with the same number of threads."""

    def __init__(
        self, variants: Iterable[Variant], threads: int, results: Results, busy: bool = False
    ) -> None:
        self.threads, self.results = threads, results
        self.processors = [] if busy else processors(threads)
        self.processes = {v.name: Process(v, threads, self.processors, busy) for v in variants}

    def __enter__(self) -> Group:
        for name, p in list(self.processes.items()):
            try:
                p.start()
                self.results.versions |= p.versions
            except LostError as error:
                say(f"  {name} cannot be used: {error}")
                self.results.missing[name] = [str(error)]
                del self.processes[name]
        return self

    def __exit__(self, *error: object) -> None:
        for p in self.processes.values():
            p.close()

    def limits(self) -> None:
        """Measure what the machine does at best."""
        if "weft" in self.processes:
            answer = self.processes["weft"].ask("limits")
            if "error" in answer:
                raise LostError(answer["error"])
            self.results.limits[str(self.threads)] = answer
            say(f"limits: {answer['text']}")

    def measure(self, name: str, rounds: int) -> None:
        """One workload on all variants; its rows go to the results."""
        built = self._build(name, workload(name))
        rounds = rounds if all(a["one"] < LONG for a in built.values()) else max(3, rounds // 2)
        seconds: dict[str, list[float]] = {v: [] for v in built}
        for k in range(rounds):
            order = list(built) if k % 2 == 0 else list(reversed(built))
            for v in order:
                try:
                    answer = self.processes[v].ask("round")
                    if "error" in answer:
                        raise LostError(answer["error"])
                    seconds[v].append(answer["seconds"])
                except LostError as error:
                    self._row(name, v, error=str(error))
                    del built[v]
        for v in built:
            self._row(name, v, seconds=seconds[v], first=built[v]["first"])
            with suppress(LostError):
                self.processes[v].ask("drop")
        self.results.save()
        say(self._line(name))

    def _build(self, name: str, workload: Workload) -> dict[str, dict[str, Any]]:
        """The answers of the variants that built the workload and computed what the others did."""
        built: dict[str, dict[str, Any]] = {}
        for v, p in self.processes.items():
            kinds = p.variant.kinds
            if (kinds and workload.kind not in kinds) or (workload.group == "sweep" and not p.variant.sweep):
                continue
            try:
                answer = p.ask("build", workload=name, seconds=ROUND_SECONDS)
            except LostError as error:
                answer = {"error": str(error)}
            if "error" in answer:
                self._row(name, v, error=answer["error"])
            elif "absent" not in answer:
                built[v] = answer
        wrong = disagreements({v: a["check"] for v, a in built.items()}, workload.tolerance)
        for v, why in wrong.items():
            self._row(name, v, error=f"another result than the others': {why}")
            del built[v]
        return built

    def _row(self, name: str, variant: str, **found: Any) -> None:
        self.results.add({"workload": name, "threads": self.threads, "variant": variant, **found})

    def _line(self, name: str) -> str:
        times = self.results.times(name, self.threads)
        parts = [f"{v} {min(t) * 1e3:.4g}" for v, t in sorted(times.items(), key=lambda x: min(x[1]))]
        errors = [
            f"{v}: {r['error']}" for v, r in self.results.of(name, self.threads).items() if "error" in r
        ]
        mine = times.get("weft")
        others = [t for v, t in times.items() if not v.startswith("weft")]
        best = f"   weft/best {ratio(mine, min(others, key=sorted))[0]:.2f}" if mine and others else ""
        return "\n".join(
            [f"{name} ({self.threads}): least ms: {', '.join(parts)}{best}", *(f"    {e}" for e in errors)]
        )


def disagreements(checks: dict[str, Any], tolerance: float) -> dict[str, str]:
    """Who computed something else than most did, and how it differs from NumPy's result or else the others'."""
    names = list(checks)
    friends = {v: [w for w in names if agree(checks[v], checks[w], tolerance) is None] for v in names}
    most = max((len(f) for f in friends.values()), default=0)
    judges = [v for v in names if len(friends[v]) == most]
    judge = next((v for v in judges if v.startswith("numpy")), judges[0] if judges else "")
    found = {v: agree(checks[v], checks[judge], tolerance) for v in names}
    return {v: f"{why} ({judge})" for v, why in found.items() if why is not None}


def processors(threads: int) -> list[int]:
    """The last processors that this process may use; empty where the system does not say."""
    if not hasattr(os, "sched_getaffinity"):
        return []
    return sorted(os.sched_getaffinity(0))[-threads:]
