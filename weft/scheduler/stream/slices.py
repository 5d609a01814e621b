"""Slices of computed values: a part of an op's result along one axis, from parts of its inputs.

Which parts these are follows from the regions that the op needs (`weft.ir.regions`): there is no rule per op. `sliced`
pushes a slice from a node down to the leaves, where it becomes a SHRINK; where no slices of the inputs make a slice of
the result by the same op, the node is needed whole and its result is shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TypeVar

from weft.ir.graph import Along, Box, Fill, Node, Padding, ScatterCombine, Shape, Window, apply, const
from weft.ir.index import FloorDiv, Int, Mod, Var, atoms, coefficient, high, low
from weft.ir.movement import source
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import Interval
from weft.ir.regions.graphs import needs
from weft.ir.regions.region import Region
from weft.ir.rewrite import over, rewritten

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


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a slice of a result is made from: a slice of each input (None: all of it), and how."""

    inputs: tuple[Slice | None, ...]
    make: Callable[[list[Node]], Node]


@dataclass(slots=True)
class Slicer:
    """Slices of nodes, each made once. `whole` are the computed nodes of which all is needed for every slice."""

    whole: dict[Node, None] = field(default_factory=dict[Node, None])
    _made: dict[tuple[Node, Slice], Node] = field(default_factory=dict[tuple[Node, Slice], Node])

    def sliced(self, node: Node, part: Slice) -> Node:
        """The slice as a node. UnevenError where a RESHAPE allows other sizes only."""
        part = part.settled()
        stack: list[tuple[Node, Slice]] = [(node, part)]
        parts: dict[tuple[Node, Slice], Parts | None] = {}
        while stack:
            key = stack[-1]
            if key in self._made:
                stack.pop()
                continue
            n, s = key
            if s.size == n.shape[s.axis]:
                self._made[key] = n
                continue
            if key not in parts:
                parts[key] = None if n.storage is not None else parts_of(n, s)
                found = parts[key]
                if found is not None:
                    inputs = zip(n.inputs, found.inputs, strict=True)
                    stack.extend((i, p) for i, p in inputs if p is not None and (i, p) not in self._made)
                    continue
            self._made[key] = self._make(n, s, parts[key])
            stack.pop()
        return self._made[node, part]

    def _make(self, n: Node, s: Slice, parts: Parts | None) -> Node:
        if parts is None:
            self._needed(n)
            return _shrunk(n, s)
        for i, p in zip(n.inputs, parts.inputs, strict=True):
            if p is None:
                self._needed(i)
        slices = zip(n.inputs, parts.inputs, strict=True)
        return parts.make([i if p is None else self._made[i, p] for i, p in slices])

    def _needed(self, n: Node) -> None:
        if n.inputs and n.storage is None:
            self.whole[n] = None


def _shrunk(n: Node, s: Slice) -> Node:
    start: list[Int] = [0] * len(n.shape)
    start[s.axis] = s.start
    return apply(Op.SHRINK, (n,), Box(tuple(start), (1,) * len(n.shape)), _resized(n.shape, s))


def _resized(shape: Shape, s: Slice) -> Shape:
    return (*shape[: s.axis], s.size, *shape[s.axis + 1 :])


def _attrs(node: Node, kind: type[_T]) -> _T:
    assert isinstance(node.attrs, kind), node
    return node.attrs


# --- parts of inputs

WHOLE = frozenset({Op.BUFFER, Op.RANGE, Op.COPY, Op.LOOP, Op.CALL})
"""Ops of whose results there are no parts. A COPY was asked for, so its whole value is wanted on a device; calls are
expanded before."""


def parts_of(node: Node, s: Slice) -> Parts | None:
    """The slices of inputs that a slice of a result is made from; None where the node is needed whole."""
    shape = _resized(node.shape, s)
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
            return Parts((None,), lambda xs: apply(node.op, tuple(xs), attrs, shape))
    inputs = _slices(node, s)
    if inputs is None:
        if node.op is Op.RESHAPE:
            _refuse_uneven(node, s)
        return None
    return Parts(inputs, lambda xs: apply(node.op, tuple(xs), attrs, shape, node.dtype))


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
    whole = bx.full(node.shape)
    part = (*whole[: s.axis], Interval(s.start, s.start + s.size), *whole[s.axis + 1 :])
    found: list[Slice | None] = []
    both = zip(needs(node, Region((part,))), needs(node, Region((whole,))), strict=True)
    for region, everything in both:
        if region.is_empty or (node.op is Op.RESHAPE and not (region.exact and len(region.boxes) == 1)):
            return None
        sides = enumerate(zip(region.enclosing, everything.enclosing, strict=True))
        less = [(k, mine) for k, (mine, of_all) in sides if mine != of_all]
        if len(less) > 1:
            return None
        for axis, (lo, hi) in less:
            size = hi - lo
            if not isinstance(size, int):
                return None
            found.append(Slice(axis, lo, size))
        if not less:
            found.append(None)
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
