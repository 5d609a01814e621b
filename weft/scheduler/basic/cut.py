"""A cut of a graph into pieces, one for each node that is not free: what one basic kernel computes.

    y = softmax(x + b)      pieces: x + b; its maximum; their difference; its exponential; the sum of that; the quotient

Movement and constants belong to the pieces that read them, and so does the product that a contraction sums, which is
never stored. A reshape that joins axes which do not lie side by side in memory reads a copy, as torch's does: so
indices stay free of divisions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from weft.ir.graph import Node, Shape, elements, toposort
from weft.ir.loop_body import LoopNode
from weft.ir.ops import MOVEMENT, Op
from weft.scheduler.kernelize.contraction import contraction, products
from weft.scheduler.kernelize.facts import is_leaf
from weft.scheduler.kernelize.prepare import prepare

FREE = frozenset({Op.CONST, Op.RANGE})
"""Leaves that are computed wherever they are read."""


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A node to be stored; the stored nodes that it is computed from, each once, and the nodes between them and it,
    operands first."""

    root: Node
    leaves: tuple[Node, ...]
    inside: tuple[Node, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """The pieces of a graph, in an order in which they can run. `homes`: the results that are reshapes of stored nodes,
    by these, which are computed into the results' memory."""

    pieces: tuple[Piece, ...]
    homes: Mapping[Node, Node]


def pieces(outputs: Sequence[Node]) -> Pieces | None:
    """The pieces that compute `outputs`; None where some op has no basic kernel."""
    order = toposort(outputs)
    if any(n.op is Op.COPY or isinstance(n.attrs, LoopNode) for n in order if not is_leaf(n)):
        return None
    forced = prepare(outputs).forced
    copied = {id(n.inputs[0]) for n in order if _joins_apart(n)}
    stored = {id(n) for n in order if _is_stored(n) or id(n) in forced or id(n) in copied}
    wanted = dict.fromkeys(n for n in outputs if not is_leaf(n))
    homes: dict[Node, Node] = {}
    for n in wanted:
        below = _under_reshapes(n)
        if below is not n and not is_leaf(below) and id(below) in stored and below not in wanted:
            homes.setdefault(below, n)
    needed = {id(n) for n in wanted if homes.get(_under_reshapes(n)) is not n}
    needed.update(map(id, homes))
    found: list[Piece] = []
    for n in reversed(order):
        if id(n) in needed and elements(n.shape) != 0:
            made = _piece(n, stored)
            needed.update(id(x) for x in made.leaves if not is_leaf(x))
            found.append(made)
    found.reverse()
    return Pieces(tuple(found), homes)


def _under_reshapes(n: Node) -> Node:
    """The node of which `n` is a reshape; itself, where it is none."""
    while n.op is Op.RESHAPE and not is_leaf(n):
        n = n.inputs[0]
    return n


def _is_stored(n: Node) -> bool:
    """True for a node that is stored wherever somebody reads it."""
    return is_leaf(n) or not (n.op in MOVEMENT or n.op in FREE)


def _piece(root: Node, stored: set[int]) -> Piece:
    """The piece that stores a node."""
    summed: Iterable[Node] = products(root) if contraction(root) is not None else ()
    own = set(map(id, summed))
    leaves: dict[Node, None] = {}
    inside: dict[Node, None] = {}
    stack: list[tuple[Node, bool]] = [(i, False) for i in reversed(root.inputs)]
    while stack:
        n, done = stack.pop()
        if done:
            inside[n] = None
        elif id(n) in stored and (id(n) not in own or is_leaf(n)):
            leaves[n] = None
        elif n not in inside:
            stack.append((n, True))
            stack.extend((i, False) for i in reversed(n.inputs))
    return Piece(root, tuple(leaves), tuple(inside))


def _joins_apart(n: Node) -> bool:
    """True for a reshape that makes one axis of several which movement has put side by side."""
    if n.op is not Op.RESHAPE or is_leaf(n) or not _joins(n.inputs[0].shape, n.shape):
        return False
    below = _under_reshapes(n.inputs[0])
    return below.op in MOVEMENT and not is_leaf(below)


def _joins(shape: Shape, to: Shape) -> bool:
    """True where a reshape from `shape` to `to` makes one axis of parts of several."""
    return not set(_ends(shape)) <= set(_ends(to))


def _ends(shape: Shape) -> Iterable[object]:
    """The numbers of elements within each axis of a shape and those after it, for axes of more than one element."""
    size = elements(())
    for n in reversed(shape):
        if n != 1:
            yield size
        size = size * n
