"""Measures programs that change from step to step, on weft and on torch: one source, each run in a process of its own.

python -m benchmarks.dynamic                                every program, one and two threads
python -m benchmarks.dynamic --threads 1 --rounds 1         less than ten minutes
python -m benchmarks.dynamic --only LSTM "by hand" --temperatures empty seen
python -m benchmarks.dynamic --small --rounds 1             that everything works, and results agree
python -m benchmarks.dynamic --list                         the programs, and what they shall reach

weft runs at three temperatures of its cache folder: `empty`; `prepared`, where the other programs have run and this one
never; `seen`, where this program has run (of a single op: with other numbers). torch is eager. They take turns, and
medians of the rounds count; a ratio is the median of the rounds' ratios. Imports are excluded, those of first steps as
well: see first_use.py. Results are compared.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np

from benchmarks import first_use
from benchmarks.programs import PROGRAMS, Mark, Measure, Program, Temperature
from benchmarks.report import Row, milliseconds, table
from benchmarks.results import ROOT, Results, describe_machine, ratio, say
from benchmarks.runner import processors
from benchmarks.variants import VARIANTS
from benchmarks.worker import agree

OUT = ROOT / "out" / "benchmarks"

TEMPERATURES: tuple[Temperature, ...] = get_args(Temperature)
MEASURES: tuple[Measure, ...] = get_args(Measure)

SEED, OTHER_SEED = 1, 2
"""Of what is timed, and of what has been seen of programs whose numbers are to be new."""

ANSWER_SECONDS = 120.0
"""What a process may take beyond its limit: imports, preparation, and the step during which the limit is reached."""

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Settings:
    """How programs are run: after `limit` seconds a loop ends after the step that it is at."""

    threads: int
    small: bool = False
    limit: float = 20.0
    modules: tuple[str, ...] = ()
    """Modules that weft imports at first use: imports are excluded."""


def run(framework: str, program: Program, how: Settings, cache: Path, seed: int = SEED) -> Answer:
    """One run in a process of its own, or why there is none."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = VARIANTS[framework].environ(how.threads) | {
        "WEFT_CACHE_DIR": str(cache),
        "PYTHONPATH": path,
    }
    asked = {
        "framework": framework, "program": program.name, "seed": seed, "small": how.small, "threads": how.threads,
        "processors": processors(how.threads), "limit": how.limit, "modules": how.modules,
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.once", json.dumps(asked)]
    seconds = how.limit + ANSWER_SECONDS
    try:
        done = subprocess.run(
            command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {seconds:.0f} s"}
    if done.returncode or not done.stdout:
        return {"error": f"the process ended with {done.returncode}: {done.stderr[-300:].strip()}"}
    return json.loads(done.stdout)


@dataclass(slots=True)
class Caches:
    """weft's cache folders below `root`, by what has run there."""

    root: Path
    how: Settings
    first: dict[str, Answer] = field(default_factory=dict[str, Answer])
    kept: dict[str, Path] = field(default_factory=dict[str, Path])

    def empty(self) -> Path:
        """A folder without anything."""
        return Path(tempfile.mkdtemp(dir=self.root))

    def seen(self, program: Program) -> Path:
        """The folder in which the program has run, for the first time now if it has not."""
        if program.name not in self.kept:
            folder = self.kept[program.name] = self.empty()
            seed = OTHER_SEED if program.new_numbers else SEED
            answer = self.first[program.name] = run("weft", program, self.how, folder, seed)
            if "stopped" in answer:
                run("weft", program, self.how, folder, seed)  # gets further by what the first left
        return self.kept[program.name]

    def prepared(self, program: Program) -> Path:
        """A folder as all the other programs would have left it. An entry of a cache is a file named by a hash of what
        it was made of, so it is what they left in folders of their own, put together."""
        folder = self.empty()
        for other in PROGRAMS.values():
            if other.name != program.name:
                shutil.copytree(self.seen(other), folder, dirs_exist_ok=True, copy_function=_link)
        return folder


def _link(source: str, target: str) -> None:
    """The same file once more; entries are replaced, never written to."""
    if not os.path.exists(target):
        os.link(source, target)


def ran(variant: str, program: Program, caches: Caches, turn: int) -> Answer:
    """The answer of a variant: torch, or weft at a temperature."""
    match variant:
        case "torch":
            return run("torch", program, caches.how, caches.root)
        case "empty" if turn == 0 and not program.new_numbers:
            caches.seen(program)
            return caches.first[program.name]
        case "seen":
            return run("weft", program, caches.how, caches.seen(program))
        case _:
            folder = caches.empty() if variant == "empty" else caches.prepared(program)
            answer = run("weft", program, caches.how, folder)
            shutil.rmtree(folder)
            return answer


def measures(answer: Answer) -> dict[Measure, float]:
    """Seconds and bytes of a run, as far as it came."""
    steps: list[float] = answer["steps"]
    found: dict[Measure, float] = {
        "first": steps[0], "steady": median(steps[-max(1, len(steps) // 3) :]), "peak": answer["peak"],
    }  # fmt: skip
    if len(steps) > 1:
        found["second"] = steps[1]
    if len(steps) > 9:
        found["tenth"] = steps[9]
    if "stopped" not in answer:
        found |= {"whole": sum(steps) + answer["end"], "grown": answer["grown"]}
    return found


def difference(mine: Answer, other: Answer, tolerance: float, compared: int | None = None) -> str | None:
    """Where results differ first; None where they agree as far as both came, or in the first `compared` steps."""
    steps = list(zip(mine["values"], other["values"], strict=False))[:compared]
    size = max((np.abs(b).max() for _, b in steps), default=0.0)
    for k, (a, b) in enumerate(steps):
        if len(a) != len(b):
            return f"step {k + 1} gives another number of elements"
        worst = float(np.abs(np.subtract(a, b)).max())
        if not worst <= tolerance * max(size, 1e-30):
            return f"step {k + 1} differs by {worst:.1e}, where {size:.3g} is the largest"
    if compared is None and "final" in mine and "final" in other:
        why = agree(mine["final"], other["final"], tolerance)
        return None if why is None else f"the end: {why}"
    return None


def measure(
    programs: Sequence[Program], how: Settings, temperatures: Sequence[str], rounds: int, results: Results
) -> None:
    """Rounds of the programs at the temperatures, beside torch where it is installed, into `results`."""
    variants = [t for t in TEMPERATURES if t in temperatures] + ["torch"] * (not VARIANTS["torch"].missing())
    with tempfile.TemporaryDirectory(prefix="weft-dynamic-") as root:
        caches = Caches(Path(root), how)
        if "prepared" in variants:
            say(f"every program once, to prepare the others ({how.threads} threads)")
            for program in PROGRAMS.values():
                caches.seen(program)
        for program in programs:
            answers: dict[str, list[Answer]] = {v: [] for v in variants}
            for turn in range(rounds):
                for v in variants if turn % 2 == 0 else reversed(variants):
                    answers[v].append(ran(v, program, caches, turn))
            for row in rows_of(program, how.threads, answers):
                results.add(row)
            results.versions |= {
                v if v == "torch" else "weft": a["version"]
                for v, given in answers.items() for a in given if "version" in a
            }  # fmt: skip
            results.save()
            say(line(results, program, how.threads))


def rows_of(program: Program, threads: int, answers: dict[str, list[Answer]]) -> Iterator[dict[str, Any]]:
    """A row of the results for each variant: its measures by round, and what went wrong."""
    judges = answers.get("torch") or next(iter(answers.values()))
    for v, given in answers.items():
        ran = [a for a in given if "steps" in a]
        row: dict[str, Any] = {"workload": program.name, "threads": threads, "variant": v}
        row |= {"steps": [a["steps"] for a in ran], "setup": [a["setup"] for a in ran]}
        found = [measures(a) for a in ran]
        row |= {m: [f[m] for f in found] for m in MEASURES if found and all(m in f for f in found)}
        if errors := [a["error"] for a in given if "error" in a]:
            row["error"] = errors[0]
        if stopped := [len(a["steps"]) for a in ran if "stopped" in a]:
            row["stopped"] = min(stopped)
        pairs = [(a, b) for a, b in zip(given, judges, strict=True) if "values" in a and "values" in b]
        if wrong := [w for a, b in pairs if (w := difference(a, b, program.tolerance, program.compared))]:
            row["wrong"] = wrong[0]
        yield row


# --- marks


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a mark is met, None where that cannot be said; and the figures."""

    met: bool | None
    text: str


def judge(r: Results, program: Program, threads: int, mark: Mark) -> Verdict:
    """What became of a mark."""
    row = r.of(program.name, threads).get(mark.temperature, {})
    for trouble in ("error", "wrong"):
        if trouble in row:
            return Verdict(False, f"{mark.measure}: {trouble}")
    if mark.measure not in row:
        return Verdict(False if "stopped" in row else None, f"{mark.measure}: not done")
    mine, bounds = median(row[mark.measure]), list[float]()
    if mark.least is not None:
        bounds.append(mark.least)
    if mark.times is not None:
        other = _compared(r, program, threads, mark)
        if other:
            bounds.append(mine * mark.times / ratio(row[mark.measure], other)[0])
        elif mark.least is None or mine > mark.least:
            return Verdict(None, f"{mark.measure}: nothing to compare with")
    bound = max(bounds)
    sign = "<=" if mine <= bound else ">"
    return Verdict(
        mine <= bound, f"{mark.measure} {shown(mark.measure, mine)} {sign} {shown(mark.measure, bound)}"
    )


def _compared(r: Results, program: Program, threads: int, mark: Mark) -> list[float]:
    """The rounds that a mark's measure is compared with."""
    if mark.of in MEASURES:
        return r.of(program.name, threads)[mark.temperature].get(mark.of, [])
    if mark.of in PROGRAMS:
        return r.of(mark.of, threads).get(mark.temperature, {}).get(mark.measure, [])
    return r.of(program.name, threads).get(mark.of, {}).get(mark.measure, [])


def shown(measure: Measure, value: float) -> str:
    """With its unit."""
    if measure in ("peak", "grown"):
        return f"{value / 1e6:.1f} MB"
    return f"{value:.2f} s" if value >= 1 else f"{milliseconds(value)} ms"


# --- the report


def line(r: Results, program: Program, threads: int) -> str:
    """What was found of a program, for who waits."""
    found = r.of(program.name, threads)
    times = [f"{v} {shown('whole', median(x['whole']))}" for v, x in found.items() if x.get("whole")]
    troubles = [
        f"    {v}: {word}{x[kind]}"
        for v, x in found.items()
        for kind, word in (("error", ""), ("wrong", "WRONG: "), ("stopped", "stopped after steps: "))
        if kind in x
    ]
    return "\n".join([f"{program.name} ({threads}): {', '.join(times)}", *troubles])


def at_temperature(r: Results, threads: int, temperature: Temperature) -> Iterator[str]:
    """weft at a temperature beside torch, with what became of its marks."""
    rows: list[Row] = []
    for program in PROGRAMS.values():
        found = r.of(program.name, threads)
        if temperature not in found:
            continue
        mine, other = found[temperature], found.get("torch", {})
        compared = (
            ratio(mine["whole"], other["whole"])[0] if mine.get("whole") and other.get("whole") else None
        )
        verdicts = [judge(r, program, threads, m) for m in program.marks if m.temperature == temperature]
        rows.append((
            program.name, *(_median(mine, m) for m in ("first", "second", "tenth", "steady", "whole")),
            _median(other, "whole"), "" if compared is None else f"{compared:.2f}", _median(mine, "peak"),
            _median(other, "peak"), _marks(verdicts),
        ))  # fmt: skip
    if rows:
        head = (
            "first step",
            "second",
            "tenth",
            "steady",
            "whole",
            "torch",
            "ratio",
            "peak",
            "torch",
            "marks",
        )
        yield from ("", f"### {temperature}, {threads} thread{'' if threads == 1 else 's'}", "")
        yield from table(("program", *head), rows)


def _median(row: dict[str, Any], measure: Measure) -> str:
    return shown(measure, median(row[measure])) if row.get(measure) else ""


def _marks(verdicts: Sequence[Verdict]) -> str:
    missed = "; ".join(v.text for v in verdicts if v.met is False)
    unknown = "; ".join(v.text for v in verdicts if v.met is None)
    if missed:
        return f"**{missed}**"
    return unknown or ("met" if verdicts else "")


def wrong(r: Results) -> list[str]:
    """The results that differ from torch's, and the programs that failed."""
    return [
        f"- **{kind.upper()}** {x['workload']}, {x['variant']}, {x['threads']} threads: {x[kind]}"
        for kind in ("wrong", "error") for x in r.rows if kind in x
    ]  # fmt: skip


def markdown(r: Results) -> str:
    """All tables, how many marks are met, and what is wrong."""
    m, lines = r.machine, list[str]()
    lines.append(
        f"{m.get('cpu')}, {m.get('cores')} cores usable, {m.get('system')}; Python {m.get('python')}, "
    )
    lines[-1] += (
        ", ".join(f"{n} {v}" for n, v in sorted(r.versions.items())) + f" at {m.get('git')}, {m.get('when')}."
    )
    for threads in r.threads():
        for t in TEMPERATURES:
            lines += at_temperature(r, threads, t)
    verdicts = [
        judge(r, p, threads, mark).met
        for threads in r.threads() for p in PROGRAMS.values() for mark in p.marks
        if mark.temperature in r.of(p.name, threads)
    ]  # fmt: skip
    lines += [
        "",
        f"{verdicts.count(True)} of {len(verdicts)} marks are met, {verdicts.count(False)} are missed.",
    ]
    if found := wrong(r):
        lines += ["", "### Results that are not torch's, and errors", "", *found]
    return "\n".join(lines) + "\n"


# --- the command


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="benchmarks.dynamic", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--only", nargs="+", default=[], metavar="NAME", help="parts of names of programs")
    p.add_argument("--rounds", type=int, default=3, help="rounds of each program (default: 3)")
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads (default: 1 2)")
    p.add_argument("--temperatures", nargs="+", choices=TEMPERATURES, default=list(TEMPERATURES))
    p.add_argument(
        "--limit", type=float, default=20.0, help="seconds after which a loop is stopped (default: 20)"
    )
    p.add_argument("--small", action="store_true", help="the smallest sizes: a try")
    p.add_argument("--out", type=Path, default=OUT, help=f"folder for what is written (default: {OUT})")
    p.add_argument("--list", action="store_true", help="name all programs, with their marks")
    return p.parse_args(given)


def chosen(words: Sequence[str]) -> list[Program]:
    """The programs that a word names in part; all where there is no word."""
    for word in words:
        if not any(word in name for name in PROGRAMS):
            raise SystemExit(f"no program is called {word!r}; see --list")
    return [p for name, p in PROGRAMS.items() if not words or any(w in name for w in words)]


def described(mark: Mark) -> str:
    """A mark in words."""
    bounds = [] if mark.least is None else [shown(mark.measure, mark.least)]
    bounds += [] if mark.times is None else [f"{mark.times:g} x {mark.of}"]
    return f"{mark.temperature}: {mark.measure} <= {' or '.join(bounds)}"


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and report; ends with status 1 where a result is wrong or a program fails."""
    asked = arguments(given)
    programs = chosen(asked.only)
    if asked.list:
        for program in programs:
            print(f"{program.name:28s} {', '.join(map(described, program.marks))}")
        return
    results = Results(asked.out / "dynamic.json", machine=describe_machine())
    start, modules = time.perf_counter(), tuple(first_use.modules())
    for threads in asked.threads:
        how = Settings(threads, asked.small, asked.limit, modules)
        measure(programs, how, asked.temperatures, asked.rounds, results)
    say(f"measured in {(time.perf_counter() - start) / 60:.1f} minutes")
    text = markdown(results)
    (asked.out / "dynamic.md").write_text(text, encoding="utf-8")
    print(text, end="")
    say(f"written to {asked.out}: dynamic.json, dynamic.md")
    if wrong(results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
