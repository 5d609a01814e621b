"""One sequence's draws on the host, beside those on the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from weft import models
from weft.errors import ArgumentError
from weft.models.draw import Draws, Likelihood

LOGITS = np.random.default_rng(3).standard_normal(97).astype(np.float32) * 3


@pytest.mark.parametrize(
    "how",
    [{}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 20, "top_p": 0.8}, {"repetition_penalty": 1.7}],
)  # fmt: skip
def test_the_tokens_that_can_come_are_those_of_the_device(how: dict[str, Any]) -> None:
    sampling = models.Sampling(temperature=0.7, **how)
    seen = np.zeros((1, 97), bool)
    seen[0, [3, 5, 8]] = True
    expected = sampling.logits(weft.tensor(LOGITS[None]), weft.tensor(seen)).numpy()[0]
    found = Draws(sampling).logits(LOGITS, [3, 5], [8, 8])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_draws_follow_the_probabilities() -> None:
    draws = Draws(models.Sampling(temperature=1.0, top_k=4), seed=1)
    counts = np.bincount([draws.next(LOGITS, [], []) for _ in range(4000)], minlength=97)
    share = np.exp(draws.logits(LOGITS, [], []))
    np.testing.assert_allclose(counts / 4000, share / share.sum(), atol=0.03)
    assert (counts[share == 0] == 0).all()


def test_penalties_and_biases_move_logits() -> None:
    draws = Draws(frequency=0.5, presence=0.25, bias={2: 100.0, 4: -100.0})
    found = draws.logits(LOGITS, [1], [7, 7, 9]) - LOGITS
    expected = np.zeros(97)
    expected[[2, 4, 7, 9]] = 100, -100, -1.25, -0.75
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert draws.next(LOGITS, [1], []) == 2 and not draws.is_plain and Draws().is_plain
    with pytest.raises(ArgumentError, match="finite"):
        Draws(bias={1: float("inf")})


def test_likelihoods_are_those_of_the_softmax() -> None:
    expected = np.log(np.exp(LOGITS) / np.exp(LOGITS).sum())
    found = Likelihood.of(LOGITS, 11, 3)
    assert abs(found.chosen - expected[11]) < 1e-5
    assert [k for k, _ in found.top] == np.argsort(-LOGITS)[:3].tolist()
    np.testing.assert_allclose([x for _, x in found.top], np.sort(expected)[::-1][:3], rtol=1e-5)
    assert Likelihood.of(LOGITS, 11, 0).top == () and len(Likelihood.of(LOGITS, 11, 200).top) == 97
