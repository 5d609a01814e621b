"""Copies of boxes: which bytes of one memory go where in another, as runs of contiguous bytes.

    box [2:4, 1:3] of f32[8, 5]  ->  f32[2, 2]        counts (2,), run_bytes 8
        from byte 4 * (2 * 5 + 1), rows 20 bytes apart       to byte 0, rows 8 bytes apart

A box of whole rows is one run, however many rows it has: axes that are contiguous on both sides are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from weft.backends.synchronous import check_range
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory


@dataclass(frozen=True, slots=True)
class Place:
    """The first byte of a box in a memory, and the bytes from run to run along each axis."""

    offset: int
    strides: tuple[int, ...] = ()

    def end(self, counts: Sequence[int], run_bytes: int) -> int:
        """The end of the last byte of the box."""
        return self.offset + sum((n - 1) * s for n, s in zip(counts, self.strides, strict=True)) + run_bytes


@dataclass(frozen=True, slots=True)
class BoxCopy:
    """`counts` runs along axes, the outermost first, of `run_bytes` bytes each, from `source` to `target`."""

    counts: tuple[int, ...]
    run_bytes: int
    source: Place
    target: Place

    @property
    def nbytes(self) -> int:
        """The bytes that are copied."""
        n = self.run_bytes
        for c in self.counts:
            n *= c
        return n

    @property
    def source_end(self) -> int:
        """The end of what is read."""
        return self.source.end(self.counts, self.run_bytes)

    @property
    def target_end(self) -> int:
        """The end of what is written."""
        return self.target.end(self.counts, self.run_bytes)

    @property
    def fills(self) -> bool:
        """True where what is written is one run of bytes."""
        dense = self.run_bytes
        for n, s in zip(reversed(self.counts), reversed(self.target.strides), strict=True):
            if s != dense:
                return False
            dense *= n
        return True

    def check(self, source_bytes: int, target_bytes: int) -> None:
        """ValueError where the box is not inside memories of so many bytes."""
        if self.nbytes:
            check_range("copy", self.source_end - self.source.offset, self.source.offset, source_bytes)
            check_range("copy", self.target_end - self.target.offset, self.target.offset, target_bytes)


@dataclass(frozen=True, slots=True)
class Within:
    """A box of a row-major tensor of `shape`: its first element and its step along each axis."""

    shape: tuple[int, ...]
    start: tuple[int, ...]
    step: tuple[int, ...]

    @classmethod
    def whole(cls, shape: tuple[int, ...]) -> Within:
        """All of it."""
        return cls(shape, (0,) * len(shape), (1,) * len(shape))


def box_copy(size: Sequence[int], itemsize: int, source: Within, target: Within) -> BoxCopy:
    """The copy of a box of `size` elements per axis."""
    if 0 in size:
        return BoxCopy((), 0, Place(0), Place(0))
    (from_, at_from), (to, at_to) = _strides(source, itemsize), _strides(target, itemsize)
    counts: list[int] = []
    rows: tuple[list[int], list[int]] = [], []
    run, dense = itemsize, True
    for n, a, b in zip(reversed(size), reversed(from_), reversed(to), strict=True):
        if n == 1:
            continue
        if dense and a == b == run:
            run *= n
            continue
        dense = False
        if counts and a == rows[0][-1] * counts[-1] and b == rows[1][-1] * counts[-1]:
            counts[-1] *= n
            continue
        counts.append(n)
        rows[0].append(a)
        rows[1].append(b)
    return BoxCopy(
        tuple(reversed(counts)), run, Place(at_from, tuple(reversed(rows[0]))), Place(at_to, tuple(reversed(rows[1])))
    )  # fmt: skip


def _strides(box: Within, itemsize: int) -> tuple[list[int], int]:
    """The bytes from one element of the box to the next along each axis, and the offset of the first."""
    steps: list[int] = []
    offset, row = 0, itemsize
    for n, first, step in zip(reversed(box.shape), reversed(box.start), reversed(box.step), strict=True):
        steps.append(row * step)
        offset += row * first
        row *= n
    return steps[::-1], offset


def runs(data: np.ndarray[Any, Any], place: Place, copy: BoxCopy, offset: int = 0) -> np.ndarray[Any, Any]:
    """The box as an array of runs over `data`, the bytes of a memory from `offset` on."""
    start = place.offset - offset
    return as_strided(data[start:], (*copy.counts, copy.run_bytes), (*place.strides, 1))


def copy_box(
    device: Device,
    memory: Memory,
    origin: Device,
    source: Memory,
    copy: BoxCopy,
    queue: int = 0,
    origin_queue: int = 0,
) -> bool:
    """Copy a box into memory of `device`: straight if it can, else through the host, which waits for `origin_queue`
    (the False that is returned then). All that the box depends on has been started on these queues, or they have
    waited for it."""
    from weft.backends.protocol import BoxCopier

    if not copy.nbytes:
        return True
    copy.check(source.nbytes, memory.nbytes)
    if isinstance(device, BoxCopier) and device.copy_box(memory, origin, source, copy, queue):
        return True
    first = copy.source.offset
    data = np.frombuffer(origin.read(source, copy.source_end - first, first, origin_queue), np.uint8)
    box = runs(data, copy.source, copy, first)
    if copy.fills:
        device.write(memory, np.ascontiguousarray(box).reshape(-1).data, copy.target.offset, queue)
        return False
    for at in np.ndindex(copy.counts):
        offset = copy.target.offset + sum(k * s for k, s in zip(at, copy.target.strides, strict=True))
        device.write(memory, np.ascontiguousarray(box[at]).data, offset, queue)
    return False
