"""Exchanges over a mesh whose devices hold equal blocks, each as one formula for all devices.

    held [2*i : 2*i + 2]    wanted [0 : 8]            an all-gather along the axis of the mesh with coordinate i
    held [0 : 8]            wanted [2*i : 2*i + 2]    of terms: a reduce-scatter; a sum is computed of what arrives

Boxes are index expressions of a device's coordinates. What one device copies from which others follows from them when
that device needs it; what is planned, ordered and proved is the formula.
"""
# Tests: tests/scheduler/spmd/test_lower.py

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.backends.boxes import BoxCopy, Within, box_copy
from weft.ir.errors import IRError
from weft.ir.graph import Target
from weft.ir.index import Int, Var, coefficient, evaluate, substitute, variables
from weft.ir.regions.boxes import IndexBox, Interval
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Target):
    """The move of a COPY between the devices of a grid: of a value, of which each device has the box `held`, each gets
    the box `wanted`, from the devices that differ from it in coordinates `axes`. `stacked`: all of these have terms of
    that box, and it gets a row of each, in their order. `origin`: the value is on that one device instead."""

    grid: tuple[int, ...]
    held: IndexBox
    wanted: IndexBox
    axes: tuple[int, ...] = ()
    stacked: bool = False
    origin: str | None = None

    @property
    def pattern(self) -> str:
        """The name of the collective that it is."""
        if self.origin is not None:
            return f"a copy from {self.origin}"
        own = self._parted(self.wanted)
        if self.stacked:
            return "reduce-scatter" if own else "all-reduce"
        if not own:
            return "all-gather"
        if own != self._parted(self.held):
            return "all-to-all"
        return "ring" if sizes(self.wanted) == sizes(self.held) else "halo exchange"

    def _parted(self, box: IndexBox) -> list[int]:
        """The axes of a box that begin elsewhere on each of the devices between which something moves."""
        at = coordinates(self.grid)
        moving = {v for a in self.axes if isinstance(v := at[a], Var)}
        return [d for d, i in enumerate(box) if variables(i.lo) & moving]

    def group(self, number: int) -> list[int]:
        """The devices that device `number` gets something from, itself included, in row-major order."""
        return group(self.grid, self.axes, number)


class Piece(NamedTuple):
    """The box that comes from one device: its size, and where it is in what that has, and in what is made of it."""

    source: int
    size: tuple[int, ...]
    at: Within
    to: Within

    def copy(self, itemsize: int) -> BoxCopy:
        """The bytes that are copied."""
        return box_copy(self.size, itemsize, self.at, self.to)


def coordinates(grid: Sequence[int]) -> tuple[Int, ...]:
    """The place of a device in the grid, as variables of the run."""
    return tuple([Var(f"at{m}", 0, n - 1) if n > 1 else 0 for m, n in enumerate(grid)])


def bindings(grid: Sequence[int], number: int) -> dict[str, int]:
    """The values of these variables on device `number`."""
    found: dict[str, int] = {}
    for m in reversed(range(len(grid))):
        number, found[f"at{m}"] = divmod(number, grid[m])
    return found


def group(grid: Sequence[int], axes: Sequence[int], number: int) -> list[int]:
    """The devices that differ from one in these coordinates only, in row-major order."""
    at = bindings(grid, number)
    ways = [range(n) if m in axes else (at[f"at{m}"],) for m, n in enumerate(grid)]
    found: list[int] = []
    for place in itertools.product(*ways):
        k = 0
        for n, here in zip(grid, place, strict=True):
            k = k * n + here
        found.append(k)
    return found


