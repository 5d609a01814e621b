"""Dependence by brute force: random graphs of ops that pass every NaN on, poisoned element by element.

    dependence(y, x)[o, i]  is True where element o of y becomes NaN when element i of x does

This is what `weft.ir.regions` says by index expressions. Values are float64, elementwise ops are additions, reductions
are sums: which function it is does not matter to regions, and these hide nothing.
"""
# Tests: tests/ir/regions/test_ops.py

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

import numpy as np

from weft.ir.graph import Along, Axes, Box, Node, Padding, ScatterCombine, Window, apply
from weft.ir.index import Int, Var, high, low
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import Region
from weft.testing.programs import Array, numpy_leaf
from weft.testing.reference import evaluate

MAX_ELEMENTS = 60

MOST_PLACES = 8
"""Values of runtime variables that are tried."""


def leaf(*shape: int) -> Node:
    """A leaf of small numbers."""
    return numpy_leaf(np.arange(1.0, 1.0 + math.prod(shape)).reshape(shape))


def indices(random: Random, shape: tuple[int, ...], below: int) -> Node:
    """A leaf of indices, a few of them out of range."""
    numbers = [random.randrange(-1, below + 1) for _ in range(math.prod(shape))]
    return numpy_leaf(np.array(numbers, np.int64).reshape(shape))


def some_shape(random: Random, rank: int = 4) -> tuple[int, ...]:
    """A shape of few elements, sizes of 1 included."""
    while True:
        shape = tuple(random.choice((1, 2, 3, 4, 5, 6, 8)) for _ in range(random.randint(0, rank)))
        if math.prod(shape) <= MAX_ELEMENTS:
            return shape


def sizes(node: Node) -> tuple[int, ...]:
    """The shape, of numbers."""
    return tuple(high(n) for n in node.shape)


Make: TypeAlias = Callable[[Random, Node], Node]
"""Another node on a node; the same one where it has no shape for that."""


def _add(random: Random, x: Node) -> Node:
    return apply(Op.ADD, (x, x if random.random() < 0.3 else leaf(*sizes(x))))


def _sum(random: Random, x: Node) -> Node:
    axes = tuple(k for k in range(len(x.shape)) if random.random() < 0.5)
    return apply(Op.SUM, (x,), Axes(axes))


def _reshape(random: Random, x: Node) -> Node:
    left, shape = math.prod(sizes(x)), list[Int]()
    while left > 1 and len(shape) < 3:
        shape.append(random.choice([f for f in range(1, left + 1) if left % f == 0]))
        left //= high(shape[-1])
    return apply(Op.RESHAPE, (x,), None, (*shape, left))


def _permute(random: Random, x: Node) -> Node:
    axes = list(range(len(x.shape)))
    random.shuffle(axes)
    return apply(Op.PERMUTE, (x,), Axes(tuple(axes)))


def _expand(random: Random, x: Node) -> Node:
    return apply(Op.EXPAND, (x,), None, tuple(random.randint(1, 3) if n == 1 else n for n in x.shape))


def _pad(random: Random, x: Node) -> Node:
    low, above, gap = ([random.choice((0, 0, 1, 2)) for _ in x.shape] for _ in range(3))
    return apply(Op.PAD, (x,), Padding(tuple(low), tuple(above), tuple(gap)))


