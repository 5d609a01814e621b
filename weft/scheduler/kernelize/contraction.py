"""Contractions: sums of products in which each factor lacks some of the result's axes, so that both are used again and
again. They are never recomputed, and a kernel is built around each."""

from __future__ import annotations

from weft.ir.dtypes import int32
from weft.ir.graph import Axes, Node
from weft.ir.index import Int, Var, high, variables
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Contraction:
    """The product's two factors (nodes), and how often each of their elements is used."""

    factors: tuple[Node, Node]
    uses: tuple[int, int]


def contraction(node: Node) -> Contraction | None:
    """The contraction that the node is; None for other nodes."""
    if node.op is not Op.SUM or 0 in node.inputs[0].shape:
        return None
    x = node.inputs[0]
    if _summed(node).op is not Op.MUL:
        return None
    assert isinstance(node.attrs, Axes)
    index: tuple[Int, ...] = tuple(
        0 if n == 1 else Var(f"@{'r' if k in node.attrs.axes else 'i'}{k}", 0, max(high(n) - 1, 0))
        for k, n in enumerate(x.shape)
    )
    product, index = descend(x, index)
    if product.op is not Op.MUL:
        return None
    left, right = (_axes(i, index) for i in product.inputs)
    own = _count(left - right), _count(right - left)
    if own[0] == 1 or own[1] == 1:
        return None
    return Contraction((product.inputs[0], product.inputs[1]), (own[1], own[0]))


def _summed(node: Node) -> Node:
    """The node that a sum is of, below movement and conversions."""
    below = node.inputs[0]
    while below.op in MOVEMENT or below.op is Op.CAST:
        below = below.inputs[0]
    return below


_WHOLE = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND})
"""Movements that leave out nothing, and add nothing."""


def of_matrices(node: Node) -> bool:
    """True where no factor of a contraction is windows over something, or a part of it."""
    for x in _summed(node).inputs:
        while x.op in MOVEMENT and x.storage is None:
            if x.op not in _WHOLE:
                return False
            x = x.inputs[0]
    return True


_NEAR = 64
"""Nodes between a sum of bytes and the sum that reads it, at most: scales and offsets with their movement."""


def scales_bytes(node: Node) -> bool:
    """True for a sum of bytes, or for an elementwise function of one, and of no other contraction."""
    seen: dict[Node, None] = {}
    sums: list[Node] = []
    stack = [node]
    while stack and len(seen) <= _NEAR:
        n = stack.pop()
        if n in seen:
            continue
        seen[n] = None
        if n.op in REDUCE:
            sums.append(n)
        elif n.storage is None and (n.op in ELEMENTWISE or n.op in MOVEMENT):
            stack += n.inputs
    found = [n for n in sums if sums_bytes(n) or contraction(n) is not None]
    return not stack and len(found) == 1 and sums_bytes(found[0])


def sums_bytes(node: Node) -> bool:
    """True for an int32 sum of products of integers of 8 bits."""
    if node.op is not Op.SUM or node.dtype is not int32:
        return False
    below = node.inputs[0]
    while below.op in MOVEMENT:
        below = below.inputs[0]
    return below.op is Op.MUL and all(_is_byte(x) for x in below.inputs)


def _is_byte(node: Node) -> bool:
    while node.op in MOVEMENT:
        node = node.inputs[0]
    return node.op is Op.CAST and node.inputs[0].dtype.is_int and node.inputs[0].dtype.bits == 8


def products(node: Node) -> dict[Node, bool]:
    """The product that a contraction sums, and the movement and conversions between them, each False."""
    out: dict[Node, bool] = {}
    below = node.inputs[0]
    while below.op in MOVEMENT or below.op is Op.CAST:
        out[below] = False
        below = below.inputs[0]
    out[below] = False
    return out


def descend(node: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]]:
    """The first node below that is neither movement nor a conversion, and the index at which it is read."""
    while (
        node.storage is None and (node.op in MOVEMENT or node.op is Op.CAST) and 0 not in node.inputs[0].shape
    ):
        if node.op in MOVEMENT:
            index = source(node, index).index
        node = node.inputs[0]
    return node, index


def _axes(node: Node, index: tuple[Int, ...]) -> set[Var]:
    _, at = descend(node, index)
    return {v for i in at for v in variables(i)}


def _count(axes: set[Var]) -> int:
    """Points of those axes that the result keeps."""
    n = 1
    for v in axes:
        if v.name.startswith("@i"):
            n *= v.hi + 1
    return n
