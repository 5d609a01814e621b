"""Weights in 8 or 4 bits: a quarter or an eighth of the memory, and of the time that reading it takes.

Products are still computed in floats; each reads the small weights and widens them as it loads them.

    weft.quantization.quantize_model_(model, bits=4, block=32)     # every Linear becomes a QuantizedLinear
    weft.quantization.quantize_model_(model, code=weft.float8_e4m3fn)      # floats of 8 bits

The blocks are those of ggml and torchao (`weft.core.functional.quantization` says how they lie in memory). Tensors in
ggml's own formats, as GGUF files have them (`weft.io.load_gguf`), are `BlockTensor`s.
"""
# Tests: tests/core/functional/test_quantization.py

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from weft.backends.deferred import rest
from weft.core.functional.ggml import BlockFormat, BlockTensor, to_blocks
from weft.core.functional.quantization import QuantizedTensor, quantize
from weft.errors import ArgumentError
from weft.ir.dtypes import DType, float16
from weft.nn.linear import Embedding, Linear
from weft.nn.module import Module
from weft.nn.quantized import QuantizedEmbedding, QuantizedLinear

__all__ = [
    "BlockFormat", "BlockTensor", "QuantizedEmbedding", "QuantizedLinear", "QuantizedTensor", "quantize",
    "quantize_model_", "to_blocks",
]  # fmt: skip

M = TypeVar("M", bound=Module)


def quantize_model_(
    model: M,
    bits: int = 8,
    block: int = 32,
    *,
    symmetric: bool = True,
    scale_dtype: DType = float16,
    code: DType | None = None,
    embeddings: bool = False,
    filter: Callable[[str, Module], bool] | None = None,
) -> M:
    """Replace the model's `Linear` layers (and, if asked, its `Embedding`s) by quantized ones, in place.

    `code`: weft.float8_e4m3fn or weft.float8_e5m2, for floats of 8 bits in place of integers (`quantize`).
    `filter(name, layer)` says which ones. A weight that several layers share is quantized once and still shared. Layers
    of classes derived from these are left alone, since they may use the weight otherwise.

    >>> weft.quantization.quantize_model_(model, bits=4, filter=lambda name, layer: name != "head")
    """
    if type(model) in (Linear, Embedding):
        raise ArgumentError(
            "quantize_model_: the model is a single layer, which cannot be replaced in place; use "
            f"nn.Quantized{type(model).__name__}.from_{type(model).__name__.lower()}(...)"
        )
    done: dict[int, QuantizedTensor] = {}

    def weight_of(layer: Linear | Embedding) -> QuantizedTensor:
        key = id(layer.weight)
        if key not in done:
            done[key] = quantize(
                layer.weight, bits, block, symmetric=symmetric, scale_dtype=scale_dtype, code=code
            )
            rest(layer.weight.value.node.storage)  # a table of the same weight reads a row now and then
        return done[key]

    kinds = (Linear, Embedding) if embeddings else (Linear,)
    chosen = [
        (name, layer)
        for name, layer in model.named_modules(remove_duplicate=False)
        if type(layer) in kinds and (filter is None or filter(name, layer))
    ]
    replaced: dict[int, Module] = {}
    for name, layer in chosen:
        if id(layer) not in replaced:
            layout = (bits, block, symmetric, scale_dtype)
            if isinstance(layer, Linear):
                new: Module = QuantizedLinear.from_linear(layer, *layout, weight_of(layer))
            else:
                assert isinstance(layer, Embedding)
                new = QuantizedEmbedding.from_embedding(layer, *layout, weight_of(layer))
            replaced[id(layer)] = new.train(layer.training)
        model.set_submodule(name, replaced[id(layer)])
    return model
