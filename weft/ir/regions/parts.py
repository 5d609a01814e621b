"""Parts of computed values: a box of an op's result, made from boxes of its inputs.

    y = x.flip(0)[2:]        x: (8, 5)        parts_of(y, [0:3, 0:5])   of x.flip(0): [2:5, 0:5]
                                              parts_of(x.flip(0), [2:5, 0:5])   of x: [3:6, 0:5],   flipped

Which boxes these are follows from the regions that the op needs: most ops on those boxes make the part. Those whose
attributes say where elements are (the edge of a PAD, the place of an UPDATE) get others for it, `_PLACED`; a RESHAPE
makes the rows around the part where no box of its input is just that. A box whose ends are runtime variables is made
by ops of the first kind only.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from weft.ir.dtypes import int64
from weft.ir.graph import Along, Box, Fill, Node, Padding, ScatterCombine, Shape, Window, apply, const
from weft.ir.index import Int
from weft.ir.loop_body import LoopNode
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import needs, reaches
from weft.ir.regions.region import Region
from weft.ir.template import GraphTemplate

Make: TypeAlias = Callable[[Sequence[Node]], Node]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a box of a result is made from: a box of each input (None: nothing of it), and how, given those
    that are not None."""

    inputs: tuple[IndexBox | None, ...]
    make: Make


def size_of(box: Sequence[Interval]) -> Shape:
    """The shape of a box."""
    return tuple([i.hi - i.lo for i in box])


def shrunk(n: Node, around: IndexBox, box: IndexBox) -> Node:
    """A box, of a node that has the elements of a box around it."""
    start = tuple([i.lo - o.lo for i, o in zip(box, around, strict=True)])
    return apply(Op.SHRINK, (n,), Box(start, (1,) * len(start)), size_of(box))


def whole_of(node: Node, box: IndexBox) -> Parts:
    """The part of the whole result, which is made from whole inputs."""

    def make(xs: Sequence[Node]) -> Node:
        return shrunk(_same(node, xs, node.shape) if xs else node, bx.full(node.shape), box)

    return Parts(tuple([bx.full(i.shape) for i in node.inputs]), make)


def parts_of(node: Node, box: IndexBox) -> Parts:
    """The parts that a box, with numbers for its ends, of an op's result is made from; of a leaf, itself."""
    if any(i.hi == i.lo for i in box):
        return Parts((None,) * len(node.inputs), lambda _: const(0, node.dtype, size_of(box)))
    if node.op is Op.CONST:
        return Parts((), lambda _: const(_attrs(node, Fill).value, node.dtype, size_of(box)))
    if node.op in ELEMENTWISE:
        return Parts((box,) * len(node.inputs), lambda xs: _same(node, xs, size_of(box)))
    if not node.inputs or node.op in (Op.LOOP, Op.CALL):
        return whole_of(node, box)
    rule = _PLACED.get(node.op)
    found = by_same_op(node, box) if rule is None else rule(node, box)
    return whole_of(node, box) if found is None else found


def by_same_op(node: Node, box: IndexBox) -> Parts | None:
    """The boxes of inputs on which the op, as it is, makes a box of its result; None where there are none."""
    found = needed_boxes(node, box)
    return None if found is None else Parts(found, lambda xs: _same(node, xs, size_of(box)))


def needed_boxes(node: Node, box: IndexBox) -> tuple[IndexBox, ...] | None:
    """The box around what a box of the result needs, of each input; None where that is nothing, or its size varies; of
    a RESHAPE, where it is no box."""
    found: list[IndexBox] = []
    for x, region in zip(node.inputs, needs(node, Region((box,))), strict=True):
        if region.is_empty or (node.op is Op.RESHAPE and not (region.exact and len(region.boxes) == 1)):
            return None
        part = region.enclosing
        if not all(n == m or isinstance(n, int) for n, m in zip(size_of(part), x.shape, strict=True)):
            return None
        found.append(part)
    return tuple(found)


def _same(node: Node, xs: Sequence[Node], shape: Shape) -> Node:
    return apply(node.op, tuple(xs), node.attrs, shape, node.dtype)


def _attrs(node: Node, kind: type[_T]) -> _T:
    assert isinstance(node.attrs, kind), node
    return node.attrs


def _ends(i: Interval) -> tuple[int, int]:
    assert isinstance(i.lo, int) and isinstance(i.hi, int), i
    return i.lo, i.hi


# ops whose attributes say where elements are ------------------------------------------------------------------------


