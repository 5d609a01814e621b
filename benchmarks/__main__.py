"""Measures weft, and what else is installed, on the same workloads; writes JSON, Markdown and a plot.

python -m benchmarks                       everything: a quarter of an hour with peers
python -m benchmarks --fast                a subset: less than three minutes
python -m benchmarks --workloads matmul,softmax --frameworks weft,torch --threads 1
python -m benchmarks --only startup,phases
python -m benchmarks --compare old.json    weft now and then
python -m benchmarks --resume              go on where an interrupted run stopped
python -m benchmarks --report              no measuring: the report of the results that are there
python -m benchmarks --page                writes manuals/measured.md as well; with --report, of the same results
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from benchmarks import phases, report, startup
from benchmarks.inference import NETS
from benchmarks.results import ROOT, Results, describe_machine, finished, say
from benchmarks.runner import Group
from benchmarks.variants import QUICK, USUAL, VARIANTS, Variant
from benchmarks.workloads import INFERENCE, SWEEP, TRAINING, WORKLOADS

OUT = ROOT / "out" / "benchmarks"
PAGE = ROOT / "manuals" / "measured.md"
PARTS = ("workloads", "sweep", "startup", "phases")


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="benchmarks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    p.add_argument("--fast", action="store_true", help="a few workloads, fewer rounds, no sweep")
    p.add_argument("--only", default="", help=f"parts, of {','.join(PARTS)}")
    p.add_argument("--workloads", default="", help="names or groups, or parts of names; comma-separated")
    p.add_argument("--frameworks", default="", help=f"variants or frameworks, of {', '.join(VARIANTS)}")
    p.add_argument("--threads", default="1,2", help="numbers of threads (default: 1,2)")
    p.add_argument(
        "--rounds", type=int, default=0, help="rounds of each workload (default: 7, with --fast 5)"
    )
    p.add_argument("--out", type=Path, default=OUT, help=f"folder for what is written (default: {OUT})")
    p.add_argument(
        "--busy", action="store_true", help="others use the machine: count processor time (one thread)"
    )
    p.add_argument("--resume", action="store_true", help="keep what the results file has already")
    p.add_argument("--report", action="store_true", help="only write the report of the results file")
    p.add_argument("--compare", type=Path, help="results of an earlier run to compare with")
    p.add_argument("--page", action="store_true", help="write manuals/measured.md as well")
    p.add_argument(
        "--list", action="store_true", help="name all workloads and variants, and what is not installed"
    )
    return p.parse_args(given)


def chosen_workloads(wanted: str, fast: bool) -> list[str]:
    """The names of workloads that a word of `wanted` names: whole, as a group, or in part."""
    words = [w.strip() for w in wanted.split(",") if w.strip()]
    if not words:
        return [n for n, w in WORKLOADS.items() if w.fast or not fast]
    found = {
        word: [n for n, w in WORKLOADS.items() if word == n]
        or [n for n, w in WORKLOADS.items() if word == w.group or word in n]
        or [n for n, w in INFERENCE.items() if word in (n, w.group)]
        or [n for n, w in TRAINING.items() if word in (n, w.group)]
        or [n for n in SWEEP if word == n]
        for word in words
    }
    for word, names in found.items():
        if not names:
            raise SystemExit(f"no workload is called {word!r}; see --list")
    return list(dict.fromkeys(n for names in found.values() for n in names))


def chosen_variants(wanted: str, fast: bool) -> list[Variant]:
    """The variants that are asked for."""
    words = [w.strip() for w in wanted.split(",") if w.strip()]
    for word in words:
        if not any(word in (v.name, v.framework) for v in VARIANTS.values()):
            raise SystemExit(f"no framework or variant is called {word!r}; there are {', '.join(VARIANTS)}")
    usual = QUICK if fast else USUAL
    names = [
        v.name for v in VARIANTS.values() if v.name in words or (v.framework in words and v.name in usual)
    ]
    return [VARIANTS[n] for n in (names if words else usual)]


def measure(r: Results, chosen: argparse.Namespace) -> None:
    """Everything that is chosen, into `r`."""
    parts = chosen.only.split(",") if chosen.only else list(PARTS)
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"no part is called {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if not chosen.only and (chosen.workloads or chosen.fast):
        parts = ["workloads"] if chosen.workloads else ["workloads", "startup"]
    rounds = chosen.rounds or (5 if chosen.fast else 7)
    variants = chosen_variants(chosen.frameworks, chosen.fast)
    r.missing |= {v.name: v.missing() for v in variants if v.missing()}
    variants = [v for v in variants if not v.missing()]
    say("variants: " + ", ".join(v.name for v in variants))
    if r.missing:
        say("not installed: " + ", ".join(f"{n} ({', '.join(p)})" for n, p in r.missing.items()))
    for threads in map(int, chosen.threads.split(",")):
        names = chosen_workloads(chosen.workloads, chosen.fast) if "workloads" in parts else []
        names += [n for n in SWEEP if n not in names] if "sweep" in parts else []
        done = set(finished(r, names, threads))
        names = [n for n in names if n not in done]
        if not names:
            continue
        with Group(variants, threads, r, chosen.busy and threads == 1) as group:
            group.limits()
            for name in names:
                group.measure(name, max(3, rounds - 2) if name in SWEEP else rounds)
    if "startup" in parts and not r.startup:
        r.startup = startup.measure(rounds)
        r.save()
    if "phases" in parts and not r.phases:
        r.phases = phases.measure(list(phases.CASES))
        r.save()


def write(r: Results, chosen: argparse.Namespace) -> None:
    """The report, in all its forms; the summary on the screen."""
    (chosen.out / "report.md").write_text(report.markdown(r), encoding="utf-8")
    written = ["results.json", "report.md"]
    if find_spec("matplotlib") is None:
        say("no plot: matplotlib is not installed (pip install 'weft[bench]')")
    else:
        report.plot(r, chosen.out / "ratios.png")
        written.append("ratios.png")
    print("\n".join(report.summary(r)))
    if chosen.compare is not None:
        print("\n" + report.compare(r, Results.load(chosen.compare)))
    if chosen.page:
        PAGE.write_text(report.page(r), encoding="utf-8")
        written.append(str(PAGE))
    say(f"written to {chosen.out}: {', '.join(written)}")


def main(given: Sequence[str] | None = None) -> None:
    """Measure, and report."""
    chosen = arguments(given)
    if chosen.list:
        for name, w in WORKLOADS.items():
            print(f"{w.group:12s} {name}{'   (fast)' if w.fast else ''}")
        print(f"{'inference':12s} {', '.join(NETS)}")
        print(f"{'networks':12s} the training steps of these")
        print(
            f"{'sweep':12s} {len(SWEEP)} products, {', '.join(dict.fromkeys(n.partition('_')[0] for n in SWEEP))}"
        )
        for v in VARIANTS.values():
            print(f"variant      {v.name}{f'   (not installed: {v.missing()})' if v.missing() else ''}")
        return
    path = chosen.out / "results.json"
    if (chosen.resume or chosen.report) and path.exists():
        r = Results.load(path)
    elif chosen.report:
        raise SystemExit(f"there are no results in {path}")
    else:
        r = Results(path)
    if not chosen.report:
        r.machine = describe_machine()
        start = time.perf_counter()
        measure(r, chosen)
        say(f"measured in {(time.perf_counter() - start) / 60:.1f} minutes")
    write(r, chosen)


if __name__ == "__main__":
    main()
