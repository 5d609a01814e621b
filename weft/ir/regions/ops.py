"""The access relations of every primitive, stated as index expressions; regions follow from these.

    SUM over axis 1 of (n, m)       { ( (i),  (i, r) ) }
    CONCAT, second of two inputs    { ( (i + n, j),  (i, j) ) }
    GATHER along axis 0             { ( (i, j),  (any, j) ) } of the values,  { ( (i, j),  (i, j) ) } of the indices

A relation is exact where no data decides: GATHER and SCATTER may take any index along their axis. An op that ignores a
value it reads (0 * x, a WHERE that chooses the other operand) reads it nevertheless, unless `used` names the condition
under which an operand counts:

    used(product, 1) = (0 <= $0 - $2,)      of weights (i, j) that are 0 for j > i, times values (j, d)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeAlias, TypeVar

from weft.ir.graph import Along, Axes, Box, Node, ScatterCombine, Shape
from weft.ir.index import NEVER, Guard, Int, Var, both, high, in_range, map_guard, mod, rewrite
from weft.ir.kernel.algorithm import place
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, LEAVES, MOVEMENT, REDUCE, Op
from weft.ir.regions.access import Access

Relation: TypeAlias = tuple[tuple[Access, ...], ...]
"""Per input, the access relations that together say which of its elements are read for which of the node's."""

AccessRule: TypeAlias = Callable[[Node], Relation]

Used: TypeAlias = Callable[[Node, int], Guard]
"""used(node, k): a condition on the `place` of the node's elements without which its input number k has no effect on
them; empty where it always may."""

_T = TypeVar("_T")


def always(node: Node, k: int) -> Guard:
    """No condition: every operand counts."""
    return ()


def relation(node: Node, used: Used = always) -> Relation:
    """The access relations of a node, of each input where it counts."""
    return tuple([_counting(node, used(node, k), of) for k, of in enumerate(ACCESSES[node.op](node))])


def _counting(node: Node, guard: Guard, accesses: tuple[Access, ...]) -> tuple[Access, ...]:
    if not guard:
        return accesses
    found: list[Access] = []
    for a in accesses:
        at = {place(axis, n): i for axis, (n, i) in enumerate(zip(node.shape, a.out, strict=True))}
        here = map_guard(
            guard, lambda i, at=at: rewrite(i, lambda x: at.get(x) if isinstance(x, Var) else None)
        )
        if here != NEVER:
            found.append(a.where(here))
    return tuple(found)


# --- the table


def _axes(shape: Shape, name: str = "i") -> tuple[list[tuple[Var, Int]], tuple[Int, ...]]:
    """A variable for each axis that has more than one place, and the index of an element."""
    index = [0 if n == 1 else Var(f"{name}{k}", 0, max(high(n) - 1, 0)) for k, n in enumerate(shape)]
    return [(i, n) for i, n in zip(index, shape, strict=True) if isinstance(i, Var)], tuple(index)


def _attrs(node: Node, kind: type[_T]) -> _T:
    assert isinstance(node.attrs, kind), node
    return node.attrs


def _leaf(node: Node) -> Relation:
    return ()


def _elementwise(node: Node) -> Relation:
    """out[i] = f(x[i], y[i], ...)"""
    return (_same_places(node.shape),) * len(node.inputs)


@lru_cache(1024)
def _same_places(shape: Shape) -> tuple[Access, ...]:
    axes, i = _axes(shape)
    return (Access.of(axes, i, i),)


def _reduce(node: Node) -> Relation:
    """out[i] = sum over r of x[i, r]"""
    axes, i = _axes(node.inputs[0].shape)
    reduced = _attrs(node, Axes).axes
    return ((Access.of(axes, [x for k, x in enumerate(i) if k not in reduced], i),),)


def _movement(node: Node) -> Relation:
    """out[i] = x[source(i)] where the guard holds"""
    axes, i = _axes(node.shape)
    at = source(node, i)
    return ((Access.of(axes, i, at.index, at.guard),),) if at.guard != NEVER else ((),)


def _gather(node: Node) -> Relation:
    """out[.., j, ..] = x[.., any, ..], by index[.., j, ..]"""
    axes, i = _axes(node.shape)
    axis = _attrs(node, Along).axis
    return (_anywhere(node.inputs[0].shape, axis, axes, i, is_read=True),), (Access.of(axes, i, i),)


def _scatter(node: Node) -> Relation:
    """out[.., any, ..] = x[same] combined with src[.., j, ..], by index[.., j, ..]"""
    axes, i = _axes(node.shape)
    own, j = _axes(node.inputs[1].shape, "j")
    some = _anywhere(node.shape, _attrs(node, ScatterCombine).axis, own, j, is_read=False)
    return (Access.of(axes, i, i, exact=False),), (some,), (some,)


def _anywhere(
    shape: Shape, axis: int, axes: list[tuple[Var, Int]], index: tuple[Int, ...], is_read: bool
) -> Access:
    """An element at `index` on one side, and on the other any along an axis of `shape`."""
    free, (any_,) = _axes(shape[axis : axis + 1], "any")
    other = (*index[:axis], any_, *index[axis + 1 :])
    out, read = (index, other) if is_read else (other, index)
    return Access.of([*axes, *free], out, read, exact=False)


def _concat(node: Node) -> Relation:
    """out[.., start of x + j, ..] = x[.., j, ..]"""
    axis, start, found = _attrs(node, Along).axis, 0, list[tuple[Access, ...]]()
    for x in node.inputs:
        axes, j = _axes(x.shape)
        found.append((Access.of(axes, (*j[:axis], j[axis] + start, *j[axis + 1 :]), j),))
        start = start + x.shape[axis]
    return tuple(found)


def _update(node: Node) -> Relation:
    """out[start + j*step] = src[j]; out[i] = x[i] elsewhere: where, of the axes, this is the first to leave the box."""
    box = _attrs(node, Box)
    own, j = _axes(node.inputs[1].shape, "j")
    placed = [x * step + start for x, step, start in zip(j, box.step, box.start, strict=True)]
    axes, i = _axes(node.shape)
    kept = list[Guard]()
    guard: Guard = ()
    for x, start, step, size in zip(i, box.start, box.step, node.inputs[1].shape, strict=True):
        end = start + (size - 1) * step + 1
        between = both(in_range(x, start, end), in_range(mod(x - start, step), 1, None))
        kept += [both(guard, other) for other in (in_range(x, None, start), in_range(x, end, None), between)]
        guard = both(guard, both(in_range(x, start, end), in_range(mod(x - start, step), 0, 1)))
    return tuple([Access.of(axes, i, i, g) for g in kept if g != NEVER]), (Access.of(own, placed, j),)


def _composed(node: Node) -> Relation:
    raise ValueError(f"{node!r} has a graph inside: see regions.graphs")


ACCESSES: dict[Op, AccessRule] = {
    **dict.fromkeys(LEAVES, _leaf),
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(REDUCE, _reduce),
    **dict.fromkeys(MOVEMENT, _movement),
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.CONTIGUOUS: _elementwise,
    Op.COPY: _elementwise,
    Op.LOOP: _composed,
    Op.CALL: _composed,
}
