"""The elements of each node that a change can reach, for all starts of the change at once.

    ids [0:1, t:t+1], t in 0..512     x [0:1, t:t+1, 0:64]    q k v [0:1, t:t+1, 0:64]    scores [t:512, 0:512] ...

A change is a box, or a few, of inputs, whose ends may be expressions of runtime variables. A box goes through the graph
node by node: a rule per op says which boxes of the result it has a part in (`_RULES`); an op without one is asked for
what all starts together reach (`weft.ir.regions.graphs`). Layers that repeat are looked up. Boxes that reach a node
stay apart, even where they overlap: a row by way of one operand of a product, a column by way of the other. In the
end, a node has those that take least work to compute (`cheapest`).

Nothing reached is left out. What a mask makes exactly 0 reaches nothing, as `used` says: see `weft.ir.regions.ops`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import combinations, product
from operator import itemgetter

import numpy as np

from weft.ir.graph import Along, Axes, Box, Node, Padding, ScatterCombine, Shape, Window
from weft.ir.index import Guard, Int, Var, coefficient, high, low, variables
from weft.ir.kernel.algorithm import place
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import needs, reaches
from weft.ir.regions.moving import axis_groups
from weft.ir.regions.ops import Used, always
from weft.ir.regions.part import attributes
from weft.ir.regions.region import MAX_BOXES, Region
from weft.ir.regions.tables import (
    Side,
    Sides,
    Starts,
    TableBox,
    enclosing,
    expression,
    holds,
    is_empty,
    meet,
    touch,
    volume,
)
from weft.lazy_dataclass import dataclass

BOX_WORK = 20_000
"""The additions in the time that one more box takes: a launch of a microsecond or two."""

MOST_ELEMENTS = 1 << 62
"""More than any tensor has."""

WASTE = 1.5
"""The work of a class, in that of what its starts reach on average, up to which they share boxes of one size."""

Rule = Callable[[Node, int, TableBox, Sides], list[TableBox]]
"""rule(node, k, box, sides): the boxes of the node's elements in which input number k has a part through a box."""


