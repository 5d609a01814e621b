"""Results as Markdown, as a plot, and beside those of an earlier run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.results import Results, ratio
from benchmarks.workloads import INFERENCE, SWEEP, TRAINING, WORKLOADS, Workload
from weft.backends.roofline import Level, Limits

NOISE = 0.05
"""Two results differ when their medians do by more than this, and their ranges do not meet."""

NO_GAIN_BELOW = 0.001
"""Seconds: shorter runs need not be faster on two threads."""

Row = Sequence[str]


def table(head: Row, rows: Sequence[Row]) -> Iterator[str]:
    """A Markdown table, numbers to the right."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'|'.join('---' if k == 0 else '---:' for k in range(len(head)))}|"
    yield from (f"| {' | '.join(r)} |" for r in rows)


def limits_of(r: Results, threads: int) -> Limits | None:
    """What the machine does at best with so many threads, if that was measured."""
    found = r.limits.get(str(threads))
    if found is None:
        return None
    return Limits(found["flops"], tuple(Level(**x) for x in found["levels"]), threads, True)


def best_peer(r: Results, w: Workload, threads: int) -> tuple[str, list[float]] | None:
    """The peer with the least median time, among those that count."""
    times = {
        v: t
        for v, t in r.times(w.name, threads).items()
        if not v.startswith("weft") and (not w.peers or v.partition("-")[0] in w.peers)
    }
    return min(times.items(), key=lambda x: median(x[1]), default=None)


def rate(w: Workload, seconds: float) -> str:
    """The workload's rate in its own unit."""
    if w.calls > 1:
        return f"{seconds / w.calls * 1e6:.3g} us/op"
    by_memory = w.read + w.written > 0 and w.flops < 4 * (w.read + w.written)
    return (
        f"{(w.read + w.written) / seconds / 1e9:.1f} GB/s"
        if by_memory
        else f"{w.flops / seconds / 1e9:.1f} GFLOP/s"
    )


def milliseconds(seconds: float) -> str:
    """With three digits that matter."""
    x = seconds * 1e3
    return f"{x:.{max(0, 2 - math.floor(math.log10(x)))}f}" if x > 0 else "0"


def workloads(r: Results, threads: int) -> Iterator[str]:
    """weft beside its best peer."""
    limits = limits_of(r, threads)
    rows: list[Row] = []
    for w in WORKLOADS.values():
        mine, peer = r.times(w.name, threads).get("weft"), best_peer(r, w, threads)
        if not mine:
            continue
        m = median(mine)
        bound = limits.bound(w.flops, w.read, w.written) if limits and w.calls == 1 else None
        share = f"{100 * bound.seconds / m:.0f} % {bound.by}" if bound else ""
        spread = f"{milliseconds(m)} [{milliseconds(min(mine))} {milliseconds(max(mine))}]"
        if peer is None:
            rows.append((w.name, spread, rate(w, m), share, "", "", "", goal(w)))
            continue
        middle, least, most = ratio(mine, peer[1])
        verdict = f"**{middle:.2f}**" if w.goal and round(middle, 2) > w.goal else f"{middle:.2f}"
        rows.append((
            w.name, spread, rate(w, m), share, peer[0], milliseconds(median(peer[1])),
            f"{verdict} [{least:.2f} {most:.2f}]", goal(w),
        ))  # fmt: skip
    head = (
        "workload",
        "weft ms [range]",
        "rate",
        "of limit",
        "best peer",
        "ms",
        "weft / peer [rounds]",
        "goal",
    )
    yield from table(head, rows)


def narrow(r: Results, threads: int) -> Iterator[str]:
    """weft with an AVX2 description beside NumPy with AVX2 kernels."""
    rows: list[Row] = []
    for name in WORKLOADS:
        times = r.times(name, threads)
        mine, other = times.get("weft-avx2"), times.get("numpy-avx2")
        if mine and other:
            x, least, most = ratio(mine, other)
            rows.append(
                (
                    name,
                    milliseconds(median(mine)),
                    milliseconds(median(other)),
                    f"{x:.2f} [{least:.2f} {most:.2f}]",
                )
            )
    if rows:
        yield from ("", *table(("described as AVX2", "weft ms", "numpy (Haswell kernels) ms", "ratio"), rows))


def goal(w: Workload) -> str:
    """What the ratio shall be at most."""
    return "" if w.goal is None else f"{w.goal:.2f}"