def _box(random: Random, shape: tuple[int, ...]) -> tuple[Box, tuple[int, ...]]:
    start = [random.randrange(n) for n in shape]
    step = [random.choice((1, 1, 2, 3)) for _ in shape]
    size = [random.randint(1, -(-(n - a) // s)) for n, a, s in zip(shape, start, step, strict=True)]
    return Box(tuple(start), tuple(step)), tuple(size)


def _shrink(random: Random, x: Node) -> Node:
    box, size = _box(random, sizes(x))
    return apply(Op.SHRINK, (x,), box, size)


def _flip(random: Random, x: Node) -> Node:
    return apply(Op.FLIP, (x,), Axes(tuple(k for k in range(len(x.shape)) if random.random() < 0.5)))


def _windows(random: Random, x: Node) -> Node:
    """SHEAR of x repeated along a new axis, or UNSHEAR of an axis pair of x."""
    shape = sizes(x)
    if not shape:
        return x
    axis, stride, dilation = random.randrange(len(shape)), random.choice((1, 2, 3)), random.choice((1, 2))
    if len(shape) > 1 and random.random() < 0.4:
        window = random.choice([k for k in range(len(shape)) if k != axis])
        size = (shape[axis] - 1) * stride + (shape[window] - 1) * dilation + random.randint(1, 3)
        return apply(
            Op.UNSHEAR,
            (x,),
            Window(axis, window, stride, dilation),
            (*shape[:axis], size, *shape[axis + 1 :]),
        )
    count = random.randint(1, 1 + (shape[axis] - 1) // dilation)
    wide = apply(Op.EXPAND, (apply(Op.RESHAPE, (x,), None, (*shape, 1)),), None, (*shape, count))
    places = (shape[axis] - 1 - (count - 1) * dilation) // stride + 1
    w = Window(axis, len(shape), stride, dilation)
    return apply(Op.SHEAR, (wide,), w, (*shape[:axis], places, *shape[axis + 1 :], count))


def _gather(random: Random, x: Node) -> Node:
    shape = sizes(x)
    if not shape:
        return x
    axis = random.randrange(len(shape))
    index = indices(random, (*shape[:axis], random.randint(1, 4), *shape[axis + 1 :]), shape[axis])
    return apply(Op.GATHER, (x, index), Along(axis))


def _scatter(random: Random, x: Node) -> Node:
    shape = sizes(x)
    if not shape:
        return x
    axis = random.randrange(len(shape))
    own = (*shape[:axis], random.randint(1, 4), *shape[axis + 1 :])
    index, src = indices(random, own, shape[axis]), leaf(*own)
    if own == shape and random.random() < 0.3:
        x, src = src, x
    return apply(Op.SCATTER, (x, index, src), ScatterCombine(axis, random.choice((None, Op.ADD))))


def _concat(random: Random, x: Node) -> Node:
    shape = sizes(x)
    if not shape:
        return x
    axis = random.randrange(len(shape))
    other = leaf(*shape[:axis], random.randint(1, 3), *shape[axis + 1 :])
    return apply(Op.CONCAT, random.choice(((x, other), (other, x), (x, other, x))), Along(axis))


def _update(random: Random, x: Node) -> Node:
    shape = sizes(x)
    if random.random() < 0.5:
        box, size = _box(random, shape)
        return apply(Op.UPDATE, (x, leaf(*size)), box)
    start, step = [random.randrange(3) for _ in shape], [random.choice((1, 1, 2)) for _ in shape]
    whole = [a + (n - 1) * s + 1 + random.randrange(2) for a, n, s in zip(start, shape, step, strict=True)]
    return apply(Op.UPDATE, (leaf(*whole), x), Box(tuple(start), tuple(step)))


def _contiguous(random: Random, x: Node) -> Node:
    return apply(Op.CONTIGUOUS, (x,))


MAKES: tuple[Make, ...] = (
    _add, _sum, _reshape, _reshape, _permute, _expand, _pad, _shrink, _flip, _windows, _windows, _gather, _scatter,
    _concat, _update, _contiguous,
)  # fmt: skip


def some_node(random: Random, x: Node) -> Node:
    """An op on `x` (its first or another operand) that changes something, and is not large."""
    while True:
        y = random.choice(MAKES)(random, x)
        if y is not x and y.op is not Op.CONST and math.prod(sizes(y)) <= 4 * MAX_ELEMENTS:
            return y


def dependence(node: Node, of: Node) -> Array:
    """For each element of the node and each of the leaf `of`: whether the first is NaN when the second is."""
    values: Any = of.storage
    columns: list[Array] = []
    for at in np.ndindex(*values.shape):
        of.storage = values.copy()
        of.storage[at] = np.nan
        columns.append(np.isnan(evaluate([node])[0]))
    of.storage = values
    return np.stack(columns, -1).reshape((*columns[0].shape, *values.shape))


# regions --------------------------------------------------------------------------------------------------------------


def points(region: Region, shape: tuple[int, ...]) -> Array:
    """The elements of a shape that are in a region of numbers; ValueError if boxes overlap, or leave the shape."""
    found = np.zeros(shape, bool)
    for box in region.boxes:
        if any(low(i.lo) < 0 or high(i.hi) > n for i, n in zip(box, shape, strict=True)):
            raise ValueError(f"{region} leaves {shape}")
        part = tuple([slice(low(i.lo), max(low(i.lo), high(i.hi))) for i in box])
        if found[part].any():
            raise ValueError(f"{region} has boxes that overlap")
        found[part] = True
    return found


def some_region(random: Random, shape: tuple[int, ...]) -> Region:
    """A region of one box or two."""
    boxes: list[IndexBox] = []
    for _ in range(random.choice((1, 1, 2))):
        sides: list[Interval] = []
        for n in shape:
            first = random.randrange(n)
            sides.append(random.choice((Interval(first, random.randint(first + 1, n)), Interval(0, n))))
        boxes.append(tuple(sides))
    return Region.of(boxes)


def at_runtime(random: Random, region: Region) -> tuple[Region, dict[str, int]]:
    """The region with runtime variables in some of its bounds, and the values that they have."""
    values: dict[str, int] = {}
    boxes: list[IndexBox] = []
    for k, box in enumerate(region.boxes):
        sides: list[Interval] = []
        for axis, i in enumerate(box):
            start = Var(f"start{k}_{axis}", 0, low(i.lo) + random.randrange(3))
            if random.random() < 0.5:
                sides.append(i)
            else:
                values[start.name] = low(i.lo)
                sides.append(Interval(start, start + (i.hi - i.lo)))
        boxes.append(tuple(sides))
    return Region.of(boxes), values


def moving(random: Random, shape: tuple[int, ...]) -> tuple[Region, list[Var]]:
    """A region of a few boxes, which begin at variables along some axes: at others, or at the same."""
    boxes, variables = list[IndexBox](), list[Var]()
    for b in some_region(random, shape).boxes:
        sides: list[Interval] = []
        for (lo, hi), n in zip(b, shape, strict=True):
            lo, hi = low(lo), high(hi)
            if hi - lo == n or random.random() < 0.4:
                sides.append(Interval(lo, hi))
                continue
            known = [v for v in variables if v.hi == n - (hi - lo)]
            v = random.choice(known) if known else Var(f"t{len(variables)}", 0, n - (hi - lo))
            variables += [] if known else [v]
            sides.append(Interval(v, v + (hi - lo)))
        boxes.append(tuple(sides))
    return Region(tuple(boxes)), variables


def places(random: Random, variables: Sequence[Var]) -> list[dict[str, int]]:
    """Some values of the variables."""
    every = list(itertools.product(*[range(v.lo, v.hi + 1) for v in variables]))
    return [
        dict(zip([v.name for v in variables], of, strict=True))
        for of in random.sample(every, min(MOST_PLACES, len(every)))
    ]


def covered(boxes: Sequence[IndexBox], shape: tuple[int, ...], values: Mapping[str, int]) -> Array:
    """The elements in any of the boxes, which lie in the shape wherever they begin."""
    found = np.zeros(shape, bool)
    for b in boxes:
        now = [(low(lo), low(hi)) for lo, hi in bx.at(b, values)]
        if not all(isinstance(i.hi - i.lo, int) for i in b):
            raise ValueError(f"{b} has another size elsewhere")
        if not all(0 <= lo <= hi <= n for (lo, hi), n in zip(now, shape, strict=True)):
            raise ValueError(f"{b} leaves {shape} at {values}")
        found[tuple([slice(lo, hi) for lo, hi in now])] = True
    return found
