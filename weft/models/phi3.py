"""Phi-3: a Llama with the weights of queries, keys and values in one, and those of the MLP's two halves.

Source: Abdin et al. 2024, arXiv:2404.14219; names as in transformers' Phi3ForCausalLM.
"""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import weft.nn.functional as F
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.models.attention import attend, heads
from weft.models.cache import Cache, Positions
from weft.models.llama import Layer, Llama, LlamaConfig
from weft.models.rotary import Rotary


@dataclass(frozen=True)
class Phi3Config(LlamaConfig):
    """The sizes of a Phi-3."""

    max_position_embeddings: int = 4096
    rms_norm_eps: float = 1e-5
    partial_rotary_factor: float = 1.0
    sliding_window: int | None = None

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "hidden_act": ("silu",), "attention_bias": (False,), "mlp_bias": (False,),
    }  # fmt: skip


class Attention(nn.Module):
    """o(attention(turn(q), turn(k), v)), (q, k, v) = qkv(x).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Phi3Config, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.layer, self.rotary, self.window = layer, rotary, c.sliding_window
        self.count, self.key_heads = c.num_attention_heads, c.key_heads
        self.sizes = [c.num_attention_heads * c.features, c.key_heads * c.features, c.key_heads * c.features]
        self.qkv_proj = nn.Linear(c.hidden_size, sum(self.sizes), bias=False)
        self.o_proj = nn.Linear(self.sizes[0], c.hidden_size, bias=False)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        q, k, v = self.qkv_proj(x).split(self.sizes, -1)
        q = self.rotary.turned(heads(q, self.count), positions)
        k = self.rotary.turned(heads(k, self.key_heads), positions)
        v = heads(v, self.key_heads)
        return self.o_proj(attend(q, k, v, positions, cache, self.layer, window=self.window))


class MLP(nn.Module):
    """down(silu(gate) * up), (gate, up) = gate_up(x).   Shapes: (..., e) -> same."""

    def __init__(self, c: Phi3Config) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(c.hidden_size, 2 * c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(x).chunk(2, -1)
        return self.down_proj(up * F.silu(gate))


class Phi3(Llama):
    """A Phi-3 with a head for the next token."""

    kinds = ("phi3",)
    config = Phi3Config

    @staticmethod
    def layer(c: Any, k: int, rotary: Rotary) -> Layer:
        return Layer(c, Attention(c, k, rotary), MLP(c))
