"""The outline of a graph: its rows without sizes and numbers, which are listed apart.

    x[3:13] * 0.7        outline: buffer, shrink, const, mul         sizes: 100, 10, 3, 10        numbers: 0.7

Graphs with equal outlines differ in nothing but these lists, and one plan may serve them: see `varying`. What changes
a graph's meaning rather than its extent stays in the outline: sizes of 0 and 1, steps, windows, and the numbers by
which rules simplify (0, 1, -1, 2, 0.5), infinities and NaNs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import field
from enum import IntEnum, auto
from functools import lru_cache
from typing import Any, TypeAlias, cast

from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.expr import Scalar
from weft.ir.graph import Along, Attrs, Box, Fill, Node, Padding, Shape
from weft.ir.index import Int
from weft.ir.loop_body import LoopNode, in_memory
from weft.ir.ops import Op
from weft.ir.template import GraphTemplate, LateTemplate, Row
from weft.lazy_dataclass import dataclass
from weft.naming import own_name
from weft.scheduler.signature import Key, Signature

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

_CALL, _CONST = Op.CALL, Op.CONST  # to load a member of an enumeration takes ten times as long

CHOOSING = frozenset({Op.CONST, Op.RANGE, Op.EXPAND, Op.SHRINK})


class OutlineKey(Key):
    """The rows without sizes and numbers, hashed once."""

    __slots__ = ("_digest",)
    _digest: str

    @own_name()
    def digest(self) -> str:
        """The key as a hash that is the same in every process, made once."""
        try:
            return self._digest
        except AttributeError:
            h = hashlib.sha256()
            heads: dict[Any, bytes] = {}
            for row in self.rows[:-1]:
                is_call = row[0].__class__ is OutlineKey
                head, inputs = (row[0], row[1:]) if is_call else (row[:4], row[4:])
                text = heads.get(head)
                if text is None:
                    text = heads[head] = (head.digest() if is_call else repr(head)).encode()
                h.update(text)
                h.update(repr(inputs).encode())
            h.update(repr(self.rows[-1]).encode())
            self._digest = h.hexdigest()
            return self._digest

    @staticmethod
    def with_digest(rows: tuple[Any, ...], digest: str) -> OutlineKey:
        """The key of these rows, which have this digest."""
        key = OutlineKey(rows)
        key._digest = digest
        return key

    def __reduce__(self) -> tuple[Any, ...]:
        return OutlineKey.with_digest, (self.rows, self.digest())


@dataclass(frozen=True, slots=True)
class Outline:
    """The rows without sizes and numbers, hashed once; the sizes and the numbers, in the order of the rows."""

    key: OutlineKey
    sizes: tuple[int, ...]
    numbers: tuple[Scalar, ...]


def is_plain(value: Scalar, dtype: DType) -> bool:
    """True for a number that is part of the structure."""
    return value in PLAIN or not (dtype.is_float or dtype.is_int) or value - value != 0


def outline(rows: Sequence[Any]) -> Outline:
    """The outline of a signature's rows, in which no size is a runtime variable. A call stands for the rows that it
    was recorded with."""
    return _walked(rows).found


WALKS_KEPT = 256
"""Graphs that later ones are compared with; the one met longest ago goes first."""


@dataclass(slots=True, eq=False)
class Walk:
    """The rows of the latest of some graphs, and its outline; which parts that of all of them has, and where the sizes
    and numbers of each row begin."""

    rows: Sequence[Any]
    parts: tuple[Any, ...]
    starts: tuple[tuple[int, int], ...]
    found: Outline
    again: int = 0
    """The times that a graph was like the one before."""
    brief: Any = None
    """The sizes of the latest graph without those inside its calls: see brief.py."""


_walks: dict[tuple[Any, ...], Walk] = {}


def outline_like_before(rows: Sequence[Any]) -> Outline:
    """As `outline`, in less time where the latest graph with as many rows differs in sizes and numbers of few of them.
    By one thread at a time."""
    at = _place(rows)
    before = _walks.get(at)
    if before is not None:
        if before.rows is rows:
            return before.found
        found = _like(before, rows)
        if found is not None:
            before.rows, before.found, before.again = rows, found, before.again + 1
            return found
        del _walks[at]
    while len(_walks) >= WALKS_KEPT:
        del _walks[next(iter(_walks))]
    made = _walks[at] = _walked(rows)
    return made.found


def outlined(sig: Signature) -> Outline:
    """The outline of a signature, made once. By one thread at a time."""
    if sig.outlined is None:
        sig.outlined = outline_like_before(sig.key.rows)
    return sig.outlined


def walk_before(rows: Sequence[Any]) -> Walk | None:
    """The latest graph that may be like this one."""
    return _walks.get(_place(rows))


def _place(rows: Sequence[Any]) -> tuple[Any, ...]:
    last = rows[-2]
    return len(rows), rows[-1], last[0], last[2]


def _like(before: Walk, rows: Sequence[Any]) -> Outline | None:
    """The outline of rows that differ from those before in sizes and numbers alone; None where they do in more."""
    known = before.found
    sizes, numbers = list(known.sizes), list(known.numbers)
    parts, starts = before.parts, before.starts
    last = len(parts)
    for at, (row, old) in enumerate(zip(rows, before.rows, strict=True)):
        if row != old:
            if at == last:
                return None
            own, own_sizes, own_numbers = part_of(row)
            if own != parts[at]:
                return None
            size, number = starts[at]
            sizes[size : size + len(own_sizes)] = own_sizes
            numbers[number : number + len(own_numbers)] = own_numbers
    return Outline(known.key, tuple(sizes), tuple(numbers))


def _walked(rows: Sequence[Any]) -> Walk:
    """The outline of rows, and its parts by row."""
    sizes: list[int] = []
    numbers: list[Scalar] = []
    parts: list[Any] = []
    starts: list[tuple[int, int]] = []
    for row in rows[:-1]:
        part, own_sizes, own_numbers = part_of(row)
        starts.append((len(sizes), len(numbers)))
        parts.append(part)
        sizes += own_sizes
        numbers += own_numbers
    key = OutlineKey((*parts, rows[-1]))
    return Walk(rows, tuple(parts), tuple(starts), Outline(key, tuple(sizes), tuple(numbers)))


def part_of(row: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...], tuple[Scalar, ...]]:
    """A row without sizes and numbers, and these."""
    if row[0].__class__ is DType:
        dtype, shape, device = row
        return (dtype, pattern_of(shape), device), shape, ()
    op, attrs, dtype, shape = row[:4]
    if attrs is None:
        return (op, None, dtype, pattern_of(shape), *row[4:]), shape, ()
    if op is _CALL:
        within = inside(attrs)
        return (within.key, *row[4:]), (*shape, *within.sizes), within.numbers
    if op is _CONST and not is_plain(attrs.value, dtype):
        return (op, Fill, dtype, pattern_of(shape)), shape, (attrs.value,)
    kind, own = taken_apart(attrs)
    return (op, kind, dtype, pattern_of(shape), *row[4:]), (*shape, *own), ()


@lru_cache(maxsize=4096)
def pattern_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes that are part of the structure: -1 stands for the others."""
    return tuple([s if s < 2 else -1 for s in shape])


