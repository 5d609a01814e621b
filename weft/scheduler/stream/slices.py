"""Slices of computed values: a part of an op's result along one axis, from parts of its inputs.

One table for every op. `sliced` pushes a slice from a node down to the leaves, where it becomes a SHRINK; where a rule
says no, the node is needed whole and its result is shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from weft.ir.graph import (
    Along,
    Axes,
    Box,
    Fill,
    Node,
    Padding,
    ScatterCombine,
    Shape,
    Window,
    apply,
    const,
)
from weft.ir.index import Int, mod
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
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


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a slice of a result is made from: a slice of each input (None: all of it), and how."""

    inputs: tuple[Slice | None, ...]
    make: Callable[[list[Node]], Node]


SliceRule: TypeAlias = Callable[[Node, Slice], Parts | None]
"""rule(node, slice): None where the node is needed whole."""


@dataclass(slots=True)
class Slicer:
    """Slices of nodes, each made once. `whole` are the computed nodes of which all is needed for every slice."""

    whole: dict[Node, None] = field(default_factory=dict[Node, None])
    _made: dict[tuple[Node, Slice], Node] = field(default_factory=dict[tuple[Node, Slice], Node])

    def sliced(self, node: Node, part: Slice) -> Node:
        """The slice as a node. UnevenError where a RESHAPE allows other sizes only."""
        stack: list[tuple[Node, Slice]] = [(node, part)]
        parts: dict[tuple[Node, Slice], Parts | None] = {}
        while stack:
            key = stack[-1]
            if key in self._made:
                stack.pop()
                continue
            n, s = key
            if key not in parts:
                parts[key] = None if n.storage is not None else SLICE[n.op](n, s)
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


# --- the rules


def _leaf(node: Node, s: Slice) -> Parts | None:
    return None


def _const(node: Node, s: Slice) -> Parts | None:
    value, shape = _attrs(node, Fill).value, _resized(node.shape, s)
    return Parts((), lambda _: const(value, node.dtype, shape))


def _elementwise(node: Node, s: Slice) -> Parts | None:
    dtype = node.dtype if node.op in (Op.CAST, Op.BITCAST) else None
    inputs = (s,) * len(node.inputs)
    return Parts(inputs, lambda xs: apply(node.op, tuple(xs), node.attrs, None, dtype))


def _reduce(node: Node, s: Slice) -> Parts | None:
    axes = _attrs(node, Axes).axes
    kept = [a for a in range(len(node.inputs[0].shape)) if a not in axes]
    part = Slice(kept[s.axis], s.start, s.size)
    return Parts((part,), lambda xs: apply(node.op, tuple(xs), node.attrs))


def _permute(node: Node, s: Slice) -> Parts | None:
    part = Slice(_attrs(node, Axes).axes[s.axis], s.start, s.size)
    return Parts((part,), lambda xs: apply(node.op, tuple(xs), node.attrs))


def _expand(node: Node, s: Slice) -> Parts | None:
    part = None if node.inputs[0].shape[s.axis] == 1 else s
    return Parts((part,), lambda xs: apply(node.op, tuple(xs), None, _resized(node.shape, s)))


