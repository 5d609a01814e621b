"""Gemma 3: norms before and after each half of a layer, most layers seeing a window of tokens only.

    x = x + norm(attention(norm(x)));  x = x + norm(mlp(norm(x)))

Layers with a window turn by their own angles. Embeddings are scaled by sqrt(e), and are the head's weights.
Source: Gemma Team 2025, arXiv:2503.19786; names as in transformers' Gemma3ForCausalLM.
"""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.models.attention import attend, heads
from weft.models.cache import Cache, Positions
from weft.models.config import Config
from weft.models.decoder import Decoder, GatedMLP, RMSNorm
from weft.models.rotary import Rotary

SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True)
class Gemma3Config(Config):
    """The sizes of a Gemma 3 for text."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int = 256
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-6
    query_pre_attn_scalar: float = 256
    sliding_window: int = 4096
    sliding_window_pattern: int = 6
    layer_types: tuple[str, ...] | list[str] | None = None
    rope_theta: float = 1_000_000.0
    rope_local_base_freq: float = 10_000.0
    rope_scaling: Mapping[str, Any] | None = None
    rope_parameters: Mapping[str, Any] | None = None
    attention_bias: bool = False
    tie_word_embeddings: bool = True
    attn_logit_softcapping: float | None = None
    final_logit_softcapping: float | None = None

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "hidden_activation": ("gelu_pytorch_tanh",), "use_bidirectional_attention": (False,),
        "attn_logit_softcapping": (None,),
    }  # fmt: skip
    aliases: ClassVar[Mapping[str, str]] = {"_sliding_window_pattern": "sliding_window_pattern"}

    def __post_init__(self) -> None:
        self.refuse("layer_types", set(self.layer_types or ()) - {SLIDING, FULL})

    def slides(self, layer: int) -> bool:
        """True for a layer with a window."""
        if self.layer_types is not None:
            return self.layer_types[layer] == SLIDING
        return (layer + 1) % self.sliding_window_pattern != 0

    def rotary(self, slides: bool) -> Rotary:
        """The rotation of queries and keys in layers with a window, or in others."""
        if self.rope_parameters is not None:
            values: Mapping[str, Any] = {"rope_parameters": self.rope_parameters[SLIDING if slides else FULL]}
        elif slides:
            values = {"rope_theta": self.rope_local_base_freq}
        else:
            values = {"rope_theta": self.rope_theta, "rope_scaling": self.rope_scaling}
        return Rotary.of(values, self.head_dim, self.max_position_embeddings)


class Attention(nn.Module):
    """o(attention(turn(norm(q(x))), turn(norm(k(x))), v(x))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Gemma3Config, layer: int) -> None:
        super().__init__()
        self.layer, self.count, self.key_heads = layer, c.num_attention_heads, c.num_key_value_heads
        self.rotary, self.scale = c.rotary(c.slides(layer)), c.query_pre_attn_scalar**-0.5
        self.window = c.sliding_window if c.slides(layer) else None
        self.q_proj = nn.Linear(c.hidden_size, self.count * c.head_dim, bias=c.attention_bias)
        self.k_proj = nn.Linear(c.hidden_size, self.key_heads * c.head_dim, bias=c.attention_bias)
        self.v_proj = nn.Linear(c.hidden_size, self.key_heads * c.head_dim, bias=c.attention_bias)
        self.o_proj = nn.Linear(self.count * c.head_dim, c.hidden_size, bias=c.attention_bias)
        self.q_norm = RMSNorm(c.head_dim, c.rms_norm_eps, shifted=True)
        self.k_norm = RMSNorm(c.head_dim, c.rms_norm_eps, shifted=True)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        q = self.rotary.turned(self.q_norm(heads(self.q_proj(x), self.count)), positions)
        k = self.rotary.turned(self.k_norm(heads(self.k_proj(x), self.key_heads)), positions)
        v = heads(self.v_proj(x), self.key_heads)
        return self.o_proj(
            attend(q, k, v, positions, cache, self.layer, scale=self.scale, window=self.window)
        )


class Layer(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: Gemma3Config, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(c, layer)
        self.mlp = GatedMLP(c.hidden_size, c.intermediate_size, partial(F.gelu, approximate="tanh"))
        norm = partial(RMSNorm, c.hidden_size, c.rms_norm_eps, shifted=True)
        self.input_layernorm, self.post_attention_layernorm = norm(), norm()
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = norm(), norm()

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x), positions, cache))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Trunk(nn.Module):
    """norm(layers(embedding[ids] * sqrt(e))).   Shapes: (b, t) -> (b, t, e)."""

    def __init__(self, c: Gemma3Config) -> None:
        super().__init__()
        self.scale = c.hidden_size**0.5
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList([Layer(c, k) for k in range(c.num_hidden_layers)])
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps, shifted=True)

    def forward(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = self.embed_tokens(ids)
        x = x * weft.tensor(
            self.scale, dtype=x.dtype, device=x.device
        )  # rounded to the dtype, as it was trained
        for layer in self.layers:
            x = layer(x, positions, cache)
        return self.norm(x)


class Gemma3(Decoder):
    """A Gemma 3 with a head for the next token."""

    kinds = ("gemma3_text",)
    config = Gemma3Config

    def __init__(self, c: Gemma3Config) -> None:
        super().__init__(c.num_hidden_layers, c.num_key_value_heads, c.head_dim)
        self.vocabulary, self.longest, self.cap = (
            c.vocab_size,
            c.max_position_embeddings,
            c.final_logit_softcapping,
        )
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
        logits = self.lm_head(x)
        return logits if self.cap is None else weft.tanh(logits / self.cap) * self.cap
