"""Input elements that an output region needs, and output elements that a change of an input region can reach.

One table for every op; incremental sessions, sharding and slicing read it. Regions are boxes of intervals, so both
answers may be larger than the truth, never smaller. Movement ops are answered from `movement.source`: forwards by the
bounds of its index expressions, backwards by narrowing the output's variables until these fit the input region.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from weft.ir.graph import Along, Axes, Box, Node, ScatterCombine
from weft.ir.index import FloorDiv, Int, Mod, Sum, Var, bounds, high, low
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, LEAVES, MOVEMENT, REDUCE, Op

Interval: TypeAlias = tuple[int, int]
"""The integers from the first to before the second; never empty in a Region."""

Region: TypeAlias = tuple[Interval, ...]
"""One interval per axis."""

Needs: TypeAlias = Callable[[Node, Region], tuple[Region | None, ...]]
Dirties: TypeAlias = Callable[[Node, int, Region], Region | None]


@dataclass(frozen=True, slots=True)
class Relation:
    """The two answers of an op; None is the empty region."""

    needs: Needs
    dirties: Dirties


def needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    """For each input, the region that the output's `region` is computed from."""
    return RELATIONS[node.op].needs(node, region)


def dirties(node: Node, k: int, region: Region) -> Region | None:
    """The output's region that can change when `region` of input number `k` does."""
    return RELATIONS[node.op].dirties(node, k, region)


def whole(node: Node) -> Region | None:
    """All of a node's elements, at their most where sizes are known only at run time."""
    return region_of(tuple((0, high(n)) for n in node.shape))


def region_of(intervals: Region) -> Region | None:
    """The region, or None if it is empty."""
    return None if any(a >= b for a, b in intervals) else intervals


# --- leaves, elementwise, reductions


def _none(node: Node, region: Region) -> tuple[Region | None, ...]:
    return ()


def _unreachable(node: Node, k: int, region: Region) -> Region | None:
    raise ValueError(f"{node!r} has no input {k}")


def _alike(node: Node, region: Region) -> tuple[Region | None, ...]:
    return (region,) * len(node.inputs)


def _same(node: Node, k: int, region: Region) -> Region | None:
    return region


def _reduce_needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    left = list(region)
    axes = _axes(node)
    full = [(0, high(n)) if k in axes else left.pop(0) for k, n in enumerate(node.inputs[0].shape)]
    return (region_of(tuple(full)),)


def _reduce_dirties(node: Node, k: int, region: Region) -> Region | None:
    axes = _axes(node)
    return tuple(interval for axis, interval in enumerate(region) if axis not in axes)


def _axes(node: Node) -> tuple[int, ...]:
    assert isinstance(node.attrs, Axes)
    return node.attrs.axes


# --- movement


def _movement_needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    at = source(node, tuple(_variable(k, interval) for k, interval in enumerate(region)))
    for condition in at.guard:
        first, last = bounds(condition.value)
        if (condition.lo is not None and last < low(condition.lo)) or (
            condition.hi is not None and first >= high(condition.hi)
        ):
            return (None,)
    shape = node.inputs[0].shape
    found = [(max(low(i), 0), min(high(i) + 1, high(n))) for i, n in zip(at.index, shape, strict=True)]
    return (region_of(tuple(found)),)


def _variable(axis: int, interval: Interval) -> Int:
    """The index along an output axis: a number where there is only one."""
    first, end = interval
    return first if end == first + 1 else Var(f"i{axis}", first, end - 1)


def _movement_dirties(node: Node, k: int, region: Region) -> Region | None:
    everything = whole(node)
    if everything is None:
        return None
    ranges = {f"i{axis}": (a, b - 1) for axis, (a, b) in enumerate(everything)}
    at = source(node, tuple(_variable(axis, interval) for axis, interval in enumerate(everything)))
    while True:  # one axis narrows a variable, which may let another axis narrow more
        before = dict(ranges)
        for index, (first, end) in zip(at.index, region, strict=True):
            if not _narrow(index, first, end - 1, ranges):
                return None
        if ranges == before:
            return tuple(
                (ranges[f"i{axis}"][0], ranges[f"i{axis}"][1] + 1) for axis in range(len(everything))
            )


def _bounds(x: Int, ranges: Mapping[str, Interval]) -> Interval:
    """Inclusive bounds of `x` while its variables keep to `ranges`."""
    match x:
        case Var():
            return ranges.get(x.name, (x.lo, x.hi))
        case Sum():
            first = last = x.const
            for atom, c in x.terms:
                a, b = _bounds(atom, ranges)
                first, last = first + min(c * a, c * b), last + max(c * a, c * b)
            return first, last
        case FloorDiv() if isinstance(x.den, int):
            a, b = _bounds(x.num, ranges)
            return a // x.den, b // x.den
        case Mod() if isinstance(x.den, int):
            a, b = _bounds(x.num, ranges)
            return (a % x.den, b % x.den) if a // x.den == b // x.den else (0, x.den - 1)
        case _:
            return bounds(x)


