"""Models from folders as Hugging Face's hub has them: config.json, and safetensors in one file or several."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import weft
from weft import nn
from weft.errors import FileFormatError
from weft.io import load_sharded
from weft.ir.garbage import not_collected
from weft.models.bert import Bert
from weft.models.gemma3 import Gemma3
from weft.models.gpt2 import GPT2
from weft.models.llama import Llama
from weft.models.phi import Phi
from weft.models.phi3 import Phi3
from weft.models.pretrained_module import PretrainedModule
from weft.models.qwen3 import Qwen3
from weft.models.vit import ViT
from weft.models.whisper import Whisper

MODELS: tuple[type[PretrainedModule], ...] = (Bert, GPT2, Gemma3, Llama, Phi, Phi3, Qwen3, ViT, Whisper)
_MAX_CONFIG = 10_000_000


def from_pretrained(
    folder: str | os.PathLike[str], dtype: weft.DType | None = None, device: str | None = None
) -> Any:
    """The model in a folder, for inference (`.train()` for training): a `Decoder`, `Bert`, `ViT` or `Whisper`.

    Files are mapped, and weights read when they are first used: there is one copy of them. `dtype`: what to convert
    them to; None leaves them as they are. FileNotFoundError and FileError for what is not there, damaged, or lacks a
    weight; ArgumentError naming every field of config.json that weft cannot honour.

    >>> model = weft.models.from_pretrained("Qwen3-0.6B", dtype=weft.float32)
    """
    return read_model(Path(folder), MODELS, dtype, device)


def read_model(
    place: Path, models: Sequence[type[PretrainedModule]], dtype: weft.DType | None, device: str | None
) -> Any:
    """The one of these models that a folder holds."""
    values = read_config(place / "config.json")
    kind = values.get("model_type", values.get("_class_name"))
    known = {k: m for m in models for k in m.kinds}
    if kind not in known:
        raise FileFormatError(
            f"from_pretrained: {place / 'config.json'} is of model_type {kind!r}; weft has {', '.join(sorted(known))}"
        )
    cls = known[kind]
    with not_collected():  # modules and tensors of all layers, none of them garbage
        return _built(cls, values, place, dtype, device)


def _built(
    cls: type[PretrainedModule],
    values: Mapping[str, Any],
    place: Path,
    dtype: weft.DType | None,
    device: str | None,
) -> Any:
    """A model of this class, with a folder's weights."""
    config = cls.config.of(values)
    weights = load_sharded(place, device)
    with weft.device("meta"):  # what would be drawn is replaced at once
        model = cls.of(config, weights)
    _assign(model, _of_model(weights, set(model.state_dict()), cls.left_out), place)
    if dtype is not None:
        model.to(dtype)
    return model.eval()


def read_config(path: Path) -> Mapping[str, Any]:
    """The values of a file of JSON. FileNotFoundError where there is none, FileFormatError for another one."""
    if not path.is_file():
        raise FileNotFoundError(f"from_pretrained: there is no {path}")
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


def _of_model(
    weights: dict[str, weft.Tensor], names: set[str], left_out: tuple[str, ...]
) -> dict[str, weft.Tensor]:
    """Weights under the names that the model has for them, less what it has no use for."""
    if not names & set(weights):  # the trunk alone was saved, or a model around it
        added = [{k if k in names else f"{t}.{k}": w for k, w in weights.items()} for t in _firsts(names)]
        taken = [{k.removeprefix(f"{t}."): w for k, w in weights.items()} for t in _firsts(weights)]
        weights = next((found for found in (*added, *taken) if names & set(found)), weights)
    return {
        k: t for k, t in weights.items() if k in names or not (k.startswith(left_out) or k.endswith(left_out))
    }


def _firsts(names: Collection[str]) -> list[str]:
    """The first words of names."""
    return sorted({k.split(".")[0] for k in names})


def _assign(model: nn.Module, weights: dict[str, weft.Tensor], place: Path) -> None:
    """Let the weights be the model's own. Of names that share a weight, a file may have one."""
    names = set(model.state_dict())
    shared: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(parameter), []).append(name)
    spare = {n for group in shared.values() for n in group[1:] if group[0] in weights}
    weights = {k: t for k, t in weights.items() if k not in spare}
    missing = sorted(names - set(weights) - spare)
    unknown = sorted(set(weights) - names)
    if missing or unknown:
        told = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(unknown)}, unknown"] * bool(
            unknown
        )
        raise FileFormatError(f"from_pretrained: {place} {' and '.join(told)}")
    for name, own in model.state_dict().items():
        if name in weights and weights[name].shape != own.shape:
            raise FileFormatError(
                f"from_pretrained: {place} has {name} of shape {tuple(weights[name].shape)}, and config.json asks for "
                f"{tuple(own.shape)}"
            )
    model.load_state_dict(weights, strict=False, assign=True)
    for first, *others in shared.values():
        for name in others:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, model.get_parameter(first))


def _some(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
