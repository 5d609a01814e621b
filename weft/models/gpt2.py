"""GPT-2: learned positions, norms before each half of a layer.

    x = x + attention(norm(x));  x = x + mlp(norm(x))

Source: Radford et al. 2019; names as in transformers' GPT2LMHeadModel, whose matrices stand transposed.
"""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import weft
import weft.nn.functional as F
from weft import Tensor, nn
from weft.lazy_dataclass import dataclass
from weft.models.attention import attend, heads
from weft.models.cache import Cache, Positions
from weft.models.config import Config
from weft.models.decoder import Decoder


@dataclass(frozen=True)
class GPT2Config(Config):
    """The sizes of a GPT-2."""

    vocab_size: int
    n_embd: int
    n_layer: int
    n_head: int
    n_positions: int = 1024
    n_inner: int | None = None
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "activation_function": ("gelu_new",), "reorder_and_upcast_attn": (False, True), "add_cross_attention": (False,),
    }  # fmt: skip


class Conv1D(nn.Module):
    """x @ weight + bias.   Shapes: (..., i) -> (..., o), weight (i, o)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(weft.randn(inputs, outputs) * 0.02)
        self.bias = nn.Parameter(weft.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class Attention(nn.Module):
    """c_proj(attention(q, k, v)), (q, k, v) = c_attn(x).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: GPT2Config, layer: int) -> None:
        super().__init__()
        self.layer, self.count = layer, c.n_head
        self.scale = (c.n_embd // c.n_head) ** -0.5 if c.scale_attn_weights else 1.0
        if c.scale_attn_by_inverse_layer_idx:
            self.scale /= layer + 1
        self.c_attn = Conv1D(c.n_embd, 3 * c.n_embd)
        self.c_proj = Conv1D(c.n_embd, c.n_embd)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        q, k, v = (heads(part, self.count) for part in self.c_attn(x).chunk(3, -1))
        return self.c_proj(attend(q, k, v, positions, cache, self.layer, scale=self.scale))


class MLP(nn.Module):
    """c_proj(gelu(c_fc(x))).   Shapes: (..., e) -> same."""

    def __init__(self, features: int, inner: int) -> None:
        super().__init__()
        self.c_fc = Conv1D(features, inner)
        self.c_proj = Conv1D(inner, features)

    def forward(self, x: Tensor) -> Tensor:
        return self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))


class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).   Shapes: (b, t, e) -> same."""

    def __init__(self, c: GPT2Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(c.n_embd, eps=c.layer_norm_epsilon)
        self.attn = Attention(c, layer)
        self.ln_2 = nn.LayerNorm(c.n_embd, eps=c.layer_norm_epsilon)
        self.mlp = MLP(c.n_embd, c.n_inner or 4 * c.n_embd)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = x + self.attn(self.ln_1(x), positions, cache)
        return x + self.mlp(self.ln_2(x))


class Trunk(nn.Module):
    """norm(layers(token[ids] + position[at])).   Shapes: (b, t) -> (b, t, e)."""

    def __init__(self, c: GPT2Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(c.vocab_size, c.n_embd)
        self.wpe = nn.Embedding(c.n_positions, c.n_embd)
        self.h = nn.ModuleList([Layer(c, k) for k in range(c.n_layer)])
        self.ln_f = nn.LayerNorm(c.n_embd, eps=c.layer_norm_epsilon)

    def forward(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        x = self.wte(ids) + self.wpe(positions.at)
        for layer in self.h:
            x = layer(x, positions, cache)
        return self.ln_f(x)


class GPT2(Decoder):
    """A GPT-2 with a head for the next token."""

    kinds = ("gpt2",)
    config = GPT2Config

    def __init__(self, c: GPT2Config) -> None:
        super().__init__(c.n_layer, c.n_head, c.n_embd // c.n_head)
        self.vocabulary, self.longest = c.vocab_size, c.n_positions
        self.transformer = Trunk(c)
        self.lm_head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        if c.tie_word_embeddings:
            self.lm_head.weight = self.transformer.wte.weight

    @property
    def embedding(self) -> nn.Embedding:
        return self.transformer.wte

    def hidden(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        return self.transformer(ids, positions, cache)
