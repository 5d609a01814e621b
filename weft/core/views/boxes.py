"""Things by the boxes of elements that they look at: who asks for those that share elements with a box does not look
at all of them.

    rows of a matrix, each a box of one row    x[3] asks: its own cell, not the other rows

A box is kept on the axis of which it takes the least part, in one or two cells of 2^n positions: the least that are
as long as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")

Spans: TypeAlias = tuple[tuple[int, int] | None, ...]
"""The first and the last position along each axis; None where they are not known."""


class Boxes(Generic[T]):
    """Things by their boxes among elements of a shape."""

    __slots__ = ("_anywhere", "_cells", "_shape")

    def __init__(self, shape: Sequence[object]) -> None:
        self._shape = shape
        self._anywhere: list[T] = []
        self._cells: dict[tuple[int, int], dict[int, list[T]]] = {}
        """By axis and exponent, the things in each cell of so many positions."""

    def add(self, thing: T, box: Spans) -> None:
        """The thing looks at the elements of this box; of all, where it has no sides."""
        axis, least = None, 1.0
        for k, (span, size) in enumerate(zip(box, self._shape, strict=False)):
            if span is not None and isinstance(size, int) and 0 <= span[1] - span[0] < least * size - 1:
                axis, least = k, (span[1] - span[0] + 1) / size
        span = None if axis is None else box[axis]
        if axis is None or span is None:
            self._anywhere.append(thing)
            return
        first, last = span
        exponent = (last - first).bit_length()
        cells = self._cells.setdefault((axis, exponent), {})
        for cell in {first >> exponent, last >> exponent}:
            cells.setdefault(cell, []).append(thing)

    def near(self, box: Spans) -> list[T]:
        """The things that may share elements with this box, among them all that do. One may come twice."""
        found = list(self._anywhere)
        for (axis, exponent), cells in self._cells.items():
            span = box[axis] if axis < len(box) else None
            if span is None:
                for things in cells.values():
                    found += things
                continue
            first, last = span[0] >> exponent, span[1] >> exponent
            if last - first < len(cells):
                for cell in range(first, last + 1):
                    found += cells.get(cell, ())
            else:
                for cell, things in cells.items():
                    if first <= cell <= last:
                        found += things
        return found
