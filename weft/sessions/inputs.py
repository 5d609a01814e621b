"""Inputs of a session: which are other values than in the last run, and where.

A write through weft is an UPDATE of the value from before, so the way from the new node to the last one names the
boxes that were written. What came otherwise is compared with the last value, bit by bit, or the caller says where it
differs.

The last values of arguments are kept for that, as the tensors had them or as copies of arrays. What the function uses
without being given it (parameters) is not kept: one that is another than before, with no writes between, counts as
changed everywhere.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeAlias
from weakref import ref

import numpy as np

from weft.autograd.value import Value
from weft.backends.storage import Storage
from weft.core.execute import edits, ownership, run
from weft.errors import ArgumentError
from weft.ir.graph import Box, Node
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import MAX_BOXES, NOTHING, Region
from weft.sessions.recorded import Template

Array: TypeAlias = np.ndarray[Any, Any]

Edit: TypeAlias = "tuple[int, int]"
"""The edits of tensors, and writes to elements, that had been made."""

BLOCK_BYTES = 4 << 20
"""The bytes that are compared at once: enough to go at the speed of memory."""

PART_BYTES = 1 << 18
"""The bytes of a block that are compared at once where it differs: little to look through for elements."""


class OtherKindError(Exception):
    """A tensor that the function uses without being given it has another shape, dtype or device than it had."""


class EditedError(Exception):
    """A tensor that the function uses without being given it was edited while the function ran."""


class Inputs:
    """The last values of a function's inputs, by number."""

    def __init__(self, template: Template) -> None:
        self._leaves = template.leaves
        self._arguments = template.arguments
        self._given = tuple([k for k in template.leaves if k < template.arguments])
        self._rest = tuple([k for k in template.leaves if k >= template.arguments])
        self._anew: list[int] = []
        """The inputs besides arguments that were not what they were when they were last looked at."""
        self.values: dict[int, Storage] = {}
        """The last values of arguments."""
        self._captured: dict[int, ref[Storage]] = {}
        self._looked_at = _edit()
        """The edits that had been made before the last look."""
        self._kept_edit: Edit | None = None
        """The edits that had been made when all inputs besides arguments were what they were in the last run."""
        self.edit: Edit | None = None
        """The edits that had been made when they were looked at, and were what they were before; None where they were
        not."""
        for t in template.captured:
            edits.capture(t)

    def forget(self) -> None:
        """Have every input count as changed."""
        self.values, self._captured, self._kept_edit = {}, {}, None

    def are_last(self, objects: Sequence[Any]) -> bool:
        """True where all tensors are what they were in the last run, known without a comparison."""
        for k, last in self.values.items():
            if objects[k].value.node.storage is not last:
                return False
        if self._kept_edit is None or self.are_edited(self._kept_edit):
            for k, source in self._captured.items():
                storage = objects[k].value.node.storage
                if storage is None or storage is not source():  # a last value may be gone, too
                    return False
        return bool(self.values or self._captured)

    def are_edited(self, edit: Edit) -> bool:
        """True where any tensor that some function captured was edited since."""
        return edit != _edit()

    def complete(self, now: dict[int, Storage]) -> None:
        """Have the values of all inputs in `now`. EditedError where one was edited since it was looked at."""
        if len(now) < len(self._leaves):
            for k in self._rest:
                source = self._captured.get(k)
                storage = None if source is None else source()
                if storage is None:
                    raise EditedError
                now[k] = storage

    def look(
        self, objects: Sequence[Any], arrays: Mapping[int, Array], said: Mapping[int, Region]
    ) -> tuple[dict[int, Storage], dict[int, Region]]:
        """The values of inputs now, and the regions that changed; of those besides arguments only if any changed (see
        `complete`). `arrays` stand behind some arguments, which are
        copied where they changed only; `said`: what the caller says of changes. OtherKindError where the function has
        to be recorded anew."""
        now: dict[int, Storage] = {}
        changed: dict[int, Region] = {}
        values, captured, self._anew = self.values, self._captured, []
        edit = _edit()  # before they are looked at: what is edited meanwhile is found by the next look
        for k in self._given:
            before, storage = values.get(k), objects[k].value.node.storage
            if storage is None or storage is not before:
                storage, region = self._closely(k, objects[k].value, before, arrays.get(k), said.get(k))
                if not region.is_empty:
                    changed[k] = region
            now[k] = storage
        self.edit = edit if edit == self._kept_edit else None
        for k in self._rest if self.edit is None else ():
            source, storage = captured.get(k), objects[k].value.node.storage
            before = None if source is None else source()
            if storage is None or storage is not before:
                storage, region = self._closely(k, objects[k].value, before, None, said.get(k))
                if not region.is_empty:
                    changed[k] = region
                self._anew.append(k)
            now[k] = storage
        if not self._anew and len(captured) == len(self._rest):
            self.edit = edit
        self._looked_at = edit
        return now, changed

    def _closely(
        self, k: int, v: Value, before: Storage | None, array: Array | None, said: Region | None
    ) -> tuple[Storage, Region]:
        """The value of an input now, and the region in which it is another one than before."""
        shape = self._leaves[k].shape
        region = None if before is None else said or written(v.node, before)
        run.realize_value(v)
        storage: Storage = v.node.storage
        if storage.home is None:
            raise ArgumentError(
                f"session: a tensor of shape {storage.shape} is in a file; move it to a device, as x.to('cpu')"
            )
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
        self.values = {k: now[k] for k in self._given}
        for k in self._anew:
            if ownership.watch_writes(now[k]):
                self._captured[k] = ref(now[k])
            else:
                self._captured.pop(k, None)
        self._kept_edit = self._looked_at if len(self._captured) == len(self._rest) else None

    def last_values(self) -> dict[int, Storage]:
        """The last values of all inputs. EditedError where one that is no argument is another one since."""
        now = dict(self.values)
        self.complete(now)
        return now

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


def _edit() -> Edit:
    return edits.tensors.latest(), edits.elements.latest()


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
    other = _different_parts(_bytes(new), _bytes(old))
    if not other:
        return NOTHING
    if not new.shape:
        return Region.whole(())
    # the rows that have these parts
    across = max(new.nbytes // new.shape[0], 1)
    first = other[0] // across
    end = min((other[-1] + PART_BYTES) // across + 1, new.shape[0])
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


def _bytes(x: Array) -> Array:
    return np.ascontiguousarray(x).reshape(-1).view(np.uint8)


def _memcmp() -> Callable[[int, int, int], int] | None:
    """The C library's comparison, which stores nothing on the way; None where this process has none by that name."""
    try:
        found = ctypes.CDLL(None).memcmp
    except (OSError, TypeError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
    return found


_compare = _memcmp()


def _different_parts(a: Array, b: Array) -> list[int]:
    """The places at which parts begin in which two rows of bytes differ."""
    at, by = a.ctypes.data, b.ctypes.data

    def differ(first: int, end: int) -> bool:
        if _compare is None:
            return not np.array_equal(a[first:end], b[first:end])
        return bool(_compare(at + first, by + first, end - first))

    blocks = _cut(0, a.size, BLOCK_BYTES)
    parts = [part for block in blocks if differ(*block) for part in _cut(*block, PART_BYTES)]
    return [first for first, end in parts if differ(first, end)]


def _cut(first: int, end: int, size: int) -> list[tuple[int, int]]:
    """The ends of blocks of a size, one after the other; the last may be smaller."""
    return [(k, min(k + size, end)) for k in range(first, end, size)]


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
