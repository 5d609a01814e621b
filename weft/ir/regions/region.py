"""Regions of a tensor: unions of a few disjoint boxes.

    edited = Region.of([box])                            some elements
    both   = edited | other                              at most MAX_BOXES boxes: the two whose enclosing box adds
                                                         least are joined until that holds
    left   = both - done                                 a difference takes away what is certainly there only

A region is never smaller than what it stands for. `exact` says that it is no larger: boxes were joined, or a relation
had no box as an image, where it is False. What an inexact region says it has may therefore not be taken away from
another: `a - b` is `a`, inexactly, where b is inexact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import Any, TypeAlias

from weft.ir.index import Int, high
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox
from weft.lazy_dataclass import dataclass

MAX_BOXES = 4
"""Boxes of a region. The rest that a row-major interval leaves at both ends of a matrix takes three (manuals/decisions,
098); each is a launch, or a piece of an exchange, to those who use regions."""

Work: TypeAlias = Callable[[IndexBox], int]
"""The price of having a box in a region, at most, in any unit."""


def _most_elements(box: IndexBox) -> int:
    """The number of elements, at most."""
    count = 1
    for i in box:
        count *= max(high(i.hi - i.lo), 0)
    return count


@dataclass(frozen=True, slots=True)
class Region:
    """The elements in any of `boxes`, which are disjoint; no more than is meant where `exact`."""

    boxes: tuple[IndexBox, ...]
    exact: bool = True

    @staticmethod
    def of(
        boxes: Iterable[IndexBox], exact: bool = True, most: int = MAX_BOXES, work: Work = _most_elements
    ) -> Region:
        """The union of any boxes, as at most `most` disjoint ones; joined where that adds the least work."""
        boxes = [b for b in boxes if not bx.is_empty(b)]
        if len(boxes) < 2:
            return Region(tuple(boxes), exact)
        found, all_of_them = _disjoint(_runs_joined(boxes) if len(boxes) > most else boxes)
        fewer = _coarsened(found, most, work)
        return Region(tuple(fewer), exact and all_of_them and fewer is found)

    @staticmethod
    def _of_disjoint(boxes: Iterable[IndexBox], exact: bool) -> Region:
        found = _touching_joined([b for b in boxes if not bx.is_empty(b)])
        fewer = _coarsened(found, MAX_BOXES, _most_elements)
        return Region(tuple(fewer), exact and fewer is found)

    @staticmethod
    def whole(shape: Sequence[Int]) -> Region:
        """All elements of a shape."""
        return Region.of([bx.full(shape)])

    @property
    def is_empty(self) -> bool:
        """True where the region has certainly no elements."""
        return not self.boxes

    @property
    def enclosing(self) -> IndexBox:
        """The smallest box around a region that is not empty."""
        return bx.enclosing(self.boxes)

    @property
    def volume(self) -> Int:
        """The number of elements, an expression where the bounds are."""
        total: Int = 0
        for b in self.boxes:
            total = total + bx.volume(b)
        return total

    def contains(self, other: Region) -> bool:
        """True where the boxes certainly hold all elements of the other's."""
        return not _without(other.boxes, self.boxes)

    def __or__(self, other: Region) -> Region:
        return Region.of((*self.boxes, *other.boxes), self.exact and other.exact)

    def __and__(self, other: Region) -> Region:
        found = [bx.meet(a, b) for a in self.boxes for b in other.boxes]
        return Region._of_disjoint(found, self.exact and other.exact)

    def __sub__(self, other: Region) -> Region:
        if not other.exact:
            return replace(self, exact=False)
        return Region._of_disjoint(_without(self.boxes, other.boxes), self.exact)

    def shifted(self, by: Sequence[Int]) -> Region:
        """The region, moved by so many elements along each axis."""
        return replace(self, boxes=tuple([bx.shifted(b, by) for b in self.boxes]))

    def pieces(self, axis: int, count: int) -> list[Region]:
        """`count` regions, one after the other along an axis, which together are this one; some may be empty."""
        if self.is_empty:
            return [self] * count
        return [self & Region((part,)) for part in bx.cut(self.enclosing, axis, count)]

    def at(self, variables: Mapping[str, int]) -> Region:
        """The region for these values of the runtime variables."""
        return Region.of([bx.at(b, variables) for b in self.boxes], self.exact)

    def __repr__(self) -> str:
        text = " | ".join(f"[{', '.join(map(repr, b))}]" for b in self.boxes)
        return (text or "nothing") + ("" if self.exact else " at most")


NOTHING = Region(())
"""No elements, of a tensor of any rank."""


