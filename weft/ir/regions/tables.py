"""Intervals at every start of a class: in numbers, for each value of the runtime variable that they move with.

    t in 0..4:    [t : t+2]          lo 0 1 2 3    hi 2 3 4 5
                  one more each way  lo 0 0 1 2    hi 3 4 5 5       of 5 elements: cut off where they leave them

What an op does to an interval is arithmetic on its two rows of numbers, so it is right for each value, and whether one
interval holds another is seen by comparing. In the end an interval has one size, that of its largest, and begins at an
expression of the variable where its numbers are a*t + b, else at a variable of its own, which a table gives.
"""
# Tests: tests/ir/regions/test_reach.py

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.ir.index import Int, Var, evaluate, high, low, variables
from weft.ir.regions.boxes import IndexBox, Interval
from weft.lazy_dataclass import dataclass

Numbers: TypeAlias = NDArray[np.int64]

MAX_VALUES = 1 << 14
"""The values of a variable for which intervals are tabulated; with more, an interval is all that it passes over."""


@dataclass(frozen=True, slots=True, eq=False)
class Side:
    """lo[t - var.lo] to before hi[t - var.lo] for each value t of `var`; without one, always the same. Where it ends
    before it begins there is nothing in it. Interned (`Sides`), so compared by identity."""

    var: Var | None
    lo: Numbers
    hi: Numbers

    @property
    def extent(self) -> int:
        """The largest of its sizes."""
        return int((self.hi - self.lo).max())

    @property
    def hull(self) -> tuple[int, int]:
        """From the first to the last element that it ever has."""
        return int(self.lo.min()), int(self.hi.max())

    def holds(self, other: Side) -> bool:
        """True where it has, for each value, what the other one has."""
        if self.var is not None and other.var is not None and self.var is not other.var:
            lo, hi = other.hull
            return bool(((self.lo <= lo) & (self.hi >= hi)).all())
        return bool((((self.lo <= other.lo) & (self.hi >= other.hi)) | (other.hi <= other.lo)).all())

    def at(self, values: Mapping[str, int]) -> Interval:
        """The interval for these values of the variables."""
        k = 0 if self.var is None else values[self.var.name] - self.var.lo
        return Interval(int(self.lo[k]), int(self.hi[k]))

    def is_full(self, size: int) -> bool:
        """True where it has all elements of an axis of this size."""
        return bool((self.lo <= 0).all() and (self.hi >= size).all())


TableBox: TypeAlias = tuple[Side, ...]
"""A side for each axis."""


