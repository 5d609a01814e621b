"""The element of each row with so many smaller ones, found bit by bit instead of sorting the row.

    the largest x with count(keys < x) <= k    is the smallest key but k;
    the largest p with count(keys == x, before p) <= k - count(keys < x)    is where a stable sort would find it

Each bit takes a pass over the row, which reads and counts: about as many as a key and a position have bits, where a
sort moves the row for every five bits of a key. A bit's value is a tensor, so that all passes are one kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from weft.autograd.value import Value, apply
from weft.core.args import broadcast as bc
from weft.core.args.handle import wrap
from weft.core.composed.templates import templated
from weft.core.layout.movement import positions
from weft.core.pointwise.elementwise import eq, gt, le, logical_and, lt, where
from weft.ir.dtypes import int32, int64
from weft.ir.graph import Axes
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

PAYS = 1 << 6
"""Rows from so many elements on are searched faster than sorted."""


def kth(keys: Value, k: int) -> Value:
    """The position of the k-th smallest, counted from 0, in each row of integer keys (not uint64).

    int32, the last axis of size 1. Equal keys count in the order in which they lie.
    """
    return templated(_kth, keys, k)


def median(keys: Value, missing: bool, ignored: bool) -> Value:
    """The same of the lower median. With `missing`, the largest key marks elements without a value: the first of them
    is the median where there is one, or the median is that of the others, if `ignored`."""
    return templated(_median, keys, missing, ignored)


def _kth(keys: Value, k: int) -> Value:
    return _place(_stored(wrap(keys)), wrap(bc.scalar(k, int32, (*keys.shape[:-1], 1))))


def _median(keys: Value, missing: bool, ignored: bool) -> Value:
    n = keys.shape[-1]
    assert isinstance(n, int)
    row = _stored(wrap(keys))
    if not missing:
        return _kth(row.value, (n - 1) // 2)
    bad = _stored(_count(eq(row, int(keys.dtype.max))))
    if ignored:
        return _place(row, where(lt(bad, n), (-bad + (n - 1)) // 2, 0))
    return _place(row, where(gt(bad, 0), -bad + n, (n - 1) // 2))


def _place(row: Tensor, k: Tensor) -> Value:
    n, dtype = row.value.shape[-1], row.value.dtype
    assert isinstance(n, int)
    k = _stored(k)
    low = int(dtype.min)

    def smaller(x: Tensor) -> Tensor:
        return lt(row, wrap(bc.cast(x.value, dtype)))

    key = wrap(bc.cast(_searched(smaller, k, low, dtype.bits - 1).value, dtype))
    before = _stored(k - _count(lt(row, key)))
    place = wrap(positions(row.value.shape, len(row.value.shape) - 1, int32))

    def equal(x: Tensor) -> Tensor:
        return logical_and(eq(row, key), lt(place, wrap(bc.cast(x.value, int32))))

    return bc.cast(_searched(equal, before, 0, (n - 1).bit_length() - 1).value, int32)


def _searched(test: Callable[[Tensor], Tensor], k: Tensor, start: int, bit: int) -> Tensor:
    """The largest x from `start` on, below start + 2**(bit + 1), for which at most k elements pass the test."""
    found = _stored(wrap(bc.scalar(start, int64, k.value.shape)))
    if bit == 63:  # half of the range is no number itself; `start` is the least one
        found = _stored(where(le(_count(test(found * 0)), k), 0, found))
        bit = 62
    step = _stored(wrap(bc.scalar(1 << max(bit, 0), int64, ())))
    for b in range(bit + 1):
        step = _stored(step >> 1) if b else step
        further = found + step
        found = _stored(where(le(_count(test(further)), k), further, found))
    return found


def _count(test: Tensor) -> Tensor:
    """The number of true elements in each row, the last axis of size 1."""
    ones = bc.cast(test.value, int32)
    total = apply(Op.SUM, (ones,), Axes((len(ones.shape) - 1,)))
    return wrap(bc.reshape(total, (*ones.shape[:-1], 1)))


def _stored(x: Tensor) -> Tensor:
    return wrap(apply(Op.CONTIGUOUS, (x.value,)))
