"""Attention, as its formula; the compiler makes one kernel of it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from weft.core.elementwise import where
from weft.core.functional.activations import softmax
from weft.core.functional.dropout import dropout
from weft.core.handle import value_of, wrap
from weft.core.matmul import matmul
from weft.core.movement import positions, repeat_interleave, transpose
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import bool_, int32
from weft.ir.index import Index

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value.

    Shapes: query (..., L, E), key (..., S, E), value (..., S, Ev), mask broadcastable to (..., L, S) -> (..., L, Ev).
    A bool mask is true where attention is allowed; is_causal allows position i to see positions <= i. scale is
    1 / sqrt(E) unless given. enable_gqa lets several query heads (dimension -3) share a key head.
    Source: Vaswani et al. 2017, arXiv:1706.03762.
    """
    q, k, v = (value_of("scaled_dot_product_attention", t).shape for t in (query, key, value))
    if min(len(q), len(k), len(v)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ShapeError(
            f"scaled_dot_product_attention: shapes of query {tuple(q)}, key {tuple(k)} and value {tuple(v)} "
            "do not fit; they must be (..., L, E), (..., S, E) and (..., S, Ev)"
        )
    if is_causal and attn_mask is not None:
        raise ArgumentError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if enable_gqa:
        key, value = _shared_heads(query, key), _shared_heads(query, value)
    if scale is None:
        if isinstance(q[-1], Index):
            raise ArgumentError(
                "scaled_dot_product_attention: give the scale, since the last size of query is not known"
            )
        scale = 1.0 / math.sqrt(q[-1]) if q[-1] else 1.0
    scores = matmul(query, transpose(key, -2, -1)) * scale
    if is_causal:
        grid = (q[-2], k[-2])
        allowed = wrap(positions(grid, 1, int32)) <= wrap(positions(grid, 0, int32))
        scores = where(allowed, scores, -math.inf)
    elif attn_mask is not None:
        mask = value_of("scaled_dot_product_attention", attn_mask)
        scores = where(attn_mask, scores, -math.inf) if mask.dtype is bool_ else scores + attn_mask
    weights = softmax(scores, -1)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    return matmul(weights, value)


def _shared_heads(query: Tensor, shared: Tensor) -> Tensor:
    """Each head of `shared` repeated for the query heads that use it."""
    many, few = query.value.shape[-3], shared.value.shape[-3]
    if not isinstance(many, int) or not isinstance(few, int) or not few or many % few:
        raise ShapeError(
            f"scaled_dot_product_attention: {many} query heads cannot share {few} key heads evenly"
        )
    return shared if many == few else repeat_interleave(shared, many // few, -3)
