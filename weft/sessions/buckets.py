"""Classes of changes: which inputs changed, in a box of which size; where the box begins is known at run time.

    ids [0:1, 7:8]     class ids (1 whole, 1), start 7            one plan serves all positions
    x   [3:6, 2:4]     class x (4, 2), starts 2, 2 of 6 rows      three rows are widened to four, within the axis

A change of several boxes is one step after another. A step reads inputs as they are now, so what it computes of
elements that a later box reaches too is not right yet, but then the later step computes these again; elements that no
later box reaches depend on none of its elements. So the classes are few, however many boxes change together.
"""
# Tests: tests/sessions/test_buckets.py

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from weft.ir.graph import Node, Shape
from weft.ir.index import Int, Var
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import Region


class Bucket(NamedTuple):
    """The class of a step: the inputs that changed as a whole, by number, and one of which a box did: its number, or
    -1, and the extents of the box."""

    whole: tuple[int, ...]
    input: int = -1
    sizes: tuple[int, ...] = ()


class Placed(NamedTuple):
    """A step's change: its class, and where its box begins along the axes that it does not fill."""

    bucket: Bucket
    starts: tuple[int, ...] = ()


def placed(changed: Mapping[int, Region], leaves: Mapping[int, Node]) -> list[Placed]:
    """The steps that changes of inputs, given by number, take."""
    whole: list[int] = []
    parts: dict[Placed, None] = {}
    for k, region in sorted(changed.items()):
        shape = leaves[k].shape
        boxes = [[_widened(i, n) for i, n in zip(box, shape, strict=True)] for box in region.boxes]
        sizes = [tuple([size for _, size in sides]) for sides in boxes]
        if shape in sizes:
            whole.append(k)
            continue
        for sides, extents in zip(boxes, sizes, strict=True):
            starts = tuple([lo for (lo, size), n in zip(sides, shape, strict=True) if size != n])
            parts[Placed(Bucket((), k, extents), starts)] = None
    if not whole:
        return list(parts)
    first, *rest = parts or (Placed(Bucket(())),)
    return [Placed(first.bucket._replace(whole=tuple(whole)), first.starts), *rest]


def regions(bucket: Bucket, leaves: Mapping[int, Node]) -> tuple[dict[int, Region], tuple[Var, ...]]:
    """The changes of a class by input, with a box that begins at runtime variables, in the order of `starts`."""
    found = {k: Region.whole(leaves[k].shape) for k in bucket.whole}
    if bucket.input < 0:
        return found, ()
    box, variables = _box(bucket.sizes, leaves[bucket.input].shape)
    found[bucket.input] = Region((box,))
    return found, variables


def _box(sizes: tuple[int, ...], shape: Shape) -> tuple[IndexBox, tuple[Var, ...]]:
    variables: list[Var] = []
    sides: list[Interval] = []
    for size, n in zip(sizes, shape, strict=True):
        assert isinstance(n, int)
        lo: Int = 0
        if size != n:
            lo = Var(f"at{len(variables)}", 0, n - size)
            variables.append(lo)
        sides.append(Interval(lo, lo + size))
    return tuple(sides), tuple(variables)


def _widened(i: Interval, n: Int) -> tuple[int, int]:
    """The start and the size of an interval of an axis, widened to the next power of two within it, or all of it."""
    assert isinstance(i.lo, int) and isinstance(i.hi, int) and isinstance(n, int)
    size = 1 << (i.hi - i.lo - 1).bit_length()
    return (0, n) if size >= n else (min(i.lo, n - size), size)
