"""The order of integer keys along the last axis: blocks by counting, then runs merged pairwise, on the device.

    keys      5 1 4 2 | 3 0          blocks: each element counts those of its block that belong before it
    runs      1 2 4 5 | 0 3          stages: runs of twice the length, a block of the result at a time
    merged    0 1 | 2 3 | 4 5

A block of the result finds by binary search how many elements of either run come before it ("merge path"), first by
whole blocks. Of what
follows in the runs A and B, its element r is the smallest max(A[i - 1], B[r - i]), i = 0 .. r + 1, A[-1] and B[-1]
below everything: no comparison depends on another one. Lanes are neighbouring blocks: in memory, 32 blocks of 32 are
turned, so that their first elements lie side by side.

A key of 32 bits and its position are one integer of 64 bits: unique, so equal keys keep their order. Wider keys are
sorted by their low half first, then by the high one. The length of the runs is a tensor, not a number in the program:
all stages run the same few kernels.

Where only the first k of many are wanted, they lie in the k blocks whose smallest elements come first: those are found
in the same way, among fewer, and then the first k among theirs. Where k is not small either, runs are cut as they grow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.autograd.value import Value, apply
from weft.core import broadcast as bc
from weft.core.elementwise import (
    eq,
    ge,
    le,
    logical_and,
    lt,
    maximum,
    minimum,
    where,
)
from weft.core.handle import wrap
from weft.core.movement import box, flip, pad_value, positions, transpose, unfold, unsqueeze
from weft.core.templates import templated
from weft.ir.dtypes import int32, int64, uint32
from weft.ir.graph import Along, Axes, elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

_BLOCK = 32
"""Elements that a merge finds together."""

_ALONE = 512
"""A row of so many elements is one block."""

_SELECTED = 2
"""Selecting blocks pays where it leaves less than one of so many elements."""

_CUT = 8
"""Runs may grow to so many times the wanted length before they are cut."""

_STEPS = (4, 8, 12, 16, 20, 24, 28, 32)
"""Steps of a binary search over blocks: the next of these that is enough, for fewer kernels."""

_WIDTH = 32
"""Blocks side by side."""

_LOWEST, _HIGHEST = int(int64.min), int(int64.max)


def order(keys: Value, keep: int) -> Value:
    """The indices, int32, of the `keep` smallest keys along the last axis, in order; equal ones in place.

    Keys are integers of any width, at least two per row.
    """
    return templated(_order, keys, keep)


def _order(keys: Value, keep: int) -> Value:
    lead, n = keys.shape[:-1], keys.shape[-1]
    assert isinstance(n, int)
    block = 1 << (max(n // keep, 1).bit_length() // 2)
    if n > _ALONE and (-(-n // block) + keep * block) * _SELECTED < n:
        return _selected(keys, keep, block)
    if keys.dtype.bits > 32:
        x = wrap(keys)
        low = _order(bc.cast((x & 0xFFFFFFFF).value, uint32), n)
        high = _stored(_taken(x >> 32, wrap(low)))
        return _taken(wrap(low), wrap(_order(bc.cast(high.value, int32), keep))).value
    size = n if n <= _ALONE else _BLOCK
    groups, width = _grouped(n, size)
    row = _filled(
        keys, groups * width * size, int(keys.dtype.max)
    )  # what fills up has positions of its own, behind
    runs, length = _blocks(_turned(_packed(row), size), keep if n <= size else size), size
    wanted = max(length, 1 << (keep - 1).bit_length())
    halves = {1: _stored(wrap(bc.scalar(1, int32, ())))}
    while length < _count(runs):
        if length == _CUT * wanted:
            runs, length = _cut(runs, length, wanted), wanted
        half = length // size
        if half not in halves:
            halves[half] = _stored(halves[half // 2] * 2)
        runs = _merged(runs, halves[half], next(s for s in _STEPS if half < 1 << s))
        length *= 2
    indices = wrap(box(_linear(runs), (0,) * len(keys.shape), (*lead, keep))) & 0x7FFFFFFF
    return bc.cast(indices.value, int32)


def _selected(keys: Value, keep: int, size: int) -> Value:
    """As `_order`, from the blocks whose smallest elements come first."""
    lead, n = keys.shape[:-1], _size(keys)
    blocks = -(-n // size)
    row = _filled(keys, blocks * size, int(keys.dtype.max))
    parts = bc.reshape(row, (*lead, blocks, size))
    least = _stored(wrap(apply(Op.REDUCE_MIN, (parts,), Axes((len(lead) + 1,)))))
    chosen = _stored(wrap(_order(least.value, keep)))
    if keep > 1:  # in the order in which they lie, for equal keys
        chosen = _stored(_taken(chosen, wrap(_order(chosen.value, keep))))
    inside = wrap(positions((keep, size), 1, int32))
    place = wrap(bc.reshape((unsqueeze(chosen, -1) * size + inside).value, (*lead, keep * size)))
    found = _order(_stored(_taken(wrap(row), place)).value, keep)
    return _taken(place, wrap(found)).value


def _filled(row: Value, n: int, fill: int) -> Value:
    """The row with `fill` behind its end, n elements long."""
    none = [0] * (len(row.shape) - 1)
    return pad_value(row, [*none, 0], [*none, n - _size(row)], fill)


def _stored(x: Tensor) -> Tensor:
    return wrap(apply(Op.CONTIGUOUS, (x.value,)))


def _size(v: Value) -> int:
    n = v.shape[-1]
    assert isinstance(n, int)
    return n


def _number(value: int) -> Tensor:
    return wrap(bc.scalar(value, int64, ()))


def _packed(keys: Value) -> Value:
    """Keys with their positions: unique."""
    wide = wrap(bc.cast(keys, int64))
    signed = wide - (1 << 31) if int(keys.dtype.max) >= 1 << 31 else wide
    return ((signed << 32) + wrap(positions(keys.shape, len(keys.shape) - 1, int64))).value


# layout: rows (.., n) as (.., groups of blocks, elements of a block, blocks of a group) -------------------------------


def _tile(runs: Tensor) -> tuple[tuple[Int, ...], int, int, int]:
    """The dimensions before, and the last three."""
    *lead, groups, size, width = runs.value.shape
    assert isinstance(groups, int) and isinstance(size, int) and isinstance(width, int)
    return tuple(lead), groups, size, width


def _count(runs: Tensor) -> int:
    """Elements per row, those that fill it up included."""
    _, groups, size, width = _tile(runs)
    return groups * size * width


def _grouped(n: int, size: int) -> tuple[int, int]:
    """Of a row of n elements: the groups, and the blocks in each."""
    blocks = -(-n // size)
    width = min(_WIDTH, 1 << (blocks - 1).bit_length())
    return -(-blocks // width), width


def _turned(v: Value, size: int) -> Tensor:
    """A row in blocks, filled up with what belongs behind."""
    lead = v.shape[:-1]
    groups, width = _grouped(_size(v), size)
    filled = _filled(v, groups * width * size, _HIGHEST)
    return _stored(transpose(wrap(bc.reshape(filled, (*lead, groups, width, size))), -1, -2))


def _linear(runs: Tensor) -> Value:
    """The row that `_turned` gave."""
    return bc.reshape(transpose(runs, -1, -2).value, (*_tile(runs)[0], _count(runs)))


# steps ----------------------------------------------------------------------------------------------------------------


def _blocks(keys: Tensor, keep: int) -> Tensor:
    """The first `keep` elements of each block, in order."""
    lead, groups, size, width = _tile(keys)
    mine = wrap(bc.reshape(keys.value, (*lead, groups, size, 1, width)))
    other = wrap(bc.reshape(keys.value, (*lead, groups, 1, size, width)))
    axis = Axes((len(lead) + 2,))
    rank = apply(Op.CONTIGUOUS, (apply(Op.SUM, (bc.cast(lt(other, mine).value, int32),), axis),))
    place = wrap(positions((keep, 1, 1), 0, int32))
    hit = eq(wrap(bc.reshape(rank, (*lead, groups, 1, size, width))), place)
    return _stored(wrap(apply(Op.SUM, (where(hit, other, _number(0)).value,), axis)))


def _cut(runs: Tensor, length: int, wanted: int) -> Tensor:
    """The first `wanted` elements of each run."""
    lead, _, size, _ = _tile(runs)
    pieces = -(-_count(runs) // length)
    filled = _filled(_linear(runs), pieces * length, _HIGHEST)
    parts = bc.reshape(filled, (*lead, pieces, length))
    kept = box(parts, (0,) * len(parts.shape), (*lead, pieces, wanted))
    return _turned(bc.reshape(kept, (*lead, pieces * wanted)), size)


def _merged(runs: Tensor, half: Tensor, steps: int) -> Tensor:
    """Runs of `half` blocks, a power of two, merged in pairs; the last may be short or alone.

    `steps` bounds the binary search: the runs have fewer than 2**steps blocks.
    """
    lead, groups, size, width = _tile(runs)
    shape, blocks = (*lead, groups, width), groups * width
    zero = wrap(bc.scalar(0, int32, ()))
    group, column = positions((groups, width), 0, int32), positions((groups, width), 1, int32)
    at = wrap(group) * width + wrap(column)
    start = at & (half * -2)
    k, second = at - start, start + half  # blocks of the result before this one; where the second run begins
    many = minimum(half, -start + blocks), maximum(minimum(half, -second + blocks), zero)
    low, high = maximum(k - many[1], zero), minimum(k, many[0])

    def ends(of: int) -> Tensor:
        """The first or the last element of each block."""
        row = box(runs.value, (*[0] * (len(lead) + 1), of, 0), (*lead, groups, 1, width))
        return wrap(bc.reshape(row, (*lead, blocks)))

    flat = wrap(bc.reshape(runs.value, (*lead, blocks * size)))
    heads, tails = ends(0), ends(size - 1)

    def element(row: Tensor, index: Tensor) -> Tensor:
        inside = index.value.shape
        found = _taken(row, wrap(bc.reshape(index.value, (*lead, elements(inside[len(lead) :])))))
        return wrap(bc.reshape(found.value, inside))

    def searched(
        place: Tensor, steps: Sequence[int], end: Tensor, goes: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """The last place up to `end` that may still be reached, step by step."""
        for step in steps:
            further = place + step
            place = where(logical_and(le(further, end), goes(further)), further, place)
        return _stored(place)

    # whole blocks of the first run before this one, then elements of the next of them
    tail, head = start - 1, second + k
    whole = searched(
        wrap(bc.expand(low.value, shape)),
        [1 << s for s in reversed(range(steps))],
        high,
        lambda p: lt(element(tails, tail + p), element(heads, head - p)),
    )

    def address(block: Tensor) -> Tensor:
        return (block & -width) * size + (block & (width - 1))

    left, right = address(start + whole) - width, address(second + k - whole - 1) + size * width
    part = searched(
        whole * 0,
        [1 << s for s in reversed(range(size.bit_length() - 1))],
        minimum(high - whole, wrap(bc.scalar(1, int32, ()))) * size,
        lambda i: lt(element(flat, left + i * width), element(flat, right - i * width)),
    )
    first = whole * size + part

    def window(begin: Tensor, taken: Tensor, limit: Tensor, before: int) -> Tensor:
        """`before` rows that are never chosen, one below everything, and the run's next elements."""
        row = wrap(positions((before + 1 + size, 1), 0, int32)) - (before + 1)
        place = unsqueeze(taken, -2) + row
        inside = logical_and(ge(row, zero), lt(place, unsqueeze(limit * size, -2)))
        other = where(eq(row, -1), _number(_LOWEST), _number(_HIGHEST))
        block = unsqueeze(begin, -2) + (place >> (size.bit_length() - 1))
        return _stored(where(inside, element(flat, address(block) + (place & (size - 1)) * width), other))

    a = window(start, first, many[0], 0)
    b = window(second, k * size - first, many[1], size - 1)
    ahead = transpose(unfold(b, -2, size + 1, 1), -1, -2)  # (.., size, size + 1, width)
    back = unsqueeze(flip(a, -2), -3)
    return _stored(wrap(apply(Op.REDUCE_MIN, (maximum(ahead, back).value,), Axes((len(lead) + 2,)))))


def _taken(x: Tensor, index: Tensor) -> Tensor:
    """x[index] along the last axis; the nearest element where there is none."""
    return wrap(apply(Op.GATHER, (x.value, index.value), Along(len(x.value.shape) - 1)))
