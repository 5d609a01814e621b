"""Phi: attention and MLP beside each other, of the same normalized input, with part of each head turned.

    h = norm(x);  x = x + attention(h) + mlp(h)

Source: Li et al. 2023, arXiv:2309.05463; names as in transformers' PhiForCausalLM.
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
from weft.models.config import Config
from weft.models.decoder import Decoder
from weft.models.rotary import Rotary


@dataclass(frozen=True)
class PhiConfig(Config):
    """The sizes of a Phi."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    max_position_embeddings: int = 2048
    layer_norm_eps: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    partial_rotary_factor: float = 0.5
    qk_layernorm: bool = False
    tie_word_embeddings: bool = False

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"hidden_act": ("gelu_new",)}

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def features(self) -> int:
        """Features of a head."""
        return self.hidden_size // self.num_attention_heads


class Attention(nn.Module):
    """dense(attention(turn(q(x)), turn(k(x)), v(x))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: PhiConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.layer, self.rotary, self.count, self.key_heads = (
            layer,
            rotary,
            c.num_attention_heads,
            c.key_heads,
        )
        self.q_proj = nn.Linear(c.hidden_size, self.count * c.features)
        self.k_proj = nn.Linear(c.hidden_size, self.key_heads * c.features)
        self.v_proj = nn.Linear(c.hidden_size, self.key_heads * c.features)
        self.dense = nn.Linear(self.count * c.features, c.hidden_size)
        self.normed = c.qk_layernorm
        if c.qk_layernorm:
            self.q_layernorm = nn.LayerNorm(c.features, eps=c.layer_norm_eps)
            self.k_layernorm = nn.LayerNorm(c.features, eps=c.layer_norm_eps)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        q, k = heads(self.q_proj(x), self.count), heads(self.k_proj(x), self.key_heads)
        if self.normed:
            q, k = self.q_layernorm(q), self.k_layernorm(k)
        q, k = self.rotary.turned(q, positions), self.rotary.turned(k, positions)
        v = heads(self.v_proj(x), self.key_heads)
        return self.dense(attend(q, k, v, positions, cache, self.layer))


class MLP(nn.Module):
    """fc2(gelu(fc1(x))).   Shapes: (..., e) -> same."""

    def __init__(self, features: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(features, inner)
        self.fc2 = nn.Linear(inner, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Layer(nn.Module):
    """x + attention(h) + mlp(h), h = norm(x).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: PhiConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.self_attn = Attention(c, layer, rotary)
        self.mlp = MLP(c.hidden_size, c.intermediate_size)
        self.input_layernorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        h = self.input_layernorm(x)
        return self.self_attn(h, positions, cache) + self.mlp(h) + x


class Trunk(nn.Module):
    """norm(layers(embedding[ids])).   Shapes: (b, t) -> (b, t, e)."""

    def __init__(self, c: PhiConfig) -> None:
        super().__init__()
        rotary = Rotary.of(vars(c), c.features, c.max_position_embeddings)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([Layer(c, k, rotary) for k in range(c.num_hidden_layers)])
        self.final_layernorm = nn.LayerNorm(c.hidden_size, eps=c.layer_norm_eps)

    def forward(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, positions, cache)
        return self.final_layernorm(x)


class Phi(Decoder):
    """A Phi with a head for the next token."""

    kinds = ("phi",)
    config = PhiConfig

    def __init__(self, c: PhiConfig) -> None:
        super().__init__(c.num_hidden_layers, c.key_heads, c.features)
        self.vocabulary, self.longest = c.vocab_size, c.max_position_embeddings
        self.model = Trunk(c)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.embed_tokens

    def hidden(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        return self.model(ids, positions, cache)
