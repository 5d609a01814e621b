"""Multi-head attention."""

from __future__ import annotations

import math

from weft.core import functional as F
from weft.core.creation import empty
from weft.core.elementwise import where
from weft.core.tensor import Tensor
from weft.errors import ArgumentError, ShapeError
from weft.ir.dtypes import DType, bool_
from weft.ir.graph import Shape
from weft.ir.index import Int
from weft.nn import init
from weft.nn.linear import Linear
from weft.nn.module import Module, Parameter


class MultiheadAttention(Module):
    """out = concat(head_1 ... head_h) @ Wo.T + bo, where head_i = softmax(q_i @ k_i.T / sqrt(d) + mask) @ v_i

    and q_i, k_i, v_i are slices of width d = embed_dim / num_heads of query @ Wq.T + bq and so on.

    Shapes: query (L, n, embed_dim), key (S, n, kdim), value (S, n, vdim) -> (L, n, embed_dim) and, with need_weights,
    the softmax (n, L, S), averaged over heads unless average_attn_weights is false: (n, num_heads, L, S). With
    batch_first n comes first; n may be left out. Masks: key_padding_mask (n, S), attn_mask (L, S) or
    (n * num_heads, L, S); true means "not allowed", floats are added. Source: Vaswani et al. 2017, arXiv:1706.03762.

    >>> attention = weft.nn.MultiheadAttention(64, 8, batch_first=True)
    >>> x = weft.randn(2, 10, 64)
    >>> attention(x, x, x)[0].shape
    (2, 10, 64)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        if num_heads < 1 or embed_dim % num_heads:
            raise ArgumentError(f"MultiheadAttention: {num_heads} heads do not divide embed_dim {embed_dim}")
        self.embed_dim, self.num_heads, self.dropout, self.batch_first = (
            embed_dim,
            num_heads,
            dropout,
            batch_first,
        )
        self.kdim, self.vdim = kdim or embed_dim, vdim or embed_dim
        packed = self.kdim == self.vdim == embed_dim

        def weight(rows: int, columns: int, present: bool) -> Parameter | None:
            return Parameter(empty(rows, columns, device=device, dtype=dtype)) if present else None

        self.in_proj_weight = weight(3 * embed_dim, embed_dim, packed)
        self.q_proj_weight = weight(embed_dim, embed_dim, not packed)
        self.k_proj_weight = weight(embed_dim, self.kdim, not packed)
        self.v_proj_weight = weight(embed_dim, self.vdim, not packed)
        self.in_proj_bias = Parameter(empty(3 * embed_dim, device=device, dtype=dtype)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        for w in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if w is not None:
                init.xavier_uniform_(w)
        self.out_proj.reset_parameters()
        for b in (self.in_proj_bias, self.out_proj.bias):
            if b is not None:
                init.zeros_(b)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        if is_causal and attn_mask is None:
            raise ArgumentError("MultiheadAttention: is_causal says what attn_mask is, so it needs attn_mask")
        batched = query.ndim == 3
        if not batched and query.ndim != 2:
            raise ShapeError(
                f"MultiheadAttention: query must have 2 or 3 dimensions, got shape {tuple(query.shape)}"
            )
        q, k, v = (self._batch_first(x, batched) for x in (query, key, value))
        n, length, size = q.shape[0], q.shape[1], k.shape[1]
        q, k, v = (self._heads(x) for x in self._project(q, k, v))
        mask = self._mask(attn_mask, key_padding_mask, n, length, size)
        dropout = self.dropout if self.training else 0.0
        weights: Tensor | None = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * (1 / math.sqrt(self.embed_dim // self.num_heads))
            weights = F.softmax(scores if mask is None else scores + mask, -1)
            weights = F.dropout(weights, dropout) if dropout else weights
            heads = weights @ v
        else:
            heads = F.scaled_dot_product_attention(q, k, v, mask, dropout)
        out = self.out_proj(heads.transpose(1, 2).reshape((n, length, self.embed_dim)))
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        if not batched:
            return out.squeeze(0), weights
        return (out if self.batch_first else out.transpose(0, 1)), weights

    def _batch_first(self, x: Tensor, batched: bool) -> Tensor:
        if not batched:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _project(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        if self.in_proj_weight is not None:
            weights = self.in_proj_weight.chunk(3)
        else:
            weights = [
                w for w in (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight) if w is not None
            ]
        biases = (None, None, None) if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        return [F.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True)]

    def _heads(self, x: Tensor) -> Tensor:
        """(n, length, embed_dim) -> (n, heads, length, d)"""
        n, length, _ = x.shape
        return x.reshape((n, length, self.num_heads, self.embed_dim // self.num_heads)).transpose(1, 2)

    def _mask(
        self, attn: Tensor | None, padding: Tensor | None, n: Int, length: Int, size: Int
    ) -> Tensor | None:
        """What to add to the scores (n, heads, L, S)."""
        total: Tensor | None = None
        if attn is not None:
            _check_shape("attn_mask", attn, (length, size), (n * self.num_heads, length, size))
            total = _added(attn if attn.ndim == 2 else attn.reshape((n, self.num_heads, length, size)))
        if padding is not None:
            _check_shape("key_padding_mask", padding, (n, size), (size,))
            rows = _added(padding.reshape((n, 1, 1, size)))
            total = rows if total is None else total + rows
        return total


def _check_shape(name: str, mask: Tensor, *shapes: Shape) -> None:
    if mask.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ShapeError(f"MultiheadAttention: {name} must have shape {expected}, got {tuple(mask.shape)}")


def _added(mask: Tensor) -> Tensor:
    """A mask as what to add to scores: -inf where a bool one is true."""
    return where(mask, -math.inf, 0.0) if mask.dtype is bool_ else mask