class Reach:
    """A graph, whose nodes are given in the order of computation, to be asked what changes reach and results need."""

    def __init__(self, order: Sequence[Node], used: Used = always) -> None:
        kinds: dict[object, int] = {}
        self._nodes: list[tuple[Node, int, tuple[Guard, ...]]] = []
        for n in order:
            guards = tuple([used(n, k) for k in range(len(n.inputs))]) if n.op in ELEMENTWISE else ()
            what = (n.op, n.attrs, n.shape, tuple([i.shape for i in n.inputs]), guards)
            self._nodes.append((n, kinds.setdefault(what, len(kinds)), guards))
        self._sides = Sides()
        self._met: dict[tuple[int, tuple[tuple[TableBox, ...], ...]], tuple[TableBox, ...]] = {}
        self._needs: dict[tuple[int, tuple[TableBox, ...]], tuple[tuple[TableBox, ...], ...]] = {}

    def dirty(self, changed: Mapping[Node, Region]) -> Reached:
        """Return what changes of these regions reach. Their boxes may overlap, and move with runtime variables."""
        found = self._given(changed)
        for n, kind, guards in self._nodes:
            if n not in found and any(i in found for i in n.inputs):
                of = tuple([found.get(i, ()) for i in n.inputs])
                boxes = self._met.get((kind, of))
                if boxes is None:
                    boxes = self._met[kind, of] = self._joined(self._forward(n, of, guards))
                if boxes:
                    found[n] = boxes
        return Reached({n: b for n, b in found.items() if b}, self._sides)

    def needed(self, wanted: Mapping[Node, Region]) -> Reached:
        """Return what these regions are computed from. Leaves, and what is not in the graph, are looked at, too."""
        found = self._given(wanted)
        for n, kind, guards in reversed(self._nodes):
            mine = found[n] = self._joined(found.get(n, ()))
            if mine and n.inputs and n.storage is None:
                inputs = self._needs.get((kind, mine))
                if inputs is None:
                    inputs = self._needs[kind, mine] = self._backward(n, mine, guards)
                for i, boxes in zip(n.inputs, inputs, strict=True):
                    found[i] = (*found.get(i, ()), *boxes)
        return Reached({n: b for n, b in found.items() if b}, self._sides)

    def tables(self, regions: Mapping[Node, Region]) -> Reached:
        """Regions of nodes as what they are for each value of a variable."""
        return Reached(self._given(regions), self._sides)

    def _given(self, regions: Mapping[Node, Region]) -> dict[Node, tuple[TableBox, ...]]:
        found: dict[Node, tuple[TableBox, ...]] = {}
        for n, region in regions.items():
            sides = [zip(b, _sizes(n.shape), strict=True) for b in region.boxes]
            boxes = [tuple([self._sides.within(self._sides.interval(i, m), m) for i, m in b]) for b in sides]
            found[n] = self._joined(boxes)
        return found

    def _forward(
        self, n: Node, of: Sequence[Sequence[TableBox]], guards: tuple[Guard, ...]
    ) -> list[TableBox]:
        rule = _RULES.get(n.op, _unlisted)
        found: list[TableBox] = []
        for k, boxes in enumerate(of):
            for b in boxes:
                reached = rule(n, k, b, self._sides)
                found += _counting(reached, guards[k], n, self._sides) if guards else reached
        return found

    def _backward(
        self, n: Node, boxes: Sequence[TableBox], guards: tuple[Guard, ...]
    ) -> tuple[tuple[TableBox, ...], ...]:
        rule = _NEEDS.get(n.op, _unlisted_needs)
        each = [rule(n, b, self._sides) for b in boxes]
        found = [[b for of in each for b in of[k]] for k in range(len(n.inputs))]
        if guards:
            found = [_counting(bs, guard, n, self._sides) for bs, guard in zip(found, guards, strict=True)]
        return tuple(map(self._joined, found))

    def _joined(self, boxes: Iterable[TableBox]) -> tuple[TableBox, ...]:
        """The boxes apart, as a mask further on may let only some of them through; in one where two are no more than
        that, or there are too many."""
        left: list[TableBox] = []
        for b in dict.fromkeys(boxes):
            if not is_empty(b) and not any(holds(a, b) for a in left):
                left = [*(a for a in left if not holds(b, a)), b]
        while len(left) > 1:
            pairs = list(combinations(left, 2))
            two = next((p for p in pairs if touch(*p)), None)
            if two is None:
                if len(left) <= MAX_BOXES:
                    break
                two = min(pairs, key=lambda p: _added(*p, self._sides))
            around = enclosing(self._sides, *two)
            left = [*(c for c in left if c not in two and not holds(around, c)), around]
        return tuple(left)


