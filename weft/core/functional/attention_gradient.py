"""Gradient of attention by blocks of rows, where a matrix of all scores would be large.

    for each block of rows r:       s  = q[r] k^T * scale + mask[r],  p = softmax(s)          (R, S)
                                    ds = p * (g[r] v^T - rowsum(p * (g[r] v^T))) * scale       (R, S)
                                    dq[r] = ds k,   dk += ds^T q[r],   dv += p^T g[r]

The scores are computed again, so that no step holds more of them than its own rows: memory grows with L + S, as in
Dao et al. 2022, arXiv:2205.14135. The blocks are the steps of one loop; positions are indices there, so that products
leave out what a causal mask rules out. Sums are accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from weft.autograd.context import grad_enabled, grad_mode
from weft.autograd.ops import add, permute, reshape, shrink
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.composed.precision import widened
from weft.core.execute.devices import memory_of_its_own
from weft.core.functions.matmul import matmul
from weft.core.grad.loops import loop
from weft.core.layout.movement import positions, transpose
from weft.ir import graph
from weft.ir.dtypes import accumulator, int32
from weft.ir.graph import Along
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

MIN_SCORES_BYTES = 1 << 25
"""The least size of all scores, in their accumulator, from which gradients are computed by blocks of rows on a CPU. (8
heads of 1,024 positions: as fast with blocks as without on one core of an AMD EPYC, 1 MiB of second-level cache.)"""

BLOCK_ROWS = 256
"""Rows of a block, about: each block adds to all of dk and dv, which is cheap beside products with so many rows."""

MAX_GROUP_BYTES = 1 << 20
"""The size of the scores of heads that are computed together on a CPU, at most: a second-level cache."""

MAX_HEAD_BYTES = 1 << 24
"""The size of a block of one head, at most: longer rows come in smaller blocks."""

MIN_SCORES_SHARE, MAX_GROUP_SHARE = 16, 64
"""The same two sizes on devices with memory of their own, as parts of it: small launches leave these idle."""

Weights: TypeAlias = Callable[[Value, Value, "Value | None", "Value | None"], Value]
"""weights(query, key, mask, rows): softmax of the masked scores, in their accumulator; `rows` are the positions of the
rows of query where a causal mask asks for them."""

Formula: TypeAlias = Callable[[Value, Value, Value, "Value | None"], Value]
"""formula(query, key, value, mask): attention, all rows at once."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A division of the rows: `heads` of the batch at a time, and of each `rows` at a time."""

    heads: int
    rows: int


