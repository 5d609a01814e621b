"""Guesses, and what the model makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.models.test_decoders import IDS, made
from weft import models
from weft.errors import ArgumentError
from weft.models.speculation import Lookup


def likely(kind: str) -> Any:
    """A model that repeats itself: its head follows the embedding of the last token."""
    model = made(kind)
    with weft.no_grad():
        for name, p in model.named_parameters():
            if "embed" in name or "wte" in name or "lm_head.weight" in name:
                p.mul_(3)
    return model


def alone(model: Any, prompts: list[list[int]], count: int, **how: Any) -> list[list[int | None]]:
    return list(models.generate(model, prompts, count, **how))


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "phi", "gpt2"])
def test_guesses_change_no_likeliest_token(kind: str) -> None:
    model = likely(kind)
    prompts = [IDS[0].tolist(), IDS[1, :4].tolist()]
    expected = alone(model, prompts, 20)
    lookup = models.Draft("lookup", 3)
    assert alone(model, prompts, 20, draft=lookup) == expected
    assert 0 <= lookup.accepted <= lookup.proposed <= 3 * lookup.steps
    right, wrong = models.Draft(likely(kind), 3), models.Draft(made(kind), 3)
    for draft in (right, wrong):
        assert alone(model, prompts, 20, draft=draft) == expected
        assert 0 < draft.proposed == 3 * draft.steps
    assert right.accepted > 0.9 * right.proposed and right.steps < 20


def test_rows_that_end_leave_the_others_alone() -> None:
    model = likely("llama")
    prompts = [IDS[0, :3].tolist(), IDS[1, :3].tolist()]
    plain = alone(model, prompts, 12)
    stop = plain[4][0]
    assert stop is not None
    expected = alone(model, prompts, 12, stop=[stop])
    assert alone(model, prompts, 12, stop=[stop], draft=models.Draft(likely("llama"), 4)) == expected
    assert alone(model, prompts, 12, stop=[stop], draft="lookup") == expected


def test_a_penalty_counts_what_was_taken_and_not_what_was_guessed() -> None:
    model, how = likely("gpt2"), models.Sampling(repetition_penalty=1.5)
    prompts = IDS[:, :6].tolist()
    expected = alone(model, prompts, 16, sampling=how)
    for draft in (models.Draft(likely("gpt2"), 3), models.Draft("lookup", 3)):
        assert alone(model, prompts, 16, sampling=how, draft=draft) == expected


def test_drawn_tokens_have_the_distribution_that_they_have_without_guesses() -> None:
    model = made("gpt2")
    with weft.no_grad():
        for name, p in model.named_parameters():
            if "wte" in name:
                p.mul_(4)
    how, prompts = models.Sampling(temperature=1.0, top_k=3), [IDS[0, :5].tolist()] * 400
    counts = []
    for draft in (None, models.Draft(likely("gpt2"), 2)):
        drawn = alone(model, prompts, 3, sampling=how, seed=7, draft=draft)
        last = np.array([[t[k] for t in drawn] for k in range(400)])
        values, number = np.unique(last, axis=0, return_counts=True)
        counts.append({tuple(v): n for v, n in zip(values.tolist(), number.tolist(), strict=True)})
    both = set(counts[0]) | set(counts[1])
    distance = sum(
        (counts[0].get(t, 0) - counts[1].get(t, 0)) ** 2 / (counts[0].get(t, 0) + counts[1].get(t, 0))
        for t in both
    )
    assert distance < len(both) + 5 * (2 * len(both)) ** 0.5  # chi squared of that many free counts


def test_a_lookup_finds_the_longest_run_where_it_came_last() -> None:
    found = Lookup([1, 2, 3, 4, 9, 3, 5, 2, 3])
    assert found.next(2) == [4, 9]  # after "2 3", rather than after the latest "3"
    found.extend([7, 3])
    assert found.next(4) == [7, 3]
    assert Lookup([1, 2, 3]).next(4) == [] == Lookup([5]).next(4)


def test_what_cannot_guess_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'nothing'"):
        models.Draft("nothing")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="count"):
        models.Draft("lookup", 0)
    small = models.GPT2(models.gpt2.GPT2Config(vocab_size=60, n_embd=32, n_layer=1, n_head=4))
    with pytest.raises(ArgumentError, match="vocabulary of 60"):
        models.generate(made("gpt2"), [[1]], 4, draft=small)