@dataclass(slots=True)
class Sides:
    """All sides of a graph, equal ones once."""

    _known: dict[tuple[Var | None, bytes, bytes], Side] = field(
        default_factory=dict[tuple[Var | None, bytes, bytes], Side]
    )

    def of(self, var: Var | None, lo: Any, hi: Any) -> Side:
        """The side with these numbers."""
        lo, hi = np.atleast_1d(np.asarray(lo, np.int64)), np.atleast_1d(np.asarray(hi, np.int64))
        lo, hi = np.broadcast_arrays(lo, np.maximum(lo, hi))
        if var is not None and (lo == lo[0]).all() and (hi == hi[0]).all():
            var, lo, hi = None, lo[:1], hi[:1]
        key = var, lo.tobytes(), hi.tobytes()
        return self._known.setdefault(key, Side(var, lo, hi))

    def full(self, size: int) -> Side:
        """All elements of an axis."""
        return self.of(None, 0, size)

    def interval(self, i: Interval, size: int) -> Side:
        """The side of an interval whose ends may be expressions of a runtime variable: of one, if it is to be exact."""
        met = variables_of(i)
        if not met:
            return self.of(None, i.lo, i.hi)
        v = next(iter(met))
        if len(met) > 1 or v.hi - v.lo >= MAX_VALUES:
            return self.of(None, max(low(i.lo), 0), min(high(i.hi), size))
        at = {v.name: np.arange(v.lo, v.hi + 1)}
        zero = np.zeros(v.hi - v.lo + 1, np.int64)
        return self.of(v, zero + evaluate(i.lo, at), zero + evaluate(i.hi, at))

    def moved(self, i: Side, by: int, first: Int, size: int) -> Side:
        """The places of elements, which are `by` apart, the first of them at `first`, on an axis of this size."""
        if by == 1 and first == 0:
            return i
        var, ((lo, hi), (least, end)) = self.together(i, self.interval(Interval(first, first + 1), size))
        return self.within(self.of(var, lo * by + least, (hi - 1) * by + end), size)

    def divided(self, i: Side, by: int, first: Int, size: int) -> Side:
        """The elements, of so many, whose places, `by` apart from `first` on, are in a side."""
        if by == 1 and first == 0:
            return self.within(i, size)
        var, ((lo, hi), (least, end)) = self.together(
            i, self.interval(Interval(first, first + 1), high(first) + 1)
        )
        return self.within(self.of(var, -((end - 1 - lo) // by), (hi - 1 - least) // by + 1), size)

    def within(self, i: Side, size: int) -> Side:
        """The part of a side that is in an axis of this size."""
        if (i.lo >= 0).all() and (i.hi <= size).all():
            return i
        return self.of(i.var, i.lo.clip(0, size), i.hi.clip(0, size))

    def together(self, *sides: Side) -> tuple[Var | None, list[tuple[Numbers, Numbers]]]:
        """The numbers of sides for each value of the one variable that the first of them that moves moves with. Others
        stand with all that they pass over."""
        var = next((i.var for i in sides if i.var is not None), None)
        return var, [(i.lo, i.hi) if i.var in (None, var) else _hull(i) for i in sides]

    def around(self, a: Side, b: Side) -> Side:
        """The smallest side that holds both."""
        if a is b:
            return a
        var, ((lo, hi), (other_lo, other_hi)) = self.together(a, b)
        return self.of(var, np.minimum(lo, other_lo), np.maximum(hi, other_hi))

    def common(self, a: Side, b: Side) -> Side:
        """The side of what is in both."""
        var, ((lo, hi), (other_lo, other_hi)) = self.together(a, b)
        return self.of(var, np.maximum(lo, other_lo), np.minimum(hi, other_hi))


def _hull(i: Side) -> tuple[Numbers, Numbers]:
    lo, hi = i.hull
    return np.array([lo]), np.array([hi])


def variables_of(i: Interval) -> frozenset[Var]:
    """The runtime variables in the ends of an interval."""
    ends = [variables(end) for end in i if not isinstance(end, int)]
    return frozenset[Var]().union(*ends)


@dataclass(slots=True)
class Starts:
    """The starts of a class: of the variables that it moves with, those in `bounds` take these values only. What does
    not follow from a variable by a*t + b gets a variable of its own."""

    bounds: Mapping[str, tuple[int, int]]
    tables: dict[Var, tuple[Var, Numbers]] = field(default_factory=dict[Var, tuple[Var, Numbers]])
    """By variable: the one whose value says which of the numbers it has; the first is for the least value there is."""

    _made: dict[tuple[Side, int], Interval] = field(default_factory=dict[tuple[Side, int], Interval])

    def interval(self, i: Side, size: int) -> Interval | None:
        """An interval of an axis, of one size, that has the side's elements wherever it begins; None if it is empty."""
        if (i, size) not in self._made:
            self._made[i, size] = self._interval(i, size)
        found = self._made[i, size]
        return None if found == (0, 0) else found

    def _interval(self, i: Side, size: int) -> Interval:
        lo, hi = self._numbers(i)
        extent = int((hi - lo).max())
        if extent <= 0:
            return Interval(0, 0)
        first: Int = 0
        if extent < size:
            first = self._start(i.var, lo.clip(0, size - extent))
        return Interval(first, first + min(extent, size))

    def extent(self, i: Side) -> int:
        """The size of the side's interval, before it is cut off."""
        lo, hi = self._numbers(i)
        return max(int((hi - lo).max()), 0)

    def _numbers(self, i: Side) -> tuple[Numbers, Numbers]:
        if i.var is None or i.var.name not in self.bounds:
            return i.lo, i.hi
        first, last = self.bounds[i.var.name]
        part = slice(first - i.var.lo, last + 1 - i.var.lo)
        return i.lo[part], i.hi[part]

    def _start(self, var: Var | None, numbers: Numbers) -> Int:
        first, last = (0, 0) if var is None else self.bounds.get(var.name, (var.lo, var.hi))
        found = expression(None if var is None else Var(var.name, first, last), numbers)
        if found is not None:
            return found
        assert var is not None
        known = next(
            (v for v, (of, n) in self.tables.items() if of.name == var.name and np.array_equal(n, numbers)),
            None,
        )
        if known is None:
            known = Var(f"{var.name}_{len(self.tables)}", int(numbers.min()), int(numbers.max()))
            self.tables[known] = Var(var.name, first, last), numbers
        return known

    def plain(self, box: IndexBox) -> IndexBox:
        """A box around this one without the variables that are made here."""
        mine = [variables_of(i).isdisjoint(self.tables) for i in box]
        return tuple(
            [i if plain else Interval(low(i.lo), high(i.hi)) for i, plain in zip(box, mine, strict=True)]
        )

    def values(self, at: Mapping[str, int]) -> dict[str, int]:
        """The values of all variables, where those that the class moves with have these."""
        return {**at, **dict(zip([v.name for v in self.tables], self.made(at), strict=True))}

    def made(self, at: Mapping[str, int]) -> tuple[int, ...]:
        """The values of the variables that are made here, in the order of `tables`."""
        return tuple([int(numbers[at[of.name] - of.lo]) for of, numbers in self.tables.values()])


def meet(sides: Sides, a: TableBox, b: TableBox) -> TableBox:
    """The elements of both."""
    return tuple([x if x is y else sides.common(x, y) for x, y in zip(a, b, strict=True)])


def expression(var: Var | None, numbers: Numbers) -> Int | None:
    """The expression that has these numbers for the values of a variable; None where none does."""
    start = int(numbers[0])
    if var is None or (numbers == start).all():
        return start
    by = int(numbers[1]) - start
    return (var - var.lo) * by + start if (numbers == start + by * np.arange(len(numbers))).all() else None


def is_empty(box: TableBox) -> bool:
    """True where there is never anything in it."""
    return any((i.hi <= i.lo).all() for i in box)


def holds(a: TableBox, b: TableBox) -> bool:
    """True where `a` has all elements of `b`, for each value of the variables."""
    return all(x is y or x.holds(y) for x, y in zip(a, b, strict=True))


def enclosing(sides: Sides, a: TableBox, b: TableBox) -> TableBox:
    """The smallest box that holds both."""
    return tuple([sides.around(x, y) for x, y in zip(a, b, strict=True)])


def touch(a: TableBox, b: TableBox) -> bool:
    """True where both are together a box, for each value: they differ along one axis, and overlap or meet there."""
    apart = [(x, y) for x, y in zip(a, b, strict=True) if x is not y]
    if len(apart) != 1:
        return False
    ((x, y),) = apart
    if None is not x.var is not y.var is not None:
        return False
    filled = (x.lo < x.hi) & (y.lo < y.hi)
    return bool((filled & (x.lo <= y.hi) & (y.lo <= x.hi)).all())


def volume(box: TableBox) -> float:
    """The number of elements, on average over the values of the variables."""
    sizes: dict[Var | None, Any] = {}
    for i in box:
        sizes[i.var] = sizes.get(i.var, 1) * np.maximum(i.hi - i.lo, 0)
    return float(math.prod([n.mean() for n in sizes.values()]))
