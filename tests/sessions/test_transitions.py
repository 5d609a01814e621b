"""Chances from counts, and the long run of a chain."""

from __future__ import annotations

import numpy as np
import pytest

from weft.sessions import transitions
from weft.sessions.transitions import TransitionLog, chances, stationary, visits


def test_without_a_log_every_bucket_is_as_probable() -> None:
    assert np.allclose(TransitionLog().chances(["a", "b", "c"]), 1 / 3)


def test_a_log_counts_what_follows_what() -> None:
    log = TransitionLog()
    for bucket in ["prefill", *["decode"] * 60, "edit", "prefill"]:
        log.record(bucket)
    assert log.counts["decode", "decode"] == 59 and log.counts["decode", "edit"] == 1
    found = log.chances(["prefill", "decode", "edit"])
    assert np.allclose(found.sum(axis=1), 1) and (found > 0).all()
    assert found[1, 1] == pytest.approx((59 + 1 / 3) / 61)


def test_a_log_of_other_buckets_says_nothing() -> None:
    assert np.allclose(chances({("x", "y"): 5, ("a", "y"): 5}, ["a", "b"]), 0.5)


def test_a_log_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transitions, "MAX_PAIRS", 3)
    log = TransitionLog()
    for bucket in [*"abcdef", "a", "b"]:
        log.record(bucket)
    assert log.counts == {("a", "b"): 2, ("b", "c"): 1, ("c", "d"): 1}


def test_shares_are_those_of_a_long_walk() -> None:
    rng = np.random.default_rng(0)
    for n in (1, 2, 5):
        steps = rng.uniform(0.01, 1, (n, n))
        steps /= steps.sum(axis=1, keepdims=True)
        walked = np.linalg.matrix_power(steps, 200)[0]
        assert np.allclose(stationary(steps), walked)
        assert np.allclose(visits(steps, 1e9), walked, atol=1e-6)
    assert np.allclose(stationary(np.array([[0.0, 1.0], [1.0, 0.0]])), 0.5), "of period two"


def test_a_session_is_where_it_begins_in_one_of_its_runs() -> None:
    steps = np.array([[0.0, 1.0], [0.0, 1.0]])  # what never comes again
    assert np.allclose(visits(steps, 100.0), [0.01, 0.99])
