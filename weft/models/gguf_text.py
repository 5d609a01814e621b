"""Tokenizers from the vocabulary in a GGUF file, built for the package tokenizers.

    "llama"    SentencePiece's pairs: of two neighbours the pair whose token has the best score is joined first; what no
               token spells is spelled in bytes (<0x00> ...)
    "gpt2"     byte pairs by the file's merges, within the words that a pattern cuts a text into

Source: Kudo & Richardson 2018, arXiv:1808.06226; Sennrich et al. 2016, arXiv:1508.07909; the patterns are those that
the models' own tokenizers publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from weft.errors import FileFormatError

_CONTROL, _OWN, _BYTE = 3, 4, 6
"""Types of tokens: those that are no text, those that are found before others, and bytes."""
_SPACE = "\u2581"

Scores: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Ids: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Splits: TypeAlias = tuple[Ids, Ids, Ids]

_Made: TypeAlias = Callable[[Mapping[str, Any], Sequence[str], dict[str, int], object], Any]

_BASE = np.uint64(0x9E3779B97F4A7C15)
_BITS = np.uint64((1 << 23) - 1)
"""The low bits of a hash by which most texts that are no token are told."""

_DIGITS_BY_THREE = r"\p{N}{1,3}"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS: Mapping[str, str | None] = {
    "gpt-2": None, "default": None, "llama-bpe": _WORDS % _DIGITS_BY_THREE, "qwen2": _WORDS % r"\p{N}",
}  # fmt: skip
"""The words that texts are cut into; None: as GPT-2 does, which the package has."""


def tokenizer_of(metadata: Mapping[str, Any], path: object) -> Any:
    """The tokenizer that the entries of a file describe. FileFormatError for one that weft does not know."""
    kind = metadata.get("tokenizer.ggml.model")
    made: _Made | None = _MODELS.get(str(kind))
    tokens: tuple[str, ...] | None = metadata.get("tokenizer.ggml.tokens")
    if made is None or tokens is None or not isinstance(tokens, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]  # a file's word
        raise FileFormatError(
            f"Tokenizer: {path} has a tokenizer {kind!r}; weft knows {' and '.join(_MODELS)}"
        )
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        raise FileFormatError(f"Tokenizer: {path} has a token twice")
    inner = made(metadata, tokens, ids, path)
    _special(inner, metadata, tokens)
    return inner


def ends_of(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a text."""
    found = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return [i for i in dict.fromkeys(found) if isinstance(i, int)]


def _llama(metadata: Mapping[str, Any], tokens: Sequence[str], ids: dict[str, int], path: object) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise FileFormatError(f"Tokenizer: {path} lacks a score for each token")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id", 0)
    merges = _merges(ids, tokens, scores)
    inner = Tokenizer(models.BPE(ids, merges, unk_token=tokens[unknown], fuse_unk=True, byte_fallback=True))
    prefix = [normalizers.Prepend(_SPACE)] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    inner.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    inner.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return inner


def _merges(ids: Mapping[str, int], tokens: Sequence[str], scores: Scores) -> list[tuple[str, str]]:
    """Pairs of tokens that make a token, the best score first; of one token's, in the order of its parts' ids."""
    wholes, lefts, rights = splits(tokens) or _looked_up(ids, tokens)
    order: list[int] = np.lexsort((rights, lefts, -scores[wholes])).tolist()
    left: list[int] = lefts.tolist()
    right: list[int] = rights.tolist()
    return [(tokens[left[i]], tokens[right[i]]) for i in order]


def _looked_up(ids: Mapping[str, int], tokens: Sequence[str]) -> Splits:
    """The ids of tokens that are two others in a row, and of these: each cut looked up."""
    found = [
        (k, left, right)
        for k, token in enumerate(tokens)
        for cut in range(1, len(token))
        if (left := ids.get(token[:cut])) is not None and (right := ids.get(token[cut:])) is not None
    ]
    wholes, lefts, rights = np.array(found, np.int64).reshape(-1, 3).T
    return wholes, lefts, rights


