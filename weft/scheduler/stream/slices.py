"""Slices of computed values: a part of an op's result along one axis, from parts of its inputs.

Which parts these are follows from the regions that the op needs (`weft.ir.regions`): there is no rule per op. `sliced`
pushes a slice from a node down to the leaves, where it becomes a SHRINK; where no slices of the inputs make a slice of
the result by the same op, the node is needed whole and its result is shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import field
from typing import TypeVar

from weft.ir.graph import Along, Box, Fill, Node, Padding, ScatterCombine, Window, apply, const
from weft.ir.index import FloorDiv, Int, Mod, Var, atoms, coefficient, high, low
from weft.ir.movement import source
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import needs
from weft.ir.regions.parts import Parts, PartsOf, Place, needed_boxes, pulled, shrunk, size_of
from weft.ir.regions.region import Region
from weft.ir.rewrite import over, rewritten
from weft.lazy_dataclass import dataclass

_T = TypeVar("_T")


class UnevenError(Exception):
    """A slice must begin at, and have, a multiple of `multiple` elements to go through a RESHAPE."""

    def __init__(self, multiple: int) -> None:
        super().__init__(multiple)
        self.multiple = multiple


@dataclass(frozen=True, slots=True)
class Slice:
    """`size` elements from `start` on along `axis`. The start may contain the number of a piece."""

    axis: int
    start: Int
    size: int

    def settled(self) -> Slice:
        """The same with a number for its start where there is only one: that of the only piece."""
        return Slice(self.axis, low(self.start), self.size) if low(self.start) == high(self.start) else self


@dataclass(slots=True)
class Slicer:
    """Slices of nodes, each made once. `whole` are the computed nodes of which all is needed for every slice."""

    whole: dict[Node, None] = field(default_factory=dict[Node, None])
    _made: dict[Place, Node] = field(default_factory=dict[Place, Node])
    _parts: PartsOf = field(default_factory=PartsOf)

    def sliced(self, node: Node, part: Slice) -> Node:
        """The slice as a node. UnevenError where a RESHAPE allows other sizes only."""
        part = part.settled()
        if part.size == node.shape[part.axis]:
            return node
        return pulled(node, _box(node, part), self._taken, self._made, self._parts)

    def _taken(self, n: Node, box: IndexBox) -> Node | None:
        """The node where it is needed whole, or a slice of it."""
        whole = bx.full(n.shape)
        parts = None if box == whole or n.storage is not None else parts_of(n, _slice(n, box))
        if parts is not None:
            self._parts[n, box] = parts
            return None
        if n.inputs and n.storage is None:
            self.whole[n] = None
        return n if box == whole else shrunk(n, whole, box)


def _box(node: Node, part: Slice | None) -> IndexBox:
    """The elements of a slice; None: all."""
    whole = bx.full(node.shape)
    if part is None:
        return whole
    return (*whole[: part.axis], Interval(part.start, part.start + part.size), *whole[part.axis + 1 :])


def _slice(node: Node, box: IndexBox) -> Slice:
    """The slice whose elements are in a box."""
    ((axis, (lo, hi)),) = [
        (k, i) for k, (i, n) in enumerate(zip(box, node.shape, strict=True)) if i != (0, n)
    ]
    size = hi - lo
    assert isinstance(size, int)
    return Slice(axis, lo, size)


def _attrs(node: Node, kind: type[_T]) -> _T:
    assert isinstance(node.attrs, kind), node
    return node.attrs


# --- parts of inputs

WHOLE = frozenset({Op.BUFFER, Op.RANGE, Op.COPY, Op.LOOP, Op.CALL})
"""Ops of whose results there are no parts. A COPY was asked for, so its whole value is wanted on a device; calls are
expanded before."""


def parts_of(node: Node, s: Slice) -> Parts | None:
    """The slices of inputs that a slice of a result is made from; None where the node is needed whole. The ops whose
    attributes say where elements are along the axis have none: there, the number of a piece would be in these."""
    shape = size_of(_box(node, s))
    if node.op is Op.CONST:
        value = _attrs(node, Fill).value
        return Parts((), lambda _: const(value, node.dtype, shape))
    if node.op in WHOLE or s.axis in _placed_axes(node):
        return None
    attrs = node.attrs
    if node.op is Op.SHRINK:
        box, (x,) = _attrs(node, Box), node.inputs
        is_leaf = not x.inputs or x.storage is not None  # one SHRINK of a leaf, not two
        first = box.start[s.axis] + s.start * box.step[s.axis] if is_leaf else 0
        attrs = Box((*box.start[: s.axis], first, *box.start[s.axis + 1 :]), box.step)
        if is_leaf:
            return Parts((_box(x, None),), lambda xs: apply(node.op, tuple(xs), attrs, shape))
    inputs = _slices(node, s)
    if inputs is None:
        if node.op is Op.RESHAPE:
            _refuse_uneven(node, s)
        return None
    boxes = tuple([_box(i, part) for i, part in zip(node.inputs, inputs, strict=True)])
    return Parts(boxes, lambda xs: apply(node.op, tuple(xs), attrs, shape, node.dtype))


def _placed_axes(node: Node) -> tuple[int, ...]:
    """The axes of a result along which the op's attributes say where elements are: a part has other places."""
    match node.op, node.attrs:
        case Op.PAD, Padding(below, above, interior):
            padded = zip(below, above, interior, strict=True)
            return tuple([k for k, amounts in enumerate(padded) if any(a != 0 for a in amounts)])
        case Op.SHEAR, Window(window=window):
            return (window,)
        case Op.UNSHEAR, Window(axis, window):
            return (axis, window)
        case (Op.CONCAT, Along(axis)) | (Op.SCATTER, ScatterCombine(axis)):
            return (axis,)
        case Op.UPDATE, _:
            sizes = zip(node.shape, node.inputs[1].shape, strict=True)
            return tuple([k for k, (n, m) in enumerate(sizes) if n != m])
        case _:
            return ()


