"""Phi-3: a Llama with the weights of queries, keys and values in one, and those of the MLP's two halves.

Source: Abdin et al. 2024, arXiv:2404.14219; names as in transformers' Phi3ForCausalLM.
"""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import weft.nn.functional as F
from weft import Tensor, nn
from weft.models.attention import attend, heads
from weft.models.cache import Cache, Positions
from weft.models.decoder import Decoder, RMSNorm
from weft.models.llama import LlamaConfig
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
        q = self.rotary.turned(heads(q, self.count), positions.at)
        k = self.rotary.turned(heads(k, self.key_heads), positions.at)
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


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Phi3Config, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = Attention(c, layer, rotary)
        self.mlp = MLP(c)
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """norm(layers(embedding[ids])).   Shapes: (b, t) -> (b, t, e)."""

    def __init__(self, c: Phi3Config) -> None:
        super().__init__()
        rotary = Rotary.of(vars(c), c.features, c.max_position_embeddings)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([Layer(c, k, rotary) for k in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, positions, cache)
        return self.norm(x)


class Phi3(Decoder):
    """A Phi-3 with a head for the next token."""

    kinds = ("phi3",)
    config = Phi3Config

    def __init__(self, c: Phi3Config) -> None:
        super().__init__(c.num_hidden_layers, c.key_heads, c.features)
        self.vocabulary, self.longest = c.vocab_size, c.max_position_embeddings
        self.model = Trunk(c)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.embed_tokens

    def hidden(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        return self.model(ids, positions, cache)

    def head(self, x: Tensor) -> Tensor:
        return self.lm_head(x)
