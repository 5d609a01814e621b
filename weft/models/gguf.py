"""Language models from GGUF files: metadata as a configuration, names as the hub's, blocks as they are.

A weight in a block format stays in it: layers that have one become `nn.BlockLinear` and `nn.BlockEmbedding`.

Source: ggml's docs/gguf.md; names and conventions as llama.cpp's converter writes them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import weft
from weft import DType, Tensor, float16, nn
from weft.backends.deferred import rest
from weft.errors import ArgumentError, DTypeError, FileFormatError
from weft.io.gguf import load_with_metadata
from weft.ir.garbage import not_collected
from weft.lazy_dataclass import dataclass
from weft.models.decoder import Decoder
from weft.models.gemma3 import Gemma3, Gemma3Config
from weft.models.llama import Llama, LlamaConfig
from weft.models.qwen3 import Qwen3, Qwen3Config
from weft.quantization import BlockTensor

Weight = Tensor | BlockTensor

_NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
}  # fmt: skip
_LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm", "ffn_norm": "post_attention_layernorm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_GEMMA = _LAYER | {
    "post_attention_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}  # fmt: skip
_DIVISORS = "rope_freqs.weight"
"""By what frequencies of rotary embeddings are divided: all that files tell of Llama 3.1's scaling."""

_NEUTRAL = frozenset({
    "vocab_size", "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned",
    "mm.tokens_per_image", "pooling_type",
})  # fmt: skip
"""Entries of an architecture that change nothing in what its model computes: YaRN, that reads two, is refused."""
_ONLY: Mapping[str, Any] = {
    "expert_count": 0, "expert_used_count": 0, "attention.causal": True, "use_parallel_residual": False,
    "rope.scaling.attn_factor": 1.0, "attn_logit_softcapping": 0.0, "logit_scale": 1.0,
}  # fmt: skip
"""Entries that are honoured at these values alone, which are what their absence means."""
_SIZES = frozenset({
    "feed_forward_length", "attention.head_count", "embedding_length", "block_count", "attention.head_count_kv",
    "attention.key_length", "context_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
    "rope.scaling.type", "rope.scaling.factor", "attention.value_length", "rope.dimension_count",
})  # fmt: skip
"""Entries that all configurations read."""


@dataclass(frozen=True)
class _Kind:
    """An architecture: its model, the names in its layers, its configuration, and a weight as the model has it."""

    model: type[Any]
    names: Mapping[str, str]
    config: Callable[[Mapping[str, Any], str, int], Any]
    weight: Callable[[str, Weight, Any], Weight] = lambda name, w, config: w
    entries: frozenset[str] = frozenset()
    """Entries of the metadata that its configuration reads besides `_SIZES`."""


def from_gguf(
    path: str | os.PathLike[str],
    device: str | None = None,
    *,
    activations: str = "float32",
    cache_dtype: DType | None = None,
) -> Decoder:
    """The model in a GGUF file, for inference: `llama`, `qwen3` or `gemma3`.

    The file is mapped; weights in a block format keep it, and products widen them as they load them, in float32.
    With activations="int8", what weights in blocks of equal steps are multiplied with is rounded to 8 bits in blocks
    of 32, and multiplied in integers: faster, with the error that `nn.IntegerLinear` states. Weights in tables (IQ4,
    MXFP4) are multiplied in floats still. `cache_dtype`: of the keys and values of tokens before, a float dtype; by
    default float16 beside activations of 8 bits, whose rounding is the coarser by far, else that of the weights.

    FileNotFoundError and FileError for what is not there, damaged, of another architecture, or lacks a weight.

    >>> model = weft.models.from_gguf("Qwen3-0.6B-Q8_0.gguf")
    """
    if activations not in ("float32", "int8"):
        raise ArgumentError(f"from_gguf: activations are 'float32' or 'int8', not {activations!r}")
    if cache_dtype is not None and not cache_dtype.is_float:
        raise DTypeError(f"from_gguf: cache_dtype is a float dtype, not {cache_dtype.name}")
    with not_collected():  # modules and tensors of all layers, none of them garbage
        return _read(path, device, activations, cache_dtype)


