"""What no result needed waits, and is computed before it is used."""

from __future__ import annotations

import numpy as np

import weft
from weft.sessions.session import Session, session
from weft.sessions.stale import Stale

rng = np.random.default_rng(0)
W = weft.tensor(rng.standard_normal((8, 8)).astype(np.float32))


def row(x: weft.Tensor, t: int) -> weft.Tensor:
    """A row of something that is kept as a whole."""
    return ((x @ W).tanh() @ W)[t]


def started() -> tuple[Session, weft.Tensor]:
    x = weft.tensor(rng.standard_normal((32, 8)).astype(np.float32))
    s = session(row, x, weft.Variable("t", 0, 31))
    s(x, 0)
    return s, x


def check(s: Session, x: weft.Tensor, t: int) -> None:
    assert np.array_equal(s(x, t).numpy(), session(row)(x, t).numpy())


def test_rows_that_were_written_and_not_needed_are_stale() -> None:
    s, x = started()
    x[7] = 1.0
    s(x, 3)
    (form,) = s._forms.values()
    stale = form._stale.known()
    assert stale and all(8 > r.boxes[0][0].lo <= 7 for r in stale.values())


def test_a_step_that_needs_what_is_stale_computes_everything() -> None:
    s, x = started()
    x[7] = 1.0
    s(x, 3)
    check(s, x, 7)
    assert s.stats().everything == 2


def test_a_step_that_computes_what_is_stale_may_run() -> None:
    s, x = started()
    x[7] = 1.0
    s(x, 3)
    x[7] = 2.0
    check(s, x, 7)


def test_steps_that_follow_each_other_are_looked_at_once() -> None:
    s, x = started()
    for t in range(1, 12):
        x[t] = float(t)
        check(s, x, t)
    (form,) = s._forms.values()
    assert form._stale.step is not None and form._stale.step._follows == {(1, 1): True}
    assert s.stats().everything == 1


def test_random_writes_and_rows_give_the_bits_of_new_runs() -> None:
    s, x = started()
    for _ in range(40):
        for _ in range(int(rng.integers(3))):
            lo = int(rng.integers(32))
            x[lo : lo + int(rng.integers(1, 5))] = float(rng.standard_normal())
        check(s, x, int(rng.integers(32)))
    assert Stale().known() == {}
