"""Marks: how they are judged, that what is compared takes turns, and which are measured."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks import marks
from benchmarks.marks import Row, table, turns


def test_a_mark_is_met_at_its_bound() -> None:
    assert "| met |" in Row(1, "token", 1.25, most=1.25).text
    assert "**missed**" in Row(1, "token", 1.26, most=1.25).text
    assert "| met |" in Row(6, "log", 1.3, least=1.3).text and ">= 1.3" in Row(6, "log", 1.3, least=1.3).text
    assert (
        "| met |" in Row(6, "refused", 0, most=0).text and "**missed**" in Row(6, "refused", 1, most=0).text
    )
    assert "**missed**" in Row(6, "log", 1.29, least=1.3).text
    assert Row(4, "step", 12.5, unit="us").text == "| 4 | step | 12.5 us |  |  |"


def test_what_is_compared_takes_turns_and_both_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], list[str]()
    monkeypatch.setattr(marks, "clock", [lambda: now[0]])

    def work(name: str, seconds: Iterator[float], k: int) -> None:
        done.append(f"{name}{k}")
        now[0] += next(seconds)

    a, b = iter((9.0, 1.0, 3.0, 2.0)), iter((9.0, 5.0, 4.0, 6.0))
    found = turns([lambda k: work("a", a, k), lambda k: work("b", b, k)], 3, 1)
    assert found == [2.0, 5.0]
    assert done == ["b0", "a0", "a1", "b1", "b2", "a2", "a3", "b3"]


def test_marks_are_chosen_by_number(capsys: pytest.CaptureFixture[str]) -> None:
    some = {
        "1": lambda rounds: iter([Row(1, "one", rounds)]),
        "5,6": lambda rounds: iter([Row(5, "five", 2.0)]),
    }
    table("benchmarks.some", None, some, 8, ["--only", "6", "--rounds", "3"])
    assert "five" in (out := capsys.readouterr().out) and "one" not in out
    table("benchmarks.some", None, some, 8, ["--rounds", "3"])
    assert "| 1 | one | 3 x |" in capsys.readouterr().out