@dataclass(frozen=True, slots=True, eq=False)
class Reached:
    """Boxes of nodes, for each value of the runtime variables that they move with."""

    boxes: Mapping[Node, tuple[TableBox, ...]]
    sides: Sides

    @property
    def moving(self) -> tuple[Var, ...]:
        """The variables."""
        found = {
            i.var
            for boxes in dict.fromkeys(self.boxes.values())
            for b in boxes
            for i in b
            if i.var is not None
        }
        return tuple(sorted(found, key=lambda v: v.name))

    def __and__(self, other: Reached) -> Reached:
        """The boxes of what is in both, which are of one `Reach`."""
        met: dict[tuple[tuple[TableBox, ...], tuple[TableBox, ...]], tuple[TableBox, ...]] = {}
        for n, mine in self.boxes.items():
            both = mine, other.boxes.get(n, ())
            if both not in met:
                found = [meet(self.sides, a, b) for a, b in product(*both)]
                met[both] = tuple([b for b in dict.fromkeys(found) if not is_empty(b)])
        found = {n: met[b, other.boxes.get(n, ())] for n, b in self.boxes.items()}
        return Reached({n: b for n, b in found.items() if b}, self.sides)

    def at(self, node: Node, values: Mapping[str, int]) -> Region:
        """The region of a node for these values of the variables. Its boxes may overlap."""
        found = [tuple([i.at(values) for i in b]) for b in self.boxes.get(node, ())]
        return Region(tuple([b for b in found if not bx.is_empty(b)]), exact=False)

    def region(self, node: Node) -> Region:
        """The region of a node by the variables that changes move with; not exact where no expression says it, and then
        larger. Its boxes may overlap."""
        found: list[IndexBox] = []
        exact = True
        for b in self.boxes.get(node, ()):
            ends = [(expression(i.var, i.lo), expression(i.var, i.hi), i.hull) for i in b]
            exact = exact and all(lo is not None and hi is not None for lo, hi, _ in ends)
            found.append(
                tuple(
                    [Interval(h[0] if lo is None else lo, h[1] if hi is None else hi) for lo, hi, h in ends]
                )
            )
        return Region(tuple(found), exact)

    def placed(
        self, bounds: Mapping[str, tuple[int, int]] | None = None, nodes: Iterable[Node] | None = None
    ) -> Placed:
        """The boxes, of all nodes or these, that hold what is reached wherever the changes begin within the bounds."""
        starts, found = Starts(bounds or {}), dict[Node, tuple[IndexBox, ...]]()
        for n in self.boxes if nodes is None else nodes:
            shape = _sizes(n.shape)
            placed = [
                [starts.interval(i, m) for i, m in zip(b, shape, strict=True)] for b in self.boxes.get(n, ())
            ]
            boxes = [tuple([i for i in b if i is not None]) for b in placed if None not in b]
            if boxes:
                found[n] = cheapest(boxes, _element_work(n))
        return Placed(found, starts)

    def bounds_at(self, at: Mapping[str, int], nodes: Iterable[Node]) -> dict[str, tuple[int, int]]:
        """Bounds of the variables around these values in which one class wastes little work on the nodes: halves of
        halves of what they were, the same ones for all values that they hold."""
        kept = [(n, self.boxes[n]) for n in nodes if n in self.boxes]
        bounds = {v.name: (v.lo, v.hi) for v in self.moving}
        while any(lo < hi for lo, hi in bounds.values()):
            corners = product(
                *(((name, lo), (name, (lo + hi) // 2), (name, hi)) for name, (lo, hi) in bounds.items())
            )
            each = [_work(kept, Starts({name: (i, i) for name, i in of})) for of in corners]
            if _work(kept, Starts(bounds)) <= WASTE * sum(each) / len(each) + BOX_WORK:
                break
            name = max(bounds, key=lambda name: bounds[name][1] - bounds[name][0])
            lo, hi = bounds[name]
            middle = (lo + hi + 1) // 2
            bounds[name] = (lo, middle - 1) if at[name] < middle else (middle, hi)
        return bounds


@dataclass(frozen=True, slots=True, eq=False)
class Placed:
    """Boxes of sizes that are numbers, which begin at numbers, at expressions of the variables that changes move with,
    or at variables that follow from these by a table."""

    boxes: Mapping[Node, tuple[IndexBox, ...]]
    starts: Starts

    @property
    def variables(self) -> tuple[Var, ...]:
        """The runtime variables in the boxes."""
        ends = (end for boxes in self.boxes.values() for b in boxes for i in b for end in i)
        found = {v for end in ends if not isinstance(end, int) for v in variables(end)}
        return tuple(sorted(found, key=lambda v: v.name))

    def values(self, at: Mapping[str, int]) -> dict[str, int]:
        """The values of all variables where the changes begin at these."""
        return self.starts.values(at)


def _work(nodes: Sequence[tuple[Node, tuple[TableBox, ...]]], starts: Starts) -> float:
    """The additions that computing boxes takes, roughly."""
    return sum(
        math.prod(min(starts.extent(i), m) for i, m in zip(b, _sizes(n.shape), strict=True))
        * _element_work(n)
        for n, boxes in nodes
        for b in boxes
    )


def _element_work(n: Node) -> int:
    """The additions that an element of a node takes."""
    if n.op not in REDUCE:
        return 1
    return max(1, math.prod(high(n.inputs[0].shape[a]) for a in attributes(n, Axes).axes))


def _added(a: TableBox, b: TableBox, sides: Sides) -> float:
    """The elements that a box around both adds to them, on average; less than none where they overlap."""
    around, *two = [volume(c) for c in (enclosing(sides, a, b), a, b)]
    return around - sum(two)


def cheapest(boxes: Iterable[IndexBox], element_work: int) -> tuple[IndexBox, ...]:
    """The boxes that hold these at the least work, one more of them being worth `BOX_WORK`: a box around two; both,
    with what they have in common twice; or one less what they have in common, where their places are numbers (the rest
    of a box that moves has no size of its own)."""
    left: list[IndexBox] = list(dict.fromkeys(boxes))
    while len(left) > 1:
        added, a, b = min(((_more(a, b), a, b) for a, b in combinations(left, 2)), key=itemgetter(0))
        if added * element_work > BOX_WORK:
            break
        left = [*(c for c in left if c is not a and c is not b), bx.enclosing((a, b))]
    found: list[IndexBox] = []
    for b in sorted(left, key=_volume, reverse=True):
        parts = [b]
        for a in found:
            if all(map(bx.is_known, (a, *parts))):
                parts = [rest for p in parts for rest in bx.difference(p, a)]
        saved = _volume(b) - sum(map(_volume, parts))
        found += parts if saved * element_work > (len(parts) - 1) * BOX_WORK else [b]
    return tuple(found)


def _more(a: IndexBox, b: IndexBox) -> int:
    """The elements that a box around both adds to them, where its size is a number."""
    around = bx.enclosing((a, b))
    sizes = [i.hi - i.lo for i in around]
    if not all(isinstance(n, int) for n in sizes):
        return MOST_ELEMENTS
    return _volume(around) - _volume(a) - _volume(b)


def _volume(box: IndexBox) -> int:
    return high(bx.volume(box))


def _sizes(shape: Shape) -> tuple[int, ...]:
    """A shape of numbers; the largest that a runtime size may be."""
    return tuple([n if isinstance(n, int) else high(n) for n in shape])


def _narrowed(box: TableBox, guard: Guard, node: Node, sides: Sides) -> TableBox | None:
    """The part of a box of a node in which a condition on places can hold; None where it is empty."""
    at = {place(k, n): k for k, n in enumerate(node.shape)}
    for c in guard:
        for bound in ([] if c.lo is None else [c.value - c.lo]) + (
            [] if c.hi is None else [c.hi - 1 - c.value]
        ):
            box = _where_positive(box, bound, at, sides)
    return None if is_empty(box) else box


def _counting(boxes: Iterable[TableBox], guard: Guard, node: Node, sides: Sides) -> list[TableBox]:
    """The parts of boxes of a node in which an operand counts."""
    if not guard:
        return list(boxes)
    return [b for b in (_narrowed(b, guard, node, sides) for b in boxes) if b is not None]


def _where_positive(box: TableBox, bound: Int, at: Mapping[Var, int], sides: Sides) -> TableBox:
    """The part of a box in which an expression of places can be 0 or more."""
    if isinstance(bound, int):
        return box if bound >= 0 else tuple([sides.of(None, 0, 0) for _ in box])
    factors = {v: coefficient(bound, v) for v in variables(bound)}
    if any(v not in at or c is None for v, c in factors.items()):
        return box
    terms = [(at[v], c) for v, c in factors.items() if c]
    rest = bound - sum((v * c for v, c in factors.items() if c), 0)
    if not isinstance(rest, int):
        return box
    for axis, c in terms:
        others = [(k, d) for k, d in terms if k != axis]
        var, ((lo, hi), *numbers) = sides.together(box[axis], *(box[k] for k, _ in others))
        if box[axis].var not in (None, var):
            continue
        most = rest + sum(
            (d * (hi_ - 1 if d > 0 else lo_) for (_, d), (lo_, hi_) in zip(others, numbers, strict=True)), 0
        )
        most = np.asarray(most, np.int64)
        if c > 0:
            lo = np.maximum(lo, -(most // c))
        else:
            hi = np.minimum(hi, most // -c + 1)
        box = (*box[:axis], sides.of(var, lo, hi), *box[axis + 1 :])
    return box


# --- the rules


def _same(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    return [box]


def _unlisted(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    """The boxes that a box reaches wherever it is, all starts together."""
    region = reaches(node, k, Region((tuple([Interval(*i.hull) for i in box]),)))
    known = [
        [(max(low(i.lo), 0), min(high(i.hi), n)) for i, n in zip(b, _sizes(node.shape), strict=True)]
        for b in region.boxes
    ]
    return [tuple([sides.of(None, *i) for i in b]) for b in known]


def _reduce(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    reduced = attributes(node, Axes).axes
    return [tuple([i for axis, i in enumerate(box) if axis not in reduced])]


def _permute(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    return [tuple([box[axis] for axis in attributes(node, Axes).axes])]


def _expand(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    pairs = zip(box, node.inputs[0].shape, _sizes(node.shape), strict=True)
    return [tuple([sides.full(m) if n == 1 else i for i, n, m in pairs])]


def _flip(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    axes = attributes(node, Axes).axes
    pairs = zip(box, _sizes(node.shape), strict=True)
    return [
        tuple([sides.of(i.var, n - i.hi, n - i.lo) if a in axes else i for a, (i, n) in enumerate(pairs)])
    ]


def _pad(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    p = attributes(node, Padding)
    amounts = zip(box, _sizes(node.shape), p.low, p.interior, strict=True)
    return [tuple([sides.moved(i, gap + 1, first, n) for i, n, first, gap in amounts])]


def _shrink(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    at = attributes(node, Box)
    amounts = zip(box, _sizes(node.shape), at.start, at.step, strict=True)
    return [tuple([sides.divided(i, step, start, n) for i, n, start, step in amounts])]


def _shear(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    """out[o, k] = x[o*stride + k*dilation, k]"""
    return [_windows_of(box, attributes(node, Window), node.shape, sides)]


def _unshear(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    """out[o*stride + k*dilation, k] = x[o, k]"""
    return [_places_of(box, attributes(node, Window), node.shape, sides)]


def _windows_of(box: TableBox, w: Window, shape: Shape, sides: Sides) -> TableBox:
    """The windows o, and places k in them, that read at o*stride + k*dilation in a box."""
    var, ((lo, hi), (first, end)) = sides.together(box[w.axis], box[w.window])
    begin, stop = lo - (end - 1) * w.dilation, hi - first * w.dilation
    found = sides.of(var, -(-begin // w.stride), (stop - 1) // w.stride + 1)
    return _with(box, w.axis, sides.within(found, _sizes(shape)[w.axis]))


def _places_of(box: TableBox, w: Window, shape: Shape, sides: Sides) -> TableBox:
    """The places o*stride + k*dilation of windows o and places k in a box."""
    var, ((lo, hi), (first, end)) = sides.together(box[w.axis], box[w.window])
    found = sides.of(
        var, lo * w.stride + first * w.dilation, (hi - 1) * w.stride + (end - 1) * w.dilation + 1
    )
    return _with(box, w.axis, sides.within(found, _sizes(shape)[w.axis]))


def _gather(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    axis = attributes(node, Along).axis
    return [box if k else _with(box, axis, sides.full(_sizes(node.shape)[axis]))]


def _scatter(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    axis = attributes(node, ScatterCombine).axis
    return [_with(box, axis, sides.full(_sizes(node.shape)[axis])) if k else box]


def _concat(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    axis = attributes(node, Along).axis
    return [_with(box, axis, sides.moved(box[axis], 1, _before(node, k), _sizes(node.shape)[axis]))]


def _before(node: Node, k: int) -> Int:
    """The place where input number k of a CONCAT begins."""
    return sum((n.shape[attributes(node, Along).axis] for n in node.inputs[:k]), 0)


def _update(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    if k == 0:
        return [] if _is_written_over(node, box, sides) else [box]
    at = attributes(node, Box)
    amounts = zip(box, _sizes(node.shape), at.start, at.step, strict=True)
    return [tuple([sides.moved(i, step, start, n) for i, n, start, step in amounts])]


def _is_written_over(node: Node, box: TableBox, sides: Sides) -> bool:
    """True where an UPDATE leaves nothing of a box of its first input."""
    at, whole = attributes(node, Box), _sizes(node.shape)
    amounts = zip(box, node.inputs[1].shape, whole, at.start, at.step, strict=True)
    return all(
        (step == 1 or n == 1) and sides.interval(Interval(start, start + n), m).holds(i)
        for i, n, m, start, step in amounts
    )


def _with(box: TableBox, axis: int, i: Side) -> TableBox:
    return (*box[:axis], i, *box[axis + 1 :])


def _reshape(node: Node, k: int, box: TableBox, sides: Sides) -> list[TableBox]:
    return _reshaped(box, node.inputs[0].shape, node.shape, sides)


def _reshaped(box: TableBox, shape: Shape, to: Shape, sides: Sides) -> list[TableBox]:
    """Each group of axes by way of the place in it. Rows apart from each other stay so as long as they are few."""
    if not all(isinstance(n, int) for n in (*shape, *to)):
        return [tuple(map(sides.full, _sizes(to)))]
    a, b = _sizes(shape), _sizes(to)
    apart: list[list[dict[int, Side]]] = []
    for ins, outs in axis_groups(a, b):
        if len(ins) == len(outs) == 1:
            apart.append([{outs[0]: box[ins[0]]}])
            continue
        places = _flat([box[i] for i in ins], [a[i] for i in ins], sides)
        apart.append([dict(zip(outs, _unflat(p, [b[o] for o in outs], sides), strict=True)) for p in places])
    if math.prod(map(len, apart)) > MAX_BOXES:
        apart = [
            [reduce(lambda x, y: {o: sides.around(x[o], y[o]) for o in x}, options)] for options in apart
        ]
    one = sides.full(1)
    found = [reduce(lambda x, y: x | y, chosen, dict[int, Side]()) for chosen in product(*apart)]
    return [tuple([f.get(o, one) for o in range(len(b))]) for f in found]


def _flat(box: Sequence[Side], sizes: Sequence[int], sides: Sides) -> list[Side]:
    """The places, in row-major order, of a box's elements: in one side where they follow each other, or for each of
    a few rows; or from the first to the last."""
    lead = next((k for k, i in enumerate(box) if i.extent > 1), len(box) - 1)
    steps = [math.prod(sizes[k + 1 :]) for k in range(len(sizes))]
    rows = box[lead].extent
    if 1 < rows <= MAX_BOXES and not all(
        i.is_full(n) for i, n in zip(box[lead + 1 :], sizes[lead + 1 :], strict=True)
    ):
        i = box[lead]
        each = [
            sides.of(i.var, np.minimum(i.lo + k, i.hi - 1), np.minimum(i.lo + k, i.hi - 1) + 1)
            for k in range(rows)
        ]
        return [p for row in each for p in _flat([*box[:lead], row, *box[lead + 1 :]], sizes, sides)]
    var, numbers = sides.together(*box)
    first = sum((lo * step for (lo, _), step in zip(numbers, steps, strict=True)), 0)
    last = sum(((hi - 1) * step for (_, hi), step in zip(numbers, steps, strict=True)), 0)
    return [sides.of(var, first, last + 1)]


def _unflat(i: Side, sizes: Sequence[int], sides: Sides) -> list[Side]:
    """The sides of a box around places in row-major order."""
    found: list[Side] = []
    var, lo, hi = i.var, i.lo, i.hi
    for k in range(len(sizes)):
        by = math.prod(sizes[k + 1 :])
        first, last = lo // by, (hi - 1) // by
        found.append(sides.of(var, first, last + 1))
        if not (first == last).all():
            return [*found, *map(sides.full, sizes[k + 1 :])]
        lo, hi = lo - first * by, hi - first * by
    return found


_RULES: dict[Op, Rule] = {
    **dict.fromkeys(ELEMENTWISE, _same),
    **dict.fromkeys(REDUCE, _reduce),
    Op.CONTIGUOUS: _same,
    Op.COPY: _same,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.FLIP: _flip,
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.SHEAR: _shear,
    Op.UNSHEAR: _unshear,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.RESHAPE: _reshape,
}
"""The ops through which boxes pass as such; LOOP and CALL are asked for all starts together."""


# --- the other way: rule(node, box, sides) gives, per input, the boxes that a box of the node is made from


def _unlisted_needs(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    """The boxes that a box needs wherever it is, all starts together."""
    found = needs(node, Region((tuple([Interval(*i.hull) for i in box]),)))
    return [
        [
            tuple(
                [
                    sides.of(None, max(low(i.lo), 0), min(high(i.hi), n))
                    for i, n in zip(b, _sizes(x.shape), strict=True)
                ]
            )
            for b in region.boxes
        ]
        for x, region in zip(node.inputs, found, strict=True)
    ]


def _needs_same(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    return [[box]] * len(node.inputs)


def _needs_reduced(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    reduced, kept = attributes(node, Axes).axes, iter(box)
    shape = _sizes(node.inputs[0].shape)
    return [[tuple([sides.full(n) if k in reduced else next(kept) for k, n in enumerate(shape)])]]


def _needs_permuted(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    by_axis = dict(zip(attributes(node, Axes).axes, box, strict=True))
    return [[tuple([by_axis[k] for k in range(len(box))])]]


def _needs_expanded(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    return [[tuple([sides.full(1) if n == 1 else i for i, n in zip(box, node.inputs[0].shape, strict=True)])]]


def _needs_flipped(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    return [_flip(node, 0, box, sides)]


def _needs_padded(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    p = attributes(node, Padding)
    amounts = zip(box, _sizes(node.inputs[0].shape), p.low, p.interior, strict=True)
    return [[tuple([sides.divided(i, gap + 1, first, n) for i, n, first, gap in amounts])]]


def _needs_shrunk(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    at = attributes(node, Box)
    amounts = zip(box, _sizes(node.inputs[0].shape), at.start, at.step, strict=True)
    return [[tuple([sides.moved(i, step, start, n) for i, n, start, step in amounts])]]


def _needs_sheared(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    return [[_places_of(box, attributes(node, Window), node.inputs[0].shape, sides)]]


def _needs_unsheared(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    return [[_windows_of(box, attributes(node, Window), node.inputs[0].shape, sides)]]


def _needs_reshaped(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    return [_reshaped(box, node.shape, node.inputs[0].shape, sides)]


def _needs_gathered(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    axis = attributes(node, Along).axis
    return [[_with(box, axis, sides.full(_sizes(node.inputs[0].shape)[axis]))], [box]]


def _needs_scattered(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    axis = attributes(node, ScatterCombine).axis
    some = _with(box, axis, sides.full(_sizes(node.inputs[1].shape)[axis]))
    return [[box], [some], [some]]


def _needs_concatenated(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    axis = attributes(node, Along).axis
    each = [(_before(node, k), _sizes(x.shape)[axis]) for k, x in enumerate(node.inputs)]
    return [[_with(box, axis, sides.divided(box[axis], 1, first, n))] for first, n in each]


def _needs_updated(node: Node, box: TableBox, sides: Sides) -> list[list[TableBox]]:
    at = attributes(node, Box)
    amounts = zip(box, _sizes(node.inputs[1].shape), at.start, at.step, strict=True)
    new = tuple([sides.divided(i, step, start, n) for i, n, start, step in amounts])
    return [[] if _is_written_over(node, box, sides) else [box], [new]]


_NEEDS: dict[Op, Callable[[Node, TableBox, Sides], list[list[TableBox]]]] = {
    **dict.fromkeys(ELEMENTWISE, _needs_same),
    **dict.fromkeys(REDUCE, _needs_reduced),
    Op.CONTIGUOUS: _needs_same,
    Op.COPY: _needs_same,
    Op.PERMUTE: _needs_permuted,
    Op.EXPAND: _needs_expanded,
    Op.FLIP: _needs_flipped,
    Op.PAD: _needs_padded,
    Op.SHRINK: _needs_shrunk,
    Op.SHEAR: _needs_sheared,
    Op.UNSHEAR: _needs_unsheared,
    Op.GATHER: _needs_gathered,
    Op.SCATTER: _needs_scattered,
    Op.CONCAT: _needs_concatenated,
    Op.UPDATE: _needs_updated,
    Op.RESHAPE: _needs_reshaped,
}
"""The ops of the other table."""
