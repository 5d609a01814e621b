"""Attention, as its formula; the compiler makes one kernel of it."""
# Tests: tests/core/functional/test_attention.py, tests/nn/test_functional.py, tests/core/functional/test_index_masks.py

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.autograd.context import grad_enabled
from weft.autograd.ops import reshape
from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.handle import value_of, wrap
from weft.core.composed.autocast import lowers
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.execute.devices import has_values
from weft.core.functional.activations import softmax
from weft.core.functional.attention_gradient import (
    Blocked,
    Blocks,
    Part,
    are_few,
    blocks_of,
    exponentials,
    with_gradient_by_blocks,
)
from weft.core.functional.dropouts import dropout
from weft.core.functional.linear_maps import linear
from weft.core.functions.matmul import matmul
from weft.core.functions.reductions import reduce
from weft.core.layout.gather import repeat_interleave
from weft.core.layout.movement import cat, chunk, positions, transpose
from weft.core.pointwise.elementwise import exp, ne, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import bool_, int32
from weft.ir.graph import Shape
from weft.ir.index import Index, Int
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@lowers
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
    if dropout_p > 0.0:
        return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
    inputs = [t for t in (query, key, value, attn_mask) if t is not None]
    if grad_enabled() and any(t.value.needs_grad for t in inputs):
        blocks = blocks_of(*(t.value for t in inputs))
        if blocks is not None:
            return _attention_by_blocks(inputs, is_causal, scale, blocks)
    return _attention_of_all(query, key, value, attn_mask, 0.0, is_causal, scale)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Scaled dot product attention on shapes that fit."""
    rows = _positions(query.value) if is_causal else None
    weights = _weights(query, key, attn_mask, rows, scale)
    if dropout_p > 0.0:
        weights = dropout(weights, dropout_p)
    # rounded once more, which is what units for matrices take
    return matmul(wrap(bc.cast(weights.value, query.value.dtype)), value)


def _attention_by_blocks(inputs: Sequence[Tensor], is_causal: bool, scale: float, blocks: Blocks) -> Tensor:
    """Attention on query, key, value and maybe a mask, with gradients by blocks of the scores.

    It is no composite function: how many blocks there are is no polynomial of the sizes."""

    def scores(part: Part) -> tuple[Value, Value | None]:
        mask = None if part.mask is None else wrap(part.mask)
        found, allowed = _scores(wrap(part.q), wrap(part.k), mask, part.rows, part.columns, scale)
        return found.value, None if allowed is None else allowed.value

    def formula(q: Value, k: Value, v: Value, mask: Value | None) -> Value:
        return _attention(
            wrap(q), wrap(k), wrap(v), None if mask is None else wrap(mask), 0.0, is_causal, scale
        ).value

    values = [t.value for t in inputs]
    q, k, v, mask = (
        [Value(x.node) for x in values] if len(values) == 4 else (*(Value(x.node) for x in values), None)
    )
    columns = transpose(wrap(_positions(k)), -2, -1).value if is_causal else None
    s, allowed = scores(Part(q, k, mask, _positions(q) if is_causal else None, columns))
    e, total, statistics = exponentials(s)
    if allowed is not None:
        e = where(wrap(allowed), wrap(e), 0.0).value
    weights = wrap(e) / wrap(bc.expand(total, e.shape))
    result = matmul(wrap(bc.cast(weights.value, q.dtype)), wrap(v)).value
    blocked = Blocked(blocks, scores, scale, is_causal)
    return wrap(with_gradient_by_blocks(result, statistics, values, blocked, formula))


def _positions(query: Value) -> Value:
    """The positions of queries, as a column."""
    n = query.shape[-2]
    return reshape(positions((n,), 0, int32), (n, 1))


def _weights(query: Tensor, key: Tensor, mask: Tensor | None, rows: Value | None, scale: float) -> Tensor:
    """softmax(query @ key.T * scale + mask); `rows`, the positions of queries as a column, for a causal mask."""
    columns = None if rows is None else transpose(wrap(_positions(key.value)), -2, -1).value
    scores, allowed = _scores(query, key, mask, rows, columns, scale)
    if mask is None or allowed is None:
        return softmax(scores, -1)
    x = scores.value
    over = (len(x.shape) - 1,)
    top = Value(reduce(Op.REDUCE_MAX, x, over, keepdim=True).node) if x.shape[-1] != 0 else x
    e = exp(wrap(x) - wrap(bc.expand(top, x.shape)))
    total = wrap(bc.expand(reduce(Op.SUM, e.value, over, keepdim=True), x.shape))
    return where(allowed, e, 0.0) / total


def _scores(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    rows: Value | None,
    columns: Value | None,
    scale: float,
) -> tuple[Tensor, Tensor | None]:
    """query @ key.T * scale + mask, and where attention is allowed, if not everywhere. For a causal mask, `rows` are
    the positions of queries as a column, and `columns` those of keys as a row."""
    scores = _wide_product(query, transpose(key, -2, -1)) * scale
    if mask is not None:
        return _masked(scores, mask)
    if rows is None or columns is None:
        return scores, None
    grid = scores.value.shape[-2:]
    allowed = wrap(bc.expand(columns, grid)) <= wrap(bc.expand(rows, grid))
    return where(allowed, scores, -math.inf), allowed


def _wide_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, of 16-bit floats in float32: scores need not fit the smaller range."""
    same = x.value.dtype is y.value.dtype
    return matmul(wrap(widened(x.value)), wrap(widened(y.value))) if same else matmul(x, y)


