"""Tokenizers of GGUF files, beside the rule that they follow."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from weft.errors import FileError
from weft.io import save_gguf
from weft.models import Tokenizer, gguf_text

WORDS = ("\u2581", "a", "b", "c", "ab", "bc", "abc", "\u2581a", "\u2581ab", "cc", "é")
TOKENS = ("<unk>", "<s>", "</s>", "<user>", *[f"<0x{k:02X}>" for k in range(256)], *WORDS)
SCORES = [0.0] * 260 + [-9.0, -8.0, -8.0, -8.0, -2.0, -1.0, -3.0, -2.5, -4.0, -5.0, -6.0]
LLAMA: dict[str, Any] = {
    "general.architecture": "llama", "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": np.array(SCORES, np.float32), "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.token_type": np.array([2, 3, 3, 4] + [6] * 256 + [1] * len(WORDS), np.int32),
    "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.add_space_prefix": False,
}  # fmt: skip


def written(path: Path, **changes: Any) -> Path:
    entries = LLAMA | {f"tokenizer.ggml.{k}": v for k, v in changes.items()}
    save_gguf({"w": weft.ones(1)}, path, {k: v for k, v in entries.items() if v is not None})
    return path


def joined(text: str) -> list[int]:
    """The ids of a text: of all neighbours that make a token, those with the best score become one, again and again."""
    parts = list(text.replace(" ", "\u2581"))
    while True:
        both = [a + b for a, b in pairwise(parts)]
        pairs = [(SCORES[TOKENS.index(p)], -k) for k, p in enumerate(both) if p in WORDS]
        if not pairs:
            break
        k = -max(pairs)[1]
        parts[k : k + 2] = [parts[k] + parts[k + 1]]
    return [
        i for p in parts for i in ([TOKENS.index(p)] if p in WORDS else [4 + byte for byte in p.encode()])
    ]


@settings(max_examples=60)
@given(st.text("abc é日 ", max_size=12))
def test_pairs_are_joined_by_their_scores(tmp_path_factory: Any, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "llama.gguf"
    found = Tokenizer(path if path.exists() else written(path))
    assert found.encode(text) == [1, *joined(text)] and found.ends == [2]
    assert found.decode(found.encode(text)) == text


def test_what_stands_around_texts_and_in_them(tmp_path: Path) -> None:
    found = Tokenizer(written(tmp_path / "x", add_eos_token=True, add_space_prefix=None))
    assert found.encode("ab<user>c") == [1, TOKENS.index("\u2581ab"), 3, *joined(" c"), 2]
    assert found.decode(found.encode("ab c")) == "ab c"
    bare = Tokenizer(written(tmp_path / "y", add_bos_token=False))
    assert bare.encode("abc") == joined("abc")


@pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2"])
def test_byte_pairs_follow_the_files_merges(pre: str, tmp_path: Path) -> None:
    letters = tuple(sorted("abcdefgh0123456789\u0120\u010a.,'st"))
    tokens = (*dict.fromkeys(letters), "ab", "\u0120ab", "12", "123")
    merges = ("a b", "\u0120 ab", "1 2", "12 3")
    found = Tokenizer(
        written(
            tmp_path / "x", model="gpt2", pre=pre, tokens=tokens, merges=merges, scores=None, token_type=None
        )
    )
    ids = [tokens[i] for i in found.encode("ab ab 1234")]
    numbers = {"gpt-2": ["123", "4"], "llama-bpe": ["123", "4"], "qwen2": ["1", "2", "3", "4"]}[pre]
    assert ids == ["ab", "\u0120ab", "\u0120", *numbers]
    assert found.decode(found.encode("ab ab 1234")) == "ab ab 1234"


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"model": "bert"}, "'bert'; weft knows llama"), ({"scores": None}, "score for each"),
        ({"tokens": None}, "weft knows"),
        ({"tokens": ("a", "a")}, "twice"), ({"model": "gpt2", "pre": "odd"}, "'odd'; weft knows"),
        ({"model": "gpt2", "merges": ("x y",)}, "no token"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_mean_is_told(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=told):
        Tokenizer(written(tmp_path / "x", **changes))


@given(
    st.lists(
        st.text(st.characters(codec="utf-8") | st.sampled_from("ab\u2581"), min_size=1, max_size=6),
        unique=True, max_size=40,
    )
)  # fmt: skip
@settings(deadline=None)
def test_cuts_by_hashes_are_those_of_looking_up(tokens: list[str]) -> None:
    ids = {t: k for k, t in enumerate(tokens)}
    found = gguf_text.splits(tokens)
    assert found is not None
    wanted = gguf_text._looked_up(ids, tokens)
    assert sorted(zip(*map(list, found), strict=True)) == sorted(zip(*map(list, wanted), strict=True))


def test_tokens_that_hashes_do_not_tell_apart_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_text, "_BASE", np.uint64(1))  # a hash is the sum of the letters
    tokens = ["a", "b", "ab", "ba", "aba"]
    assert gguf_text.splits(tokens) is None
    scores = np.array([0, 0, -1, -2, -3], np.float32)
    ids = {t: k for k, t in enumerate(tokens)}
    assert gguf_text._merges(ids, tokens, scores) == [("a", "b"), ("b", "a"), ("a", "ba"), ("ab", "a")]
