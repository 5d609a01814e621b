"""Processes that take turns, and what becomes of their answers: tables, comparisons, a plot."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import weft
from benchmarks import __main__ as command
from benchmarks import phases, report, startup
from benchmarks.results import ROOT, Results, ratio
from benchmarks.runner import Group, disagreements
from benchmarks.variants import VARIANTS
from benchmarks.worker import check_of
from benchmarks.workloads import WORKLOADS, normal
from weft.__main__ import main as weft_main
from weft.backends.roofline import Level, Limits


def test_processes_take_turns(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.json")
    broken = replace(VARIANTS["numpy"], name="numpy-broken", where="with_numpy:Nothing")
    variants = [VARIANTS["weft"], VARIANTS["numpy"], broken]
    with Group(variants, 1, results) as group:
        assert list(group.processes) == ["weft", "numpy"] and "Nothing" in results.missing["numpy-broken"][0]
        group.limits()
        for name in ("batch_1000x4x4x4", "x+1, compiled"):
            group.measure(name, 3)
        group.processes["weft"].child.kill()  # type: ignore[union-attr]
        group.measure("prime_31x37x41", 3)
    again = Results.load(tmp_path / "results.json")
    times = again.times("batch_1000x4x4x4", 1)
    assert len(times["weft"]) == 3 and "numpy" not in times  # not among those of the sweep
    assert "the process ended" in again.of("prime_31x37x41", 1)["weft"]["error"]
    assert set(again.versions) == {"weft", "numpy"} and again.limits["1"]["flops"] > 1e9
    text = report.markdown(again)
    assert "x+1, compiled" in text and "us/op" in text


def made_up(factor: float = 1.0) -> Results:
    """Results in which weft takes `factor` times as long as torch, and half as long on two threads."""
    limits = Limits(100e9, (Level("memory", float("inf"), 20e9, 30e9),), 1, True)
    r = Results(machine={"git": f"rev{factor}", "cpu": "a processor"}, versions={"torch": "2", "weft": "1"})
    for t in (1, 2):
        r.limits[str(t)] = {**asdict(limits), "text": str(limits)}
        for name in ("matmul 512", "sum 16M", "attention"):
            seconds = [0.004 / t, 0.0041 / t, 0.0042 / t]
            r.add({"workload": name, "threads": t, "variant": "torch", "seconds": seconds})
            r.add(
                {"workload": name, "threads": t, "variant": "weft", "seconds": [factor * s for s in seconds]}
            )
        r.add({"workload": "matmul 512", "threads": t, "variant": "jax", "error": "no answer"})
        for name in ("square_64x64x64", "prime_61x67x71"):
            for v in ("weft", "torch"):
                r.add({"workload": name, "threads": t, "variant": v, "seconds": [1e-5, 2e-5]})
    r.startup = [{"what": "first step, cold", "name": n, "seconds": [1.0, 2.0]} for n in ("weft", "jax")]
    r.phases = [
        {"what": "softmax", "caches": "cold", "seconds": 0.01, "phases": {"lower": 0.004, "passes": 0.006}}
    ]
    return r


def test_the_report(tmp_path: Path) -> None:
    r = made_up(1.2)
    text = report.markdown(r)
    assert (
        "| matmul 512 | 4.92 [4.80 5.04] | 54.6 GFLOP/s | 55 % compute | torch | 4.10 | **1.20** [1.20 1.20] | 1.05 |"
        in text
    )
    assert "- matmul 512, jax: no answer" in text and "Limits on 1 thread: 100.0 GFLOP/s" in text
    assert "| one thread / two threads |" in text and "| matmul 512 | 2.00 | 2.00 |" in text
    assert "| all | 2 | 1.00 | 1.00 | 1.00 |" in text and "| passes | 6.0 |" in text
    pytest.importorskip("matplotlib")
    report.plot(r, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000


def test_now_and_then() -> None:
    text = report.compare(made_up(0.5), made_up(1.0))
    assert "| matmul 512 (1) | 4.10 | 2.05 | 0.50 | faster |" in text
    assert "**slower**" in report.compare(made_up(2.0), made_up(1.0))
    assert "faster" not in report.compare(made_up(1.01), made_up(1.0))


def test_ratios_are_of_neighbouring_rounds() -> None:
    assert ratio([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == (1.0, 1.0, 1.0)
    assert ratio([1.0, 4.0, 3.0], [1.0, 2.0, 3.0]) == (1.0, 1.0, 2.0)


def test_who_computed_something_else() -> None:
    x = normal(20)
    checks = {"weft": check_of([x * 1.5]), "torch": check_of([x]), "jax": check_of([x])}
    assert list(disagreements(checks, 1e-3)) == ["weft"]


def test_phases_are_places_in_the_source() -> None:
    for _, places in phases.PHASES:
        for place in places:
            inside = place.startswith("weft/")
            assert not inside or list(
                ROOT.glob(place.rstrip("/") + ("*" if not place.endswith(".py") else ""))
            )

    def work() -> None:
        for n in range(20, 30):
            weft.explain((weft.zeros(n, n) @ weft.zeros(n, n)).relu())[0].forms()

    with phases.Sampler() as sampler:
        work()
    found = sampler.shares()
    assert sum(found.values()) == pytest.approx(sampler.seconds)
    assert {"kernelize", "schedule", "passes"} & set(found)
    assert set(found) <= set(phases.NAMES) and set(phases.CASES)


def test_what_can_be_started_here() -> None:
    whats = {(s.what, s.name) for s in startup.starts()}
    assert ("first step, cold", "weft") in whats and ("import", "numpy") in whats


def test_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command.main(["--list"])
    assert "matmul 1024" in capsys.readouterr().out
    for given in (
        ["--workloads", "nothing"],
        ["--frameworks", "nothing"],
        ["--only", "nothing"],
        ["--report"],
    ):
        with pytest.raises(SystemExit, match=r"nothing|no results"):
            command.main([*given, "--out", str(tmp_path)])
    assert command.chosen_workloads("attention", False) == ["attention"]
    assert command.chosen_workloads("matmul", False) == [n for n in WORKLOADS if n.startswith("matmul")]
    assert [v.name for v in command.chosen_variants("weft,torch", True)] == [
        "weft",
        "torch",
        "torch-malloc",
        "torch-onednn",
    ]
    r, other = made_up(), made_up(2.0)
    r.path, other.path = tmp_path / "results.json", tmp_path / "old.json"
    r.save()
    other.save()
    page = tmp_path / "measured.md"
    monkeypatch.setattr(command, "PAGE", page)
    command.main(["--report", "--out", str(tmp_path), "--compare", str(tmp_path / "old.json"), "--page"])
    assert "faster" in capsys.readouterr().out and (tmp_path / "report.md").exists()
    assert page.read_text().startswith(report.PAGE) and "\n## 2 threads\n\n| workload |" in page.read_text()


def test_the_command_of_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = subprocess.run(
        [sys.executable, "-m", "weft", "bench", "--list"], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "matmul 1024" in called.stdout
    monkeypatch.setattr(weft, "__file__", str(tmp_path / "site-packages" / "weft" / "__init__.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="in weft's source tree, not in the installed package"):
        weft_main(["bench"])
