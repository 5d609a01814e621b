"""Parts: what a box of a result is made from, and how."""
# Tests: tests/ir/regions/test_parts.py

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from weft.ir.graph import Box, Node, Shape, apply
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.lazy_dataclass import dataclass

Make: TypeAlias = Callable[[Sequence[Node]], Node]
Place: TypeAlias = tuple[Node, IndexBox]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts that a box of a result is made from: a box of each input (None: nothing of it), and how, given those
    that are not None."""

    inputs: tuple[IndexBox | None, ...]
    make: Make

    def places(self, node: Node) -> list[Place]:
        """The inputs of the node whose parts these are, of which they are made, with their boxes."""
        return [(i, b) for i, b in zip(node.inputs, self.inputs, strict=True) if b is not None]

    def cut(self, around: IndexBox, box: IndexBox) -> Parts:
        """The parts of a box, where these are those of a box around it."""
        return Parts(self.inputs, lambda xs: shrunk(self.make(xs), around, box))


def size_of(box: Sequence[Interval]) -> Shape:
    """The shape of a box."""
    return tuple([i.hi - i.lo for i in box])


def shrunk(n: Node, around: IndexBox, box: IndexBox) -> Node:
    """A box, of a node that has the elements of a box around it."""
    return taken_at(n, [i.lo - o.lo for i, o in zip(box, around, strict=True)], size_of(box))


def taken_at(n: Node, start: Sequence[Int], shape: Shape) -> Node:
    """The elements of a node from `start` on."""
    return apply(Op.SHRINK, (n,), Box(tuple(start), (1,) * len(start)), shape)


def whole_of(node: Node, box: IndexBox) -> Parts:
    """The part of the whole result, which is made from whole inputs."""
    parts = Parts(
        tuple([bx.full(i.shape) for i in node.inputs]),
        lambda xs: same_op(node, xs, node.shape) if xs else node,
    )
    return parts.cut(bx.full(node.shape), box)


def same_op(node: Node, xs: Sequence[Node], shape: Shape) -> Node:
    """The op of a node, with its attributes, on other inputs."""
    return apply(node.op, tuple(xs), node.attrs, shape, node.dtype)


def attributes(node: Node, kind: type[_T]) -> _T:
    """A node's attributes, which are of this kind."""
    assert isinstance(node.attrs, kind), node
    return node.attrs
