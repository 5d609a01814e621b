"""A piece over fewer axes: those along which nothing moves, and which lie side by side, are one. And they are one with
an axis before them that is cut, padded or joined, since whole runs of them are then.

    x[:, :, 3:7] of (4, 8, 16, 5)   ->   x[:, 15:35] of (32, 80)

So pieces that cut, pad, join or turn tensors of different ranks have the same form. Reshapes of what is stored and of
the result are left out: they name the same elements in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import graph
from weft.ir.graph import Along, Attrs, Axes, Box, Node, Padding, Shape, elements
from weft.ir.index import Int
from weft.ir.ops import ELEMENTWISE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.cut import Piece


@dataclass(frozen=True, slots=True, eq=False)
class Flat:
    """A piece over fewer axes. `order`: for each of its leaves, the number of the one that it was."""

    piece: Piece
    order: tuple[int, ...]


def flat(piece: Piece, device: str) -> Flat:
    """The piece over as few axes as it can be; itself where an op joins, spreads or permutes axes."""
    same = Flat(piece, tuple(range(len(piece.leaves))))
    number = {n: k for k, n in enumerate(piece.leaves)}
    root = piece.root
    while root.op is Op.RESHAPE and root.inputs[0] not in number:
        root = root.inputs[0]
    leaves: dict[Node, int] = {}  # and reshapes of leaves, which stand for them
    nodes: list[Node] = []
    for n in (*piece.inside, piece.root):
        below = n
        while below.op is Op.RESHAPE and below not in number:
            below = below.inputs[0]
        if below in number:
            leaves[n] = number[below]
        elif n is root or n.op is not Op.RESHAPE:
            nodes.append(n)
    used = {i for n in nodes for i in n.inputs}
    leaves = {n: k for n, k in (number | leaves).items() if n in used}
    if not nodes or nodes[-1] is not root or not all(i in leaves or i in nodes for i in used):
        return same
    rank = len(root.shape)
    moved: dict[int, bool] = {}
    for n in nodes:
        along = _along(n)
        if along is None or any(len(x.shape) != rank for x in (n, *n.inputs)):
            return same
        moved.update({k: whole and moved.get(k, True) for k, whole in along.items()})
    groups = _groups(rank, moved)
    if len(groups) == rank and len(nodes) == len(piece.inside) + 1:
        return same
    made = {n: graph.buffer(_joined(n.shape, groups), n.dtype, device, None) for n in leaves}
    own = tuple(made.values())
    for n in nodes:
        inputs = tuple([made[i] for i in n.inputs])
        shape, at = _joined(n.shape, groups), device if inputs else None
        made[n] = graph.intern(n.op, inputs, _attrs(n, groups), shape, n.dtype, at)
    inside = tuple([made[n] for n in nodes[:-1]])
    return Flat(Piece(made[root], own, inside), tuple(leaves.values()))


def _along(n: Node) -> dict[int, bool] | None:
    """The axes along which an op moves elements, True for those of which it takes or adds runs; None where it is no op
    that keeps the others as they are."""
    match n.op, n.attrs:
        case ((Op.SHRINK | Op.UPDATE), Box(start, step)):
            small, large = (n, n.inputs[0]) if n.op is Op.SHRINK else (n.inputs[1], n)
            sizes = zip(small.shape, large.shape, start, step, strict=True)
            return {
                k: by == 1 for k, (a, b, at, by) in enumerate(sizes) if not (a == b and at == 0 and by == 1)
            }
        case Op.PAD, Padding(low, high, interior):
            ends = zip(low, high, interior, strict=True)
            return {k: x[2] == 0 for k, x in enumerate(ends) if not all(e == 0 for e in x)}
        case Op.FLIP, Axes(axes):
            return dict.fromkeys(axes, False)
        case Op.CONCAT, Along(axis):
            return {axis: True}
        case op, _ if op in ELEMENTWISE or op in (Op.CONST, Op.CONTIGUOUS):
            return {}
        case _:
            return None


def _groups(rank: int, moved: Mapping[int, bool]) -> list[tuple[int, ...]]:
    """The axes, those that become one together: runs of such along which nothing moves, after one of which runs are
    taken."""
    groups: list[tuple[int, ...]] = []
    for k in range(rank):
        if groups and k not in moved and moved.get(groups[-1][0], True):
            groups[-1] = (*groups[-1], k)
        else:
            groups.append((k,))
    return groups


def _joined(shape: Shape, groups: Sequence[tuple[int, ...]]) -> Shape:
    """The sizes of groups of axes."""
    return tuple([elements(tuple([shape[k] for k in g])) for g in groups])


def _attrs(n: Node, groups: Sequence[tuple[int, ...]]) -> Attrs:
    """The attributes over groups of axes: those of a group's first axis, in runs of the others."""
    first = [g[0] for g in groups]
    runs = _joined(n.shape, [g[1:] for g in groups])

    def scaled(sizes: Sequence[Int]) -> tuple[Int, ...]:
        return tuple([sizes[k] * run for k, run in zip(first, runs, strict=True)])

    match n.attrs:
        case Box(start, step):
            return Box(scaled(start), tuple([step[k] for k in first]))
        case Padding(low, high, interior, fill):
            return Padding(scaled(low), scaled(high), tuple([interior[k] for k in first]), fill)
        case Axes(axes):
            return Axes(tuple([k for k, g in enumerate(groups) if g[0] in axes]))
        case Along(axis):
            return Along(first.index(axis))
        case attrs:
            return attrs