def variants(r: Results, threads: int) -> Iterator[str]:
    """The median of every variant, in milliseconds; errors below."""
    names = list(dict.fromkeys(x["variant"] for x in r.rows if x["threads"] == threads))
    rows: list[Row] = []
    errors: list[str] = []
    for w in WORKLOADS:
        found = r.of(w, threads)
        if found:
            times = r.times(w, threads)
            rows.append((w, *(milliseconds(median(times[v])) if v in times else "" for v in names)))
        errors += [f"- {w}, {v}: {x['error']}" for v, x in found.items() if "error" in x]
    yield from table(("median ms", *names), rows)
    if errors:
        yield from ("", *errors)


def gains(r: Results) -> Iterator[str]:
    """What a second thread gains, for weft and for its best peer on one."""
    rows: list[Row] = []
    for w in WORKLOADS.values():
        mine = [r.times(w.name, t).get("weft") for t in (1, 2)]
        peers = [best_peer(r, w, t) for t in (1, 2)]
        if not mine[0] or not mine[1] or w.calls > 1 or median(mine[0]) < NO_GAIN_BELOW:
            continue
        gain = median(mine[0]) / median(mine[1])
        other = ""
        bad = False
        if peers[0] and peers[1]:
            theirs = median(peers[0][1]) / median(peers[1][1])
            other, bad = f"{theirs:.2f}", gain < 1.6 <= theirs
        rows.append((w.name, f"**{gain:.2f}**" if bad else f"{gain:.2f}", other))
    if rows:
        yield from table(("one thread / two threads", "weft", "best peers"), rows)


def sweep_ratios(r: Results, threads: int) -> dict[str, tuple[float, str]]:
    """weft's time over the best peer's, and which peer that was, of each product."""
    out: dict[str, tuple[float, str]] = {}
    for w in SWEEP.values():
        mine, peer = r.times(w.name, threads).get("weft"), best_peer(r, w, threads)
        if mine and peer:
            out[w.name] = ratio(mine, peer[1])[0], peer[0]
    return out


def sweep(r: Results, threads: int) -> Iterator[str]:
    """The sweep of products by group, and the worst ones."""
    found = sweep_ratios(r, threads)
    if not found:
        return
    groups: dict[str, list[float]] = {}
    for name, (x, _) in found.items():
        groups.setdefault(name.partition("_")[0], []).append(x)
    groups["all"] = [x for x, _ in found.values()]
    rows = [(g, str(len(x)), f"{median(x):.2f}", f"{min(x):.2f}", f"{max(x):.2f}") for g, x in groups.items()]
    yield from table(("products", "shapes", "median ratio", "best", "worst"), rows)
    yield ""
    worst = sorted(found.items(), key=lambda x: -x[1][0])[:8]
    rows = [
        (name, milliseconds(seconds), peer, f"{x:.2f}", rate(SWEEP[name], seconds))
        for name, (x, peer) in worst
        for seconds in [median(r.times(name, threads)["weft"])]
    ]
    yield from table(("worst", "weft ms", "best peer", "ratio", "rate"), rows)


def startup(r: Results) -> Iterator[str]:
    """Seconds of fresh processes."""
    names = list(dict.fromkeys(x["name"] for x in r.startup))
    rows: list[Row] = []
    for what in dict.fromkeys(x["what"] for x in r.startup):
        found = {x["name"]: x["seconds"] for x in r.startup if x["what"] == what}
        cells = [f"{median(found[n]):.3f}" if n in found else "" for n in names]
        both = "weft" in found and "jax" in found and what != "import"
        rows.append((what, *cells, f"{ratio(found['weft'], found['jax'])[0]:.2f}" if both else ""))
    if rows:
        yield from table(("seconds of a fresh process", *names, "weft / jax"), rows)


def phases(r: Results) -> Iterator[str]:
    """Milliseconds from a call to its first result, by phase."""
    if not r.phases:
        return
    names = list(dict.fromkeys(n for x in r.phases for n in x["phases"]))
    columns = [f"{x['what']}, {x['caches']}" for x in r.phases]
    rows: list[Row] = [("**in all**", *(f"{x['seconds'] * 1e3:.1f}" for x in r.phases))]
    for n in sorted(names, key=lambda n: -sum(x["phases"].get(n, 0.0) for x in r.phases)):
        rows.append((n, *(f"{x['phases'][n] * 1e3:.1f}" if n in x["phases"] else "" for x in r.phases)))
    yield from table(("ms to the first result", *columns), rows)


