"""Tokenizers of GGUF files, beside the rule that they follow."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.models.whole_tokenizers import whole
from weft.errors import FileError
from weft.io import gguf_metadata, save_gguf
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


def trained(pre: str) -> dict[str, Any]:
    """Entries of a tokenizer that was trained on this file, with tokens that are no text."""
    from tokenizers import Tokenizer as Inner
    from tokenizers import models, pre_tokenizers, trainers

    inner = Inner(models.BPE())
    letters: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre != "llama")
    if pre == "llama":
        letters = pre_tokenizers.Metaspace(prepend_scheme="never")
    inner.pre_tokenizer = letters
    alphabet = [] if pre == "llama" else pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False)
    inner.train_from_iterator([Path(__file__).read_text()] * 2, trainer)
    model: dict[str, Any] = json.loads(inner.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = ["<unk>", "<s>", "<|end|>", "<|end|>er", "<user>"]
    spelled = [f"<0x{k:02X}>" for k in range(0, 256, 1 if pre == "llama" else 256)]
    types = [2, 3, 3, 3, 4] + [6] * len(spelled) + [1] * len(tokens)
    entries: dict[str, Any] = {
        "model": "llama" if pre == "llama" else "gpt2", "tokens": special + spelled + tokens,
        "token_type": np.array(types, np.int32), "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if pre == "llama":
        scores = [0.0] * (len(special) + len(spelled)) + [-float(k // 3) for k in range(len(tokens))]
        return entries | {"scores": np.array(scores, np.float32), "unknown_token_id": 0}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    return entries | {"pre": pre, "merges": merges, "scores": None}


TEXTS = st.lists(
    st.sampled_from(["def test_", "tokens", " = ", "\n    ", "  ", "<|end|>", "<|end|>er", "<user>", "<s>", "<0x41>"])
    | st.text("abcdefeé\u0301\u0338<>|\u2581\u0120 \n\t'12", max_size=8)
    | st.text(st.characters(codec="utf-8"), max_size=4),
    max_size=12,
).map("".join)  # fmt: skip


@pytest.mark.parametrize("pre, changes", [
    ("llama", {}), ("llama", {"add_space_prefix": True, "add_eos_token": True}), ("gpt-2", {}),
    ("llama-bpe", {"add_bos_token": True}), ("qwen2", {}),
])  # fmt: skip
def test_texts_become_what_the_whole_vocabulary_makes_of_them(
    pre: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    path = written(tmp_path / "x", **trained(pre) | changes)
    metadata = gguf_metadata(path)
    found, wanted = Tokenizer(path), whole(metadata)
    count = len(metadata["tokenizer.ggml.tokens"])

    @settings(max_examples=150, deadline=None)
    @given(TEXTS, st.booleans(), st.lists(st.integers(0, count + 3), max_size=12))
    def check(text: str, special: bool, ids: list[int]) -> None:
        told = found.encode(text, special)
        assert told == wanted.encode(text, add_special_tokens=special).ids
        assert found.decode(told) == wanted.decode(told)
        assert found.decode(ids) == wanted.decode(ids)
        assert [found.token(i) for i in ids] == [wanted.id_to_token(i) or "" for i in ids]

    check()


def test_a_merge_counts_as_the_last_of_its_kind_and_odd_ones_never(tmp_path: Path) -> None:
    entries = {"model": "gpt2", "pre": "gpt-2", "scores": None, "token_type": None}
    tokens = ("a", "b", "c", "ab", "bc", "a b", "b c")
    path = written(tmp_path / "x", **entries, tokens=tokens, merges=("a b", "b c", "a b"))
    assert Tokenizer(path).encode("abc") == whole(gguf_metadata(path)).encode("abc").ids == [0, 4]


def test_tokens_that_go_on_in_spaces_are_joined_across_them(tmp_path: Path) -> None:
    tokens = ("<unk>", "\u2581", "a", "b", "\u2581b", "a\u2581", "a\u2581b")
    scores = np.array([0, -9, -9, -9, -2, -1, -3], np.float32)
    path = written(tmp_path / "x", tokens=tokens, scores=scores, token_type=None, add_bos_token=False)
    assert Tokenizer(path).encode("a b") == whole(gguf_metadata(path)).encode("a b").ids == [6]


def test_letters_that_are_met_are_kept_within_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_text, "LETTERS_KEPT", 8)
    found = Tokenizer(written(tmp_path / "x"))
    for text in ("abc é", "\u4e00\u4e01\u4e02\u4e03", "cab", "日b"):
        assert found.encode(text) == [1, *joined(text)]


@pytest.mark.parametrize(
    "changes, told",
    [
        ({"tokens": np.arange(3)}, "weft knows"), ({"scores": ("a",) * len(TOKENS)}, "score for each"),
        ({"unknown_token_id": 1 << 20}, "no token 1048576"), ({"unknown_token_id": "a"}, "no token 'a'"),
        ({"model": "gpt2", "merges": np.arange(3)}, "no texts"), ({"model": "gpt2", "merges": ("ab",)}, "no token"),
        ({"model": "gpt2", "merges": ("a b", "a a")}, "no token: 'a a'"),
    ],
)  # fmt: skip
def test_entries_of_other_types_are_told(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=told):
        Tokenizer(written(tmp_path / "x", **changes))


@pytest.mark.parametrize(
    "changes", [{"token_type": "a"}, {"token_type": np.zeros(3)}, {"bos_token_id": -1}, {"bos_token_id": "a"}]
)
def test_entries_that_say_nothing_are_passed_over(changes: dict[str, Any], tmp_path: Path) -> None:
    assert Tokenizer(written(tmp_path / "x", **changes)).encode("abc")[-len(joined("abc")) :] == joined("abc")


def test_a_merge_that_only_seems_to_make_a_token_is_told_when_it_is_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_text, "_makes_none", lambda merges, index: -1)
    changes: dict[str, Any] = {"model": "gpt2", "pre": "gpt-2", "tokens": ("a", "b"), "merges": ("a b",)}
    found = Tokenizer(written(tmp_path / "x", **changes, scores=None, token_type=None))
    assert found.encode("aab"[:2]) == [0, 0]
    with pytest.raises(FileError, match="no token: 'a b'"):
        found.encode("ab")


@pytest.mark.parametrize("pre", ["llama", "qwen2"])
def test_damaged_vocabularies_are_refused_or_read(pre: str, tmp_path: Path) -> None:
    entries = LLAMA if pre == "llama" else {f"tokenizer.ggml.{k}": v for k, v in trained(pre).items()}
    small = {k: v[-40:] if k.endswith("merges") else v for k, v in entries.items() if v is not None}
    save_gguf({}, tmp_path / "x", small)
    data = (tmp_path / "x").read_bytes()

    @settings(max_examples=200, deadline=None)
    @given(st.integers(0, len(data) - 1), st.binary(min_size=1, max_size=9), st.booleans())
    def check(at: int, change: bytes, cut: bool) -> None:
        (tmp_path / "y").write_bytes(data[:at] if cut else data[:at] + change + data[at + len(change) :])
        try:
            found = Tokenizer(tmp_path / "y")
            assert isinstance(found.decode(found.encode("abc <user> é<|end|>")), str)
        except FileError:
            pass

    check()