class Pieces:
    """The pieces that each device gets by a move: computed for all devices at once, cut for one when it asks."""

    def __init__(self, move: Moved) -> None:
        self.move = move
        self._held, self._size_held = _ends(move.held, move.grid)
        self._wanted, self._size = _ends(move.wanted, move.grid)
        self._known: dict[int, list[Piece]] = {}

    def of(self, number: int) -> list[Piece]:
        """The pieces that device `number` gets; of those that several have, one."""
        if number not in self._known:
            self._known[number] = self._pieces(number)
        return self._known[number]

    def nbytes(self, number: int, itemsize: int) -> int:
        """The bytes that device `number` gets from others."""
        return sum(math.prod(p.size) for p in self.of(number) if p.source != number) * itemsize

    def _pieces(self, number: int) -> list[Piece]:
        first = self._wanted[number]
        found: list[Piece] = []
        rows = self.move.group(number)
        whole = (len(rows), *self._size) if self.move.stacked else self._size
        for row, k in enumerate(rows):
            held = self._held[k]
            lo = np.maximum(first, held)
            size = np.minimum(first + self._size, held + self._size_held) - lo
            if (size <= 0).any():
                continue
            n, at, to = (tuple(x.tolist()) for x in (size, lo - held, lo - first))
            steps = (1,) * len(n)
            if self.move.stacked:
                to, steps = (row, *to), (1, *steps)
            source = Within(self._size_held, at, (1,) * len(n))
            if self.move.stacked:
                source = Within((1, *self._size_held), (0, *at), steps)
                n = (1, *n)
            found.append(Piece(k, n, source, Within(whole, to, steps)))
        return found


def _ends(box: IndexBox, grid: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], tuple[int, ...]]:
    """The first elements of all devices' boxes, a row for each, and the size."""
    count = math.prod(grid)
    places = np.unravel_index(np.arange(count), grid) if grid else ()
    env = {f"at{m}": place for m, place in enumerate(places)}
    first = np.zeros((count, len(box)), np.int64)
    for d, i in enumerate(box):
        first[:, d] = evaluate(i.lo, env)
    return first, sizes(box)


def sizes(box: IndexBox) -> tuple[int, ...]:
    """The sizes of a box, which are the same on all devices."""
    found: list[int] = []
    for lo, hi in box:
        n = hi - lo
        if not isinstance(n, int):
            raise IRError(f"a box [{lo!r}:{hi!r}] is of another size on each device")
        found.append(n)
    return tuple(found)


def verify_move(move: Moved) -> None:
    """IRError unless what devices hold covers, in each group, what each of them gets: of parts once or alike, of
    terms one from each."""
    at = coordinates(move.grid)
    within = {v for a in move.axes if isinstance(v := at[a], Var)}
    for held, wanted in zip(move.held, move.wanted, strict=True):
        moving = sorted(variables(held.lo) & within, key=lambda v: v.name)
        if move.stacked:
            if moving or not _holds(held, wanted):
                raise IRError(f"terms of {wanted!r} are asked of devices that have {held!r}", "move")
            continue
        if not moving:
            if not _holds(held, wanted):
                raise IRError(f"{wanted!r} is asked of devices that have {held!r}", "move")
            continue
        covered = _covered(held, moving)
        if covered is None or not _holds(covered, wanted):
            raise IRError(f"{wanted!r} is not covered by {held!r} along {moving}", "move")


def _holds(a: Interval, b: Interval) -> bool:
    from weft.ir.regions import boxes as bx

    return bx.holds((a,), (b,))


def _covered(held: Interval, moving: Sequence[Var]) -> Interval | None:
    """The interval that blocks cover, for all values of some coordinates; None where they leave gaps."""
    size = held.hi - held.lo
    steps = [(coefficient(held.lo, v), v) for v in moving]
    if any(c is None for c, _ in steps):
        return _covered_by_values(held, moving)
    first: Int = held.lo
    for c, v in sorted(((c or 0, v) for c, v in steps), key=lambda s: s[0]):
        if c <= 0 or not isinstance(size, int) or c > size:
            return None
        first, size = first - v * c, size + c * v.hi
    return Interval(first, first + size)


def _covered_by_values(held: Interval, moving: Sequence[Var]) -> Interval | None:
    """The same by looking at each value, of one coordinate, counted from where the block of the first begins."""
    if len(moving) != 1:
        return None
    (v,) = moving
    start, size = substitute(held.lo, {v: 0}), held.hi - held.lo
    beyond = held.lo - start
    if variables(beyond) != frozenset(moving):
        return None
    end: int | None = None
    begin = 0
    for k in range(v.hi + 1):
        lo = evaluate(beyond, {v.name: k})
        if end is None:
            begin = end = lo
        if lo > end or not isinstance(size, int):
            return None
        end = max(end, lo + size)
    return Interval(start + begin, start + (end or 0))
