"""Llama: rotary attention with grouped heads and a gated MLP, each added to its input.

    x = x + attention(norm(x));  x = x + mlp(norm(x))

Source: Touvron et al. 2023, arXiv:2302.13971; names as in transformers' LlamaForCausalLM. Mistral is one without a
sliding window.
"""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import weft.nn.functional as F
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.models.attention import attend, heads
from weft.models.cache import Cache, Positions
from weft.models.config import Config
from weft.models.decoder import Decoder, GatedMLP, RMSNorm
from weft.models.rotary import Rotary


@dataclass(frozen=True)
class LlamaConfig(Config):
    """The sizes of a Llama."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"hidden_act": ("silu",), "sliding_window": (None,)}

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def features(self) -> int:
        """Features of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads


class Attention(nn.Module):
    """o(attention(turn(q(x)), turn(k(x)), v(x))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: LlamaConfig, layer: int, rotary: Rotary) -> None:
        super().__init__()
        self.layer, self.rotary, self.count, self.key_heads = (
            layer,
            rotary,
            c.num_attention_heads,
            c.key_heads,
        )
        self.q_proj = nn.Linear(c.hidden_size, self.count * c.features, bias=c.attention_bias)
        self.k_proj = nn.Linear(c.hidden_size, self.key_heads * c.features, bias=c.attention_bias)
        self.v_proj = nn.Linear(c.hidden_size, self.key_heads * c.features, bias=c.attention_bias)
        self.o_proj = nn.Linear(self.count * c.features, c.hidden_size, bias=c.attention_bias)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        q = self.rotary.turned(heads(self.q_proj(x), self.count), positions)
        k = self.rotary.turned(heads(self.k_proj(x), self.key_heads), positions)
        v = heads(self.v_proj(x), self.key_heads)
        return self.o_proj(attend(q, k, v, positions, cache, self.layer))


def gated_mlp(c: LlamaConfig) -> GatedMLP:
    """The MLP of a layer, with SiLU."""
    return GatedMLP(c.hidden_size, c.intermediate_size, F.silu, c.mlp_bias)


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: LlamaConfig, attention: nn.Module, mlp: nn.Module) -> None:
        super().__init__()
        self.self_attn, self.mlp = attention, mlp
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """norm(layers(embedding[ids])).   Shapes: (b, t) -> (b, t, e)."""

    def __init__(self, c: LlamaConfig, layer: Callable[[Any, int, Rotary], Layer]) -> None:
        super().__init__()
        rotary = Rotary.of(vars(c), c.features, c.max_position_embeddings)
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([layer(c, k, rotary) for k in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, positions, cache)
        return self.norm(x)


class Llama(Decoder):
    """A Llama with a head for the next token."""

    kinds = ("llama", "mistral")
    config = LlamaConfig

    @staticmethod
    def layer(c: Any, k: int, rotary: Rotary) -> Layer:
        """The layer of that number."""
        return Layer(c, Attention(c, k, rotary), gated_mlp(c))

    def __init__(self, c: LlamaConfig) -> None:
        super().__init__(c.num_hidden_layers, c.key_heads, c.features)
        self.vocabulary, self.longest = c.vocab_size, c.max_position_embeddings
        self.model = Trunk(c, self.layer)
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.model.embed_tokens.weight

    @property
    def embedding(self) -> nn.Embedding:
        return self.model.embed_tokens

    def hidden(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        return self.model(ids, positions, cache)
