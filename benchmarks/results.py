"""Everything that was measured, as one JSON file that is written after every step, so that nothing is lost."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]


@dataclass(slots=True)
class Results:
    """`rows`: workload, threads, variant, and seconds of each round or an error. `limits`: by number of threads."""

    path: Path | None = None
    machine: dict[str, Any] = field(default_factory=dict[str, Any])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    missing: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    limits: dict[str, Any] = field(default_factory=dict[str, Any])
    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    startup: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    phases: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    @staticmethod
    def load(path: Path) -> Results:
        """What an earlier run wrote."""
        data = json.loads(path.read_text(encoding="utf-8"))
        return Results(path, **data)

    def save(self) -> None:
        """Write the file, whole or not at all."""
        if self.path is None:
            return
        names = ("machine", "versions", "missing", "limits", "rows", "startup", "phases")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps({n: getattr(self, n) for n in names}, indent=1), encoding="utf-8")
        os.replace(temporary, self.path)

    def add(self, row: dict[str, Any]) -> None:
        """A row in place of an earlier one for the same thing."""
        same = ("workload", "threads", "variant")
        self.rows = [r for r in self.rows if any(r[k] != row[k] for k in same)]
        self.rows.append(row)

    def of(self, workload: str, threads: int) -> dict[str, dict[str, Any]]:
        """The rows of a workload, by variant."""
        return {r["variant"]: r for r in self.rows if r["workload"] == workload and r["threads"] == threads}

    def times(self, workload: str, threads: int) -> dict[str, list[float]]:
        """The seconds per run in each round, of the variants that have some."""
        return {v: r["seconds"] for v, r in self.of(workload, threads).items() if r.get("seconds")}

    def threads(self) -> list[int]:
        """The numbers of threads that were measured."""
        return sorted({r["threads"] for r in self.rows})


def ratio(mine: list[float], other: list[float]) -> tuple[float, float, float]:
    """Median, least and largest of the ratios of rounds that were measured side by side."""
    each = [a / b for a, b in zip(mine, other, strict=False)]
    return median(each), min(each), max(each)


def describe_machine() -> dict[str, Any]:
    """What the results depend on: processor, memory, system, Python, the state of the sources."""
    return {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(_memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "git": _git(),
        "when": datetime.now(UTC).isoformat(timespec="minutes"),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else [],
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0


def _git() -> str:
    """The revision, with a + where files differ from it."""

    def run(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return run("rev-parse", "--short=10", "HEAD") + ("+" if run("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def say(*lines: str) -> None:
    """Progress, for who waits."""
    print(*lines, sep="\n", flush=True, file=sys.stderr)


def finished(results: Results, names: list[str], threads: int) -> Iterator[str]:
    """The workloads that have rows already."""
    yield from (n for n in names if results.of(n, threads))