def _read(
    path: str | os.PathLike[str], device: str | None, activations: str, cache_dtype: DType | None
) -> Decoder:
    """The model in a file."""
    metadata, tensors = load_with_metadata(path, device)
    arch = metadata.get("general.architecture")
    kind = _KINDS.get(str(arch))
    if kind is None:
        raise FileFormatError(f"from_gguf: {path} is of architecture {arch!r}; weft has {', '.join(_KINDS)}")
    if "token_embd.weight" not in tensors:
        raise FileFormatError(f"from_gguf: {path} lacks token_embd.weight")
    vocabulary = tensors["token_embd.weight"].shape[0]
    assert isinstance(vocabulary, int)  # as all sizes of files are
    try:
        config = kind.config(metadata, str(arch), vocabulary)
    except KeyError as error:
        raise FileFormatError(f"from_gguf: {path} lacks the entry {error}") from None
    _refuse(metadata, str(arch), kind.entries, config, path)
    if _DIVISORS in tensors:
        config = _divided(config, tensors.pop(_DIVISORS), path)
    with weft.device("meta"):  # what would be drawn is replaced at once
        model = kind.model(config)
    weights = {_named(name, kind.names, path): kind.weight(name, t, config) for name, t in tensors.items()}
    weights = _one_dtype(weights)
    tied = "lm_head.weight" not in weights
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    _check(model, weights, path)
    _assign(model, weights, activations == "int8")
    if tied and isinstance(model.lm_head, nn.Linear):
        model.lm_head.weight = model.embedding.weight
    integers = any(isinstance(m, nn.IntegerLinear) for m in model.modules())
    model.cache_dtype = cache_dtype or (float16 if integers else None)
    return model.eval()


def _refuse(m: Mapping[str, Any], arch: str, entries: frozenset[str], config: Any, path: object) -> None:
    """FileFormatError naming each entry of the architecture that changes results and is not honoured."""
    only = {**_ONLY, "rope.dimension_count": config.head_dim, "attention.value_length": config.head_dim}
    wrong: list[str] = []
    for name, value in m.items():
        entry = name.removeprefix(f"{arch}.")
        if entry == name or entry in _NEUTRAL:
            continue
        if entry in only:
            if value != only[entry]:
                wrong.append(f"{name}={value!r} (only {only[entry]!r})")
        elif entry not in _SIZES | entries:
            wrong.append(f"{name}={value!r}")
    if wrong:
        raise FileFormatError(f"from_gguf: {path} has entries that weft does not support: {'; '.join(wrong)}")


