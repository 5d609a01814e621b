"""Attention: of decoders, several query heads share a key head and tokens see what comes before them."""
# Tests: tests/models/test_decoders.py

from __future__ import annotations

from typing import Any

import weft.nn.functional as F
from weft import Tensor
from weft.models.cache import Cache, Positions


def heads(x: Tensor, count: int) -> Tensor:
    """Features as heads.   Shapes: (b, t, h * e) -> (b, h, t, e)."""
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


def mix(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, **how: Any) -> Tensor:
    """softmax(mask(query @ key.T * scale)) @ value, the heads side by side.

    `mask`: True where a query sees a key, broadcast to (b, h, t, s). `how`: further arguments of
    `scaled_dot_product_attention`. Shapes: query (b, h, t, e), key and value (b, h, s, e) -> (b, t, h * e).
    """
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, **how).transpose(1, 2).flatten(2)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    positions: Positions,
    cache: Cache | None,
    layer: int,
    *,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """softmax(mask(query @ key.T * scale)) @ value, with the keys and values of a cache's layer.

    `window`: how many tokens a token sees, itself included.
    Shapes: query (b, h, t, e), key and value (b, g, t, e), g dividing h -> (b, t, h * e).
    """
    if cache is not None:
        key, value = cache.add(layer, key, value, positions)
    mask = positions.mask(window)
    shared = query.shape[1] != key.shape[1]
    return mix(query, key, value, mask, is_causal=mask is None, scale=scale, enable_gqa=shared)