def blocks_of(q: Value, k: Value, v: Value, mask: Value | None = None) -> Blocks | None:
    """The division that pays for attention on these values; None where all rows at once are as good, or where
    sizes or gradients ask for more than blocks give."""
    sizes = (*q.shape, *k.shape, *v.shape, *(() if mask is None else mask.shape))
    if not all(isinstance(n, int) for n in sizes) or (mask is not None and mask.needs_grad):
        return None
    if q.shape[:-2] != k.shape[:-2] or q.shape[:-2] != v.shape[:-2] or 0 in sizes:
        return None
    if not q.dtype is k.dtype is v.dtype or (mask is not None and len(mask.shape) > len(q.shape)):
        return None
    batch, length, columns = _product(q.shape[:-2]), _product(q.shape[-2:-1]), _product(k.shape[-2:-1])
    row = columns * accumulator(q.dtype).itemsize
    least, most = _limits(q.node.device)
    if batch * length * row < least:
        return None
    shared = mask is None or all(n == 1 for n in mask.shape[:-2])
    together = 1 if shared else batch
    rows = _near_divisor(length, max(1, min(BLOCK_ROWS, max(MAX_HEAD_BYTES, most) // (row * together))))
    heads = max(n for n in range(1, batch + 1) if n == 1 or (batch % n == 0 and n * rows * row <= most))
    return Blocks(heads if shared else batch, rows) if rows < length else None


def _limits(device: str | None) -> tuple[int, int]:
    """The least size of all scores for which blocks pay, and the most that is computed together."""
    own = None if device is None else memory_of_its_own(device)
    if own is None:
        return MIN_SCORES_BYTES, MAX_GROUP_BYTES
    return own // MIN_SCORES_SHARE, own // MAX_GROUP_SHARE


def _product(sizes: Sequence[Int]) -> int:
    """The product of sizes that are known."""
    return math.prod([n for n in sizes if isinstance(n, int)])


def _near_divisor(n: int, most: int) -> int:
    """The largest divisor of n up to `most`, if it is not far from it; else `most`, which leaves a remainder."""
    best = max(d for d in range(1, most + 1) if n % d == 0)
    return best if 2 * best >= most else most


def with_gradient_by_blocks(
    result: Value, inputs: Sequence[Value], blocks: Blocked, formula: Formula
) -> Value:
    """Attention's result on (query, key, value) or (query, key, value, mask), with gradients by blocks of rows. Those
    that are to be differentiated again are gradients of the formula."""

    def rule(g: Value, _out: Value, *inputs: Value) -> tuple[Value | None, ...]:
        q, k, v, mask = inputs if len(inputs) == 4 else (*inputs, None)
        if grad_enabled():
            return _gradients_of(formula, g, inputs)
        found = (*blocks.gradients(q, k, v, g, mask), None)
        return tuple([x if y.needs_grad else None for x, y in zip(found, inputs, strict=False)])

    return composed(result.node, tuple(inputs), rule)


def _gradients_of(formula: Formula, g: Value, inputs: Sequence[Value]) -> tuple[Value | None, ...]:
    """The vector-Jacobian product of the formula, on the tape."""
    with grad_mode(True):
        own = [Value(x.node, True, Op.RESHAPE, None, (x,)) if x.needs_grad else x for x in inputs]
        q, k, v, mask = own if len(own) == 4 else (*own, None)
        out = formula(q, k, v, mask)
    found = gradients([out], [g], [x for x in own if x.needs_grad], True, past=False)
    return tuple([found.get(x) for x in own])


@dataclass(frozen=True, slots=True)
class Blocked:
    """Gradients by `blocks` of the attention that has these weights."""

    blocks: Blocks
    weights: Weights
    scale: float
    causal: bool

    def gradients(
        self, q: Value, k: Value, v: Value, g: Value, mask: Value | None
    ) -> tuple[Value, Value, Value]:
        """The vector-Jacobian product: that of a group of heads in each step of a loop, or of all at once."""
        batch, heads = _product(q.shape[:-2]), self.blocks.heads
        if heads == batch:
            return self.of_group(q, k, v, g, mask)
        shared = None if mask is None else reshape(mask, (1,) * max(0, 2 - len(mask.shape)) + mask.shape[-2:])
        groups = [reshape(x, (batch // heads, heads, *x.shape[-2:])) for x in (q, k, v, g)]

        def step(_carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            a, b, c, d = x
            return [], list(self.of_group(a, b, c, d, shared))

        _, found = loop(step, [], groups, batch // heads, False)
        dq, dk, dv = [reshape(x, y.shape) for x, y in zip(found, (q, k, v), strict=True)]
        return dq, dk, dv

    def of_group(
        self, q: Value, k: Value, v: Value, g: Value, mask: Value | None
    ) -> tuple[Value, Value, Value]:
        """The same for heads that are computed together: whole blocks in a loop, and then the rows that remain."""
        length, size = _product(q.shape[-2:-1]), self.blocks.rows
        steps = length // size
        by_row = [q, g]
        if mask is not None and len(mask.shape) > 1 and mask.shape[-2] != 1:
            by_row.append(mask)
        if self.causal:
            by_row.append(reshape(positions((length,), 0, int32), (length, 1)))

        def step(carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            dq, dk, dv = self.of_rows(x, k, v, mask)
            return [add(carry[0], dk), add(carry[1], dv)], [bc.cast(dq, q.dtype)]

        wide = accumulator(q.dtype)
        start = [Value(graph.const(0, wide, x.shape)) for x in (k, v)]
        (dk, dv), (dq,) = loop(step, start, [_split(x, steps, size) for x in by_row], steps, False)
        dq = _joined(dq)
        if steps * size < length:
            last = [_rows(x, steps * size, length) for x in by_row]
            more, dk_last, dv_last = self.of_rows(last, k, v, mask)
            dk, dv = add(dk, dk_last), add(dv, dv_last)
            dq = apply(Op.CONCAT, (dq, bc.cast(more, q.dtype)), Along(len(dq.shape) - 2))
        return dq, bc.cast(dk, k.dtype), bc.cast(dv, v.dtype)

    def of_rows(
        self, by_row: Sequence[Value], k: Value, v: Value, mask: Value | None
    ) -> tuple[Value, Value, Value]:
        """The gradients of the rows of query, and what these rows add to those of key and value, in the accumulator."""
        q, g, *rest = by_row
        at = rest.pop() if self.causal else None
        own = rest.pop() if rest else mask
        p = wrap(self.weights(q, k, own, at))
        dv = _wide_product(transpose(wrap(bc.cast(p.value, v.dtype)), -2, -1), wrap(g))
        dp = _wide_product(wrap(g), transpose(wrap(v), -2, -1))
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * self.scale
        dq = _wide_product(ds, wrap(k))
        dk = _wide_product(transpose(ds, -2, -1), wrap(q))
        return dq.value, dk.value, dv.value


def _wide_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, of 16-bit floats in float32."""
    return matmul(wrap(widened(x.value)), wrap(widened(y.value)))


def _rows(x: Value, first: int, end: int) -> Value:
    """Rows of a tensor (..., L, n)."""
    batch = x.shape[:-2]
    return shrink(x, (*(0 for _ in batch), first, 0), (1,) * len(x.shape), (*batch, end - first, x.shape[-1]))


def _split(x: Value, steps: int, size: int) -> Value:
    """(..., L, n) -> (steps, ..., size, n)"""
    batch, n = x.shape[:-2], len(x.shape) - 2
    parts = reshape(_rows(x, 0, steps * size), (*batch, steps, size, x.shape[-1]))
    return permute(parts, (n, *range(n), n + 1, n + 2))


def _joined(x: Value) -> Value:
    """(steps, ..., size, n) -> (..., steps * size, n)"""
    n = len(x.shape) - 3
    steps, *batch, size, width = x.shape
    return reshape(permute(x, (*range(1, n + 1), 0, n + 1, n + 2)), (*batch, steps * size, width))