def summary(r: Results) -> Iterator[str]:
    """The machine, and the tables that matter most."""
    m = r.machine
    versions = ", ".join(f"{n} {v}" for n, v in sorted(r.versions.items()) if n != "weft")
    yield f"{m.get('cpu')}, {m.get('cores')} cores usable, {m.get('memory_gib')} GiB; {m.get('system')}; Python"
    yield f"{m.get('python')}, {versions};"
    yield f"weft at {m.get('git')}, {m.get('when')}."
    yield "\nMedians of rounds in which all variants took turns; a ratio is the median of the rounds' ratios, bold"
    yield "where it misses the goal. `of limit`: the least time that the limits below allow, over the time taken."
    for t, found in r.limits.items():
        yield f"\nLimits on {t} thread{'' if t == '1' else 's'}: {found['text'].rpartition(' (')[0]}."
    if r.missing:
        yield "\nNot installed: " + ", ".join(f"{v} ({', '.join(p)})" for v, p in r.missing.items()) + "."
    for t in r.threads():
        yield f"\n### {t} thread{'' if t == 1 else 's'}\n"
        yield from workloads(r, t)
        yield from narrow(r, t)
        rows = list(sweep(r, t))
        yield from ("", *rows) if rows else ()
    for part in (gains(r), startup(r), phases(r)):
        lines = list(part)
        yield from ("", *lines) if lines else ()


PAGE = """# Measured

Written by `python -m benchmarks --page`, which measures weft and what else is installed on the same workloads; nothing
here is written by hand. Each framework runs in a process of its own, pinned to as many cores as it has threads. They
take turns, round by round, because a shared machine's memory gets faster and slower within minutes. Every result is
compared with the other frameworks' before anything is timed. How to read a single kernel's report:
[performance.md](performance.md).
"""
"""The head of manuals/measured.md."""


def page(r: Results) -> str:
    """The page of the manual: its head, and the summary."""
    return PAGE + "\n" + "\n".join(summary(r)).replace("\n### ", "\n## ") + "\n"


def markdown(r: Results) -> str:
    """The whole report."""
    lines = ["# weft's benchmarks", "", *summary(r), "", "## All variants"]
    for t in r.threads():
        lines += ["", f"### {t} thread{'' if t == 1 else 's'}", "", *variants(r, t)]
    return "\n".join(lines) + "\n"


def compare(new: Results, old: Results) -> str:
    """weft now and then."""
    rows: list[Row] = []
    for t in new.threads():
        for name in (*WORKLOADS, *INFERENCE, *TRAINING, *SWEEP):
            a, b = new.times(name, t).get("weft"), old.times(name, t).get("weft")
            if not a or not b:
                continue
            x = median(a) / median(b)
            apart = max(a) < min(b) or min(a) > max(b)
            verdict = "" if not apart or abs(x - 1) < NOISE else "faster" if x < 1 else "**slower**"
            rows.append(
                (f"{name} ({t})", milliseconds(median(b)), milliseconds(median(a)), f"{x:.2f}", verdict)
            )
    then, now = old.machine.get("git", "then"), new.machine.get("git", "now")
    return "\n".join(table(("weft, ms", str(then), str(now), "ratio", ""), rows)) + "\n"


def plot(r: Results, path: Path) -> None:
    """Ratios to the best peer, one bar per workload and number of threads; beside them the sweep. Needs matplotlib."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    names = [w for w in WORKLOADS if any(w_times(r, w, t) for t in r.threads())]
    figure, (left, right) = pyplot.subplots(
        1, 2, figsize=(13, 0.28 * max(len(names), 8) + 1.5), layout="constrained"
    )
    height = 0.8 / max(len(r.threads()), 1)
    for k, t in enumerate(r.threads()):
        found: dict[int, Any] = {j: w_times(r, w, t) for j, w in enumerate(names)}
        at = [j + (k - 0.5 * (len(r.threads()) - 1)) * height for j, x in found.items() if x]
        left.barh(at, [x for x in found.values() if x], height, label=f"{t} thread{'' if t == 1 else 's'}")
    for j, w in enumerate(names):
        if WORKLOADS[w].goal:
            left.plot([WORKLOADS[w].goal] * 2, [j - 0.45, j + 0.45], color="black", linewidth=1.5)
    left.set_yticks(range(len(names)), names, fontsize=8)
    left.invert_yaxis()
    left.set(xscale="log", xlabel="weft's time / best peer's (black: goal)")
    for axes in (left, right):
        axes.axline((1, 0), (1, 1), color="grey", linewidth=0.8) if axes is left else axes.axhline(
            1, color="grey"
        )
    left.legend(fontsize=8)
    for t in r.threads():
        ratios = sorted(x for x, _ in sweep_ratios(r, t).values())
        right.plot(ratios, marker=".", label=f"{t} thread{'' if t == 1 else 's'}")
    right.set(yscale="log", xlabel="products of the sweep, sorted", ylabel="weft's time / best peer's")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def w_times(r: Results, name: str, threads: int) -> float | None:
    """The ratio of a workload, if both sides have times."""
    mine, peer = r.times(name, threads).get("weft"), best_peer(r, WORKLOADS[name], threads)
    return ratio(mine, peer[1])[0] if mine and peer else None