def _reshape(node: Node, s: Slice) -> Parts | None:
    """An axis of the result and one of the input that have equally many elements before them count the same elements,
    in units of those behind them."""
    before, old = _sizes(node.shape[: s.axis]), _sizes(node.inputs[0].shape)
    unit = math.prod(_sizes(node.shape[s.axis + 1 :]))
    for axis, n in enumerate(old):
        if n == 1 or math.prod(old[:axis]) != math.prod(before):
            continue
        behind = math.prod(old[axis + 1 :])
        if s.size * unit % behind or mod(s.start * unit, behind) != 0:
            raise UnevenError(behind // math.gcd(behind, unit))
        part = Slice(axis, s.start * unit // behind, s.size * unit // behind)
        return Parts((part,), lambda xs: apply(Op.RESHAPE, tuple(xs), None, _resized(node.shape, s)))
    return None


def _sizes(shape: Shape) -> tuple[int, ...]:
    return tuple([n for n in shape if isinstance(n, int)])


def _pad(node: Node, s: Slice) -> Parts | None:
    p = _attrs(node, Padding)
    if p.low[s.axis] != 0 or p.high[s.axis] != 0 or p.interior[s.axis]:
        return None
    return Parts((s,), lambda xs: apply(node.op, tuple(xs), p))


def _shrink(node: Node, s: Slice) -> Parts | None:
    """One SHRINK for a leaf; else the input's part from the first element to the last, and each step-th of that."""
    box, (x,) = _attrs(node, Box), node.inputs
    first, step = box.start[s.axis] + s.start * box.step[s.axis], box.step[s.axis]
    shape = _resized(node.shape, s)
    if not x.inputs or x.storage is not None:
        start = (*box.start[: s.axis], first, *box.start[s.axis + 1 :])
        return Parts((None,), lambda xs: apply(Op.SHRINK, tuple(xs), Box(start, box.step), shape))
    start = (*box.start[: s.axis], 0, *box.start[s.axis + 1 :])
    part = Slice(s.axis, first, (s.size - 1) * step + 1)
    return Parts((part,), lambda xs: apply(Op.SHRINK, tuple(xs), Box(start, box.step), shape))


def _flip(node: Node, s: Slice) -> Parts | None:
    part = s
    if s.axis in _attrs(node, Axes).axes:
        part = Slice(s.axis, node.shape[s.axis] - s.start - s.size, s.size)
    return Parts((part,), lambda xs: apply(node.op, tuple(xs), node.attrs))


def _shear(node: Node, s: Slice) -> Parts | None:
    w = _attrs(node, Window)
    (reach,) = _sizes((node.inputs[0].shape[w.window],))
    if s.axis == w.window or not reach:
        return None
    part = s
    if s.axis == w.axis:
        part = Slice(s.axis, s.start * w.stride, (s.size - 1) * w.stride + (reach - 1) * w.dilation + 1)
    return Parts((part,), lambda xs: apply(node.op, tuple(xs), w, _resized(node.shape, s)))


def _unshear(node: Node, s: Slice) -> Parts | None:
    w = _attrs(node, Window)
    if s.axis in (w.axis, w.window):
        return None
    return Parts((s,), lambda xs: apply(node.op, tuple(xs), w, _resized(node.shape, s)))


def _gather(node: Node, s: Slice) -> Parts | None:
    inputs = (None if s.axis == _attrs(node, Along).axis else s, s)
    return Parts(inputs, lambda xs: apply(node.op, tuple(xs), node.attrs))


def _scatter(node: Node, s: Slice) -> Parts | None:
    if s.axis == _attrs(node, ScatterCombine).axis:
        return None
    return Parts((s, s, s), lambda xs: apply(node.op, tuple(xs), node.attrs))


def _concat(node: Node, s: Slice) -> Parts | None:
    if s.axis == _attrs(node, Along).axis:
        return None
    return Parts((s,) * len(node.inputs), lambda xs: apply(node.op, tuple(xs), node.attrs))


def _update(node: Node, s: Slice) -> Parts | None:
    if node.inputs[1].shape[s.axis] != node.shape[s.axis]:
        return None
    return Parts((s, s), lambda xs: apply(node.op, tuple(xs), node.attrs))


def _same(node: Node, s: Slice) -> Parts | None:
    return Parts((s,), lambda xs: apply(node.op, tuple(xs), node.attrs))


SLICE: dict[Op, SliceRule] = {
    Op.BUFFER: _leaf,
    Op.CONST: _const,
    Op.RANGE: _leaf,
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCE, _reduce),
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.FLIP: _flip,
    Op.SHEAR: _shear,
    Op.UNSHEAR: _unshear,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.CONTIGUOUS: _same,
    Op.COPY: _leaf,
    Op.LOOP: _leaf,
    Op.CALL: _leaf,
}
"""Every op. A COPY was asked for, so its whole value is wanted on a device; of a LOOP there are no parts; calls are
expanded before."""


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