def _reshape(node: Node, box: IndexBox) -> Parts:
    """The smallest boxes of input and result that are reshapes of each other, around the part: each is grown to what
    the other holds, until they have equally many elements."""
    inside, outside = needs(node, Region((box,)))[0].enclosing, box
    while bx.volume(inside) != bx.volume(outside):
        outside = reaches(node, 0, Region((inside,))).enclosing
        inside = needs(node, Region((outside,)))[0].enclosing

    def make(xs: Sequence[Node]) -> Node:
        return shrunk(apply(node.op, tuple(xs), None, size_of(outside)), outside, box)

    return Parts((inside,), make)


def _shrink(node: Node, box: IndexBox) -> Parts:
    at, sides = _attrs(node, Box), list[Interval]()
    for i, start, step in zip(box, at.start, at.step, strict=True):
        sides.append(Interval(start + i.lo * step, start + (i.hi - 1) * step + 1))
    attrs = Box((0,) * len(box), at.step)
    return Parts((tuple(sides),), lambda xs: apply(Op.SHRINK, tuple(xs), attrs, size_of(box)))


def _pad(node: Node, box: IndexBox) -> Parts:
    """The input from its first to its last element in the box, padded up to the box's ends."""
    p, (x,) = _attrs(node, Padding), node.inputs
    sides, low, high = list[Interval](), list[Int](), list[Int]()
    for i, n, before, gap in zip(box, x.shape, p.low, p.interior, strict=True):
        lo, hi = _ends(i)
        size, edge = _ends(Interval(n, before))
        step = gap + 1
        first, end = max(0, -((edge - lo) // step)), min(size, (hi - 1 - edge) // step + 1)
        if first >= end:
            return Parts((None,), lambda _: const(p.fill, node.dtype, size_of(box)))
        sides.append(Interval(first, end))
        low.append(first * step + edge - lo)
        high.append(hi - 1 - ((end - 1) * step + edge))
    attrs = replace(p, low=tuple(low), high=tuple(high))
    return Parts((tuple(sides),), lambda xs: apply(Op.PAD, tuple(xs), attrs))


def _unshear(node: Node, box: IndexBox) -> Parts:
    """out[i, k] = x[(i - k*dilation) / stride]: windows of the part of x, which begin before the box, or in it. Places
    in a window at which no element of the box reads are 0."""
    w = _attrs(node, Window)
    (found,) = needs(node, Region((box,)))
    if found.is_empty:
        return Parts((None,), lambda _: const(0, node.dtype, size_of(box)))
    apart = bx.meet(found.enclosing, box)  # on all axes but the one where windows lie
    part = tuple([found.enclosing[k] if k == w.axis else i for k, i in enumerate(apart)])
    shape = size_of([part[k] if k == w.window else i for k, i in enumerate(box)])
    (lo, hi), (at, _), (first, end) = _ends(part[w.axis]), _ends(box[w.axis]), _ends(part[w.window])
    offset = at - first * w.dilation - lo * w.stride
    reach = (hi - lo - 1) * w.stride + (end - first - 1) * w.dilation + 1
    before, (_, count) = max(-offset, 0), _ends(Interval(0, shape[w.axis]))
    made = max(reach, offset + count)

    def make(xs: Sequence[Node]) -> Node:
        (x,) = xs
        sized = (*x.shape[: w.axis], made, *x.shape[w.axis + 1 :])
        out = apply(Op.UNSHEAR, (x,), w, sized)
        out = _filled_up(out, w.axis, Interval(before, before + made), Interval(0, before + made))
        read = shrunk(out, _moved(bx.full(out.shape), w.axis, -max(offset, 0)), bx.full(shape))
        return _filled_up(read, w.window, part[w.window], box[w.window])

    return Parts((part,), make)


def _filled_up(n: Node, axis: int, here: Interval, wanted: Interval) -> Node:
    """An axis of a node, which has the elements of an interval, with zeros up to the ends of another around it."""
    (lo, hi), (first, end) = _ends(here), _ends(wanted)
    if (lo, hi) == (first, end):
        return n
    zeros = (0,) * len(n.shape)
    low, high = ([by if k == axis else 0 for k in range(len(zeros))] for by in (lo - first, end - hi))
    return apply(Op.PAD, (n,), Padding(tuple(low), tuple(high), zeros, 0))


def _moved(box: IndexBox, axis: int, by: int) -> IndexBox:
    return bx.shifted(box, [by if k == axis else 0 for k in range(len(box))])


def _concat(node: Node, box: IndexBox) -> Parts:
    axis, start = _attrs(node, Along).axis, 0
    inputs: list[IndexBox | None] = []
    for x in node.inputs:
        here = box[axis] & Interval(start, start + x.shape[axis])
        part = (*box[:axis], Interval(here.lo - start, here.hi - start), *box[axis + 1 :])
        inputs.append(part if here.is_filled else None)
        start = start + x.shape[axis]
    return Parts(tuple(inputs), lambda xs: apply(Op.CONCAT, tuple(xs), node.attrs))


def _scatter(node: Node, box: IndexBox) -> Parts:
    """Indices are counted from the box's beginning: those that are out of range are skipped."""
    axis, (_, index, _) = _attrs(node, ScatterCombine).axis, node.inputs
    start, part = box[axis].lo, (*box[:axis], Interval(0, index.shape[axis]), *box[axis + 1 :])

    def make(xs: Sequence[Node]) -> Node:
        x, at, src = xs
        return apply(Op.SCATTER, (x, counted_from(at, start), src), node.attrs)

    return Parts((box, part, part), make)


def counted_from(index: Node, start: Int) -> Node:
    """Indices less `start`."""
    if start == 0:
        return index
    assert isinstance(start, int)
    return apply(Op.SUB, (apply(Op.CAST, (index,), None, None, int64), const(start, int64, index.shape)))


def _update(node: Node, box: IndexBox) -> Parts:
    at, src = _attrs(node, Box), node.inputs[1]
    sides, starts, covers = list[Interval](), list[Int](), True
    for i, n, start, step in zip(box, src.shape, at.start, at.step, strict=True):
        (lo, hi), (first, size) = _ends(i), _ends(Interval(start, n))
        begin, end = max(0, -((first - lo) // step)), min(size, (hi - 1 - first) // step + 1)
        if begin >= end:
            return Parts((box, None), lambda xs: xs[0])
        sides.append(Interval(begin, end))
        starts.append(first + begin * step - lo)
        covers = covers and end - begin == hi - lo
    attrs = replace(at, start=tuple(starts))
    if covers:
        return Parts((None, tuple(sides)), lambda xs: xs[0])
    kept = bx.meet(needs(node, Region((box,)))[0].enclosing, box)  # of x; what lies around it is written over

    def make(xs: Sequence[Node]) -> Node:
        x, new = xs
        for axis, (here, wanted) in enumerate(zip(kept, box, strict=True)):
            x = _filled_up(x, axis, here, wanted)
        return apply(Op.UPDATE, (x, new), attrs)

    return Parts((kept, tuple(sides)), make)


_PLACED: dict[Op, Callable[[Node, IndexBox], Parts | None]] = {
    Op.RESHAPE: _reshape,
    Op.SHRINK: _shrink,
    Op.PAD: _pad,
    Op.UNSHEAR: _unshear,
    Op.CONCAT: _concat,
    Op.SCATTER: _scatter,
    Op.UPDATE: _update,
}
"""The ops whose attributes say where elements are."""


# graphs -------------------------------------------------------------------------------------------------------------


Place: TypeAlias = tuple[Node, IndexBox]
Taken: TypeAlias = Callable[[Node, IndexBox], Node | None]
"""taken(node, box): a node that has that box already; None where it is to be made of parts."""


class PartsOf(dict[Place, Parts]):
    """`parts_of` of nodes and boxes that were asked for before. Of the inputs only the shapes matter, so nodes that
    are alike in these, as in the layers of a network, have the same parts."""

    def __init__(self) -> None:
        super().__init__()
        self._alike: dict[Hashable, Parts] = {}

    def __missing__(self, key: Place) -> Parts:
        node, box = key
        if node.op in ELEMENTWISE or not node.inputs or isinstance(node.attrs, GraphTemplate | LoopNode):
            found = parts_of(node, box)
        else:
            shapes = tuple([i.shape for i in node.inputs])
            alike = (node.op, node.attrs, node.dtype, node.shape, shapes, box)
            known = self._alike.get(alike)
            found = known if known is not None else self._alike.setdefault(alike, parts_of(node, box))
        self[key] = found
        return found


def pulled(node: Node, box: IndexBox, taken: Taken, made: dict[Place, Node], parts: PartsOf) -> Node:
    """A box of a node, made of parts of what it is computed from, down to what is `taken`. All that is made on the
    way is in `made`."""
    stack: list[Place] = [(node, box)]
    while stack:
        place = stack[-1]
        if place in made:
            stack.pop()
            continue
        given = taken(*place)
        if given is not None:
            made[place] = given
            continue
        of = parts[place]
        inputs = [(i, b) for i, b in zip(place[0].inputs, of.inputs, strict=True) if b is not None]
        missing = [i for i in inputs if i not in made]
        if missing:
            stack += missing
            continue
        made[place] = of.make([made[i] for i in inputs])
    return made[node, box]
