"""The outline of a graph: its rows without sizes and numbers, which are listed apart.

    x[3:13] * 0.7        outline: buffer, shrink, const, mul         sizes: 100, 10, 3, 10        numbers: 0.7

Graphs with equal outlines differ in nothing but these lists, and one plan may serve them: see `varying`. What changes
a graph's meaning rather than its extent stays in the outline: sizes of 0 and 1, steps, windows, and the numbers by
which rules simplify (0, 1, -1, 2, 0.5), infinities and NaNs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Any, cast

from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.expr import Scalar
from weft.ir.graph import Attrs, Box, Fill, Node, Padding, Shape
from weft.ir.index import Int
from weft.ir.loop_body import LoopNode
from weft.ir.ops import Op
from weft.scheduler.signature import Key

PLAIN = frozenset({0, 1, -1, 2, 0.5})
"""Numbers that rules simplify by: they are part of a graph's structure."""


class Role(IntEnum):
    """The role of a size: who says what it is. Those that others follow from come first."""

    LEAF = auto()  # an axis of a leaf: as the data has it
    CHOSEN = auto()  # an axis that an op makes as long as the program says
    START = auto()  # where a box begins
    PADDING = auto()  # elements added before or after
    DERIVED = auto()  # an axis that follows from others


_ROLES = {Box: Role.START, Padding: Role.PADDING}

CHOOSING = frozenset({Op.CONST, Op.RANGE, Op.EXPAND, Op.SHRINK})


@dataclass(frozen=True, slots=True)
class Outline:
    """The rows without sizes and numbers, hashed once; the sizes and the numbers, in the order of the rows."""

    key: Key
    sizes: tuple[int, ...]
    numbers: tuple[Scalar, ...]


def is_plain(value: Scalar, dtype: DType) -> bool:
    """True for a number that is part of the structure."""
    return value in PLAIN or not (dtype.is_float or dtype.is_int) or value - value != 0


def outline(rows: Sequence[Any]) -> Outline:
    """The outline of a signature's rows, in which no size is a runtime variable and no calls are left."""
    sizes: list[int] = []
    numbers: list[Scalar] = []
    out: list[Any] = []
    for row in rows[:-1]:
        if row[0].__class__ is DType:
            dtype, shape, device = row
            sizes += shape
            out.append((dtype, tuple([s if s < 2 else -1 for s in shape]), device))
            continue
        op, attrs, dtype, shape = row[:4]
        sizes += shape
        kind, own = _taken_apart(attrs)
        sizes += own
        if op is Op.CONST and not is_plain(attrs.value, dtype):
            numbers.append(attrs.value)
            kind = Fill
        out.append((op, kind, dtype, tuple([s if s < 2 else -1 for s in shape]), *row[4:]))
    out.append(rows[-1])
    return Outline(Key(tuple(out)), tuple(sizes), tuple(numbers))


def roles(rows: Sequence[Any]) -> Iterator[Role]:
    """The role of each of the outline's sizes."""
    for row in rows[:-1]:
        if row[0].__class__ is DType:
            yield from [Role.LEAF] * len(row[1])
            continue
        op, attrs, _, shape = row[:4]
        yield from [Role.CHOSEN if op in CHOOSING else Role.DERIVED] * len(shape)
        _, own = _taken_apart(attrs)
        yield from [_ROLES.get(attrs.__class__, Role.DERIVED)] * len(own)


def _taken_apart(attrs: Any) -> tuple[Any, tuple[int, ...]]:
    """Attributes without their sizes, and these."""
    match attrs:
        case Box():
            return attrs.step, cast("tuple[int, ...]", attrs.start)
        case Padding():
            return (attrs.interior, attrs.fill_bits), cast("tuple[int, ...]", (*attrs.low, *attrs.high))
        case LoopNode():
            kind = (attrs.part, attrs.number, attrs.body.step_key)
            return kind, (cast("int", attrs.body.length),)
        case _:
            return attrs, ()


def _put_together(attrs: Attrs, sizes: tuple[Int, ...]) -> Attrs:
    """Attributes with other sizes."""
    match attrs:
        case Box(_, step):
            return Box(sizes, step)
        case Padding(low, _, interior, fill):
            return Padding(sizes[: len(low)], sizes[len(low) :], interior, fill)
        case LoopNode(body, part, number):
            return LoopNode(body.of_length(*sizes), part, number)
        case _:
            return attrs


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """A graph made from rows and other sizes. `numbers`: the leaves, without dimensions, that some numbers are read
    from, by the numbers' places."""

    outputs: tuple[Node, ...]
    leaves: tuple[Node, ...]
    numbers: dict[int, Node]


def rebuilt(rows: Sequence[Any], sizes: Sequence[Int], lifted: frozenset[int], device: str) -> Rebuilt:
    """The graph of these rows on leaves of its own, with `sizes` for theirs, and the `lifted` numbers read from memory
    of the device."""
    made: list[Node] = []
    leaves: list[Node] = []
    numbers: dict[int, Node] = {}
    given = iter(sizes)
    at = 0
    for row in rows[:-1]:
        if row[0].__class__ is DType:
            dtype, shape, home = row
            made.append(graph.buffer(_next(given, len(shape)), dtype, home, None))
            leaves.append(made[-1])
            continue
        op, attrs, dtype, shape = cast("tuple[Op, Attrs, DType, Shape]", row[:4])
        shape = _next(given, len(shape))
        _, own = _taken_apart(attrs)
        attrs = _put_together(attrs, _next(given, len(own)))
        if isinstance(attrs, Fill) and not is_plain(attrs.value, dtype):
            at += 1
            if at - 1 in lifted:
                leaf = numbers[at - 1] = graph.buffer((), dtype, device, None)
                made.append(_spread(leaf, shape))
                continue
        operands: tuple[int, ...] = row[4:]
        inputs = tuple([made[k] for k in operands])
        home = next((i.device for i in inputs if i.device is not None), None)
        made.append(graph.intern(op, inputs, attrs, shape, dtype, home))
    results: tuple[int, ...] = rows[-1]
    outputs = [made[k] for k in results]
    lone = set(numbers.values())  # a leaf is computed by nobody
    outputs = [graph.apply(Op.CONTIGUOUS, (n,)) if n in lone else n for n in outputs]
    return Rebuilt(tuple(outputs), tuple(leaves), numbers)


def _next(given: Iterator[Int], count: int) -> tuple[Int, ...]:
    return tuple([next(given) for _ in range(count)])


def _spread(leaf: Node, shape: Shape) -> Node:
    """A value without dimensions in every element."""
    if not shape:
        return leaf
    ones = graph.apply(Op.RESHAPE, (leaf,), shape=(1,) * len(shape))
    return graph.apply(Op.EXPAND, (ones,), shape=shape)