def _narrow(x: Int, first: int, last: int, ranges: dict[str, Interval]) -> bool:
    """Narrow the variables' inclusive ranges to what lets first <= x <= last; False when nothing does."""
    have_first, have_last = _bounds(x, ranges)
    if have_last < first or have_first > last:
        return False
    match x:
        case Var() if x.name in ranges:
            a, b = ranges[x.name]
            ranges[x.name] = (max(a, first), min(b, last))
            return True
        case Sum():
            for atom, c in x.terms:
                a, b = _bounds(atom, ranges)
                have_first, have_last = _bounds(x, ranges)
                # c * atom lies between what the other terms leave of first .. last
                least, most = first - (have_last - max(c * a, c * b)), last - (have_first - min(c * a, c * b))
                a, b = (-(-least // c), most // c) if c > 0 else (-(most // -c), -least // -c)
                if not _narrow(atom, a, b, ranges):
                    return False
            return True
        case FloorDiv() if isinstance(x.den, int):
            return _narrow(x.num, first * x.den, last * x.den + x.den - 1, ranges)
        case Mod() if isinstance(x.den, int):
            a, b = _bounds(x.num, ranges)
            period = a // x.den
            if period == b // x.den:
                return _narrow(x.num, period * x.den + first, period * x.den + last, ranges)
            return True
        case _:
            return True


# --- data-dependent and structural


def _replaced(region: Region, axis: int, size: Int) -> Region | None:
    return region_of((*region[:axis], (0, high(size)), *region[axis + 1 :]))


def _gather_needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    assert isinstance(node.attrs, Along)
    axis = node.attrs.axis
    return _replaced(region, axis, node.inputs[0].shape[axis]), region


def _gather_dirties(node: Node, k: int, region: Region) -> Region | None:
    assert isinstance(node.attrs, Along)
    return region if k == 1 else _replaced(region, node.attrs.axis, node.shape[node.attrs.axis])


def _scatter_needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    assert isinstance(node.attrs, ScatterCombine)
    axis = node.attrs.axis
    along = _replaced(region, axis, node.inputs[1].shape[axis])
    return region, along, along


def _scatter_dirties(node: Node, k: int, region: Region) -> Region | None:
    assert isinstance(node.attrs, ScatterCombine)
    return region if k == 0 else _replaced(region, node.attrs.axis, node.shape[node.attrs.axis])


def _concat_needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    found: list[Region | None] = []
    for k, x in enumerate(node.inputs):
        axis, at = _concat_place(node, k)
        (a, b), n = region[axis], x.shape[axis]
        part = (max(a - high(at), 0), min(b - low(at), high(n)))
        found.append(region_of((*region[:axis], part, *region[axis + 1 :])))
    return tuple(found)


def _concat_dirties(node: Node, k: int, region: Region) -> Region | None:
    axis, at = _concat_place(node, k)
    a, b = region[axis]
    return (*region[:axis], (a + low(at), b + high(at)), *region[axis + 1 :])


def _concat_place(node: Node, k: int) -> tuple[int, Int]:
    """The axis, and where input `k` begins on it."""
    assert isinstance(node.attrs, Along)
    axis = node.attrs.axis
    at: Int = 0
    for x in node.inputs[:k]:
        at = at + x.shape[axis]
    return axis, at


def _update_needs(node: Node, region: Region) -> tuple[Region | None, ...]:
    box = _box(node)
    part: list[Interval] = []
    covered = True
    for (a, b), start, step, size in zip(region, box.start, box.step, node.inputs[1].shape, strict=True):
        first, last = -(-(a - high(start)) // step), (b - 1 - low(start)) // step
        part.append((max(first, 0), min(last + 1, high(size))))
        covered = covered and step == 1 and high(start) <= a and low(start) + low(size) >= b
    return None if covered else region, region_of(tuple(part))


def _update_dirties(node: Node, k: int, region: Region) -> Region | None:
    if k == 0:
        return region
    box = _box(node)
    axes = zip(region, box.start, box.step, strict=True)
    return tuple((low(start) + a * step, high(start) + (b - 1) * step + 1) for (a, b), start, step in axes)


def _box(node: Node) -> Box:
    assert isinstance(node.attrs, Box)
    return node.attrs


def _all(node: Node, region: Region) -> tuple[Region | None, ...]:
    return tuple(map(whole, node.inputs))


def _everything(node: Node, k: int, region: Region) -> Region | None:
    return whole(node)


RELATIONS: dict[Op, Relation] = {
    **dict.fromkeys(LEAVES, Relation(_none, _unreachable)),
    **dict.fromkeys(ELEMENTWISE, Relation(_alike, _same)),
    **dict.fromkeys(REDUCE, Relation(_reduce_needs, _reduce_dirties)),
    **dict.fromkeys(MOVEMENT, Relation(_movement_needs, _movement_dirties)),
    Op.GATHER: Relation(_gather_needs, _gather_dirties),
    Op.SCATTER: Relation(_scatter_needs, _scatter_dirties),
    Op.CONCAT: Relation(_concat_needs, _concat_dirties),
    Op.UPDATE: Relation(_update_needs, _update_dirties),
    Op.CONTIGUOUS: Relation(_alike, _same),
    Op.COPY: Relation(_alike, _same),
    Op.LOOP: Relation(_all, _everything),
    Op.CALL: Relation(_all, _everything),
}
