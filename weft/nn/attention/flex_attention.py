"""torch.nn.attention.flex_attention: attention whose scores and mask are functions of positions.

The functions are called once, on tensors of all positions that broadcast against each other, and become part of the
graph: where they are elementwise, with indexing of tensors that they know, they run within the attention's kernels. No
mask of all positions is in memory.
"""
# Tests: tests/nn/test_flex_attention.py

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, cast

from weft.core.args.broadcast import broadcast_shapes
from weft.core.args.handle import describe
from weft.core.functions.reductions import amax, logsumexp
from weft.core.layout.creation import arange, ones
from weft.core.layout.gather import repeat_interleave
from weft.core.layout.movement import broadcast_to
from weft.core.pointwise.elementwise import logical_and, logical_or, where
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import bool_, float32, float64, int32
from weft.lazy_dataclass import dataclass
from weft.nn.functional import softmax

__all__ = [
    "AuxOutput", "AuxRequest", "BlockMask", "and_masks", "create_block_mask", "create_mask", "create_nested_block_mask",
    "flex_attention", "noop_mask", "or_masks",
]  # fmt: skip

MaskMod: TypeAlias = Callable[[Any, Any, Any, Any], Any]
"""(batch, head, query position, key position) -> whether the query sees the key."""

ScoreMod: TypeAlias = Callable[[Any, Any, Any, Any, Any], Any]
"""(score, batch, head, query position, key position) -> the score to use."""

_DEFAULT_BLOCK = 128


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Tensor:
    """Every query sees every key."""
    return ones((), dtype=bool_)


def and_masks(*mask_mods: MaskMod) -> MaskMod:
    """The intersection of the masks; everything without any."""
    _check_mods("and_masks", mask_mods)

    def both(b: Any, h: Any, q: Any, kv: Any) -> Any:
        found: Any = ones((), dtype=bool_)
        for mod in mask_mods:
            found = logical_and(found, mod(b, h, q, kv))
        return found

    return both


def or_masks(*mask_mods: MaskMod) -> MaskMod:
    """The union of the masks; nothing without any."""
    _check_mods("or_masks", mask_mods)

    def either(b: Any, h: Any, q: Any, kv: Any) -> Any:
        found: Any = ones((), dtype=bool_).logical_not()
        for mod in mask_mods:
            found = logical_or(found, mod(b, h, q, kv))
        return found

    return either


def _check_mods(op: str, mods: tuple[Any, ...]) -> None:
    for mod in mods:
        if not callable(mod):
            raise DTypeError(f"{op}: expected functions of (b, h, q_idx, kv_idx), got {describe(mod)}")


def _positions(shape: tuple[int, int, int, int], device: Any) -> list[Tensor]:
    """Batch, head, query and key positions, each along a dimension of its own."""
    places = [tuple(-1 if j == k else 1 for j in range(4)) for k in range(4)]
    return [arange(n, dtype=int32, device=device).reshape(p) for n, p in zip(shape, places, strict=True)]


def _of_all(op: str, found: Any, shape: tuple[int, ...]) -> Tensor:
    """The values that a function of positions gives, at all of them."""
    if not isinstance(found, Tensor):
        raise DTypeError(f"{op}: the function must return a Tensor, got {describe(found)}")
    try:
        fits = broadcast_shapes(tuple(found.shape), shape) == shape
    except ShapeError:
        fits = False
    if not fits:
        raise ShapeError(
            f"{op}: the function gives shape {tuple(found.shape)} at positions {shape}; it is called on tensors of all "
            "positions at once, so it must treat them element by element"
        )
    return broadcast_to(found, shape)


def create_mask(
    mod_fn: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None
) -> Tensor:
    """The mask of all positions, as bools of shape (B, H, Q_LEN, KV_LEN); of a score function, what it adds to 0."""
    shape = (B or 1, H or 1, Q_LEN, KV_LEN)
    at = _positions(shape, device)
    if _takes(mod_fn) == 5:
        zero = ones(shape, device=device) * 0
        return _of_all("create_mask", mod_fn(zero, *at), shape)
    return _of_all("create_mask", mod_fn(*at), shape).to(bool_)


def _takes(function: Callable[..., Any]) -> int:
    """The number of positional arguments that a function requires."""
    import inspect

    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [
        p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty
    ]
    return len(required)


