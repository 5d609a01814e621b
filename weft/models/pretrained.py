"""Models from folders as Hugging Face's hub has them: config.json, and safetensors in one file or several."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import weft
from weft.errors import FileFormatError
from weft.io import load_sharded
from weft.models.decoder import Decoder
from weft.models.gemma3 import Gemma3
from weft.models.gpt2 import GPT2
from weft.models.llama import Llama
from weft.models.phi import Phi
from weft.models.phi3 import Phi3
from weft.models.qwen3 import Qwen3

MODELS: tuple[type[Any], ...] = (GPT2, Gemma3, Llama, Phi, Phi3, Qwen3)
_MAX_CONFIG = 10_000_000
_LEFT_OUT = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Ends of names that old checkpoints have, of tables that are computed."""


def from_pretrained(
    folder: str | os.PathLike[str], dtype: weft.DType | None = None, device: str | None = None
) -> Decoder:
    """The model in a folder, for inference (`.train()` for training).

    Files are mapped, and weights read when they are first used: there is one copy of them. `dtype`: what to convert
    them to; None leaves them as they are. FileNotFoundError and FileError for what is not there, damaged, or lacks a
    weight; ArgumentError naming every field of config.json that weft cannot honour.

    >>> model = weft.models.from_pretrained("Qwen3-0.6B", dtype=weft.float32)
    """
    place = Path(folder)
    values = _config(place / "config.json")
    kind = values.get("model_type")
    known = {k: m for m in MODELS for k in m.kinds}
    if kind not in known:
        raise FileFormatError(
            f"from_pretrained: {place / 'config.json'} is of model_type {kind!r}; weft has {', '.join(sorted(known))}"
        )
    cls = known[kind]
    model = cast("Decoder", cls(cls.config.of(values)))
    weights = {k: t for k, t in load_sharded(place, device).items() if not k.endswith(_LEFT_OUT)}
    _assign(model, weights, place)
    if dtype is not None:
        model.to(dtype)
    return model.eval()


def _config(path: Path) -> Mapping[str, Any]:
    if path.stat().st_size > _MAX_CONFIG:
        raise FileFormatError(
            f"from_pretrained: {path} is no configuration: it has {path.stat().st_size:,} bytes"
        )
    try:
        values = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"from_pretrained: {path} is damaged: {error}") from None
    if not isinstance(values, dict):
        raise FileFormatError(f"from_pretrained: {path} is damaged: it holds no object")
    return cast("Mapping[str, Any]", values)


def _assign(model: Decoder, weights: dict[str, weft.Tensor], place: Path) -> None:
    """Let the weights be the model's own, a head that shares the embedding's too."""
    names = set(model.state_dict())
    if not names & set(weights):  # the trunk alone was saved, without its name in front
        (trunk,) = {k.split(".")[0] for k in names} - {"lm_head"}
        weights = {k if k.startswith("lm_head.") else f"{trunk}.{k}": t for k, t in weights.items()}
    tied = model.lm_head.weight is model.embedding.weight
    if tied:
        weights.pop("lm_head.weight", None)
    missing = sorted(names - set(weights) - ({"lm_head.weight"} if tied else set()))
    unknown = sorted(set(weights) - names)
    if missing or unknown:
        told = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(unknown)}, unknown"] * bool(
            unknown
        )
        raise FileFormatError(f"from_pretrained: {place} {' and '.join(told)}")
    for name, parameter in model.named_parameters():
        if name in weights and weights[name].shape != parameter.shape:
            raise FileFormatError(
                f"from_pretrained: {place} has {name} of shape {tuple(weights[name].shape)}, and config.json asks for "
                f"{tuple(parameter.shape)}"
            )
    model.load_state_dict(weights, strict=False, assign=True)
    if tied:
        model.lm_head.weight = model.embedding.weight


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
