"""Gradient of attention by blocks, where a matrix of all scores would be large.

    l = rowmax(s) + log rowsum(exp(s - rowmax(s)))              by the kernel of the forward pass; s: the masked scores
    D = rowsum(g * out)
    for each block of columns c, for each block of rows r:      p  = exp(q[r] k[c]^T * scale + mask - l[r])
                                                                ds = p * (g[r] v[c]^T - D[r]) * scale
        dq[r] += ds k[c],  dk[c] += ds^T q[r],  dv[c] += p^T g[r]

The scores are computed again, so that no step holds more of them than its own block: memory grows with L + S, as in
Dao et al. 2022, arXiv:2205.14135. What a row needs of all its scores, its l, is kept: one number. The blocks are the
steps of loops; positions are indices there, so that products leave out what a causal mask rules out. Sums are
accumulated in float32 and rounded once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from weft.autograd.context import grad_enabled, grad_mode
from weft.autograd.ops import add, permute, reshape, shrink
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.composed.precision import widened
from weft.core.execute.devices import has_values, info_of
from weft.core.execute.realization import note_statistics
from weft.core.functions.matmul import matmul
from weft.core.functions.reductions import reduce
from weft.core.grad.loops import loop
from weft.core.layout.movement import positions, transpose
from weft.core.pointwise.elementwise import exp, log, where
from weft.ir import graph
from weft.ir.dtypes import DType, accumulator, int32
from weft.ir.graph import Along
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

MIN_SCORES_BYTES = 1 << 24
"""The least size of all scores, in their accumulator, from which gradients are computed by blocks of rows on a CPU. (8
heads of 640 positions: as fast with blocks as without on one core, with 2 MiB of second-level cache.)"""

BLOCK_ROWS = 256
"""Rows of a block, about: each block adds to all of its columns' dk and dv, which is cheap beside products with so many
rows."""

CACHE_SHARE = 4
"""The part of a CPU's second-level cache that the scores of a block take, at most: its weights and their gradients lie
there, beside what products read with them."""

MAX_HEAD_BYTES = 1 << 24
"""The size of a block of one head, at most, where it has all columns: longer rows come in smaller blocks."""

MIN_SCORES_SHARE, MAX_GROUP_SHARE = 16, 64
"""The least size of all scores, and the most of those that are computed together, on devices with memory of their own,
as parts of it: small launches leave these idle."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the scores: query and key, maybe a mask, and, for a causal one, the positions of rows (as a column) and
    of columns (as a row)."""

    q: Value
    k: Value
    mask: Value | None
    rows: Value | None
    columns: Value | None


Scores: TypeAlias = "Callable[[Part], tuple[Value, Value | None]]"
"""scores(part): the masked scores, in their accumulator, and where attention is allowed, if not everywhere."""

Formula: TypeAlias = Callable[[Value, Value, Value, "Value | None"], Value]
"""formula(query, key, value, mask): attention, all rows at once."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """A division of the scores: `heads` of the batch at a time, and of each `rows` and `columns` at a time."""

    heads: int
    rows: int
    columns: int


def are_few(scores: int, dtype: DType, device: str | None) -> bool:
    """True for so few scores that blocks of them do not pay."""
    return scores * accumulator(dtype).itemsize < limits(device).least


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
    if not has_values(q.node.device):  # nothing is computed
        return None
    batch, length, columns = _product(q.shape[:-2]), _product(q.shape[-2:-1]), _product(k.shape[-2:-1])
    if are_few(batch * length * columns, q.dtype, q.node.device):
        return None
    size = accumulator(q.dtype).itemsize
    bounds = limits(q.node.device)
    shared = mask is None or all(n == 1 for n in mask.shape[:-2])
    wide, row = columns, columns * size * (1 if shared else batch)
    if mask is None and bounds.cached:  # a mask's columns would have to be copied
        wide = _near_divisor(columns, min(columns, max(1, bounds.most // (min(BLOCK_ROWS, length) * size))))
        row = wide * size
    rows = _near_divisor(length, max(1, min(BLOCK_ROWS, max(MAX_HEAD_BYTES, bounds.most) // row)))
    together = bounds.most // (rows * wide * size)
    heads = max(n for n in range(1, batch + 1) if n == 1 or (batch % n == 0 and n <= together))
    return Blocks(heads if shared else batch, rows, wide) if rows < length else None


@dataclass(frozen=True, slots=True)
class Limits:
    """The least size of all scores for which blocks pay, and the most of those computed together; `cached`: that is set
    by a cache, which blocks of all columns would not fit into."""

    least: int
    most: int
    cached: bool


def limits(device: str | None) -> Limits:
    """The sizes between which blocks lie on a device."""
    info = info_of(device)
    if info.host_memory:
        return Limits(MIN_SCORES_BYTES, info.l2_bytes // CACHE_SHARE, True)
    return Limits(info.memory_bytes // MIN_SCORES_SHARE, info.memory_bytes // MAX_GROUP_SHARE, False)


def _product(sizes: Sequence[Int]) -> int:
    """The product of sizes that are known."""
    return math.prod([n for n in sizes if isinstance(n, int)])


def _near_divisor(n: int, most: int) -> int:
    """The largest divisor of n up to `most`, if it is not far from it; else `most`, which leaves a remainder."""
    best = max(d for d in range(1, most + 1) if n % d == 0)
    return best if 2 * best >= most else most


def with_gradient_by_blocks(
    result: Value, statistics: Value, inputs: Sequence[Value], blocks: Blocked, formula: Formula
) -> Value:
    """Attention's result on (query, key, value) or (query, key, value, mask), with gradients by blocks. `statistics`
    are the logarithms of the sums of the rows' exponentials. Gradients that are to be differentiated again are those of
    the formula."""
    kept = wrap(Value(statistics.node))
    note_statistics(kept)

    def rule(g: Value, out: Value, *inputs: Value) -> tuple[Value | None, ...]:
        q, k, v, mask = inputs if len(inputs) == 4 else (*inputs, None)
        if grad_enabled():
            return _gradients_of(formula, g, inputs)
        lost = out.node.storage is not None and kept.value.node.storage is None
        found = (*blocks.gradients(q, k, v, g, mask, out, None if lost else kept.value), None)
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
    """Gradients by `blocks` of the attention that has these scores."""

    blocks: Blocks
    scores: Scores
    scale: float
    causal: bool

    def gradients(
        self, q: Value, k: Value, v: Value, g: Value, mask: Value | None, out: Value, statistics: Value | None
    ) -> tuple[Value, Value, Value]:
        """The vector-Jacobian product: that of a group of heads in each step of a loop, or of all at once. The rows'
        `statistics` are computed if they are not there."""
        batch, heads = _product(q.shape[:-2]), self.blocks.heads
        wide = wrap(widened(g)) * wrap(widened(out))
        rowed = [q, g, wide.sum(-1, keepdim=True).value, *(() if statistics is None else (statistics,))]
        if heads == batch:
            return self.of_group(rowed, k, v, mask)
        shared = None if mask is None else reshape(mask, (1,) * max(0, 2 - len(mask.shape)) + mask.shape[-2:])
        groups = [reshape(x, (batch // heads, heads, *x.shape[-2:])) for x in (k, v, *rowed)]

        def step(_carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            a, b, *own = x
            return [], list(self.of_group(own, a, b, shared))

        _, found = loop(step, [], groups, batch // heads, False)
        dq, dk, dv = [reshape(x, y.shape) for x, y in zip(found, (q, k, v), strict=True)]
        return dq, dk, dv

    def of_group(
        self, rowed: Sequence[Value], k: Value, v: Value, mask: Value | None
    ) -> tuple[Value, Value, Value]:
        """The same for heads that are computed together, of `rowed`: q, g, rowsum(g * out), and maybe statistics."""
        q, count = rowed[0], _product(k.shape[-2:-1])
        rows, columns = self.blocks.rows, self.blocks.columns
        by_row = _Rows.of(rowed, mask, self.causal, rows)
        if len(rowed) == 3:
            by_row = by_row.with_statistics(self.statistics(by_row, k, mask))
        at = reshape(positions((count,), 0, int32), (1, count)) if self.causal else None
        steps = count // columns
        if steps < 2:
            dq, dk, dv = self.of_columns(by_row, k, v, mask, at)
            return bc.cast(by_row.joined(dq), q.dtype), bc.cast(dk, k.dtype), bc.cast(dv, v.dtype)
        whole = steps * columns
        parts = [_split(k, steps, columns), _split(v, steps, columns)]
        if at is not None:
            parts.append(reshape(positions((whole,), 0, int32), (steps, 1, columns)))

        def step(carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            dq, dk, dv = self.of_columns(by_row, x[0], x[1], mask, x[2] if self.causal else None)
            return [add(a, b) for a, b in zip(carry, dq, strict=True)], [
                bc.cast(dk, k.dtype),
                bc.cast(dv, v.dtype),
            ]

        dq, (dk, dv) = loop(step, by_row.zeros(accumulator(q.dtype)), parts, steps, False)
        dk, dv = _joined(dk), _joined(dv)
        if whole < count:
            last = None if at is None else _columns(at, whole, count)
            ends = (_rows(k, whole, count), _rows(v, whole, count))
            dq_last, *more = self.of_columns(by_row, *ends, mask, last)
            dq = [add(a, b) for a, b in zip(dq, dq_last, strict=True)]
            dk, dv = (
                apply(Op.CONCAT, (x, bc.cast(y, x.dtype)), Along(len(x.shape) - 2))
                for x, y in zip((dk, dv), more, strict=True)
            )
        return bc.cast(by_row.joined(dq), q.dtype), dk, dv

    def of_columns(
        self, by_row: _Rows, k: Value, v: Value, mask: Value | None, at: Value | None
    ) -> tuple[list[Value], Value, Value]:
        """The part of the gradient of query that these columns add, by blocks of rows, and the gradients of key and
        value there, in the accumulator: whole blocks in a loop, and then the rows that remain."""

        def step(carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            dq, dk, dv = self.of_block(x, k, v, mask, at)
            return [add(carry[0], dk), add(carry[1], dv)], [dq]

        start = [Value(graph.const(0, accumulator(x.dtype), x.shape)) for x in (k, v)]
        (dk, dv), dq = loop(step, start, by_row.blocks, by_row.steps, False)
        if not by_row.last:
            return dq, dk, dv
        dq_last, dk_last, dv_last = self.of_block(by_row.last, k, v, mask, at)
        return [*dq, dq_last], add(dk, dk_last), add(dv, dv_last)

    def of_block(
        self, by_row: Sequence[Value], k: Value, v: Value, mask: Value | None, at: Value | None
    ) -> tuple[Value, Value, Value]:
        """The parts of the gradients of query, key and value that a block adds, in the accumulator."""
        q, g, d, statistics, *rest = by_row
        scores, allowed = self.scores(self.part(q, k, rest, mask, at))
        x = wrap(scores) - wrap(statistics)
        p = exp(x if allowed is None else where(wrap(allowed), x, -math.inf))
        dv = _wide_product(transpose(wrap(bc.cast(p.value, v.dtype)), -2, -1), wrap(g))
        dp = _wide_product(wrap(g), transpose(wrap(v), -2, -1))
        ds = p * (dp - wrap(d)) * self.scale
        dq = _wide_product(ds, wrap(k))
        dk = _wide_product(transpose(ds, -2, -1), wrap(q))
        return dq.value, dk.value, dv.value

    def part(self, q: Value, k: Value, rest: Sequence[Value], mask: Value | None, at: Value | None) -> Part:
        """A part of the scores, of the rows that have `rest` beside what products read."""
        left = list(rest)
        own = left.pop() if self.causal else None
        return Part(q, k, left.pop() if left else mask, own, at)

    def statistics(self, by_row: _Rows, k: Value, mask: Value | None) -> list[Value]:
        """The logarithms of the sums of the rows' exponentials, where nobody kept them: of a block in each step."""
        count = _product(k.shape[-2:-1])
        at = reshape(positions((count,), 0, int32), (1, count)) if self.causal else None

        def of(x: Sequence[Value]) -> Value:
            q, _, _, *rest = x
            return exponentials(self.scores(self.part(q, k, rest, mask, at))[0])[2]

        def step(_carry: list[Value], x: list[Value]) -> tuple[list[Value], list[Value]]:
            return [], [of(x)]

        _, (found,) = loop(step, [], by_row.blocks, by_row.steps, False)
        return [found, of(by_row.last)] if by_row.last else [found]