@lru_cache(maxsize=1024)
def inside(template: GraphTemplate) -> Outline:
    """The outline of the rows of a recorded graph."""
    if isinstance(template, LateTemplate):
        return template.outline
    return outline_of(len(template.placeholders), template.rows, template.results)


def outline_of(placeholders: int, rows: Sequence[Row], results: Sequence[int]) -> Outline:
    """The outline of a graph over so many placeholders."""
    return outline((*[(r.op, r.attrs, r.dtype, r.shape, *r.inputs) for r in rows], (placeholders, *results)))


def count_of(rows: Sequence[Any]) -> int:
    """The number of nodes of a graph, with those inside of each call."""
    return sum([len(inside(r[1]).key.rows) - 1 if r[0] is _CALL else 1 for r in rows[:-1]])


def number_dtypes(rows: Sequence[Any]) -> Iterator[DType]:
    """The dtype of each of the outline's numbers."""
    for op, attrs, dtype, _ in _without_calls(rows):
        if op is Op.CONST and not is_plain(attrs.value, dtype):
            yield dtype


def roles(rows: Sequence[Any]) -> Iterator[Role]:
    """The role of each of the outline's sizes."""
    for op, attrs, _, shape in _without_calls(rows):
        role = Role.LEAF if op is None else Role.CHOSEN if op in CHOOSING else Role.DERIVED
        yield from [role] * len(shape)
        _, own = taken_apart(attrs)
        yield from [_ROLES.get(attrs.__class__, Role.DERIVED)] * len(own)


