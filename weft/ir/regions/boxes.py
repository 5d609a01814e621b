"""Boxes: an interval [lo, hi) per axis. Ends are numbers, or index expressions of runtime variables.

    [2:5, 0:n]       two axes; empty for those n that are 0

A box is empty at run time where an interval ends before it begins, so every operation here is right whatever the
variables are: they only choose shorter forms where the variables' bounds prove that nothing is lost.
"""
# Tests: tests/ir/regions/test_region.py

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import NamedTuple, TypeAlias

from weft.ir.index import Int, ceildiv, evaluate, high, low, maximum, minimum


class Interval(NamedTuple):
    """The integers from `lo` to before `hi`; none where lo >= hi."""

    lo: Int
    hi: Int

    @property
    def is_empty(self) -> bool:
        """True where there is certainly nothing in it."""
        return high(self.hi - self.lo) <= 0

    @property
    def is_filled(self) -> bool:
        """True where there is certainly something in it."""
        return low(self.hi - self.lo) > 0

    def __and__(self, other: Interval) -> Interval:
        """The integers in both."""
        (a, b), (c, d) = self, other
        if a.__class__ is int and b.__class__ is int and c.__class__ is int and d.__class__ is int:
            return Interval(a if a > c else c, b if b < d else d)  # pyright: ignore[reportOperatorIssue]
        return Interval(maximum(self.lo, other.lo), minimum(self.hi, other.hi))

    def __repr__(self) -> str:
        return f"{self.lo!r}:{self.hi!r}"


IndexBox: TypeAlias = tuple[Interval, ...]
"""One interval per axis; without axes, one element."""


def full(shape: Sequence[Int]) -> IndexBox:
    """The box of all elements of a shape."""
    return tuple([Interval(0, n) for n in shape])


def is_empty(box: IndexBox) -> bool:
    """True where the box has certainly no elements."""
    return any(i.is_empty for i in box)


def is_known(box: IndexBox) -> bool:
    """True where all ends are numbers."""
    return all(isinstance(end, int) for i in box for end in i)


def meet(a: IndexBox, b: IndexBox) -> IndexBox:
    """The elements of both."""
    return tuple([x & y for x, y in zip(a, b, strict=True)])


def are_apart(a: IndexBox, b: IndexBox) -> bool:
    """True where the boxes have certainly no element in common."""
    return any(high(x.hi - y.lo) <= 0 or high(y.hi - x.lo) <= 0 for x, y in zip(a, b, strict=True))


def holds(a: IndexBox, b: IndexBox) -> bool:
    """True where all elements of `b` are certainly in `a`."""
    return all(high(x.lo - y.lo) <= 0 and low(x.hi - y.hi) >= 0 for x, y in zip(a, b, strict=True))


def difference(a: IndexBox, b: IndexBox) -> Iterator[IndexBox]:
    """Disjoint boxes of what is in `a` and not in `b`: at most two per axis.

    +-----------+
    |   below   |
    +---+---+---+       Each axis is parted into below, within and beyond `b`. What is below or beyond is
    |   | b |   |       outside of b whatever the other axes say; the rest goes on to the next axis.
    +---+---+---+
    |  beyond   |
    +-----------+
    """
    if are_apart(a, b):
        yield a
        return
    before: IndexBox = ()
    for k, (x, y) in enumerate(zip(a, b, strict=True)):
        first = minimum(maximum(x.lo, y.lo), x.hi)
        last = maximum(first, minimum(x.hi, y.hi))
        for part in (Interval(x.lo, first), Interval(last, x.hi)):
            if not part.is_empty:
                yield (*before, part, *a[k + 1 :])
        within = Interval(first, last)
        if within.is_empty:
            return
        before = (*before, within)


def enclosing(boxes: Iterable[IndexBox]) -> IndexBox:
    """The smallest box that holds all of these, which may be larger where some are empty at run time."""
    return reduce(_enclose, boxes)


def _enclose(a: IndexBox, b: IndexBox) -> IndexBox:
    return tuple([Interval(minimum(x.lo, y.lo), maximum(x.hi, y.hi)) for x, y in zip(a, b, strict=True)])


def joined(a: IndexBox, b: IndexBox) -> IndexBox | None:
    """The box that is exactly both together: one holds the other, or they differ on one axis and touch there."""
    if holds(a, b):
        return a
    if holds(b, a):
        return b
    apart = [k for k, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
    if len(apart) != 1:
        return None
    (k,) = apart
    x, y = sorted((a[k], b[k]), key=lambda i: (low(i.lo), high(i.lo)))
    # an interval that ends before it begins would take elements away from the other
    if x.hi == y.lo and low(x.hi - x.lo) >= 0 and low(y.hi - y.lo) >= 0:
        return (*a[:k], Interval(x.lo, y.hi), *a[k + 1 :])
    return None


def volume(box: IndexBox) -> Int:
    """The number of elements."""
    count: Int = 1
    for i in box:
        count = count * maximum(i.hi - i.lo, 0)
    return count


def shifted(box: IndexBox, by: Sequence[Int]) -> IndexBox:
    """The box, moved by so many elements along each axis."""
    return tuple([Interval(i.lo + d, i.hi + d) for i, d in zip(box, by, strict=True)])


def cut(box: IndexBox, axis: int, count: int) -> list[IndexBox]:
    """`count` boxes, one after the other along an axis, of equal size but for the last ones."""
    x = box[axis]
    size = ceildiv(maximum(x.hi - x.lo, 0), count)
    parts = [Interval(x.lo + size * k, minimum(x.lo + size * (k + 1), x.hi)) for k in range(count)]
    return [(*box[:axis], part, *box[axis + 1 :]) for part in parts]


def at(box: IndexBox, variables: Mapping[str, int]) -> IndexBox:
    """The box for these values of the runtime variables."""
    return tuple([Interval(evaluate(i.lo, variables), evaluate(i.hi, variables)) for i in box])
