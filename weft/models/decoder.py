"""The base of decoders: ids to logits, with or without a cache of keys and values."""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from functools import partial
from typing import Any, Self

import weft
from weft import DType, Tensor, nn
from weft.autograd import checkpoint
from weft.errors import ArgumentError, DTypeError
from weft.models.cache import Cache, Positions, tokens
from weft.models.pretrained_module import PretrainedModule
from weft.models.resting import Resting


class Decoder(PretrainedModule):
    """Logits of the token after each: (b, t) of int -> (b, t, vocabulary).

    A subclass defines `hidden`, the last features, and `embedding`; `head` makes logits of these.
    """

    left_out = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")  # tables, in old files
    vocabulary: int
    longest: int
    lm_head: nn.Linear
    cache_dtype: DType | None = None
    """The dtype of caches; None: that of the weights."""

    @property
    def embedding(self) -> nn.Embedding:
        """The table of features of ids, which `lm_head` may share."""
        raise NotImplementedError

    def __init__(self, layers: int, key_heads: int, features: int) -> None:
        super().__init__()
        self._kept = layers, key_heads, features
        self.resting = Resting()

    def cache(self, batch: int, size: int) -> Cache:
        """Room for the keys and values of `size` tokens of `batch` sequences, in `cache_dtype`; see `Cache`."""
        layers, key_heads, features = self._kept
        weight = next(self.parameters())
        dtype = self.cache_dtype or weight.dtype
        return Cache(layers, batch, key_heads, size, features, dtype=dtype, device=str(weight.device))

    def checkpoint_layers(self, on: bool = True) -> Self:
        """Have each layer computed again for gradients, so that training keeps what goes into layers and no more.

        Source: Chen et al. 2016, arXiv:1604.06174.
        """
        layers = next(m for m in self.modules() if isinstance(m, nn.ModuleList))
        for layer in layers:
            if "forward" in vars(layer):
                del layer.forward
            if on:
                layer.forward = partial(checkpoint, layer.forward)
        return self

    def forward(
        self,
        ids: Tensor,
        cache: Cache | None = None,
        counts: Tensor | None = None,
        first: bool = False,
        last: bool = False,
    ) -> Tensor:
        """Logits. `cache`: the tokens come behind those in it, and are added. `counts`, (b,): how many tokens of each
        sequence are meant, those behind being none. `first`: nothing is in the cache yet. `last`: of the last token of
        each sequence only, (b, 1, vocabulary)."""
        count = tokens(ids)
        if ids.dtype.is_float:
            raise DTypeError(f"{type(self).__name__}: needs ids of integers, got {ids.dtype.name}")
        if cache is None and (first or counts is not None):
            raise ArgumentError(
                f"{type(self).__name__}: `first` and `counts` are about a cache, and there is none"
            )
        positions = Positions.of(ids) if cache is None else cache.positions(ids, counts, first)
        x = self.hidden(ids, positions, cache)
        if cache is not None:
            cache.advance(count if counts is None else counts)
        if last and counts is not None:
            at = (counts - 1).clamp(min=0)[:, None, None]
            x = x.gather(1, at.expand(x.shape[0], 1, x.shape[2]))
        return self.head(x[:, -1:] if last else x)

    def hidden(self, ids: Tensor, positions: Positions, cache: Cache | None) -> Tensor:
        """The features that the head reads: (b, t) -> (b, t, e)."""
        raise NotImplementedError

    def head(self, x: Tensor) -> Tensor:
        """Logits of features: (b, t, e) -> (b, t, vocabulary)."""
        return self.lm_head(x)


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, or * (1 + weight): computed in float32.   Shapes: (..., e) -> same."""

    def __init__(self, features: int, eps: float, shifted: bool = False) -> None:
        super().__init__()
        self.eps, self.shifted = eps, shifted
        self.weight = nn.Parameter(weft.zeros(features) if shifted else weft.ones(features))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * weft.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        if self.shifted:
            return (wide * (1 + self.weight.float())).to(x.dtype)
        return self.weight * wide.to(x.dtype)


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x)).   Shapes: (..., e) -> same. Source: Shazeer 2020, arXiv:2002.05202."""

    def __init__(self, features: int, inner: int, act: Any, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(features, inner, bias=bias)
        self.up_proj = nn.Linear(features, inner, bias=bias)
        self.down_proj = nn.Linear(inner, features, bias=bias)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))
