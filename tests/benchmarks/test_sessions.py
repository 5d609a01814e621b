"""The marks of sessions: how they are judged, and that what is compared takes turns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks import sessions
from benchmarks.sessions import Row, bytes_equal, main, turns


def test_a_mark_is_met_at_its_bound() -> None:
    assert "| met |" in Row(1, "token", 1.25, most=1.25).text
    assert "**missed**" in Row(1, "token", 1.26, most=1.25).text
    assert "| met |" in Row(6, "log", 1.3, least=1.3).text and ">= 1.3" in Row(6, "log", 1.3, least=1.3).text
    assert "**missed**" in Row(6, "log", 1.29, least=1.3).text
    assert Row(4, "step", 12.5, unit="us").text == "| 4 | step | 12.5 us |  |  |"


def test_what_is_compared_takes_turns_and_both_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    now, done = [0.0], list[str]()
    monkeypatch.setattr(sessions, "clock", [lambda: now[0]])

    def work(name: str, seconds: Iterator[float], k: int) -> None:
        done.append(f"{name}{k}")
        now[0] += next(seconds)

    a, b = iter((9.0, 1.0, 3.0, 2.0)), iter((9.0, 5.0, 4.0, 6.0))
    found = turns([lambda k: work("a", a, k), lambda k: work("b", b, k)], 3, 1)
    assert found == [2.0, 5.0]
    assert done == ["b0", "a0", "a1", "b1", "b2", "a2", "a3", "b3"]


def test_bytes_are_compared_as_memcmp_does() -> None:
    a = np.arange(10, dtype=np.float32)
    assert bytes_equal(a, a.copy()) and not bytes_equal(a, a[::-1].copy())


def test_an_edit_of_each_graph_of_an_image_generator_changes_its_result() -> None:
    for f, x in sessions._image_generator():
        session = sessions.session_of(f, x)
        before = session(*x).numpy().copy()
        sessions._edited(x, 7)
        assert not np.array_equal(session(*x).numpy(), before) and session.stats().steps == 1


def test_marks_are_chosen_by_number(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sessions, "MARKS", {
        "1": lambda rounds: iter([Row(1, "one", rounds)]), "5,6": lambda rounds: iter([Row(5, "five", 2.0)]),
    })  # fmt: skip
    main(["--only", "6", "--rounds", "3"])
    assert "five" in (out := capsys.readouterr().out) and "one" not in out
    main(["--rounds", "3"])
    assert "| 1 | one | 3 x |" in capsys.readouterr().out