@dataclass(frozen=True, slots=True)
class Padded:
    """A padding of an axis: added to what these make together. `step`: of the first of these, an axis, each element
    but the last takes so many."""

    inner: tuple[int, ...]
    step: int = 1


@dataclass(frozen=True, slots=True)
class Total:
    """An axis as long as these together; `step` as of a padding."""

    parts: tuple[int, ...]
    step: int = 1


@dataclass(frozen=True, slots=True)
class Share:
    """An axis of a reshape: the elements of the axes in `whole`, divided by those of the `others`."""

    whole: tuple[int, ...]
    others: tuple[int, ...]


Follows: TypeAlias = Padded | Total | Share


def followed(rows: Sequence[Any]) -> dict[int, Follows]:
    """The rules by which sizes follow from others, by their places among the outline's sizes: those of paddings,
    concatenations and reshapes. A size comes after those that it follows from."""
    found: dict[int, Follows] = {}
    at = 0
    shapes: list[range] = []

    def add(op: Op | None, attrs: Any, rank: int, inputs: Sequence[range]) -> range:
        nonlocal at
        shape = range(at, at + rank)
        _, own = taken_apart(attrs)
        at += rank + len(own)
        match op, attrs:
            case Op.PAD, Padding(interior=interior):
                for axis, k, between in zip(inputs[0], shape, interior, strict=True):
                    first, last, step = k + rank, k + 2 * rank, between + 1
                    found[first] = Padded((axis,), step)
                    found[last] = Padded((axis, first), step)
                    found[k] = Total((axis, first, last), step)
            case Op.CONCAT, Along(axis):
                found[shape[axis]] = Total(tuple([x[axis] for x in inputs]))
            case Op.RESHAPE, _:
                for k in shape:
                    found[k] = Share(tuple(inputs[0]), tuple([i for i in shape if i != k]))
            case _:
                pass
        return shape

    for row in rows[:-1]:
        if row[0].__class__ is DType:
            shapes.append(add(None, None, len(row[1]), ()))
            continue
        op, attrs, _, shape = row[:4]
        operands: tuple[int, ...] = row[4:]
        inputs = [shapes[k] for k in operands]
        if isinstance(attrs, GraphTemplate):
            shapes.append(add(None, None, len(shape), ()))
            for r in attrs.rows:
                inputs.append(add(r.op, r.attrs, len(r.shape), [inputs[k] for k in r.inputs]))
        else:
            shapes.append(add(op, attrs, len(shape), inputs))
    return found


def result_shapes(rows: Sequence[Any], sizes: Sequence[Int]) -> list[tuple[Int, ...]]:
    """The shapes of the graph's results, by the outline's sizes."""
    shapes: list[tuple[Int, ...]] = []
    at = 0
    for row in rows[:-1]:
        is_leaf = row[0].__class__ is DType
        shape = row[1] if is_leaf else row[3]
        shapes.append(tuple(sizes[at : at + len(shape)]))
        at += len(shape)
        if not is_leaf:
            own = inside(row[1]).sizes if row[0] is Op.CALL else taken_apart(row[1])[1]
            at += len(own)
    return [shapes[k] for k in rows[-1]]


