"""Classes of changes: which inputs changed, in a box of which size; where the box begins is known at run time.

    ids [0:1, 7:8]            ids (1, 1), start 7              one plan serves all positions
    x   [3:6, 2:4] of 6 rows  x (4, 2), starts 2, 2            three rows are widened to four, within the axis
    ids [0:1, 7:8], t = 7     ids (1, 1), start 7, t = start   a number that goes along with a start stays with it

A change of several boxes is one step after another. A step reads inputs as they are now, so what it computes of
elements that a later box reaches too is not right yet, but then the later step computes these again; elements that no
later box reaches depend on none of its elements. So the classes are few, however many boxes change together.
"""
# Tests: tests/sessions/test_buckets.py

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from weft.ir.graph import Node, Shape
from weft.ir.index import Int, Var, high
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import Region


class Follows(NamedTuple):
    """A runtime variable of the function that is so much more than where the box begins along an axis."""

    variable: Var
    axis: int
    by: int


class Bucket(NamedTuple):
    """The class of a step: the inputs that changed as a whole, by number; one of which a box did, or -1, and the
    extents of the box; the runtime variables of the function that changed, and the one that goes along with the box."""

    whole: tuple[int, ...] = ()
    input: int = -1
    sizes: tuple[int, ...] = ()
    moved: tuple[Var, ...] = ()
    follows: Follows | None = None
    within: tuple[tuple[int, int], ...] = ()
    """Bounds of the starts, where the class is of some only."""

    def holds(self, starts: tuple[int, ...]) -> bool:
        """True where a box that begins there is in the class."""
        return all(lo <= x <= hi for x, (lo, hi) in zip(starts, self.within, strict=False))


class Placed(NamedTuple):
    """A step's change: its class, and where its box begins along the axes that it does not fill."""

    bucket: Bucket
    starts: tuple[int, ...] = ()


def placed(
    changed: Mapping[int, Region],
    leaves: Mapping[int, Node],
    numbers: Mapping[Var, int],
    moved: Collection[Var] = (),
) -> list[Placed]:
    """The steps that changes of inputs, given by number, take. `numbers`: the values of the function's runtime
    variables, of which those `moved` are others than before."""
    whole: list[int] = []
    parts: dict[Placed, None] = {}
    for k, region in sorted(changed.items()):
        shape = leaves[k].shape
        boxes = [_part(k, box, shape, numbers) for box in region.boxes]
        if all(b is not None for b in boxes):
            parts |= {b: None for b in boxes if b is not None}
        else:
            whole.append(k)
    if not whole and not moved:
        return list(parts)
    first, *rest = parts or (Placed(Bucket()),)
    joined = first.bucket._replace(whole=tuple(whole), moved=tuple(sorted(moved, key=lambda v: v.name)))
    return [Placed(joined, first.starts), *rest]


def _part(k: int, box: IndexBox, shape: Shape, numbers: Mapping[Var, int]) -> Placed | None:
    """The class of a box of an input, and its starts; None for one that is the whole input, or nearly."""
    sides = [_widened(i, n) for i, n in zip(box, shape, strict=True)]
    follows: Follows | None = None
    for axis, (i, n) in enumerate(zip(box, shape, strict=True)):
        if sides[axis].size == n or follows is not None:
            continue
        for v, x in numbers.items():
            along = _along(i, n, x)
            if along is not None:
                sides[axis], follows = along, Follows(v, axis, x - along.lo)
                break
    sizes = tuple([s.size for s in sides])
    if sizes == shape:
        return None
    starts = tuple([s.lo for s, n in zip(sides, shape, strict=True) if s.size != n])
    return Placed(Bucket((), k, sizes, (), follows), starts)


def one_element(shape: Shape) -> IndexBox:
    """One element of a shape, anywhere."""
    sides: list[Interval] = []
    for k, n in enumerate(shape):
        lo: Int = Var(f"at{k}", 0, high(n) - 1) if high(n) > 1 else 0
        sides.append(Interval(lo, lo + 1))
    return tuple(sides)


class _Side(NamedTuple):
    lo: int
    size: int


def _widened(i: Interval, n: Int) -> _Side:
    """The start and the size of an interval of an axis, widened to the next power of two within it, or all of it."""
    lo, hi, n = _known(i.lo), _known(i.hi), _known(n)
    size = 1 << (hi - lo - 1).bit_length()
    return _Side(0, n) if size >= n else _Side(min(lo, n - size), size)


def _along(i: Interval, n: Int, x: int) -> _Side | None:
    """An interval around this one, of a power of two, which begins a power of two less one before a number; None where
    the number is not near, or the axis too short."""
    lo, hi, n = _known(i.lo), _known(i.hi), _known(n)
    if not lo <= x <= n:
        return None
    start = x - ((1 << (x - lo).bit_length()) - 1)
    size = 1 << (hi - start - 1).bit_length()
    return _Side(start, size) if start >= 0 and start + size <= n and size < n else None


def _known(n: Int) -> int:
    assert isinstance(n, int)
    return n


class Changes(NamedTuple):
    """The changes of a class, with runtime variables: the region of each changed input by number; where the box begins;
    what the variable that goes along with it is."""

    regions: Mapping[int, Region]
    starts: tuple[Var, ...]
    follows: Mapping[Var, Int]


def changes(bucket: Bucket, leaves: Mapping[int, Node]) -> Changes:
    """The changes of inputs that a class stands for."""
    found = {k: Region.whole(leaves[k].shape) for k in bucket.whole}
    if bucket.input < 0:
        return Changes(found, (), {})
    starts: list[Var] = []
    sides: list[Interval] = []
    follows: dict[Var, Int] = {}
    for axis, (size, n) in enumerate(zip(bucket.sizes, leaves[bucket.input].shape, strict=True)):
        lo: Int = 0
        if size != n:
            lo = _start(axis, _known(n) - size, bucket.follows)
            if bucket.within:
                lo = Var(lo.name, *bucket.within[len(starts)])
            starts.append(lo)
            if bucket.follows is not None and bucket.follows.axis == axis:
                follows[bucket.follows.variable] = lo + bucket.follows.by
        sides.append(Interval(lo, lo + size))
    return Changes({**found, bucket.input: Region((tuple(sides),))}, tuple(starts), follows)


def _start(axis: int, most: int, follows: Follows | None) -> Var:
    """The variable for a start, which keeps a variable that goes along with it in its bounds."""
    least = 0
    if follows is not None and follows.axis == axis:
        least, most = (
            max(least, follows.variable.lo - follows.by),
            min(most, follows.variable.hi - follows.by),
        )
    return Var(f"at{axis}", least, most)


def in_order(changes: Changes, variables: Sequence[Var]) -> tuple[Var, ...]:
    """The runtime variables of a step, in the order in which it is given their values: starts, then the function's."""
    return (*changes.starts, *variables)
