"""Joined pairs, beside byte pair encoding as the package tokenizers does it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import models

from weft.models import pairs
from weft.models.pairs import Found, Joiner


@st.composite
def vocabularies(draw: Any) -> tuple[list[str], list[tuple[str, str]]]:
    """Tokens of letters, and merges of earlier ones, in any order."""
    tokens, merges = list("abc"), list[tuple[str, str]]()
    for _ in range(draw(st.integers(0, 14))):
        pair = draw(st.sampled_from(tokens)), draw(st.sampled_from(tokens))
        merges.append(pair)
        if "".join(pair) not in tokens:
            tokens.append("".join(pair))
    return tokens, draw(st.permutations(merges))


@settings(max_examples=300, deadline=None)
@given(vocabularies(), st.text("abc", min_size=1, max_size=40))
def test_pairs_are_joined_in_their_order(vocabulary: Any, text: str) -> None:
    tokens, merges = vocabulary
    ids = {t: k for k, t in enumerate(tokens)}
    order = {pair: k for k, pair in enumerate(merges)}

    def pair(left: int, right: int) -> Found | None:
        both = tokens[left], tokens[right]
        return (order[both], ids["".join(both)]) if both in order else None

    wanted = [t.id for t in models.BPE(ids, merges).tokenize(text)]
    joiner = Joiner(pair)
    assert joiner.joined(tuple([ids[c] for c in text])) == wanted
    assert joiner.joined(tuple([ids[c] for c in text])) == wanted


def test_what_is_remembered_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pairs, "PAIRS_KEPT", 4)
    monkeypatch.setattr(pairs, "WORDS_KEPT", 4)
    joiner = Joiner(lambda left, right: (0, left + right) if left + right < 4 else None)
    for k in range(40):
        joiner.joined((k % 7, k % 5, k % 3))
        joiner.joined((k,) * 40)
        assert len(joiner._pairs) <= 4 and len(joiner._words) <= 4
    assert all(len(word) <= 32 for word in joiner._words)
