"""Parts of computed values: a box of an op's result, made from boxes of its inputs.

    y = x.flip(0)[2:]        x: (8, 5)        parts_of(y, [0:3, 0:5])   of x.flip(0): [2:5, 0:5]
                                              parts_of(x.flip(0), [2:5, 0:5])   of x: [3:6, 0:5],   flipped

Which boxes these are follows from the regions that the op needs: most ops on those boxes make the part. Those whose
attributes say where elements are (the edge of a PAD, the place of an UPDATE) get others for it, `_PLACED`; a RESHAPE
makes the rows around the part where no box of its input is just that. Boxes that begin where runtime variables say are
made likewise (`weft.ir.regions.moving`), or from whole axes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.ir.dtypes import int64
from weft.ir.graph import Along, Box, Fill, Node, Padding, ScatterCombine, Window, apply, arange, const
from weft.ir.index import Int, high
from weft.ir.loop_body import LoopNode
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import needs, reaches
from weft.ir.regions.moving import moving_parts
from weft.ir.regions.part import Parts, Place, attributes, same_op, shrunk, size_of, taken_at, whole_of
from weft.ir.regions.region import Region
from weft.ir.template import GraphTemplate


def parts_of(node: Node, box: IndexBox) -> Parts:
    """The parts that a box, of extents that are numbers, of an op's result is made from; of a leaf, itself."""
    if any(i.hi == i.lo for i in box):
        return Parts((None,) * len(node.inputs), lambda _: const(0, node.dtype, size_of(box)))
    if node.op is Op.CONST:
        return Parts((), lambda _: const(attributes(node, Fill).value, node.dtype, size_of(box)))
    if node.op in ELEMENTWISE:
        return Parts((box,) * len(node.inputs), lambda xs: same_op(node, xs, size_of(box)))
    if not node.inputs or node.op in (Op.LOOP, Op.CALL):
        return whole_of(node, box)
    if not bx.is_known(box):
        return _of_moving(node, box)
    rule = _PLACED.get(node.op)
    found = by_same_op(node, box) if rule is None else rule(node, box)
    return whole_of(node, box) if found is None else found


def _of_moving(node: Node, box: IndexBox) -> Parts:
    """The parts of a box of which some ends are runtime variables: by a rule for such, or the axes whose place matters
    to the op are made whole."""
    found = moving_parts(node, box)
    if found is not None:
        return found
    placed = _PLACED_ALONG.get(node.op)
    if placed is None:
        return whole_of(node, box)
    axes = [k for k in placed(node) if not bx.is_known((box[k],))]
    if axes:
        around = tuple(
            [Interval(0, n) if k in axes else i for k, (n, i) in enumerate(zip(node.shape, box, strict=True))]
        )
        return parts_of(node, around).cut(around, box)
    found = _PLACED[node.op](node, box)
    return whole_of(node, box) if found is None else found


def by_same_op(node: Node, box: IndexBox) -> Parts | None:
    """The boxes of inputs on which the op, as it is, makes a box of its result; None where there are none."""
    found = needed_boxes(node, box)
    return None if found is None else Parts(found, lambda xs: same_op(node, xs, size_of(box)))


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


def placed_axes(node: Node) -> Sequence[int] | None:
    """The axes along which the places of elements matter to an op, where a box may begin anywhere along others; None
    of an op for which that is not so."""
    placed = _PLACED_ALONG.get(node.op)
    return None if placed is None else placed(node)


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
    at, sides = attributes(node, Box), list[Interval]()
    for i, start, step in zip(box, at.start, at.step, strict=True):
        sides.append(Interval(start + i.lo * step, start + (i.hi - 1) * step + 1))
    attrs = Box((0,) * len(box), at.step)
    return Parts((tuple(sides),), lambda xs: apply(Op.SHRINK, tuple(xs), attrs, size_of(box)))