def _slices(node: Node, s: Slice) -> tuple[Slice | None, ...] | None:
    """The slice of each input that a slice of the result needs (None: all that the whole result needs). None where one
    needs less along several axes, or a size that varies from piece to piece; of a RESHAPE, where it needs less."""
    parts = needed_boxes(node, _box(node, s))
    if parts is None:
        return None
    everything = [region.enclosing for region in needs(node, Region.whole(node.shape))]
    found: list[Slice | None] = []
    for part, of_all in zip(parts, everything, strict=True):
        less = [(k, mine) for k, (mine, all_) in enumerate(zip(part, of_all, strict=True)) if mine != all_]
        if len(less) > 1:
            return None
        sized = [(axis, lo, hi - lo) for axis, (lo, hi) in less]
        if not all(isinstance(size, int) for _, _, size in sized):
            return None
        found.append(next((Slice(axis, lo, size) for axis, lo, size in sized if isinstance(size, int)), None))
    return tuple(found)


def _refuse_uneven(node: Node, s: Slice) -> None:
    """Raise UnevenError where pieces of other sizes go through a RESHAPE: multiples of what its indices count to."""
    places = [Var(f"i{k}", 0, max(high(n) - 1, 0)) for k, n in enumerate(node.shape)]
    v, multiples = places[s.axis], set[int]()
    for i in source(node, tuple(places)).index:
        for x in atoms(i):
            if isinstance(x, FloorDiv | Mod) and isinstance(x.den, int) and (c := coefficient(x.num, v)):
                multiples.add(x.den // math.gcd(x.den, c))
    for multiple in sorted(multiples):
        number = Var("number", 0, max(high(node.shape[s.axis]) // multiple - 1, 0))
        aligned = Slice(s.axis, number * multiple, multiple).settled()
        if 1 < multiple <= high(node.shape[s.axis]) and _slices(node, aligned) is not None:
            raise UnevenError(multiple)


def pushed(root: Node) -> Node:
    """The same values, with parts of computed values (SHRINK without steps) computed from parts of what these are
    computed from, wherever the rules say how: `x.reshape(2, -1, 64)[1]` becomes a part of x in another shape."""

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        again = over(n, inputs)
        return _pushed(again) if again.op is Op.SHRINK and again.storage is None else again

    return rewritten([root], rule)[0]


def _pushed(n: Node) -> Node:
    box, (x,) = _attrs(n, Box), n.inputs
    if not x.inputs or x.storage is not None or any(step != 1 for step in box.step):
        return n
    out = x
    for axis, (start, size, whole) in enumerate(zip(box.start, n.shape, x.shape, strict=True)):
        if size == whole:
            continue
        if not isinstance(start, int) or not isinstance(size, int) or not size:
            return n
        try:
            out = Slicer().sliced(out, Slice(axis, start, size))
        except UnevenError:
            return n
    return out


def regions(root: Node, is_source: Callable[[Node], bool], known: Container[Node] = ()) -> dict[Node, Node]:
    """The parts of source leaves that `root` is computed from: SHRINKs of them and whole leaves, with the leaf. Nodes
    that are `known` are not computed."""
    found: dict[Node, Node] = {}
    stack, seen = [root], {root}
    while stack:
        n = stack.pop()
        if n in known:
            continue
        if is_source(n):
            found[n] = n
            continue
        if n.op is Op.SHRINK and n.storage is None and is_source(n.inputs[0]):
            found[n] = n.inputs[0]
            continue
        if n.storage is None:
            fresh = [i for i in n.inputs if i not in seen]
            seen.update(fresh)
            stack.extend(fresh)
    return found
