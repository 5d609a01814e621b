"""Multi-head attention."""
# Tests: tests/nn/test_recurrent.py

from __future__ import annotations

from weft.core.functional.attention import Masks, Projections, multi_head
from weft.core.layout.creation import empty
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.ir.dtypes import DType
from weft.nn import init
from weft.nn.linear import Linear
from weft.nn.module import Module, Parameter


class MultiheadAttention(Module):
    """out = concat(head_1 ... head_h) @ Wo.T + bo, where head_i = softmax(q_i @ k_i.T / sqrt(d) + mask) @ v_i

    and q_i, k_i, v_i are slices of width d = embed_dim / num_heads of query @ Wq.T + bq and so on.

    Shapes: query (L, n, embed_dim), key (S, n, kdim), value (S, n, vdim) -> (L, n, embed_dim) and, with need_weights,
    the softmax (n, L, S), averaged over heads unless average_attn_weights is false: (n, num_heads, L, S). With
    batch_first n comes first; n may be left out. Masks: key_padding_mask (n, S), attn_mask (L, S) or
    (n * num_heads, L, S); true means "not allowed", floats are added. add_bias_kv adds a learned key and value,
    add_zero_attn one of zeros, that every query sees. Source: Vaswani et al. 2017, arXiv:1706.03762.

    >>> attention = weft.nn.MultiheadAttention(64, 8, batch_first=True)
    >>> x = weft.randn(2, 10, 64)
    >>> attention(x, x, x)[0].shape
    weft.Size([2, 10, 64])
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: str | None = None,
        dtype: DType | None = None,
    ) -> None:
        super().__init__()
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

        if packed:
            self.register_parameter("in_proj_weight", weight(3 * embed_dim, embed_dim, packed))
        self.register_parameter("q_proj_weight", weight(embed_dim, embed_dim, not packed))
        self.register_parameter("k_proj_weight", weight(embed_dim, self.kdim, not packed))
        self.register_parameter("v_proj_weight", weight(embed_dim, self.vdim, not packed))
        if not packed:
            self.register_parameter("in_proj_weight", None)
        self.register_parameter(
            "in_proj_bias", Parameter(empty(3 * embed_dim, device=device, dtype=dtype)) if bias else None
        )
        self.bias_k = Parameter(empty(1, 1, embed_dim, device=device, dtype=dtype)) if add_bias_kv else None
        self.bias_v = Parameter(empty(1, 1, embed_dim, device=device, dtype=dtype)) if add_bias_kv else None
        self.add_zero_attn = add_zero_attn
        self.out_proj = Linear(embed_dim, embed_dim, bias, device=device, dtype=dtype)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        for w in (self.in_proj_weight, self.q_proj_weight, self.k_proj_weight, self.v_proj_weight):
            if w is not None:
                init.xavier_uniform_(w)
        self.out_proj.reset_parameters()
        for b in (self.bias_k, self.bias_v):
            if b is not None:
                init.xavier_normal_(b)
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
        separate = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        weights = Projections(
            self.embed_dim, self.num_heads, self.in_proj_weight, self.in_proj_bias, self.out_proj.weight,
            self.out_proj.bias, separate if self.in_proj_weight is None else None, self.bias_k, self.bias_v,
            self.add_zero_attn,
        )  # fmt: skip
        masks = Masks(attn_mask, key_padding_mask, is_causal)
        shown = ("mean" if average_attn_weights else "heads") if need_weights else ""
        drop = self.dropout if self.training else 0.0
        return multi_head(query, key, value, weights, masks, drop, shown, self.batch_first)