def exponentials(scores: Value) -> tuple[Value, Value, Value]:
    """exp(s - m), its row sums l, and m + log l, where m are the rows' maxima: numbers of rows as (..., L, 1).

    Scores that are not allowed are -inf, or so low that they count only in a row without others, where nobody asks."""
    over = (len(scores.shape) - 1,)
    top = reduce(Op.REDUCE_MAX, scores, over, keepdim=True)
    e = exp(wrap(scores) - wrap(bc.expand(top, scores.shape))).value
    total = reduce(Op.SUM, e, over, keepdim=True)
    return e, total, add(top, log(wrap(total)).value)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Tensors of the rows, (..., L, n): in blocks, (steps, ..., rows, n), and those that remain."""

    blocks: tuple[Value, ...]
    last: tuple[Value, ...]

    @staticmethod
    def of(rowed: Sequence[Value], mask: Value | None, causal: bool, rows: int) -> _Rows:
        """q, g and numbers of each row, then rows of a mask if it has several, and positions for a causal one."""
        length = _product(rowed[0].shape[-2:-1])
        found = list(rowed)
        if mask is not None and len(mask.shape) > 1 and mask.shape[-2] != 1:
            found.append(mask)
        if causal:
            found.append(reshape(positions((length,), 0, int32), (length, 1)))
        steps = length // rows
        rest = tuple([_rows(x, steps * rows, length) for x in found]) if steps * rows < length else ()
        return _Rows(tuple([_split(x, steps, rows) for x in found]), rest)

    def with_statistics(self, found: Sequence[Value]) -> _Rows:
        """The same with statistics, which come after the other numbers of each row."""
        (first, *rest), own = found, self.last
        blocks = (*self.blocks[:3], first, *self.blocks[3:])
        return _Rows(blocks, (*own[:3], *rest, *own[3:]))

    @property
    def steps(self) -> int:
        """The number of whole blocks."""
        return _product(self.blocks[0].shape[:1])

    def zeros(self, dtype: DType) -> list[Value]:
        """The start of a sum over the columns, of the first tensor's shape: for whole blocks, and for the rest."""
        return [Value(graph.const(0, dtype, x[0].shape)) for x in (self.blocks, self.last) if x]

    def joined(self, parts: Sequence[Value]) -> Value:
        """The blocks and the rest as one tensor."""
        whole = _joined(parts[0])
        return apply(Op.CONCAT, (whole, *parts[1:]), Along(len(whole.shape) - 2)) if parts[1:] else whole


