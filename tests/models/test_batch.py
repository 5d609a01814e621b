"""Sequences that join and leave a running batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import weft
from tests.models.test_decoders import IDS, made
from weft import models
from weft.errors import ArgumentError
from weft.models.batch import Batch, End, Writing

PROMPTS = [IDS[0].tolist() * 2, IDS[1, :3].tolist(), [7], IDS[0, 3:9].tolist(), IDS[1].tolist()]


def run(batch: Batch) -> None:
    for _ in range(200):
        if not batch.is_busy:
            return
        batch.step()
    raise AssertionError("the batch does not end")


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text", "gpt2"])
def test_a_sequence_has_the_tokens_that_it_has_alone(kind: str) -> None:
    model = made(kind)
    batch = Batch(model, rows=3, size=40, chunk=8)
    writings = [Writing(p, limit=4 + k) for k, p in enumerate(PROMPTS)]
    for writing in writings[:4]:
        batch.add(writing)
    for _ in range(3):
        batch.step()
    batch.add(writings[4])
    run(batch)
    for w in writings:
        assert w.made == [t for (t,) in models.generate(model, [w.prompt], w.limit)]
        assert w.end is End.LENGTH


def test_neighbours_change_no_bit() -> None:
    model = made("qwen3")
    found: list[list[Any]] = []
    for others in ([], PROMPTS[:2], PROMPTS[2:]):
        batch = Batch(model, rows=4, size=40, chunk=8)
        for p in others:
            batch.add(Writing(p, limit=12))
        batch.step()
        one = Writing(IDS[0, :6].tolist(), limit=6, likeliest=3)
        batch.add(one)
        told = list[Any]()
        while one.end is None:
            told += [m.likelihood for m in batch.step() if m.writing is one]
        found.append(told)
    assert found[0] == found[1] == found[2] and len(found[0]) == 6


def test_ends_and_those_that_go_make_room() -> None:
    model = made("gpt2")
    batch = Batch(model, rows=1, size=40, chunk=8)
    hot = models.Sampling(temperature=1000.0)  # nearly any token
    free = Writing(PROMPTS[1], 8, models.Draws(hot, seed=3))
    batch.add(free)
    run(batch)
    k = next(k for k in range(2, 8) if free.made[k] not in free.made[:k])
    first = Writing(PROMPTS[1], 8, models.Draws(hot, seed=3), ends=frozenset({free.made[k]}))
    gone, waits = Writing(PROMPTS[0], 8), Writing([7], 2)
    for writing in (first, gone, waits):
        batch.add(writing)
    assert batch.waiting == 3 and batch.running == 0
    batch.step()
    batch.drop(gone)
    assert batch.waiting == 1 and batch.running == 1
    run(batch)
    assert first.made == free.made[: k + 1] and first.end is End.STOP
    assert len(waits.made) == 2 and not gone.made and gone.end is None
    batch.add(gone)
    batch.step()
    batch.drop(gone)
    assert not batch.is_busy


def test_a_row_that_fails_is_clean_for_the_next() -> None:
    model = made("llama")
    with weft.no_grad():
        model.model.embed_tokens.weight[5] = float("nan")
    batch = Batch(model, rows=1, size=40, chunk=8)
    bad, good = Writing([5, 6, 7], 4), Writing([1, 2, 3], 4)
    batch.add(bad)
    batch.add(good)
    run(batch)
    assert bad.end is End.FAILED and bad.made == []
    expected = [t for (t,) in models.generate(model, [[1, 2, 3]], 4)]
    assert good.made == expected and good.end is End.LENGTH


def test_draws_are_a_sequences_own() -> None:
    model, how = made("gpt2"), models.Sampling(temperature=1000.0, top_p=0.9)
    found: list[list[int]] = []
    for others in (0, 2):
        batch = Batch(model, rows=3, size=40, chunk=8)
        for _ in range(others):
            batch.add(Writing([3, 4], 9, models.Draws(how, seed=5)))
        one = Writing(PROMPTS[1], 8, models.Draws(how, seed=1))
        batch.add(one)
        run(batch)
        found.append(one.made)
    assert found[0] == found[1] and len(set(found[0])) > 1


def test_what_has_no_room_is_refused() -> None:
    batch = Batch(made("gpt2"), rows=1, size=16, chunk=8)
    for prompt, limit, told in (
        ([1] * 10, 7, "room for 16"), ([], 4, "at least one token"), ([61], 4, "not in the model's"),
        ([1], 0, "at least 1"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=told):
            batch.add(Writing(prompt, limit))
    assert not batch.is_busy
    with pytest.raises(ArgumentError, match="rows=0"):
        Batch(made("gpt2"), rows=0)


def test_warm_makes_all_plans() -> None:
    batch = Batch(made("gpt2"), rows=2, size=20, chunk=8)
    batch.warm()
    one = Writing(PROMPTS[3], 3)
    batch.add(one)
    run(batch)
    assert one.made == [t for (t,) in models.generate(batch.model, [PROMPTS[3]], 3)]
    assert np.isfinite(one.made).all()
