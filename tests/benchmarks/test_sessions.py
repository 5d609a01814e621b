"""The marks of sessions: what is edited and compared, and which are measured."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import sessions
from benchmarks.marks import Row
from benchmarks.sessions import bytes_equal, main


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
