"""Explanations and statistics of sessions."""

from __future__ import annotations

import pytest

import weft
from weft.errors import ArgumentError


def test_an_explanation_names_what_is_kept_and_what_each_class_reaches() -> None:
    w = weft.ones(4, 3)
    s, x = weft.session(lambda x: (x @ w).relu().sum(0)), weft.ones(8, 4)
    with pytest.raises(ArgumentError, match="before the first run"):
        s.explain()
    s(x)
    x[2] = 3.0
    s(x)
    text = str(s.explain())
    assert "a result" in text and "a kernel stores it" in text
    assert "input 0 in a box of 1 x 4" in text and "computed" in text


def test_statistics_count_runs_and_bytes() -> None:
    s, x = weft.session(lambda x: x.exp() + 1), weft.ones(8, 4)
    s(x)
    s(x)
    x[2] = 3.0
    s(x)
    found = s.stats()
    assert (found.everything, found.steps, found.unchanged, found.plans) == (1, 1, 1, 2)
    assert found.result_bytes == found.argument_bytes == 8 * 4 * 4