_attention_of_all = composite(rounds_once=False)(_attention)
"""Without dropout, it follows from its arguments."""


def _masked(scores: Tensor, attn_mask: Tensor) -> tuple[Tensor, Tensor]:
    """The scores under a mask, and where it allows attention. A row that may see nothing gives zeros (as torch has it),
    and no NaN in gradients."""
    mask = value_of("scaled_dot_product_attention", attn_mask)
    bc.same_device("scaled_dot_product_attention", (scores.value, mask))
    if not (mask.dtype is bool_ or mask.dtype.is_float):
        raise DTypeError(
            f"scaled_dot_product_attention: attn_mask must be bool or float, got {mask.dtype.name}; "
            "compare it with something, as in mask != 0"
        )
    bc.broadcast_shape("scaled_dot_product_attention", (scores.value.shape, mask.shape))
    # A finite number stands for -inf, so that no difference is a NaN; the weights of what is not allowed are exactly 0.
    least = -1e30
    if mask.dtype is bool_:
        return where(attn_mask, scores, least), attn_mask
    allowed = ne(wrap(Value(mask.node)), -math.inf)
    return where(allowed, scores + wrap(bc.cast(mask, scores.value.dtype)), least), allowed


def _shared_heads(query: Tensor, shared: Tensor) -> Tensor:
    """Each head of `shared` repeated for the query heads that use it."""
    many, few = query.value.shape[-3], shared.value.shape[-3]
    if not isinstance(many, int) or not isinstance(few, int) or not few or many % few:
        raise ShapeError(
            f"scaled_dot_product_attention: {many} query heads cannot share {few} key heads evenly"
        )
    return shared if many == few else repeat_interleave(shared, many // few, -3)


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The function of MultiheadAttention, which describes it; here its weights are arguments.

    Shapes: query (L, n, E), key (S, n, ...), value (S, n, ...), or all without n -> (L, n, E) and, with need_weights,
    (n, L, S), or (n, num_heads, L, S) unless average_attn_weights. static_k and static_v, (n * num_heads, S, d), take
    the place of projected keys and values.
    """
    separate = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None
    weights = Projections(
        embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, separate,
        bias_k, bias_v, bool(add_zero_attn),
    )  # fmt: skip
    masks = Masks(attn_mask, key_padding_mask, is_causal)
    shown = ("mean" if average_attn_weights else "heads") if need_weights else ""
    drop = dropout_p if training else 0.0
    return multi_head(query, key, value, weights, masks, drop, shown, False, static_k, static_v)


@dataclass(frozen=True, slots=True)
class Projections:
    """The weights of multi-head attention, as wide as queries are. `separate`: those of queries, keys and values, which
    `packed` has as one; `zero`: a key and a value of zeros are added."""

    width: int
    heads: int
    packed: Tensor | None
    bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    separate: tuple[Tensor | None, Tensor | None, Tensor | None] | None
    bias_k: Tensor | None
    bias_v: Tensor | None
    zero: bool


@dataclass(frozen=True, slots=True)
class Masks:
    """The masks of scores, and of keys; `is_causal` says what the first one is."""

    scores: Tensor | None
    padding: Tensor | None
    is_causal: bool


def multi_head(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    weights: Projections,
    masks: Masks,
    drop: float,
    shown: str,
    batch_first: bool,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`multi_head_attention_forward`, of batches first or not. `shown`: the weights that are wanted, of all "heads" or
    their "mean"; empty for none."""
    op = "MultiheadAttention"
    q, k, v = (value_of(op, t).shape for t in (query, key, value))
    width, num_heads = weights.width, weights.heads
    batched = len(q) == 3
    if len(q) not in (2, 3) or len(k) != len(q) or len(v) != len(q):
        raise ShapeError(
            f"{op}: query, key and value must all have 3 dimensions, or 2 without a batch; got shapes "
            f"{tuple(q)}, {tuple(k)} and {tuple(v)}"
        )
    if q[-1] != width:
        raise ShapeError(f"{op}: query must have embed_dim {width} as its last size, got {tuple(q)}")
    if num_heads < 1 or width % num_heads:
        raise ArgumentError(f"{op}: {num_heads} heads do not divide embed_dim {width}")
    if masks.is_causal and masks.scores is None:
        raise ArgumentError(f"{op}: is_causal says what attn_mask is, so it needs attn_mask")
    special = weights.separate, weights.bias_k, weights.bias_v, static_k, static_v
    if batched and query is key and key is value and not drop and not weights.zero:
        packed = weights.packed
        if (
            packed is not None
            and all(t is None for t in special)
            and _is_small(query, num_heads, batch_first)
        ):
            made = _self_attention(
                query, packed, weights.bias, weights.out, weights.out_bias, masks.scores, masks.padding, num_heads,
                batch_first, shown,
            )  # fmt: skip
            return made if isinstance(made, tuple) else (made, None)
    # from here on sequences by sequences, (n, L, E)
    if not batched:
        query, key, value = _each_once(lambda t: t.unsqueeze(0), query, key, value)
    elif not batch_first:
        query, key, value = _each_once(lambda t: t.transpose(0, 1), query, key, value)
    n, length = query.value.shape[:2]
    if key.value.shape[:2] != value.value.shape[:2] or key.value.shape[0] != n:
        raise ShapeError(
            f"{op}: key of shape {tuple(k)} and value of shape {tuple(v)} must be equally long, and as many as query"
        )
    if weights.separate is not None:
        biases = [None] * 3 if weights.bias is None else list(chunk(weights.bias, 3))
        parts = [_projected(*p) for p in zip((query, key, value), weights.separate, biases, strict=True)]
    else:
        parts = _packed_projections(query, key, value, weights.packed, weights.bias)
    if weights.bias_k is not None and weights.bias_v is not None:
        parts[1] = cat([parts[1], weights.bias_k.expand(n, 1, width)], 1)
        parts[2] = cat([parts[2], weights.bias_v.expand(n, 1, width)], 1)
    heads = [_heads_of(x, num_heads) for x in parts]
    for i, static in ((1, static_k), (2, static_v)):
        if static is not None:
            heads[i] = static.reshape((n, num_heads, static.value.shape[1], width // num_heads))
    if weights.zero:
        heads[1:] = [cat([x, x[:, :, :1] * 0.0], 2) for x in heads[1:]]
    size = heads[1].value.shape[2]
    extra = (weights.bias_k is not None) + weights.zero
    mask = _attention_mask(masks.scores, masks.padding, n, num_heads, length, size, extra)
    found: Tensor | None = None
    if shown:
        out, found = _with_weights(heads, mask, drop, shown)
        found = found if batched else found.squeeze(0)
    else:
        out = scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, drop)
    out = _joined(out, weights.out, weights.out_bias)
    if not batched:
        return out.squeeze(0), found
    return (out if batch_first else out.transpose(0, 1)), found


def _is_small(x: Tensor, num_heads: int, batch_first: bool) -> bool:
    """True for self-attention whose gradients are not had by blocks of scores, how many there are being no polynomial
    of the sizes."""
    v = x.value
    n, length = v.shape[:2] if batch_first else v.shape[1::-1]
    if not isinstance(n, int) or not isinstance(length, int) or not has_values(v.node.device):
        return False
    return are_few(n * num_heads * length * length, v.dtype, v.node.device)


def _heads_of(x: Tensor, num_heads: int) -> Tensor:
    """(n, L, E) by heads, (n, heads, L, E / heads)."""
    n, length, width = x.value.shape
    return x.reshape((n, length, num_heads, width // num_heads)).transpose(1, 2)


def _scale(queries: Tensor) -> float:
    width = queries.value.shape[-1]
    assert isinstance(width, int)
    return 1 / math.sqrt(width) if width else 1.0


def _with_weights(
    heads: Sequence[Tensor], mask: Tensor | None, drop: float, shown: str
) -> tuple[Tensor, Tensor]:
    """Attention of queries to keys and values by heads, and the weights, of all of these or their mean."""
    scores = _wide_product(heads[0], heads[1].transpose(-2, -1)) * _scale(heads[0])
    found = softmax(scores if mask is None else scores + mask, -1)
    found = wrap(bc.cast(found.value, heads[0].value.dtype))
    found = dropout(found, drop) if drop else found
    return found @ heads[2], found.mean(1) if shown == "mean" else found


def _joined(out: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The results of all heads, (n, heads, L, d), side by side and projected."""
    n, count, length, width = out.value.shape
    return linear(out.transpose(1, 2).reshape((n, length, count * width)), weight, bias)


@composite(rounds_once=False)
def _self_attention(
    x: Tensor,
    in_weight: Tensor,
    in_bias: Tensor | None,
    out_weight: Tensor,
    out_bias: Tensor | None,
    attn_mask: Tensor | None,
    padding_mask: Tensor | None,
    num_heads: int,
    batch_first: bool,
    shown: str,
) -> Tensor | tuple[Tensor, Tensor]:
    """`multi_head` of sequences and themselves as one call."""
    x = x if batch_first else transpose(x, 0, 1)
    n, length, _ = x.value.shape
    q, k, v = (_heads_of(part, num_heads) for part in chunk(linear(x, in_weight, in_bias), 3, -1))
    mask = _attention_mask(attn_mask, padding_mask, n, num_heads, length, length, 0)
    found = None
    if shown:
        out, found = _with_weights((q, k, v), mask, 0.0, shown)
    else:
        out = _attention(q, k, v, mask, 0.0, is_causal=False, scale=_scale(q))
    out = _joined(out, out_weight, out_bias)
    out = out if batch_first else transpose(out, 0, 1)
    return out if found is None else (out, found)


def _each_once(f: Callable[[Tensor], Tensor], *tensors: Tensor) -> tuple[Tensor, ...]:
    """`f` of each tensor: what is the same tensor stays one."""
    made = {id(t): t for t in tensors}
    made = {n: f(t) for n, t in made.items()}
    return tuple(made[id(t)] for t in tensors)


def _projected(x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is None:
        raise ArgumentError("MultiheadAttention: a projection has no weight")
    return linear(x, weight, bias)


def _packed_projections(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None
) -> list[Tensor]:
    """Queries, keys and values by a weight that has the rows of all three, with one product for each tensor."""
    if query is key and key is value:
        return list(chunk(_projected(query, weight, bias), 3, -1))
    weights = [None] * 3 if weight is None else list(chunk(weight, 3))
    biases = [None] * 3 if bias is None else list(chunk(bias, 3))
    if key is not value or weight is None:
        return [_projected(*p) for p in zip((query, key, value), weights, biases, strict=True)]
    rest = slice(weight.value.shape[0] // 3, None)
    both = _projected(key, weight[rest], None if bias is None else bias[rest])
    return [_projected(query, weights[0], biases[0]), *chunk(both, 2, -1)]


def _attention_mask(
    attn: Tensor | None, padding: Tensor | None, n: Int, heads: int, length: Int, size: Int, extra: int
) -> Tensor | None:
    """A mask to add to the scores (n, heads, L, S); the last `extra` keys are the function's, always seen."""
    total: Tensor | None = None
    given = size - extra
    if attn is not None:
        _check_mask("attn_mask", attn, (length, given), (n * heads, length, given))
        total = _added(attn if len(attn.value.shape) == 2 else attn.reshape((n, heads, length, given)))
    if padding is not None:
        _check_mask("key_padding_mask", padding, (n, given), (given,))
        rows = _added(padding.reshape((n, 1, 1, given)))
        total = rows if total is None else total + rows
    if total is not None and extra:
        from weft.core.layout.movement import constant_pad

        total = constant_pad(total, (0, extra))
    return total


def _check_mask(name: str, mask: Tensor, *shapes: Shape) -> None:
    v = value_of("MultiheadAttention", mask)
    if v.shape not in shapes:
        expected = " or ".join(map(str, shapes))
        raise ShapeError(f"MultiheadAttention: {name} must have shape {expected}, got {tuple(v.shape)}")
    if not (v.dtype is bool_ or v.dtype.is_float):
        raise DTypeError(f"MultiheadAttention: {name} must be bool or float, got {v.dtype.name}")


def _added(mask: Tensor) -> Tensor:
    """A mask as what to add to scores: -inf where a bool one is true."""
    return where(mask, -math.inf, 0.0) if mask.value.dtype is bool_ else mask
