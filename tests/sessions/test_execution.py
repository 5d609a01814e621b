"""Runs of sessions that look up only what may have moved, beside those that look up everything."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import weft
from tests.core.execute.test_edits import EDITS
from weft.scheduler.plan import Plan
from weft.sessions.session import session

RNG = np.random.default_rng(0)


def floats(*shape: int) -> weft.Tensor:
    return weft.tensor(RNG.standard_normal(shape).astype(np.float32)).realize()


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of memories that each run again was given anew."""
    found: list[int] = []
    start_again = Plan.start_again

    def counted(self: Plan, changed: Any, values: Any = ()) -> None:
        found.append(len(changed))
        start_again(self, changed, values)

    monkeypatch.setattr(Plan, "start_again", counted)
    monkeypatch.setattr("weft.sessions.execution.sole_thread", lambda: True)
    return found


def test_a_step_that_comes_again_is_given_its_argument_and_its_result_only(again: list[int]) -> None:
    weights = [floats(16, 16) for _ in range(6)]

    def f(x: weft.Tensor, t: int) -> weft.Tensor:
        for w in weights:
            x = (x @ w).tanh()
        return x[t]

    x = floats(32, 16)
    s = session(f, x, weft.Variable("t", 0, 31))
    for t in (*range(9), 3, 20):
        x[t] = floats(16)
        assert np.array_equal(s(x, t).numpy(), session(f, x, weft.Variable("t", 0, 31))(x, t).numpy())
    assert len(again) >= 7 and max(again) == 2


@pytest.mark.parametrize("how", EDITS)
def test_edits_of_what_a_function_uses_are_seen_between_runs(how: str, again: list[int]) -> None:
    t = floats(3, 4)

    def f(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        return (x * t.sum()) @ y + t.mean() * t.numel()

    x, y = floats(16, 3), floats(3, 5)
    s = session(f)
    for turn in range(3):
        for n in range(4):
            x[n] = float(n + turn)
            np.testing.assert_array_equal(s(x, y).numpy(), session(f)(x, y).numpy())
            y[n % 3] = 1.5 * n  # of another class
            np.testing.assert_array_equal(s(x, y).numpy(), session(f)(x, y).numpy())
            x[9 - n] = 2.0
            np.testing.assert_array_equal(s(x, y).numpy(), session(f)(x, y).numpy())
        if turn < 2:
            EDITS[how](t)
    assert again


def test_a_step_that_writes_over_a_weight_is_seen(again: list[int]) -> None:
    w, x = floats(8, 8), floats(16, 8)
    update = weft.compile(lambda g: w.sub_(g))
    s = session(lambda x: (x @ w).tanh())
    for n in range(12):
        x[n] = 1.0
        assert np.array_equal(s(x).numpy(), session(s.fn)(x).numpy())
        if n % 3 == 2:
            update(floats(8, 8))
            assert np.array_equal(s(x).numpy(), session(s.fn)(x).numpy())
    assert again


@pytest.mark.parametrize("how", ["an edit", "a thread"])
def test_a_run_does_not_count_in_which_something_was_edited(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    w, x = floats(8, 8), floats(16, 8)
    s = session(lambda x: (x @ w).tanh())
    start_again, alone, done = Plan.start_again, [True], list[int]()

    def disturbed(self: Plan, changed: Any, values: Any = ()) -> None:  # as a handler of a signal would
        start_again(self, changed, values)
        done.append(len(done))
        if len(done) == 3:
            w.mul_(2.0).realize()
            alone[0] = how != "a thread"

    monkeypatch.setattr(Plan, "start_again", disturbed)
    monkeypatch.setattr("weft.sessions.execution.sole_thread", lambda: alone[0])
    for n in range(9):
        x[n] = float(n)
        assert np.array_equal(s(x).numpy(), session(s.fn)(x).numpy()), n
    assert len(done) >= 3 and s.stats().everything == 2


def test_results_that_are_held_and_let_go_are_right_and_stay(again: list[int]) -> None:
    w, x = floats(8, 8), floats(16, 8)
    s, held = session(lambda x: ((x @ w).tanh(), x.sum())), list[tuple[Any, Any]]()
    for n in range(12):
        x[n] = float(n)
        y = s(x)
        if n % 3:
            held.append((y, [t.numpy().copy() for t in y]))
        if n == 8:
            held.clear()
        del y
        for tensors, arrays in held:
            assert all(np.array_equal(t.numpy(), a) for t, a in zip(tensors, arrays, strict=True))
    found = s(x)
    assert all(np.array_equal(a.numpy(), b.numpy()) for a, b in zip(found, session(s.fn)(x), strict=True))
    assert again


def test_while_other_threads_run_all_memories_are_looked_up() -> None:
    w, x, stop = floats(8, 8), floats(16, 8), threading.Event()
    s = session(lambda x: (x @ w).tanh())
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        for n in range(4):
            x[n] = 1.0
            assert np.array_equal(s(x).numpy(), session(s.fn)(x).numpy())
    finally:
        stop.set()
        thread.join()
