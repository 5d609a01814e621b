"""Qwen3: a Llama whose queries and keys are normalized in each head.

Source: Yang et al. 2025, arXiv:2505.09388; names as in transformers' Qwen3ForCausalLM.
"""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from weft import Tensor
from weft.lazy_dataclass import dataclass
from weft.models.attention import attend, heads
from weft.models.cache import Cache, Positions
from weft.models.decoder import RMSNorm
from weft.models.llama import Attention, Layer, Llama, LlamaConfig, gated_mlp
from weft.models.rotary import Rotary


@dataclass(frozen=True)
class Qwen3Config(LlamaConfig):
    """The sizes of a Qwen3."""

    head_dim: int | None = 128
    max_position_embeddings: int = 32768
    layer_types: tuple[str, ...] | list[str] | None = None

    only: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "hidden_act": ("silu",), "use_sliding_window": (False,), "sliding_window": (None,),
    }  # fmt: skip

    def __post_init__(self) -> None:
        self.refuse("layer_types", set(self.layer_types or ()) - {"full_attention"})


class NormedAttention(Attention):
    """As Llama's, with norm(q) and norm(k) in each head before they are turned."""

    def __init__(self, c: LlamaConfig, layer: int, rotary: Rotary) -> None:
        super().__init__(c, layer, rotary)
        self.q_norm = RMSNorm(c.features, c.rms_norm_eps)
        self.k_norm = RMSNorm(c.features, c.rms_norm_eps)

    def forward(self, x: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        q = self.rotary.turned(self.q_norm(heads(self.q_proj(x), self.count)), positions)
        k = self.rotary.turned(self.k_norm(heads(self.k_proj(x), self.key_heads)), positions)
        v = heads(self.v_proj(x), self.key_heads)
        return self.o_proj(attend(q, k, v, positions, cache, self.layer))


class Qwen3(Llama):
    """A Qwen3 with a head for the next token."""

    kinds = ("qwen3",)
    config = Qwen3Config

    @staticmethod
    def layer(c: Any, k: int, rotary: Rotary) -> Layer:
        return Layer(c, NormedAttention(c, k, rotary), gated_mlp(c))
