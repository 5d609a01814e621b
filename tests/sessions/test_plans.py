"""Sessions that are optimized, saved, loaded and checked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.errors import ArgumentError, FileError, FileFormatError
from weft.sessions import form
from weft.sessions.session import Session, session
from weft.sessions.trial import LEAST_GAIN, MOST_LOST, least_gain

rng = np.random.default_rng(3)


def floats(*shape: int) -> weft.Tensor:
    return weft.tensor((rng.standard_normal(shape) / 4).astype(np.float32))


WEIGHTS = [floats(32, 32) for _ in range(4)]


def f(x: weft.Tensor) -> weft.Tensor:
    for w in WEIGHTS:
        x = (x @ w).relu() + x.mean(-1, keepdim=True)
    return x @ x.transpose(0, 1)


def form_of(s: Session) -> Any:
    (form,) = s._forms.values()  # pyright: ignore[reportPrivateUsage]
    return form


def kept_by(s: Session) -> list[int]:
    keeper = form_of(s).keeper
    return [k for k, n in enumerate(keeper.stored) if n in keeper.kept]


def more(x: weft.Tensor) -> weft.Tensor:
    return f(x) + 1


def edited(s: Session, x: weft.Tensor, rows: list[int]) -> None:
    for t in rows:
        x[t] = float(t) / 7
        assert np.array_equal(s(x).numpy(), session(f)(x).numpy())


def test_what_no_run_needs_is_not_kept_once_a_session_is_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(form, "is_faster", lambda *args: True)
    s, x = session(f), floats(32, 32)
    edited(s, x, [1, 2, 3, 1])
    before = s.stats()
    assert (before.everything, before.steps, before.kept) == (1, 3, before.stored) and before.limit is None
    s.optimize(seconds=0.1)
    edited(s, x, [5, 6, 7])
    after = s.stats()
    assert after.kept < before.kept and after.kept_bytes < before.kept_bytes
    assert after.everything == 2 and after.steps == before.steps + 2
    assert s(x).changed.is_empty and s.stats().unchanged == after.unchanged + 1


def test_what_is_kept_stays_where_less_is_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def slower(timed: object, change: Callable[[], None], past: object, seconds: float, gain: float) -> bool:
        change()
        asked.append(gain)
        return False

    monkeypatch.setattr(form, "is_faster", slower)
    s, x = session(f), floats(32, 32)
    edited(s, x, [1, 2, 3, 1])
    before = s.stats()
    s.optimize(seconds=0.1)
    edited(s, x, [5, 6])
    assert s.stats().kept == before.kept and asked in ([0.0], [-0.1])


def test_fewer_bytes_are_worth_some_time_where_no_limit_says_how_many() -> None:
    assert least_gain(100, 100, False) == least_gain(101, 100, True) == LEAST_GAIN
    assert least_gain(51, 100, False) == least_gain(50, 100, True) == 0.0
    assert least_gain(50, 100, False) == -MOST_LOST


@pytest.mark.parametrize("memory", [None, 40_000])
def test_a_saved_session_is_loaded_with_what_it_kept_and_its_log(tmp_path: Path, memory: int | None) -> None:
    path = tmp_path / "plan.json"
    s, x = session(f, memory=memory), floats(32, 32)
    edited(s, x, [1, 2, 3, 1])
    s.optimize(seconds=0.1)
    edited(s, x, [4, 5])
    s.save(path)
    loaded = session(f, x, plan=path, memory=memory)
    assert kept_by(loaded) == kept_by(s)
    assert form_of(loaded).keeper.log.counts == form_of(s).keeper.log.counts
    edited(loaded, x, [9, 3, 9])
    assert loaded.stats().everything == 1
    loaded.save(tmp_path / "again.json")


def test_plans_of_other_functions_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    s, x = session(f), floats(32, 32)
    edited(s, x, [1, 2])
    s.save(path)
    with pytest.raises(FileFormatError, match="another graph"):
        session(more, x, plan=path)
    with pytest.raises(FileFormatError, match="another graph"):
        session(f, x, plan=path, exact=False)
    with pytest.raises(FileError, match="cannot be read"):
        session(f, x, plan=tmp_path / "none.json")
    with pytest.raises(ArgumentError, match="example"):
        session(f, plan=path)
    with pytest.raises(ArgumentError, match="nothing to save"):
        session(f).save(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match=r"plan\.json"):
        session(f, x, plan=path)


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: weft.Tensor) -> weft.Tensor:
        return self.second(self.first(x).relu()).softmax(-1)


def test_references_that_agree_are_none_and_the_first_that_does_not_is_named() -> None:
    m, x = Layers(), floats(6, 8)
    s = session(m)
    first = m.first(x).numpy()
    second = m.second(weft.tensor(first).relu()).numpy()
    result = m(x).numpy()
    named = {"second": second, "first": first, "": result}
    assert s.check([(x, result), ((x,), named), (x, {"first": first})]) is None
    wrong = second.copy()
    wrong[2, 3] += 0.5
    found = s.check([(x, result), (x, {**named, "second": wrong})])
    assert found is not None and (found.pair, found.name, found.index, found.whole) == (
        1,
        "second",
        (2, 3),
        True,
    )
    assert "pair 1: second is" in str(found) and "at [2, 3]" in str(found)
    found = s.check([(x, {**named, "second": wrong, "first": first * 2})])
    assert found is not None and found.name == "first", "which is called before"
    bad = result.copy()
    bad[0, 0] = np.nan
    found = s.check([(x, {**named, "": bad})])
    assert found is not None and found.name == "the result" and found.whole


def test_a_session_that_is_wrong_alone_is_told_from_a_function_that_is() -> None:
    s, x = session(f), floats(32, 32)
    right = f(x).numpy()
    s(x)
    assert s.check([(x, right)]) is None
    zeros = weft.zeros(32, 32)
    zeros.numpy()
    (result,) = form_of(s).template.results
    form_of(s).values[result] = zeros.value.node.storage
    found = s.check([(x, right)])
    assert found is not None and not found.whole and "the session's alone" in str(found)


def test_references_that_do_not_fit_are_refused() -> None:
    m, x = Layers(), floats(6, 8)
    s = session(m)
    with pytest.raises(ArgumentError, match="no module 'third'"):
        s.check([(x, {"third": np.zeros(3)})])
    with pytest.raises(ArgumentError, match="has the shape"):
        s.check([(x, np.zeros((6, 5)))])
    with pytest.raises(ArgumentError, match="1 results have 2 references"):
        s.check([(x, (np.zeros((6, 4)), np.zeros((6, 4))))])
    with pytest.raises(ArgumentError, match="of a function"):
        session(f).check([(floats(32, 32), {"first": np.zeros(3)})])
