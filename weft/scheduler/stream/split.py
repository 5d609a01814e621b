"""The axes that a value is split along, and the sizes of the pieces."""
# Tests: tests/scheduler/stream/test_slices.py, tests/scheduler/stream/test_stream.py

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from enum import Enum, auto

from weft.ir.dtypes import float32
from weft.ir.graph import Axes, Box, Node, apply, elements, strides
from weft.ir.index import Int, Var, high
from weft.ir.ops import REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.stream.slices import Slice, Slicer, UnevenError, pushed, regions

_MOST_LEVELS = 8


class Kind(Enum):
    """The use of the pieces."""

    ROWS = auto()  # parts of the result: one goes after the other
    COMBINE = auto()  # partial reductions: they are added, multiplied, or the larger one stays


@dataclass(frozen=True, slots=True)
class Level:
    """A loop over pieces of `size` elements of an axis with `total`: of the result, or one that is reduced over.

    The last piece has `total % size` elements, where that is not 0.
    """

    kind: Kind
    axis: int
    total: int
    size: int
    number: Var

    @property
    def count(self) -> int:
        return -(-self.total // self.size)

    def part(self, last: bool) -> tuple[Int, int]:
        """Start and size of a piece: of the last one, if that is shorter, or of number `number` of the others."""
        return (self.total - self.total % self.size, self.total % self.size) if last else (
            self.number * self.size, self.size
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PieceLoops:
    """`target` in pieces: loops, outermost first; all over ROWS before those that COMBINE. `whole` are the values that
    every piece needs whole."""

    target: Node
    levels: tuple[Level, ...]
    whole: tuple[Node, ...]

    def piece(self, last: Sequence[bool]) -> Node:
        """One piece as a node over slices; `last[k]`: the shorter last piece of level k."""
        node = self.target
        for level, short in zip(self.levels, last, strict=True):
            node = _cut(node, level.kind, level.axis, *level.part(short), Slicer())
        return node


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms that the split has to keep to: bytes of a piece, which leaves are read from outside, and whether
    the device reads such a leaf where it is, so that one that is needed whole costs nothing."""

    piece_bytes: int
    is_source: Callable[[Node], bool]
    borrows: bool


@dataclass(frozen=True, slots=True)
class _Option:
    kind: Kind
    axis: int
    total: int
    unit: int
    unit_bytes: int  # what one more unit adds to a piece
    other_bytes: int  # of a piece, whatever its size
    contiguous: bool
    node: Node
    whole: tuple[Node, ...]

    def units(self, piece_bytes: int) -> int:
        """The most units that a piece of so many bytes may have; 0: not even one."""
        return (piece_bytes - self.other_bytes) // max(self.unit_bytes, 1)

    def rank(self, terms: Terms) -> tuple[bool, bool, bool, int]:
        """The better the smaller: fits; reads files in one go; needs nothing combined; small."""
        combines = self.kind is Kind.COMBINE
        return self.units(terms.piece_bytes) < 1, not self.contiguous, combines, self.unit_bytes


def choose(target: Node, terms: Terms, rows_only: bool = False) -> PieceLoops | None:
    """The split that computes `target` in pieces; None where no axis allows it. `rows_only`: nothing is combined."""
    target = pushed(target)
    wide = target if rows_only else widened(target)
    node, levels = wide, tuple[Level, ...]()
    whole: set[Node] = set()
    before: list[Node] = []
    while len(levels) < _MOST_LEVELS:
        options = _options(node, terms, len(levels), rows_only, _combines(levels), whole)
        if not options:
            return None
        best = min(options, key=lambda o: o.rank(terms))
        before += [n for n in best.whole if n not in whole]
        whole.update(best.whole)
        units = best.units(terms.piece_bytes)
        size = min(best.total, max(1, units) * best.unit)
        number = Var(f"piece{len(levels)}", 0, max(best.total // size - 1, 0))
        levels = (*levels, Level(best.kind, best.axis, best.total, size, number))
        if units >= 1:
            kept = wide if _combines(levels) else target
            return PieceLoops(kept, levels, tuple(before))
        node = best.node
    return None


def smaller(split: PieceLoops) -> PieceLoops | None:
    """The same with pieces of half the size along the innermost axis that has more than one element in each."""
    for k in reversed(range(len(split.levels))):
        level = split.levels[k]
        if level.size > 1 and level.size % 2 == 0:
            size = level.size // 2
            number = replace_range(level.number, level.total // size - 1)
            halved = replace(level, size=size, number=number)
            return replace(split, levels=(*split.levels[:k], halved, *split.levels[k + 1 :]))
    return None


def together(a: PieceLoops, b: PieceLoops) -> tuple[PieceLoops, PieceLoops] | None:
    """Both splits over the same pieces, where each combines pieces along one axis of as many elements; else None."""
    if len(a.levels) != 1 or len(b.levels) != 1:
        return None
    (x,), (y,) = a.levels, b.levels
    if (x.kind, y.kind) != (Kind.COMBINE, Kind.COMBINE) or x.total != y.total:
        return None
    size = min(x.size, y.size)
    number = replace_range(x.number, x.total // size - 1)
    both = (
        replace(a, levels=(replace(x, size=size, number=number),)),
        replace(b, levels=(replace(y, size=size, number=number),)),
    )
    try:
        for s in both:
            s.piece((False,))
            s.piece((x.total % size != 0,))
    except UnevenError:
        return None
    return both


def replace_range(v: Var, last: int) -> Var:
    """The variable with another upper bound."""
    return Var(v.name, v.lo, max(last, 0))


def widened(target: Node) -> Node:
    """A sum of 16-bit floats, in f32: partial results are rounded once, at the end."""
    if target.op in (Op.SUM, Op.PROD) and target.dtype.is_float and target.dtype.itemsize < 4:
        x = apply(Op.CAST, target.inputs, None, None, float32)
        return apply(target.op, (x,), target.attrs)
    return target


def nbytes(node: Node) -> int:
    """Bytes of a node of known shape."""
    return int(elements(node.shape)) * node.dtype.itemsize  # pyright: ignore[reportArgumentType]


def reach(part: Node) -> int:
    """Bytes from the first to the last element of a SHRINK of a leaf: what reading it touches at most."""
    box = part.attrs
    assert isinstance(box, Box)
    steps = zip(part.shape, box.step, strides(part.inputs[0].shape), strict=True)
    return (sum(high(n - 1) * step * high(s) for n, step, s in steps) + 1) * part.dtype.itemsize


def _combines(levels: Sequence[Level]) -> bool:
    return any(level.kind is Kind.COMBINE for level in levels)


def _options(
    node: Node, terms: Terms, depth: int, rows_only: bool, combining: bool, known: Set[Node]
) -> list[_Option]:
    places: list[tuple[Kind, int, int]] = []
    if not combining:
        rows = [(Kind.ROWS, k, n) for k, n in enumerate(node.shape) if isinstance(n, int) and n != 1]
        places += rows[:1]  # so that pieces lie one after the other
    if node.op in REDUCE and node.storage is None and not rows_only:
        assert isinstance(node.attrs, Axes)
        sizes = [(a, node.inputs[0].shape[a]) for a in node.attrs.axes]
        places += [(Kind.COMBINE, a, n) for a, n in sizes if isinstance(n, int) and n > 1]
    found = [_option(node, kind, axis, n, terms, depth, known) for kind, axis, n in places]
    return [o for o in found if o is not None]


def _option(
    node: Node, kind: Kind, axis: int, total: int, terms: Terms, depth: int, known: Set[Node]
) -> _Option | None:
    """The smallest piece along an axis; None where the axis does not make files' parts smaller."""
    unit = 1
    while unit < total and total % unit == 0:
        number, slicer = Var(f"piece{depth}", 0, total // unit - 1), Slicer()
        try:
            piece = _cut(node, kind, axis, number * unit, unit, slicer)
        except UnevenError as error:
            larger = math.lcm(unit, error.multiple)
            unit = larger if larger > unit else unit * error.multiple
            continue
        whole = [n for n in slicer.whole if _has_work(n)]
        parts = regions(piece, terms.is_source, known | set(whole))
        read = {n: nbytes(n) if n is leaf else reach(n) for n, leaf in parts.items()}
        parts_before = regions(node, terms.is_source, known | set(whole)).items()
        before = sum(nbytes(n) if n is leaf else reach(n) for n, leaf in parts_before)
        if before and sum(read.values()) >= before:
            return None
        mapped = sum(read[n] for n, leaf in parts.items() if terms.borrows and n is leaf)
        # The parts of a unit may be small though those of two lie far apart: what all units read says what one adds.
        each = max(sum(read.values()), before * unit // total) - mapped
        rows = kind is Kind.ROWS
        each, other = (each + nbytes(piece), 0) if rows else (each, nbytes(piece))
        contiguous = all(in_one_go(leaf.shape, n.shape) for n, leaf in parts.items())
        return _Option(kind, axis, total, unit, each, other, contiguous, piece, tuple(whole))
    return None


def _cut(node: Node, kind: Kind, axis: int, start: Int, size: int, slicer: Slicer) -> Node:
    if kind is Kind.ROWS:
        return slicer.sliced(node, Slice(axis, start, size))
    return apply(node.op, (slicer.sliced(node.inputs[0], Slice(axis, start, size)),), node.attrs)


def in_one_go(whole: Sequence[Int], part: Sequence[Int]) -> bool:
    """True where a box of this shape is one run of a row-major array: 1s, one axis of any size, then whole axes."""
    split = next((k for k, n in enumerate(part) if n != 1), len(whole))
    return all(a == b for a, b in zip(whole[split + 1 :], part[split + 1 :], strict=True))


def _has_work(node: Node) -> bool:
    """True where computing the node for every piece would be a waste."""
    stack, seen = [node], {node}
    while stack:
        n = stack.pop()
        if n.storage is not None:
            continue
        if n.op in REDUCE or n.op in (Op.GATHER, Op.SCATTER, Op.COPY, Op.LOOP):
            return True
        fresh = [i for i in n.inputs if i not in seen]
        seen.update(fresh)
        stack.extend(fresh)
    return False
