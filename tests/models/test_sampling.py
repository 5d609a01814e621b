"""Sampling: which tokens can come, and how often."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft.errors import ArgumentError
from weft.models import Sampling

LOGITS = np.log(np.array([[0.5, 0.25, 0.15, 0.07, 0.03]], np.float32))


def kept(**how: Any) -> list[int]:
    found = Sampling(**{"temperature": 1.0, **how}).logits(weft.tensor(LOGITS)).numpy()[0]
    return np.flatnonzero(np.isfinite(found)).tolist()


def test_the_tokens_that_can_come() -> None:
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=2) == [0, 1] and kept(top_k=9) == [0, 1, 2, 3, 4]
    assert kept(top_p=0.4) == [0] and kept(top_p=0.6) == [0, 1] and kept(top_p=0.8) == [0, 1, 2]
    assert kept(min_p=0.2) == [0, 1, 2] and kept(min_p=1.0) == [0]
    assert kept(top_k=3, top_p=0.8) == [0, 1]  # of those three, 0.83 is enough


def test_what_was_there_is_less_likely() -> None:
    x = weft.tensor([[2.0, -2.0, 1.5]])
    seen = weft.tensor([[True, True, False]])
    found = Sampling(repetition_penalty=2.0).logits(x, seen)
    assert found.tolist() == [[1.0, -4.0, 1.5]]
    assert Sampling(repetition_penalty=2.0).next(x, seen).tolist() == [[2]]


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    weft.manual_seed(0)
    found = Sampling(temperature=1.0).next(weft.tensor(np.repeat(LOGITS, 20_000, 0))).numpy()
    share = np.bincount(found[:, 0], minlength=5) / len(found)
    np.testing.assert_allclose(share, np.exp(LOGITS[0]), atol=0.015)


@pytest.mark.parametrize(
    "how", [{"temperature": -1}, {"top_k": -1}, {"top_p": 0}, {"min_p": 2}, {"repetition_penalty": 0}]
)
def test_what_is_out_of_range_is_refused_by_name(how: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(how))):
        Sampling(**how)
