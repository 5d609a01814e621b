"""examples/session_gpt.py: a session decodes the tokens that a cache by hand does."""

from __future__ import annotations

import pytest

import weft

example = pytest.importorskip("session_gpt")

TINY = example.Config(context=20, layers=2, heads=2, width=16, alphabet=11, prompt=4, tokens=12)


def test_all_ways_decode_the_same_tokens() -> None:
    weft.manual_seed(1)
    model = example.GPT(TINY).eval()
    tokens, _ = example.through_a_session(model, TINY)
    assert len(tokens) == TINY.prompt + TINY.tokens
    assert tokens == example.with_a_cache(model, TINY)[0]