def splits(tokens: Sequence[str]) -> Splits | None:
    """As `_looked_up`, in less than half the time: all tokens of a length at once, by hashes. None where these are
    not enough to tell tokens apart.

    A text's hash is a polynomial of its characters, so all cuts' hashes follow from those of the beginnings.
    """
    hashes = np.zeros(len(tokens), np.uint64)
    starts: dict[int, tuple[Ids, Hashes]] = {}
    lengths = np.array([len(t) for t in tokens])
    longest = int(lengths.max(initial=0))
    powers = _BASE ** np.arange(longest + 1, dtype=np.uint64)
    for length in np.unique(lengths).tolist():
        (own,) = np.nonzero(lengths == length)
        text = "".join([tokens[k] for k in own.tolist()]).encode("utf-32-le", "surrogatepass")
        letters = np.frombuffer(text, np.uint32).reshape(len(own), length)
        begun = np.zeros((len(own), length + 1), np.uint64)
        for k in range(length):
            begun[:, k + 1] = begun[:, k] * _BASE + letters[:, k] + 1
        hashes[own] = begun[:, length]
        starts[length] = own, begun
    order = np.argsort(hashes)
    known = hashes[order]
    if (known[1:] == known[:-1]).any():
        return None
    there = np.zeros(_BITS + 1, bool)
    there[known & _BITS] = True
    found: list[Ids] = []
    for length, (own, begun) in starts.items():
        ends = begun[:, length:] - begun[:, 1:length] * powers[length - 1 : 0 : -1]
        row, cut = np.nonzero(there[begun[:, 1:length] & _BITS] & there[ends & _BITS])
        left, right = begun[row, cut + 1], ends[row, cut]
        i, j = (np.minimum(np.searchsorted(known, x), len(known) - 1) for x in (left, right))
        hit = (known[i] == left) & (known[j] == right)
        found.append(np.stack([own[row[hit]], order[i[hit]], order[j[hit]]]))
    wholes, lefts, rights = np.concatenate(found, 1) if found else np.zeros((3, 0), np.int64)
    triples: list[list[int]] = np.stack([wholes, lefts, rights], 1).tolist()
    if any(tokens[i] + tokens[j] != tokens[k] for k, i, j in triples):
        return None
    return wholes, lefts, rights


def _gpt2(metadata: Mapping[str, Any], tokens: Sequence[str], ids: dict[str, int], path: object) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in _PATTERNS:
        raise FileFormatError(f"Tokenizer: {path} cuts words by {name!r}; weft knows {', '.join(_PATTERNS)}")
    merges = [tuple(m.split(" ", 1)) for m in metadata.get("tokenizer.ggml.merges", ())]
    try:
        inner = Tokenizer(models.BPE(ids, merges))  # pyright: ignore[reportArgumentType]
    except Exception as error:  # noqa: BLE001  (the package raises no other kind)
        raise FileFormatError(f"Tokenizer: {path} has merges that make no token: {error}") from None
    pattern = _PATTERNS[name]
    if pattern is None:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        inner.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ])  # fmt: skip
        if name == "qwen2":
            inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    return inner


def _special(inner: Any, metadata: Mapping[str, Any], tokens: Sequence[str]) -> None:
    """Let tokens that are no text be found as a whole, and those that a text begins and ends with be added."""
    from tokenizers import AddedToken, processors

    types = metadata.get("tokenizer.ggml.token_type")
    if types is not None:
        own = [(t, k) for t, k in zip(tokens, types.tolist(), strict=False) if k in (_CONTROL, _OWN)]
        inner.add_special_tokens(
            [AddedToken(t, normalized=False, special=True) for t, k in own if k == _CONTROL]
        )
        inner.add_tokens([AddedToken(t, normalized=False) for t, k in own if k == _OWN])
    adds_first = metadata.get("tokenizer.ggml.model") == "llama"  # where a file does not say
    first = _added("bos", metadata, tokens, adds_first)
    last = _added("eos", metadata, tokens, False)
    if first or last:
        template = [*[t for t, _ in first], "$A", *[t for t, _ in last]]
        inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=[*first, *last])


def _added(
    name: str, metadata: Mapping[str, Any], tokens: Sequence[str], default: bool
) -> list[tuple[str, int]]:
    """The token that a text begins or ends with, if one is to be added."""
    k = metadata.get(f"tokenizer.ggml.{name}_token_id")
    wanted = metadata.get(f"tokenizer.ggml.add_{name}_token", default)
    return [(tokens[k], k)] if wanted and isinstance(k, int) and k < len(tokens) else []


_MODELS: Mapping[str, _Made] = {
    "llama": _llama,
    "gpt2": _gpt2,
}
