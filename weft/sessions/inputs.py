"""Inputs of a session: which are other values than in the last run, and where.

A write through weft is an UPDATE of the value from before, so the way from the new node to the last one names the
boxes that were written. What came otherwise is compared with the last value, bit by bit, or the caller says where it
differs.

The last values of arguments are kept for that, as the tensors had them or as copies of arrays. What the function uses
without being given it (parameters) is not kept: one that is another than before, with no writes between, counts as
changed everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import ref

import numpy as np

from weft.autograd.value import Value
from weft.backends.storage import Storage
from weft.core.execute import ownership, run
from weft.ir.graph import Box, Node
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import MAX_BOXES, NOTHING, Region
from weft.sessions.recorded import Template

Array: TypeAlias = np.ndarray[Any, Any]

BLOCK = 1 << 19
"""The words that are compared at once: enough to go at the speed of memory, and little room for what comes between."""


class OtherKindError(Exception):
    """A tensor that the function uses without being given it has another shape, dtype or device than it had."""


class Inputs:
    """The last values of a function's inputs, by number."""

    def __init__(self, template: Template) -> None:
        self._leaves = template.leaves
        self._arguments = template.arguments
        self.values: dict[int, Storage] = {}
        """The last values of arguments."""
        self._captured: dict[int, ref[Storage]] = {}

    def forget(self) -> None:
        """Have every input count as changed."""
        self.values, self._captured = {}, {}

    def are_last(self, objects: Sequence[Any]) -> bool:
        """True where all tensors are what they were in the last run, known without a comparison."""
        for k, last in self.values.items():
            if objects[k].value.node.storage is not last:
                return False
        for k, source in self._captured.items():
            if objects[k].value.node.storage is not source():
                return False
        return bool(self.values or self._captured)

    def look(
        self, objects: Sequence[Any], arrays: Mapping[int, Array], said: Mapping[int, Region]
    ) -> tuple[dict[int, Storage], dict[int, Region]]:
        """The values of all inputs now, and the regions that changed. `arrays` stand behind some arguments, which are
        copied where they changed only; `said`: what the caller says of changes. OtherKindError where the function has
        to be recorded anew."""
        now: dict[int, Storage] = {}
        changed: dict[int, Region] = {}
        arguments, values, captured = self._arguments, self.values, self._captured
        for k in self._leaves:
            if k < arguments:
                before = values.get(k)
            else:
                before = None if (source := captured.get(k)) is None else source()
            storage: Storage | None = objects[k].value.node.storage
            if storage is None or storage is not before:
                storage, region = self._closely(k, objects[k].value, before, arrays.get(k), said.get(k))
                if not region.is_empty:
                    changed[k] = region
            now[k] = storage
        return now, changed

    def _closely(
        self, k: int, v: Value, before: Storage | None, array: Array | None, said: Region | None
    ) -> tuple[Storage, Region]:
        """The value of an input now, and the region in which it is another one than before."""
        shape = self._leaves[k].shape
        region = None if before is None else said or written(v.node, before)
        run.realize_value(v)
        storage: Storage = v.node.storage
        if k >= self._arguments and not _is_like(v.node, self._leaves[k]):
            raise OtherKindError
        if region is None and before is not None and k < self._arguments:
            region = differing(storage.numpy() if array is None else array, before.numpy())
            if region.is_empty and array is not None:
                return before, region
        _ = storage.memory  # a copy of an array's elements: whoever has it may write to it
        return storage, Region.whole(shape) if region is None else region

    def keep(self, now: Mapping[int, Storage]) -> None:
        """Have these be the last values."""
        values, captured = self.values, self._captured
        for k, s in now.items():
            if k < self._arguments:
                values[k] = s
            elif (known := captured.get(k)) is None or known() is not s:
                if ownership.watch_writes(s):
                    captured[k] = ref(s)
                else:
                    captured.pop(k, None)

    def last(self, k: int) -> Storage:
        """The last value of an input."""
        found = self._before(k)
        assert found is not None
        return found

    def _before(self, k: int) -> Storage | None:
        if k < self._arguments:
            return self.values.get(k)
        source = self._captured.get(k)
        return None if source is None else source()


def _is_like(n: Node, leaf: Node) -> bool:
    """True where a tensor's value may stand where another one's stood."""
    return n.shape == leaf.shape and n.dtype is leaf.dtype and n.storage.home == leaf.device


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


def differing(new: Array, old: Array) -> Region:
    """The region in which two arrays of one shape differ in any bit: a few boxes."""
    a, b = _words(new), _words(old)
    blocks = range(0, a.size, BLOCK)
    other = [k for k in blocks if not np.array_equal(a[k : k + BLOCK], b[k : k + BLOCK])]
    if not other:
        return NOTHING
    if not new.shape:
        return Region.whole(())
    # the rows that have these blocks
    across = max(new.nbytes // new.shape[0], 1)
    first = other[0] * a.itemsize // across
    end = min((other[-1] + BLOCK) * a.itemsize // across + 1, new.shape[0])
    here = _bits(new[first:end]) != _bits(old[first:end])
    offset = (first,) + (0,) * (new.ndim - 1)
    boxes = [
        tuple([Interval(i.lo + o, i.hi + o) for i, o in zip(box, offset, strict=True)])
        for box in _boxes(here, MAX_BOXES)
    ]
    return Region.of(boxes)


def _bits(x: Array) -> Array:
    """The elements' bits, as numbers."""
    return np.ascontiguousarray(x).view(np.dtype(f"u{x.itemsize}"))


def _words(x: Array) -> Array:
    """The bytes, in the largest words that they are a multiple of."""
    flat = np.ascontiguousarray(x).reshape(-1)
    kinds = (np.uint64, np.uint32, np.uint16, np.uint8)
    return flat.view(next(t for t in kinds if flat.nbytes % np.dtype(t).itemsize == 0))


def _boxes(here: Array, most: int) -> Iterable[tuple[Interval, ...]]:
    """At most so many boxes that hold all that is true: they are parted where no row or column between is."""
    box = tuple(
        [Interval(int(on[0]), int(on[-1]) + 1) for on in map(_places, [here] * here.ndim, _axes(here))]
    )
    inside = here[tuple([slice(i.lo, i.hi) for i in box])]
    gap = max((g for k in _axes(inside) for g in _gaps(inside, k)), default=None) if most > 1 else None
    if gap is None:
        return [box]
    _, axis, lo, hi = gap
    parts: list[tuple[Interval, ...]] = []
    for part, by in ((slice(None, lo), 0), (slice(hi, None), hi)):
        at = tuple([part if k == axis else slice(None) for k in _axes(inside)])
        for b in _boxes(inside[at], most // 2):
            moved = [i.lo + (by if k == axis else 0) for k, i in enumerate(box)]
            parts.append(tuple([Interval(i.lo + o, i.hi + o) for i, o in zip(b, moved, strict=True)]))
    return parts


def _axes(x: Array) -> range:
    return range(x.ndim)


def _places(here: Array, axis: int) -> Array:
    """The places along an axis at which anything is true."""
    return np.flatnonzero(here.any(axis=tuple([a for a in _axes(here) if a != axis])))


def _gaps(here: Array, axis: int) -> list[tuple[int, int, int, int]]:
    """(elements, axis, first, end) of the stretches of an axis in which nothing is true."""
    on = _places(here, axis).tolist()
    across = here.size // here.shape[axis]
    pairs = pairwise(on)
    return [((b - a - 1) * across, axis, a + 1, b) for a, b in pairs if b - a > 1]
