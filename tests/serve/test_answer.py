"""Tokens to text: stops that come in parts, characters of several tokens."""

from __future__ import annotations

import numpy as np
import pytest
import tokenizers

from weft.models import Tokenizer, Writing
from weft.models.batch import End, Made
from weft.serve.answer import Answer, Piece


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A token for each byte."""
    place = tmp_path_factory.mktemp("bytes")
    table = {c: k for k, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(tokenizers.models.BPE(table, []))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = tokenizers.decoders.ByteLevel()
    inner.save(str(place / "tokenizer.json"))
    return Tokenizer(place)


def told(one: Tokenizer, text: str, stops: list[str], end: End = End.LENGTH) -> list[Piece]:
    ids = one.encode(text)
    writing = Writing([1], len(ids))
    pieces: list[Piece] = []
    answer = Answer(writing, one, stops, pieces.append)
    for k, i in enumerate(ids):
        if answer.is_over:
            break
        writing.made.append(i)
        if k == len(ids) - 1:
            writing.end = end
        answer.take(Made(writing, i))
    assert answer.is_over
    return pieces


def test_text_ends_before_a_stop_that_comes_in_parts(one: Tokenizer) -> None:
    found = told(one, "one END two", ["END", "zwei"])
    assert [p.text for p in found] == ["o", "n", "e", " ", ""] and found[-1].end == "stop"
    late = told(one, "one EN two", ["END"])
    assert "".join(p.text for p in late) == "one EN two" and late[-1].end == "length"
    assert [p.text for p in late][4] == "EN "  # held until it was no stop
    assert sum(len(p.tokens) for p in late) == 10
    both = told(one, "xabcd", ["bcd", "abcd"])
    assert "".join(p.text for p in both) == "x"


def test_a_character_comes_whole(one: Tokenizer) -> None:
    found = told(one, "aé日🙂b", [])
    assert [p.text for p in found if p.text] == ["a", "é", "日", "🙂", "b"]
    assert told(one, "日", ["日"])[-1] == Piece("", found_tokens(one, "日"), "stop")


def found_tokens(one: Tokenizer, text: str) -> tuple[tuple[int, None], ...]:
    return tuple((i, None) for i in one.encode(text))


def test_bytes_that_are_no_character_come_too(one: Tokenizer) -> None:
    (bad,) = {one.encode("é")[0]}
    pieces = one.pieces()
    text = "".join(pieces.add(bad) for _ in range(40)) + pieces.rest()
    assert set(text) == {"\ufffd"} and len(text) == 40


def test_the_token_that_ends_is_no_text(one: Tokenizer) -> None:
    assert "".join(p.text for p in told(one, "abc", [], End.STOP)) == "ab"


def test_pieces_joined_are_the_text(one: Tokenizer) -> None:
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list("aé日🙂 \n"), 200))
    assert "".join(one.stream(one.encode(text))) == text