@dataclass(frozen=True, eq=False)
class BlockMask:
    """A mask by its function, for so many queries and keys. Blocks of it, as torch lists them, are only computed where
    they are asked for: weft's kernels evaluate the function."""

    mask_mod: MaskMod
    batch: int
    heads: int
    seq_lengths: tuple[int, int]
    BLOCK_SIZE: tuple[int, int] = (_DEFAULT_BLOCK, _DEFAULT_BLOCK)
    device: Any = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q_LEN, KV_LEN)."""
        return (self.batch, self.heads, *self.seq_lengths)

    def numel(self) -> int:
        """The number of positions."""
        return math.prod(self.shape)

    def to_mask(self) -> Tensor:
        """The mask of all positions, as bools."""
        return create_mask(self.mask_mod, *self.shape, device=self.device)

    def to_dense(self) -> Tensor:
        """1 for each block of which a position is seen, 0 for the rest: int32 of shape (B, H, query, key blocks)."""
        return (self._counts() > 0).to(int32)

    def _counts(self) -> Tensor:
        (m, n), (q, k) = self.seq_lengths, self.BLOCK_SIZE
        rows, columns = -(-m // q), -(-n // k)
        mask = self.to_mask().to(int32).pad((0, columns * k - n, 0, rows * q - m))
        return mask.reshape(self.batch, self.heads, rows, q, columns, k).sum((3, 5))

    @property
    def kv_num_blocks(self) -> Tensor:
        """The number of key blocks that each query block sees in part."""
        return self._listed(full=False)[0]

    @property
    def kv_indices(self) -> Tensor:
        """The indices of key blocks, those seen in part first."""
        return self._listed(full=False)[1]

    @property
    def full_kv_num_blocks(self) -> Tensor:
        """The number of key blocks that each query block sees as a whole."""
        return self._listed(full=True)[0]

    @property
    def full_kv_indices(self) -> Tensor:
        """The indices of key blocks, those seen as a whole first."""
        return self._listed(full=True)[1]

    def _listed(self, full: bool) -> tuple[Tensor, Tensor]:
        counts = self._counts()
        whole = counts == self.BLOCK_SIZE[0] * self.BLOCK_SIZE[1]
        found = (whole if full else logical_and(counts > 0, whole.logical_not())).to(int32)
        return found.sum(-1).to(int32), found.argsort(-1, descending=True, stable=True).to(int32)

    def sparsity(self) -> float:
        """The share of blocks of which nothing is seen, in percent."""
        dense = self.to_dense()
        return 100.0 * (1.0 - dense.double().mean().item())

    def to(self, device: Any) -> BlockMask:
        """The same mask for tensors on another device: the function's own tensors have to be there."""
        return BlockMask(self.mask_mod, self.batch, self.heads, self.seq_lengths, self.BLOCK_SIZE, device)

    def __getitem__(self, index: Any) -> BlockMask:
        """The mask of some batches, heads and blocks of queries: index is one int or slice for each of these."""
        parts = list(cast("tuple[Any, ...]", index)) if isinstance(index, tuple) else [index]
        counts = (self.batch, self.heads, -(-self.seq_lengths[0] // self.BLOCK_SIZE[0]))
        if len(parts) > 3 or not all(isinstance(p, int | slice) for p in parts):
            raise ArgumentError(
                f"BlockMask: an index has an int or a slice for batch, head and query block, got {index!r}"
            )
        ranges = [
            _range(p, n) for p, n in zip([*parts, *[slice(None)] * (3 - len(parts))], counts, strict=True)
        ]
        (b0, b1), (h0, h1), (q0, q1) = ranges
        first, mod = q0 * self.BLOCK_SIZE[0], self.mask_mod
        rows = min(q1 * self.BLOCK_SIZE[0], self.seq_lengths[0]) - first

        def moved(b: Any, h: Any, q: Any, kv: Any) -> Any:
            return mod(b + b0, h + h0, q + first, kv)

        return BlockMask(moved, b1 - b0, h1 - h0, (rows, self.seq_lengths[1]), self.BLOCK_SIZE, self.device)

    def __str__(self) -> str:
        return f"BlockMask(shape={self.shape}, sparsity={self.sparsity():.2f}%)"

    def __repr__(self) -> str:
        return f"BlockMask(shape={self.shape}, BLOCK_SIZE={self.BLOCK_SIZE})"


def _range(part: Any, n: int) -> tuple[int, int]:
    """First and last of what an int or a slice of step 1 picks of n."""
    if isinstance(part, int):
        at = part + n if part < 0 else part
        return at, at + 1
    begin, end, step = part.indices(n)
    if step != 1:
        raise ArgumentError(f"BlockMask: slices have step 1, got {step}")
    return begin, end


def create_block_mask(
    mask_mod: MaskMod,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = _DEFAULT_BLOCK,
    _compile: bool = False,
    **options: Any,
) -> BlockMask:
    """The mask that mask_mod(b, h, q_idx, kv_idx) is; B or H is None where it is the same for all. DTypeError for no
    function, ArgumentError for sizes that are not positive."""
    _check_mods("create_block_mask", (mask_mod,))
    block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else (BLOCK_SIZE[0], BLOCK_SIZE[1])
    if min(block) < 1 or min(Q_LEN, KV_LEN) < 1:
        raise ArgumentError(
            f"create_block_mask: sizes must be positive, got Q_LEN {Q_LEN}, KV_LEN {KV_LEN} and blocks of {block}"
        )
    return BlockMask(mask_mod, B or 1, H or 1, (Q_LEN, KV_LEN), block, device)


@dataclass(frozen=True)
class AuxRequest:
    """Extra outputs of flex_attention per query: the logarithm of the sum of exp(score), largest score."""

    lse: bool = False
    max_scores: bool = False


class AuxOutput(NamedTuple):
    """The outputs that were asked for; None for the rest."""

    lse: Tensor | None = None
    max_scores: Tensor | None = None


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: ScoreMod | None = None,
    block_mask: BlockMask | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: AuxRequest | None = None,
) -> Any:
    """softmax(score_mod(query @ key.T * scale, b, h, q_idx, kv_idx)) @ value, over the keys that block_mask allows.

    Shapes: query (B, Hq, L, E), key (B, H, S, E), value (B, H, S, Ev) -> (B, Hq, L, Ev). scale is 1 / sqrt(E) unless
    given; enable_gqa has Hq / H query heads share a key head. A query that sees nothing gives zeros. score_mod and the
    mask's function are called on tensors of all positions, which broadcast. With return_lse also the logarithm of the
    sum of exp(score), (B, Hq, L); with return_aux an AuxOutput. Errors: ShapeError for shapes that do not fit.
    Source: Dong et al. 2024, arXiv:2412.05496.
    """
    q, k, v = (
        tuple([n for n in t.shape if isinstance(n, int)]) for t in (query, key, value)
    )  # sizes that are known
    groups = q[1] // k[1] if len(q) == len(k) == 4 and k[1] and enable_gqa else 1
    fits = len(q) == len(k) == len(v) == 4 and q[3] == k[3] and k[:3] == v[:3] and q[1] == groups * k[1]
    if not fits or q[0] not in (k[0], k[0] * q[0]):
        raise ShapeError(
            f"flex_attention: shapes of query {q}, key {k} and value {v} do not fit; they must be (B, Hq, L, E), "
            "(B, H, S, E) and (B, H, S, Ev), with Hq = H, or a multiple of it with enable_gqa=True"
        )
    if groups > 1:
        key, value = repeat_interleave(key, groups, 1), repeat_interleave(value, groups, 1)
    shape = (q[0], q[1], q[2], k[2])
    if block_mask is not None:
        _check_block_mask(block_mask, shape)
    wide = float64 if query.dtype is float64 else float32
    factor = scale if scale is not None else 1.0 / math.sqrt(q[3]) if q[3] else 1.0
    scores = query.to(wide) @ key.to(wide).mT * factor
    at = _positions(shape, query.device)
    if score_mod is not None:
        scores = _of_all("flex_attention: score_mod", score_mod(scores, *at), shape).to(wide)
    if block_mask is not None:
        seen = _of_all("flex_attention: mask_mod", block_mask.mask_mod(*at), shape)
        scores = where(seen, scores, -math.inf)
    blind = amax(scores, -1, keepdim=True) == -math.inf
    known = where(blind, 0.0, scores)
    weights = where(blind, 0.0, softmax(known, -1))
    out = (weights @ value.to(wide)).to(query.dtype)
    if not return_lse and return_aux is None:
        return out
    lse = where(blind.squeeze(-1), -math.inf, logsumexp(known, -1))
    if return_aux is None:
        return out, lse
    most = amax(scores, -1)
    return out, AuxOutput(lse if return_aux.lse else None, most if return_aux.max_scores else None)


def _check_block_mask(mask: BlockMask, shape: tuple[int, int, int, int]) -> None:
    b, h, m, n = mask.shape
    if b not in (1, shape[0]) or h not in (1, shape[1]) or m < shape[2] or n < shape[3]:
        raise ShapeError(
            f"flex_attention: the block mask is for (B, H, L, S) = {mask.shape}, the scores have shape {shape}; make "
            "one with create_block_mask for these lengths"
        )


def create_nested_block_mask(*args: Any, **kwargs: Any) -> BlockMask:
    """ArgumentError: weft has no nested tensors."""
    raise ArgumentError(
        "create_nested_block_mask: weft has no nested tensors; pad them, and mask the padding in mask_mod"
    )
