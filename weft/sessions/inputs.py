"""Inputs of a session: what is another value than in the last run, and where.

A write through weft is an UPDATE of the value from before, so the way from the new node to the last one names the
boxes that were written. Anything else is compared, bit by bit.
"""
# Tests: tests/sessions/test_inputs.py

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from weft.backends.storage import Storage
from weft.ir.graph import Box, Node
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import MAX_BOXES, NOTHING, Region

BLOCK = 1 << 15
"""The elements that are compared at once, so that what comes between stays in a core's cache."""


def written(node: Node, before: Storage) -> Region | None:
    """The region that writes wrote since the value was in `before`; None where it is no such value with writes."""
    boxes: list[IndexBox] = []
    while node.storage is not before:
        if node.op is not Op.UPDATE:
            return None
        assert isinstance(node.attrs, Box)
        at, sizes = node.attrs, node.inputs[1].shape
        sides = [
            Interval(_known(lo), _known(lo + (n - 1) * step + 1))
            for lo, step, n in zip(at.start, at.step, sizes, strict=True)
        ]
        boxes.append(tuple(sides))
        node = node.inputs[0]
    return Region.of(boxes)


def _known(x: Int) -> int:
    assert isinstance(x, int)
    return x


def differing(new: np.ndarray[Any, Any], old: np.ndarray[Any, Any]) -> Region:
    """The region in which two arrays of one shape differ in any bit: a few boxes."""
    words = _words(new), _words(old)
    blocks = range(0, words[0].size, BLOCK)
    rows = [k for k in blocks if not np.array_equal(words[0][k : k + BLOCK], words[1][k : k + BLOCK])]
    if not rows:
        return NOTHING
    if not new.shape:
        return Region.whole(())
    bits = _bits(new), _bits(old)
    here = (bits[0] != bits[1]).any(axis=-1)
    return Region.of(_boxes(here, MAX_BOXES))


def _bits(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes of each element, along one more axis."""
    return np.ascontiguousarray(x).view(np.uint8).reshape(*x.shape, x.itemsize)


def _words(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The bytes, in the largest words that they are a multiple of."""
    flat = np.ascontiguousarray(x).reshape(-1)
    kind = next(t for t in (np.uint64, np.uint32, np.uint16, np.uint8) if flat.nbytes % t().itemsize == 0)
    return flat.view(kind)


def _boxes(here: np.ndarray[Any, Any], most: int) -> Iterable[IndexBox]:
    """At most so many boxes that hold all that is true: where no row or column of a box is, it may be parted there."""
    box = _enclosing(here)
    if most < 2:
        return [box]
    inside = here[tuple(slice(i.lo, i.hi) for i in box)]
    gap = max((g for k in range(inside.ndim) for g in _gaps(inside, k)), default=None)
    if gap is None:
        return [box]
    _, axis, lo, hi = gap
    parts: list[IndexBox] = []
    for part in (slice(None, lo), slice(hi, None)):
        at = tuple(part if k == axis else slice(None) for k in range(inside.ndim))
        offset = [i.lo + (hi if k == axis and part.start else 0) for k, i in enumerate(box)]
        for b in _boxes(inside[at], most // 2):
            parts.append(tuple([Interval(i.lo + o, i.hi + o) for i, o in zip(b, offset, strict=True)]))
    return parts


def _enclosing(here: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    sides: list[Interval] = []
    for k in range(here.ndim):
        found = np.flatnonzero(here.any(axis=tuple(a for a in range(here.ndim) if a != k)))
        sides.append(Interval(int(found[0]), int(found[-1]) + 1))
    return tuple(sides)


def _gaps(here: np.ndarray[Any, Any], axis: int) -> list[tuple[int, int, int, int]]:
    """(elements, axis, first, end) of the stretches of an axis in which nothing is true."""
    found = np.flatnonzero(here.any(axis=tuple(a for a in range(here.ndim) if a != axis)))
    across = here.size // here.shape[axis]
    return [
        ((b - a - 1) * across, axis, a + 1, b)
        for a, b in zip(found[:-1].tolist(), found[1:].tolist(), strict=True)
        if b - a > 1
    ]
