"""Programs that change from step to step run in both frameworks, and their tables say what became of each mark."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from benchmarks import dynamic, first_use, once
from benchmarks.programs import PROGRAMS, Mark, Program
from benchmarks.results import Results
from benchmarks.variants import VARIANTS

TRIED = ("MLP, random batches", "x * c")

NO_TORCH = bool(VARIANTS["torch"].missing())


@pytest.fixture
def two_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamic, "PROGRAMS", {n: PROGRAMS[n] for n in TRIED})


@pytest.mark.usefixtures("two_programs")
def test_two_programs_run_at_all_temperatures_and_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamic.main(["--small", "--rounds", "1", "--threads", "1", "--out", str(tmp_path)])
    text = capsys.readouterr().out
    r = Results.load(tmp_path / "dynamic.json")
    expected = {*dynamic.TEMPERATURES} | ({"torch"} if not NO_TORCH else set())
    for name in TRIED:
        found = r.of(name, 1)
        assert set(found) == expected
        assert all(len(row["first"]) == len(row["whole"]) == len(row["peak"]) == 1 for row in found.values())
        assert not any("wrong" in row or "error" in row for row in found.values())
        assert all(f"### {t}, 1 thread" in text for t in dynamic.TEMPERATURES)
    assert len(r.of("x * c", 1)["seen"]["steps"][0]) == 3
    assert (tmp_path / "dynamic.md").read_text() == text


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes_for_a_try_are_among_those_of_the_program(name: str) -> None:
    assert set(PROGRAMS[name].small) <= set(PROGRAMS[name].sizes)
    for mark in PROGRAMS[name].marks:
        assert mark.of in {"torch", *dynamic.MEASURES, *PROGRAMS}


def test_what_was_seen_of_single_ops_are_other_numbers() -> None:
    def values(seed: int) -> list[Any]:
        return list(PROGRAMS["x * c"].start(weft, seed, small=True))[1:]

    first, again, other = (values(seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


# --- one process


def asked(**changes: Any) -> dict[str, Any]:
    """What a process is asked."""
    return {
        "framework": "weft", "program": "made up", "seed": 1, "small": False, "threads": 1, "processors": [],
        "limit": 9.0,
    } | changes  # fmt: skip


def stepping(monkeypatch: pytest.MonkeyPatch, *seconds: float) -> Callable[..., Any]:
    """A program whose steps take so long by the clock that the process looks at."""
    clock = [0.0]
    monkeypatch.setattr(once.time, "perf_counter", lambda: clock[0])

    def run(T: Any, seed: int) -> Any:
        clock[0] += 100.0
        yield None
        for s in seconds:
            clock[0] += s
            yield s
        clock[0] += 0.5
        return [np.ones(3)]

    monkeypatch.setattr(once, "PROGRAMS", {"made up": Program("made up", run, ())})
    return run


def test_preparation_steps_and_end_are_timed_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, *range(1, 4))
    answer = once.run(asked())
    assert (answer["setup"], answer["steps"], answer["end"]) == (100.0, [1.0, 2.0, 3.0], 0.5)
    assert dynamic.measures(answer)["whole"] == 6.5 and "tenth" not in dynamic.measures(answer)


def test_a_loop_is_stopped_after_the_step_that_reaches_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, *[4.0] * 9)
    answer = once.run(asked())
    assert answer["stopped"] and answer["steps"] == [4.0] * 3
    assert {"first", "second", "steady"} < set(dynamic.measures(answer)) and "whole" not in dynamic.measures(
        answer
    )


def test_memory_is_counted_from_where_the_program_begins() -> None:
    memory = once.Memory()
    assert memory.held() < 1 << 20
    with mmap.mmap(-1, 1 << 26) as block:  # a process that ran long has resident memory for an array
        np.frombuffer(block, np.uint8)[:] = 1
        assert memory.held() > 60 << 20
    assert memory.peak() > 60 << 20


def test_the_peak_is_of_the_program_and_not_of_the_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    stepping(monkeypatch, 1.0)
    order: list[str] = []
    peak_of, check = once.Memory.peak, once.check_of
    monkeypatch.setattr(once.Memory, "peak", lambda self: (order.append("peak"), peak_of(self))[1])
    monkeypatch.setattr(once, "check_of", lambda results: (order.append("compared"), check(results))[1])
    assert once.run(asked())["peak"] > 0
    assert order == ["peak", "compared"]


def test_what_a_process_cannot_do_is_an_error_in_the_results(tmp_path: Path) -> None:
    broken = Program("nothing", lambda T, seed: iter(()), ())
    answer = dynamic.run("weft", broken, dynamic.Settings(1), tmp_path)
    assert answer["error"] == "KeyError: 'nothing'"
    (row,) = dynamic.rows_of(broken, 1, {"seen": [answer]})
    assert row["error"] == answer["error"] and "whole" not in row


def test_modules_of_first_use_are_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    names = first_use.modules()
    assert {"weft.scheduler.realize", "weft.scheduler.plan", "weft.autograd.reverse"} <= set(names)
    code = (
        "import sys; from benchmarks import first_use, once; T = once.opened('weft', 1, sys.argv[1:]); "
        "before = set(sys.modules); first_use.steps(T); print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True, check=True)
    assert not done.stdout.split()


# --- comparing


def test_the_first_step_that_differs_is_named() -> None:
    mine, other = {"values": [[1.0], [2.0], [3.0]]}, {"values": [[1.0], [2.1], [9.0]]}
    assert dynamic.difference(mine, mine, 1e-3) is None and dynamic.difference(mine, other, 1e-3, 1) is None
    assert "step 2 differs by 1.0e-01" in (dynamic.difference(mine, other, 1e-3) or "")
    assert "step 1 gives another number" in (dynamic.difference(mine, {"values": [[1.0, 1.0]]}, 1e-3) or "")
    assert dynamic.difference({"values": [[float("nan")]]}, {"values": [[1.0]]}, 1e-3)
    ends = [{"values": [], "final": once.check_of([np.full(3, x)])} for x in (1.0, 2.0)]
    assert "the end" in (dynamic.difference(ends[0], ends[1], 1e-3) or "")
    assert dynamic.difference(ends[0], ends[1], 1e-3, 2) is None


def answer_of(whole: float, value: float = 1.0, peak: int = 1 << 20) -> dict[str, Any]:
    """A run of ten steps."""
    steps = [whole / 10] * 10
    return {
        "setup": 0.0, "steps": steps, "end": 0.0, "values": [[value]] * 10, "final": [], "peak": peak, "grown": 0,
    }  # fmt: skip


def judged(mark: Mark, **answers: list[dict[str, Any]]) -> dynamic.Verdict:
    """What becomes of a mark with these answers."""
    program = Program("made up", lambda T, seed: iter(()), (mark,))
    r = Results()
    for row in dynamic.rows_of(program, 1, answers):
        r.add(row)
    return dynamic.judge(r, program, 1, mark)


def test_marks_are_judged_by_the_larger_of_their_bounds() -> None:
    both = Mark("seen", "whole", least=1.0, times=3.0)
    assert judged(both, seen=[answer_of(0.9)], torch=[answer_of(0.1)]).met
    assert judged(both, seen=[answer_of(2.9)], torch=[answer_of(1.0)]).met
    missed = judged(both, seen=[answer_of(3.1)], torch=[answer_of(1.0)])
    assert missed == dynamic.Verdict(False, "whole 3.10 s > 3.00 s")
    assert judged(both, seen=[answer_of(0.9)]).met and judged(both, seen=[answer_of(1.1)]).met is None
    own = Mark("seen", "second", times=1.2, of="tenth")
    assert judged(own, seen=[answer_of(1.0)]).met
    assert (
        judged(
            Mark("seen", "peak", times=1.0), seen=[answer_of(1.0, peak=9)], torch=[answer_of(1.0, peak=8)]
        ).met
        is False
    )


def test_a_wrong_result_is_loud_and_meets_no_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    mark = Mark("seen", "whole", least=10.0)
    assert judged(mark, seen=[answer_of(1.0, value=2.0)], torch=[answer_of(1.0)]) == dynamic.Verdict(
        False, "whole: wrong"
    )
    stopped = {k: v for k, v in answer_of(1.0).items() if k not in ("end", "grown", "final")} | {
        "stopped": True
    }
    assert judged(mark, seen=[stopped], torch=[answer_of(1.0)]).met is False
    program = Program("made up", lambda T, seed: iter(()), (mark,))
    monkeypatch.setattr(dynamic, "PROGRAMS", {"made up": program})
    r = Results()
    for row in dynamic.rows_of(program, 1, {"seen": [answer_of(1.0, value=2.0)], "torch": [answer_of(1.0)]}):
        r.add(row)
    text = dynamic.markdown(r)
    assert "- **WRONG** made up, seen, 1 threads: step 1 differs by 1.0e+00" in text
    assert "0 of 1 marks are met, 1 are missed." in text


# --- the command


def test_the_command_names_programs_and_marks(capsys: pytest.CaptureFixture[str]) -> None:
    dynamic.main(["--list"])
    text = capsys.readouterr().out
    assert (
        "SGD by hand" in text and "seen: steady <= 1.2 x tenth" in text and "empty: whole <= 2.00 s" in text
    )
    with pytest.raises(SystemExit, match="no program is called 'nothing'"):
        dynamic.main(["--only", "nothing"])
    assert [p.name for p in dynamic.chosen(["LSTM"])] == ["LSTM, random lengths", "tree-LSTM, random trees"]