def united(regions: Iterable[Region]) -> Region:
    """The union of any number of regions."""
    found = NOTHING
    for r in regions:
        found = r if found is NOTHING else found | r
    return found


def within(region: Region, around: IndexBox) -> Region:
    """The elements of a region that are in a box: an answer that is too large may name places that there are not."""
    return region if all(bx.holds(around, b) for b in region.boxes) else region & Region((around,))


def _runs_joined(boxes: list[IndexBox]) -> list[IndexBox]:
    """The same elements in fewer boxes, where their ends are numbers and they follow each other along an axis: each is
    compared with the next, where there are too many to compare each with all."""
    if not all(map(bx.is_known, boxes)):
        return boxes
    for k in range(len(boxes[0])):
        runs: list[IndexBox] = []
        for box in sorted(boxes, key=lambda b: (_ends(b[:k]), _ends(b[k + 1 :]), _ends(b[k : k + 1]))):
            both = bx.joined(runs[-1], box) if runs else None
            if both is None:
                runs.append(box)
            else:
                runs[-1] = both
        boxes = runs
    return boxes


def _ends(box: IndexBox) -> Any:
    return [(i.lo, i.hi) for i in box]


def _disjoint(boxes: Iterable[IndexBox]) -> tuple[list[IndexBox], bool]:
    """Disjoint boxes of the same elements; or of more: those of which runtime variables decide whether they overlap
    are enclosed in one, as their difference is many boxes with many cases."""
    found: list[IndexBox] = []
    exact = True
    for box in boxes:
        if any(bx.holds(b, box) for b in found):
            continue
        found = [b for b in found if not bx.holds(box, b)]
        if bx.is_known(box) and all(map(bx.is_known, found)):
            found += _without([box], found)
            continue
        around, rest = _absorbed(box, found)
        found, exact = [*rest, around], exact and around is box
    return _touching_joined(found), exact


def _without(boxes: Iterable[IndexBox], others: Iterable[IndexBox]) -> list[IndexBox]:
    """Disjoint boxes of the elements that are in none of the others; `boxes` are disjoint."""
    left = [b for b in boxes if not bx.is_empty(b)]
    for other in others:
        left = [part for b in left for part in bx.difference(b, other)]
    return left


def _touching_joined(boxes: list[IndexBox]) -> list[IndexBox]:
    """The same elements in fewer boxes, where two are together a box."""
    pairs = combinations(boxes, 2)
    while (two := next(pairs, None)) is not None:
        a, b = two
        both = bx.joined(a, b)
        if both is not None:
            boxes = [both, *(c for c in boxes if c is not a and c is not b)]
            pairs = combinations(boxes, 2)
    return boxes


def _coarsened(boxes: list[IndexBox], most: int, work: Work) -> list[IndexBox]:
    """At most `most` disjoint boxes that hold all of these: the same list where there are no more.

    The two that add least are joined, and so on, the first two of several. There may be hundreds of boxes: each pair is
    looked at once."""
    if len(boxes) <= most:
        return boxes
    has_numbers = work is _most_elements and all(map(bx.is_known, boxes))
    prices = [work(b) for b in boxes]

    def added(a: int, b: int) -> int:
        around = _elements_around(live[a], live[b]) if has_numbers else work(bx.enclosing((live[a], live[b])))
        return around - prices[a] - prices[b]

    live = dict(enumerate(boxes))
    pairs = [(added(a, b), a, b) for a, b in combinations(live, 2)]
    heapify(pairs)
    while len(live) > most:
        _, a, b = heappop(pairs)
        if a not in live or b not in live:
            continue
        around, rest = _absorbed(bx.enclosing((live.pop(a), live.pop(b))), [*live.values()])
        kept = set(map(id, rest))
        live = {k: box for k, box in live.items() if id(box) in kept}
        new = len(prices)
        prices.append(work(around))
        others, live[new] = [*live], around
        for k in others:
            heappush(pairs, (added(k, new), k, new))
    return [*live.values()]


def _elements_around(a: IndexBox, b: IndexBox) -> int:
    """The number of elements of the smallest box around two whose ends are numbers."""
    count = 1
    for one, other in zip(a, b, strict=True):
        ends: Any = (*one, *other)
        count *= max(
            (ends[1] if ends[1] > ends[3] else ends[3]) - (ends[0] if ends[0] < ends[2] else ends[2]), 0
        )
    return count


def _absorbed(box: IndexBox, others: list[IndexBox]) -> tuple[IndexBox, list[IndexBox]]:
    """A box around this one and all others that are not certainly apart from it, and the rest."""
    while near := [b for b in others if not bx.are_apart(b, box)]:
        others = [b for b in others if bx.are_apart(b, box)]
        box = bx.enclosing([box, *near])
    return box, others
