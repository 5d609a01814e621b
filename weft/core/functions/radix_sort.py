"""The order of integer keys along the last axis, on the device: digit by digit, each pass stable.

    keys 13 21 11 22 -> by the last digit 21 11 22 13 -> by the first 11 13 21 22

A pass moves each element to the place

    elements of lower digits + elements of this digit in blocks before + elements of this digit before it in its block

Inside a block the last is found by comparing each two elements, with blocks side by side in the lanes. How often each
digit occurs in each block is counted by a scatter, and summed over the blocks before by levels. A key of up to 32 bits
and its position are one integer of 64 bits, so that they move together. Wider keys are sorted by their low half first,
then by the high one. The digit's place is a tensor, not a number in the program: all passes run the same few kernels
(Zagha and Blelloch 1991, "Radix sort for vector multiprocessors").

A short row is one block: each element counts those before it. Where only the first k of many are wanted, they lie in
the k blocks whose smallest elements come first: those are found in the same way, among fewer, and then the first k
among theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.composed.templates import templated
from weft.core.layout.movement import box, pad_value, positions, transpose, unsqueeze
from weft.core.pointwise.elementwise import eq, logical_and, lt, where
from weft.ir.dtypes import DType, int32, int64, uint8, uint32, uint64
from weft.ir.graph import Along, Axes, ScatterCombine, elements
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

_ALONE, _QUICK = 512, 1 << 20
"""A row of so many elements is one block; a longer one, too, where all rows take at most so many comparisons."""

_SELECTED = 2
"""Selecting blocks pays where it leaves less than one of so many elements."""

_DIGIT = 5
"""Bits of a digit."""

_DIGITS = 1 << _DIGIT

_BLOCK, _WIDTH = 128, 64
"""Elements of a block; blocks side by side."""

_TOGETHER = 32
"""Counts that are summed at a time."""


def order(keys: Value, keep: int) -> Value:
    """The indices, int32, of the `keep` smallest keys along the last axis, in order; equal ones in place.

    Keys are integers of any width, at least two per row.
    """
    return templated(_order, keys, keep)


def _order(keys: Value, keep: int) -> Value:
    lead, n = keys.shape[:-1], _size(keys)
    block = 1 << (max(n // keep, 1).bit_length() // 2)
    if n > _ALONE and (-(-n // block) + keep * block) * _SELECTED < n:
        return _selected(keys, keep, block)
    if keys.dtype.bits > 32:
        x = wrap(keys)
        low = _order(bc.cast((x & 0xFFFFFFFF).value, uint32), n)
        high = _stored(_taken(x >> 32, wrap(low)))
        return _taken(
            wrap(low), wrap(_order(bc.cast(high.value, uint32 if keys.dtype is uint64 else int32), keep))
        ).value
    rows = elements(lead)
    if n <= _ALONE or (isinstance(rows, int) and rows * n * n <= _QUICK):
        places = _stored(wrap(_counted(_packed(keys))))
    else:
        piece = _BLOCK * (_WIDTH if n > _BLOCK * _WIDTH else 1)
        moved, shift = _stored(_packed(_filled(keys, -(-n // piece) * piece))), _number(0)
        for k in range(-(-keys.dtype.bits // _DIGIT)):
            shift = _stored(shift + _DIGIT) if k else _stored(shift)
            moved = _passed(
                moved, ((moved >> 32) + _shifted(keys.dtype) - int(keys.dtype.min) >> shift) & (_DIGITS - 1)
            )
        places = moved & 0xFFFFFFFF
    return bc.cast(box(places.value, (0,) * len(keys.shape), (*lead, keep)), int32)


def _selected(keys: Value, keep: int, size: int) -> Value:
    """As `_order`, from the blocks whose smallest elements come first."""
    lead, n = keys.shape[:-1], _size(keys)
    blocks = -(-n // size)
    row = _filled(keys, blocks * size)
    parts = bc.reshape(row, (*lead, blocks, size))
    least = _stored(wrap(apply(Op.REDUCE_MIN, (parts,), Axes((len(lead) + 1,)))))
    chosen = _stored(wrap(_order(least.value, keep)))
    if keep > 1:  # in the order in which they lie, for equal keys
        chosen = _stored(_taken(chosen, wrap(_order(chosen.value, keep))))
    inside = wrap(positions((keep, size), 1, int32))
    place = wrap(bc.reshape((unsqueeze(chosen, -1) * size + inside).value, (*lead, keep * size)))
    found = _order(_stored(_taken(wrap(row), place)).value, keep)
    return _taken(place, wrap(found)).value


def _stored(x: Tensor) -> Tensor:
    return wrap(apply(Op.CONTIGUOUS, (x.value,)))


def _size(v: Value) -> int:
    n = v.shape[-1]
    assert isinstance(n, int)
    return n


def _filled(row: Value, n: int) -> Value:
    """The row with the largest key behind its end, n elements long."""
    none = [0] * (len(row.shape) - 1)
    return pad_value(row, [*none, 0], [*none, n - _size(row)], int(row.dtype.max))


def _packed(keys: Value) -> Tensor:
    """Keys, and in the lower half their positions: unique."""
    wide = wrap(bc.cast(keys, int64))
    return (wide - _shifted(keys.dtype) << 32) + wrap(positions(keys.shape, len(keys.shape) - 1, int64))


def _shifted(dtype: DType) -> int:
    """The number to subtract so that a key fits into 31 bits and a sign."""
    return 1 << 31 if int(dtype.max) >= 1 << 31 else 0


def _number(value: int) -> Tensor:
    return wrap(bc.scalar(value, int64, ()))


def _taken(x: Tensor, index: Tensor) -> Tensor:
    """x[index] along the last axis; the nearest element where there is none."""
    return wrap(apply(Op.GATHER, (x.value, index.value), Along(len(x.value.shape) - 1)))


def _scattered(n: int, index: Value, values: Value, op: Op | None = None) -> Value:
    """Along the last axis, n elements long: the values where their index says, or what they add up to there."""
    lead = index.shape[:-1]
    base = bc.scalar(0, values.dtype, (*lead, n))
    return apply(Op.SCATTER, (base, index, values), ScatterCombine(len(lead), op))


# few elements ---------------------------------------------------------------------------------------------------------


def _counted(row: Tensor) -> Value:
    """Positions in order, of unique integers: each counts those that are less."""
    shape, n = row.value.shape, _size(row.value)
    row = _stored(row)
    less = lt(unsqueeze(row, -2), unsqueeze(row, -1))
    rank = apply(Op.SUM, (bc.cast(less.value, int32),), Axes((len(shape),)))
    return _scattered(n, _stored(wrap(rank)).value, positions(shape, len(shape) - 1, int32))


# a pass ---------------------------------------------------------------------------------------------------------------


def _passed(row: Tensor, digit: Tensor) -> Tensor:
    """The elements in the order of their digits, equal ones as they are."""
    lead, n = row.value.shape[:-1], _size(row.value)
    width = min(_WIDTH, n // _BLOCK)
    tiles = (*lead, n // (_BLOCK * width), width, _BLOCK)
    axis = len(tiles) - 1  # a block's elements, and all of them again; blocks in the lanes
    small = _stored(transpose(wrap(bc.reshape(bc.cast(digit.value, uint8), tiles)), -1, -2))
    earlier = lt(wrap(positions((1, _BLOCK, 1), 1, int32)), wrap(positions((_BLOCK, 1, 1), 0, int32)))
    same = logical_and(eq(unsqueeze(small, -3), unsqueeze(small, -2)), earlier)
    rank = wrap(apply(Op.CONTIGUOUS, (apply(Op.SUM, (bc.cast(same.value, uint8),), Axes((axis,))),)))
    blocks = bc.cast(bc.reshape(digit.value, (*lead, n // _BLOCK, _BLOCK)), int32)
    ones = bc.scalar(1, int32, blocks.shape)
    counts = _stored(wrap(_scattered(_DIGITS, blocks, ones, Op.ADD)))
    start = _taken(_stored(_before(counts)), wrap(blocks))
    inside = wrap(bc.cast(bc.reshape(transpose(rank, -1, -2).value, blocks.shape), int32))
    place = bc.reshape((start + inside).value, row.value.shape)
    return _stored(wrap(_scattered(n, place, row.value)))


def _before(counts: Tensor) -> Tensor:
    """The number of elements before the first of each digit in each block: (.., blocks, digits)."""
    *lead, blocks, digits = counts.value.shape
    assert isinstance(blocks, int)
    if blocks <= _TOGETHER:
        every = wrap(apply(Op.SUM, (counts.value,), Axes((len(lead),))))
        lower = _running(unsqueeze(every, -1))
        return _running(counts) + transpose(lower, -1, -2)
    parts = -(-blocks // _TOGETHER)
    none = [0] * len(lead)
    filled = pad_value(counts.value, [*none, 0, 0], [*none, parts * _TOGETHER - blocks, 0], 0)
    split = wrap(bc.reshape(filled, (*lead, parts, _TOGETHER, digits)))
    every = _stored(wrap(apply(Op.SUM, (split.value,), Axes((len(lead) + 1,)))))
    both = _running(split) + unsqueeze(_stored(_before(every)), -2)
    joined = bc.reshape(both.value, (*lead, parts * _TOGETHER, digits))
    return wrap(box(joined, (*none, 0, 0), counts.value.shape))


def _running(x: Tensor) -> Tensor:
    """Along the last axis but one, the sum of the elements before each."""
    n = x.value.shape[-2]
    assert isinstance(n, int)
    earlier = lt(wrap(positions((1, n, 1), 1, int32)), wrap(positions((n, 1, 1), 0, int32)))
    kept = where(earlier, unsqueeze(x, -3), 0)
    return wrap(apply(Op.SUM, (kept.value,), Axes((len(kept.value.shape) - 2,))))