def _without_calls(rows: Sequence[Any]) -> Iterator[tuple[Op | None, Any, DType, tuple[int, ...]]]:
    """Each row's op (None for a leaf), attributes, dtype and shape; a call's, and those that it stands for."""
    for row in rows[:-1]:
        if row[0].__class__ is DType:
            yield None, None, row[0], row[1]
        elif row[0] is Op.CALL:
            yield Op.CALL, None, row[2], row[3]
            yield from [(r.op, r.attrs, r.dtype, cast("tuple[int, ...]", r.shape)) for r in row[1].rows]
        else:
            yield row[:4]


def taken_apart(attrs: Any) -> tuple[Any, tuple[int, ...]]:
    """Attributes without their sizes, and these."""
    kind = attrs.__class__
    if kind is Box:
        return attrs.step, attrs.start
    if kind is Padding:
        return (attrs.interior, attrs.fill_bits), (*attrs.low, *attrs.high)
    if kind is LoopNode:
        return (attrs.part, attrs.number, attrs.body.step_key), (attrs.body.length,)
    return attrs, ()


def put_together(attrs: Attrs, sizes: tuple[Int, ...]) -> Attrs:
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
    """The graph of these rows, without calls, on leaves of its own, with `sizes` for theirs, and the `lifted` numbers
    read from memory of the device."""
    return _Rebuilding(iter(sizes), lifted, device).run(rows)


@dataclass(slots=True)
class _Rebuilding:
    given: Iterator[Int]
    lifted: frozenset[int]
    device: str
    leaves: list[Node] = field(default_factory=list[Node])
    numbers: dict[int, Node] = field(default_factory=dict[int, Node])
    met: int = 0
    """The numbers met so far."""

    def run(self, rows: Sequence[Any]) -> Rebuilt:
        made: list[Node] = []
        for row in rows[:-1]:
            if row[0].__class__ is DType:
                dtype, shape, home = row
                made.append(graph.buffer(self.next(len(shape)), dtype, home, None))
                self.leaves.append(made[-1])
                continue
            op, attrs, dtype, shape = row[:4]
            operands: tuple[int, ...] = row[4:]
            inputs = [made[k] for k in operands]
            if isinstance(attrs, GraphTemplate):
                self.next(len(shape))
                inside = list(inputs)
                for r in attrs.rows:
                    over = [inside[k] for k in r.inputs]
                    inside.append(self.node(r.op, over, r.attrs, r.shape, r.dtype))
                made.append(inside[attrs.results[0]])
            else:
                made.append(self.node(op, inputs, attrs, shape, dtype))
        results: tuple[int, ...] = rows[-1]
        outputs: list[Node] = []
        taken = {*self.leaves, *self.numbers.values()}  # a leaf is computed by nobody, and each result is one
        for k in results:
            node = made[k]
            while node in taken:
                node = graph.intern(Op.CONTIGUOUS, (node,), None, node.shape, node.dtype, node.device)
            taken.add(node)
            outputs.append(node)
        return Rebuilt(tuple(outputs), tuple(self.leaves), self.numbers)

    def next(self, count: int) -> tuple[Int, ...]:
        return tuple([next(self.given) for _ in range(count)])

    def node(self, op: Op, inputs: Sequence[Node], attrs: Attrs, shape: Shape, dtype: DType) -> Node:
        """A node by its row, with the next sizes."""
        shape = self.next(len(shape))
        _, own = taken_apart(attrs)
        attrs = put_together(attrs, self.next(len(own)))
        if isinstance(attrs, Fill) and not is_plain(attrs.value, dtype):
            at, self.met = self.met, self.met + 1
            if at in self.lifted:
                leaf = self.numbers[at] = graph.buffer((), dtype, self.device, None)
                return _spread(leaf, shape)
        if not inputs:
            return graph.intern(op, (), attrs, shape, dtype, None)
        if op is Op.LOOP:
            inputs = list(map(in_memory, inputs))
        return graph.made(op, tuple(inputs), attrs, shape, dtype)


def _spread(leaf: Node, shape: Shape) -> Node:
    """A value without dimensions in every element."""
    if not shape:
        return leaf
    ones = graph.apply(Op.RESHAPE, (leaf,), shape=(1,) * len(shape))
    return graph.apply(Op.EXPAND, (ones,), shape=shape)
