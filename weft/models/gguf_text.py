"""Tokenizers from the vocabulary in a GGUF file, built for the package tokenizers.

    "llama"    SentencePiece's pairs: of two neighbours the pair whose token has the best score is joined first; what no
               token spells is spelled in bytes (<0x00> ...)
    "gpt2"     byte pairs by the file's merges, within the words that a pattern cuts a text into

Source: Kudo & Richardson 2018, arXiv:1808.06226; Sennrich et al. 2016, arXiv:1508.07909; the patterns are those that
the models' own tokenizers publish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.errors import FileFormatError

_CONTROL, _OWN, _BYTE = 3, 4, 6
"""Types of tokens: those that are no text, those that are found before others, and bytes."""
_SPACE = "\u2581"

Scores = np.ndarray[Any, np.dtype[np.float32]]

_DIGITS_BY_THREE = r"\p{N}{1,3}"
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PATTERNS: Mapping[str, str | None] = {
    "gpt-2": None, "default": None, "llama-bpe": _WORDS % _DIGITS_BY_THREE, "qwen2": _WORDS % r"\p{N}",
}  # fmt: skip
"""The words that texts are cut into; None: as GPT-2 does, which the package has."""


def tokenizer_of(metadata: Mapping[str, Any], path: object) -> Any:
    """The tokenizer that the entries of a file describe. FileFormatError for one that weft does not know."""
    kind = metadata.get("tokenizer.ggml.model")
    made: Callable[[Mapping[str, Any], Sequence[str], object], Any] | None = _MODELS.get(str(kind))
    tokens: tuple[str, ...] | None = metadata.get("tokenizer.ggml.tokens")
    if made is None or tokens is None or not isinstance(tokens, tuple):  # pyright: ignore[reportUnnecessaryIsInstance]  # a file's word
        raise FileFormatError(
            f"Tokenizer: {path} has a tokenizer {kind!r}; weft knows {' and '.join(_MODELS)}"
        )
    if len(set(tokens)) != len(tokens):
        raise FileFormatError(f"Tokenizer: {path} has a token twice")
    inner = made(metadata, tokens, path)
    _special(inner, metadata, tokens)
    return inner


def ends_of(metadata: Mapping[str, Any]) -> list[int]:
    """The ids that end a text."""
    found = [metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return [i for i in dict.fromkeys(found) if isinstance(i, int)]


def _llama(metadata: Mapping[str, Any], tokens: Sequence[str], path: object) -> Any:
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise FileFormatError(f"Tokenizer: {path} lacks a score for each token")
    ids = {t: k for k, t in enumerate(tokens)}
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
    wholes, lefts, rights = list[int](), list[int](), list[int]()
    known = ids.get
    for k, token in enumerate(tokens):  # vocabularies have a quarter of a million of them
        for cut in range(1, len(token)):
            left = known(token[:cut])
            if left is not None and (right := known(token[cut:])) is not None:
                wholes.append(k)
                lefts.append(left)
                rights.append(right)
    worst = -scores[np.array(wholes, np.int64)]
    order: list[int] = np.lexsort((np.array(rights), np.array(lefts), worst)).tolist()
    return [(tokens[lefts[i]], tokens[rights[i]]) for i in order]


def _gpt2(metadata: Mapping[str, Any], tokens: Sequence[str], path: object) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    name = metadata.get("tokenizer.ggml.pre", "default")
    if name not in _PATTERNS:
        raise FileFormatError(f"Tokenizer: {path} cuts words by {name!r}; weft knows {', '.join(_PATTERNS)}")
    merges = [tuple(m.split(" ", 1)) for m in metadata.get("tokenizer.ggml.merges", ())]
    try:
        inner = Tokenizer(models.BPE({t: k for k, t in enumerate(tokens)}, merges))  # pyright: ignore[reportArgumentType]
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


_MODELS: Mapping[str, Callable[[Mapping[str, Any], Sequence[str], object], Any]] = {
    "llama": _llama,
    "gpt2": _gpt2,
}