def _pad(node: Node, box: IndexBox) -> Parts:
    """The input from its first to its last element in the box, padded up to the box's ends."""
    p, (x,) = attributes(node, Padding), node.inputs
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
    w = attributes(node, Window)
    placed = (w.axis, w.window)
    sides = enumerate(zip(box, node.shape, strict=True))
    (found,) = needs(node, Region((tuple([i if k in placed else Interval(0, n) for k, (i, n) in sides]),)))
    if found.is_empty:
        return Parts((None,), lambda _: const(0, node.dtype, size_of(box)))
    apart = bx.meet(found.enclosing, box)
    part = (
        found.enclosing[k] if k == w.axis else apart[k] if k == w.window else i for k, i in enumerate(box)
    )
    part = tuple(part)
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
    axis, start = attributes(node, Along).axis, 0
    inputs: list[IndexBox | None] = []
    for x in node.inputs:
        here = box[axis] & Interval(start, start + x.shape[axis])
        part = (*box[:axis], Interval(here.lo - start, here.hi - start), *box[axis + 1 :])
        inputs.append(part if here.is_filled else None)
        start = start + x.shape[axis]
    return Parts(tuple(inputs), lambda xs: apply(Op.CONCAT, tuple(xs), node.attrs))


def _scatter(node: Node, box: IndexBox) -> Parts:
    """Indices are counted from the box's beginning: those that are out of range are skipped."""
    axis, (_, index, _) = attributes(node, ScatterCombine).axis, node.inputs
    start, part = box[axis].lo, (*box[:axis], Interval(0, index.shape[axis]), *box[axis + 1 :])

    def make(xs: Sequence[Node]) -> Node:
        x, at, src = xs
        return apply(Op.SCATTER, (x, counted_from(at, start), src), node.attrs)

    return Parts((box, part, part), make)


def counted_from(index: Node, start: Int) -> Node:
    """Indices less `start`."""
    if start == 0:
        return index
    if isinstance(start, int):
        by = const(start, int64, index.shape)
    else:
        first = taken_at(arange(high(start) + 1), [start], (1,))
        by = apply(Op.RESHAPE, (first,), None, (1,) * len(index.shape))
        by = apply(Op.EXPAND, (by,), None, index.shape)
    return apply(Op.SUB, (apply(Op.CAST, (index,), None, None, int64), by))


def _update(node: Node, box: IndexBox) -> Parts | None:
    at, src = attributes(node, Box), node.inputs[1]
    sides, starts, covers = list[Interval](), list[Int](), True
    for i, n, whole, start, step in zip(box, src.shape, node.shape, at.start, at.step, strict=True):
        if n == whole and start == 0:
            sides.append(i)
            starts.append(0)
            continue
        if not isinstance(start, int):
            return None
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
    kept = bx.meet(needs(node, Region((box,)))[0].enclosing, box) if bx.is_known(box) else box
    # of x; what lies around it is written over

    def make(xs: Sequence[Node]) -> Node:
        x, new = xs
        for axis, (here, wanted) in enumerate(zip(kept, box, strict=True)):
            x = x if here == wanted else _filled_up(x, axis, here, wanted)
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


def _updated_axes(node: Node) -> Sequence[int]:
    sizes = zip(node.shape, node.inputs[1].shape, attributes(node, Box).start, strict=True)
    return [k for k, (n, m, start) in enumerate(sizes) if n != m or start != 0]


_PLACED_ALONG: dict[Op, Callable[[Node], Sequence[int]]] = {
    Op.UNSHEAR: lambda node: (attributes(node, Window).axis, attributes(node, Window).window),
    Op.CONCAT: lambda node: (attributes(node, Along).axis,),
    Op.SCATTER: lambda node: (),
    Op.SHRINK: lambda node: (),
    Op.UPDATE: _updated_axes,
}
"""Along which axes they do, for those that can have a box that moves along others."""


# graphs -------------------------------------------------------------------------------------------------------------


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

    def ends(self, of: Iterable[Place], is_end: Callable[[Node, IndexBox], bool]) -> Iterator[Place]:
        """The places at which to end that others are made from, each once."""
        stack, seen = [*of], set[Place]()
        while stack:
            place = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            if is_end(*place):
                yield place
            else:
                stack += self[place].places(place[0])


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
        inputs = of.places(place[0])
        missing = [i for i in inputs if i not in made]
        if missing:
            stack += missing
            continue
        made[place] = of.make([made[i] for i in inputs])
    return made[node, box]