def _wide_product(x: Tensor, y: Tensor) -> Tensor:
    """x @ y, of 16-bit floats in float32."""
    return matmul(wrap(widened(x.value)), wrap(widened(y.value)))


def _rows(x: Value, first: int, end: int) -> Value:
    """Rows of a tensor (..., L, n)."""
    batch = x.shape[:-2]
    return shrink(x, (*(0 for _ in batch), first, 0), (1,) * len(x.shape), (*batch, end - first, x.shape[-1]))


def _columns(x: Value, first: int, end: int) -> Value:
    """Columns of a tensor (1, n)."""
    return shrink(x, (0, first), (1, 1), (1, end - first))


def _split(x: Value, steps: int, size: int) -> Value:
    """(..., L, n) -> (steps, ..., size, n)"""
    batch, n = x.shape[:-2], len(x.shape) - 2
    parts = reshape(_rows(x, 0, steps * size), (*batch, steps, size, x.shape[-1]))
    parts = permute(parts, (n, *range(n), n + 1, n + 2))
    # once: a loop inside would copy it in each step
    return parts if x.dtype.is_int else apply(Op.CONTIGUOUS, (parts,))


def _joined(x: Value) -> Value:
    """(steps, ..., size, n) -> (..., steps * size, n)"""
    n = len(x.shape) - 3
    steps, *batch, size, width = x.shape
    return reshape(permute(x, (*range(1, n + 1), 0, n + 1, n + 2)), (*batch, steps * size, width))
