"""Tokenizers of GGUF files, by the package tokenizers from the whole vocabulary: what weft's are compared with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from weft.models.gguf_text import _PATTERNS

_SPACE = "\u2581"


def whole(metadata: Mapping[str, Any]) -> Any:
    """The package's tokenizer of entries that are as `gguf_metadata` has them."""
    m = {k.removeprefix("tokenizer.ggml."): v for k, v in metadata.items()}
    tokens: list[str] = list(m["tokens"])
    inner = _pairs_by_scores(m, tokens) if m["model"] == "llama" else _byte_pairs(m, tokens)
    types = [int(k) for k in m.get("token_type", ())]
    inner.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t, k in zip(tokens, types, strict=False) if k == 3]
    )
    inner.add_tokens([AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=False) if k == 4])
    around = [
        [(tokens[m[f"{name}_token_id"]], m[f"{name}_token_id"])]
        if m.get(f"add_{name}_token", default)
        else []
        for name, default in (("bos", m["model"] == "llama"), ("eos", False))
    ]
    if around[0] or around[1]:
        template = [*[t for t, _ in around[0]], "$A", *[t for t, _ in around[1]]]
        inner.post_processor = processors.TemplateProcessing(
            single=template, special_tokens=around[0] + around[1]
        )
    return inner


def _pairs_by_scores(m: Mapping[str, Any], tokens: list[str]) -> Any:
    ids = {t: k for k, t in enumerate(tokens)}
    cuts = [
        (-float(m["scores"][k]), ids[t[:cut]], ids[t[cut:]])
        for k, t in enumerate(tokens)
        for cut in range(1, len(t))
        if t[:cut] in ids and t[cut:] in ids
    ]
    merges = [(tokens[left], tokens[right]) for _, left, right in sorted(cuts)]
    unknown = tokens[m.get("unknown_token_id", 0)]
    inner = Tokenizer(models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    adds = m.get("add_space_prefix", True)
    inner.normalizer = normalizers.Sequence(
        [*[normalizers.Prepend(_SPACE)] * adds, normalizers.Replace(" ", _SPACE)]
    )
    strip = [decoders.Strip(" ", 1, 0)] * adds
    inner.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return inner


def _byte_pairs(m: Mapping[str, Any], tokens: list[str]) -> Any:
    merges: Any = [tuple(x.split(" ", 1)) for x in m["merges"]]
    inner = Tokenizer(models.BPE({t: k for k, t in enumerate(tokens)}, merges))
    pattern = _PATTERNS[m["pre"]]
    if pattern is None:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    else:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        inner.pre_tokenizer = pre_tokenizers.Sequence([split, letters])
    if m["pre"] == "qwen2":
        inner.normalizer = normalizers.NFC()
    inner.decoder = decoders.ByteLevel()
    return inner