def _divided(config: Any, divisors: Weight, path: object) -> Any:
    """The configuration with frequencies divided by a file's table."""
    if config.rope_scaling is not None or not isinstance(divisors, Tensor):
        raise FileFormatError(f"from_gguf: {path} has {_DIVISORS} in blocks or beside another scaling")
    if tuple(divisors.shape) != (config.head_dim // 2,):
        raise FileFormatError(
            f"from_gguf: {path} has {_DIVISORS} of shape {tuple(divisors.shape)} for {config.head_dim // 2} pairs"
        )
    table = tuple(float(v) for v in divisors.float().numpy())
    return replace(config, rope_scaling={"rope_type": "divided", "divisors": table})


def _one_dtype(weights: dict[str, Weight]) -> dict[str, Weight]:
    """All in the dtype of the matrices, where these are of one of 16 bits: files have norms in float32 beside them."""
    kinds = {w.dtype if isinstance(w, Tensor) else None for w in weights.values() if len(w.shape) == 2}
    dtype = kinds.pop() if len(kinds) == 1 else None
    if dtype is None or not dtype.is_float or dtype.bits != 16:
        return weights
    return {name: w.to(dtype) if isinstance(w, Tensor) else w for name, w in weights.items()}


def _named(name: str, layer: Mapping[str, str], path: object) -> str:
    stem, _, end = name.rpartition(".")
    if stem in _NAMES:
        return f"{_NAMES[stem]}.{end}"
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if found is None or found[2] not in layer:
        raise FileFormatError(f"from_gguf: {path} has the tensor {name!r}, which weft does not know")
    return f"model.layers.{found[1]}.{layer[found[2]]}.{end}"


def _check(model: Decoder, weights: Mapping[str, Weight], path: object) -> None:
    wanted = {name: tuple(p.shape) for name, p in model.state_dict().items()}
    wrong = [f"lacks {n}" for n in wanted if n not in weights]
    wrong += [f"has {n}, which the model has not" for n in weights if n not in wanted]
    wrong += [
        f"has {n} of shape {tuple(w.shape)} in place of {wanted[n]}"
        for n, w in weights.items()
        if n in wanted and tuple(w.shape) != wanted[n]
    ]
    if wrong:
        raise FileFormatError(
            f"from_gguf: {path} " + "; ".join(wrong[:4]) + (" ..." if len(wrong) > 4 else "")
        )


def _assign(model: Decoder, weights: Mapping[str, Weight], integers: bool) -> None:
    """Let the weights be the model's own, blocks in layers of their own, those that can multiply in `integers`."""
    plain = {n: w for n, w in weights.items() if isinstance(w, Tensor)}
    model.load_state_dict({**model.state_dict(), **plain}, assign=True)
    for name, w in weights.items():
        if isinstance(w, BlockTensor):
            place = name.removesuffix(".weight")
            old = model.get_submodule(place)
            bias = plain.get(f"{place}.bias")
            if isinstance(old, nn.Embedding):
                layer: nn.Module = nn.BlockEmbedding(w)
            else:
                layer = (nn.IntegerLinear if integers and w.format.even else nn.BlockLinear)(w, bias)
            if isinstance(layer, nn.IntegerLinear):
                rest(w.data.value.node.storage)  # a table of the same weight reads a row now and then
            model.set_submodule(place, layer)


def _sizes(m: Mapping[str, Any], arch: str, vocabulary: int) -> dict[str, Any]:
    """The sizes that all configurations have."""
    heads = int(m[f"{arch}.attention.head_count"])
    width = int(m[f"{arch}.embedding_length"])
    return {
        "vocab_size": vocabulary, "hidden_size": width, "intermediate_size": int(m[f"{arch}.feed_forward_length"]),
        "num_hidden_layers": int(m[f"{arch}.block_count"]), "num_attention_heads": heads,
        "num_key_value_heads": int(m.get(f"{arch}.attention.head_count_kv", heads)),
        "head_dim": int(m.get(f"{arch}.attention.key_length", width // heads)),
        "max_position_embeddings": int(m[f"{arch}.context_length"]),
        "rms_norm_eps": float(m[f"{arch}.attention.layer_norm_rms_epsilon"]),
        "rope_theta": float(m.get(f"{arch}.rope.freq_base", 10000.0)), "rope_scaling": _scaling(m, arch),
    }  # fmt: skip


def _scaling(m: Mapping[str, Any], arch: str) -> dict[str, Any] | None:
    kind = m.get(f"{arch}.rope.scaling.type", "none")
    if kind == "none":
        return None
    return {"rope_type": kind, "factor": float(m[f"{arch}.rope.scaling.factor"])}


def _llama(m: Mapping[str, Any], arch: str, vocabulary: int) -> LlamaConfig:
    return LlamaConfig(**_sizes(m, arch, vocabulary))


def _qwen3(m: Mapping[str, Any], arch: str, vocabulary: int) -> Qwen3Config:
    return Qwen3Config(**_sizes(m, arch, vocabulary))


def _gemma3(m: Mapping[str, Any], arch: str, vocabulary: int) -> Gemma3Config:
    sizes = _sizes(m, arch, vocabulary)
    # the largest one scales by the features of the stream, all others by those of a head
    width = sizes["hidden_size"] // sizes["num_attention_heads"]
    scalar = width if sizes["num_hidden_layers"] == 62 else sizes["head_dim"]
    window = int(m[f"{arch}.attention.sliding_window"])
    cap = m.get(f"{arch}.final_logit_softcapping")
    pattern = m.get(f"{arch}.attention.sliding_window_pattern", 6)
    if not isinstance(pattern, int) or pattern < 1:
        raise FileFormatError(
            f"from_gguf: {arch}.attention.sliding_window_pattern={pattern!r} is no number of layers"
        )
    return Gemma3Config(
        **sizes,
        sliding_window=window,
        sliding_window_pattern=pattern,
        query_pre_attn_scalar=scalar,
        rope_local_base_freq=float(m.get(f"{arch}.rope.freq_base_swa", 10000.0)),
        final_logit_softcapping=float(cap) if cap else None,
    )


def _shifted(name: str, w: Weight, config: Any) -> Weight:
    """Weights of norms less the 1 that files have them with."""
    return w - 1 if isinstance(w, Tensor) and name.endswith("norm.weight") else w


def _halves(name: str, w: Weight, config: LlamaConfig) -> Weight:
    """Rows of queries and keys in the order of the hub: files have those that turn together beside each other."""
    if not name.endswith((".attn_q.weight", ".attn_k.weight")):
        return w
    heads = config.num_attention_heads if "attn_q" in name else config.key_heads
    rows = w.data if isinstance(w, BlockTensor) else w
    turned = rows.reshape(heads, -1, 2, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)
    return BlockTensor(turned, w.format, w.shape) if isinstance(w, BlockTensor) else turned


_KINDS = {
    "llama": _Kind(Llama, _LAYER, _llama, _halves),
    "qwen3": _Kind(Qwen3, _LAYER, _qwen3),
    "gemma3": _Kind(
        Gemma3,
        _GEMMA,
        _gemma3,
        _shifted,
        frozenset(
            {
                "attention.sliding_window",
                "attention.sliding_window_pattern",
                "rope.freq_base_swa",
                "final_logit_softcapping",
            }
        ),
    ),
}
"""Architectures by the name that files have for them."""
