"""A cut of a graph into pieces: what one basic kernel computes.

    y = softmax(x + b)      pieces: x + b; its maximum; the exponential of their difference; the sum of that; the ratio

A node that is read several times, or at other axes, is a piece; an elementwise one that only one piece reads, element
by element, belongs to that. So do movement and constants, and the product that a contraction sums, which is never
stored. So pieces are what functions are made of, in whatever graph. A result of a loop is one that reads the loop's
inputs. A reshape that joins axes which do not lie side by side in memory reads a copy, as torch's does: so indices stay
free of divisions. And so does a product of a slice, whose program takes long to compile and would be another for each
way of cutting.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from weft.ir.graph import Node, Shape, elements, toposort
from weft.ir.index import high
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.contraction import contraction, products
from weft.scheduler.kernelize.facts import is_leaf
from weft.scheduler.kernelize.prepare import prepare

FREE = frozenset({Op.CONST, Op.RANGE})
"""Leaves that are computed wherever they are read."""

PARTS = frozenset({Op.SHRINK, Op.PAD})
"""Ops that read elsewhere than at the axes themselves."""

CHEAP = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.NEG, Op.MAX, Op.MIN})
"""Ops that are computed again rather than stored, where they are of one tensor, and numbers or statistics beside it."""

SMALL_SHARE = 8
"""The elements of a tensor over those of a statistic beside it, at least."""

MAX_CALLS = 24
"""Calls of elementwise ops in a piece, at most, one that is read twice counted twice: longer ones are of one graph
only, and forms are trees."""

MAX_POSITIONAL_CALLS = 8
"""Calls of elementwise ops from positions to what follows from these alone, at most: it is computed at each use."""


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
    if any(n.op is Op.COPY for n in order if not is_leaf(n)):
        return None
    forced = prepare(outputs).forced
    sums = {id(n) for n in order if not is_leaf(n) and contraction(n) is not None}
    copied = {id(n.inputs[0]) for n in order if _joins_apart(n)}
    copied.update(id(s) for n in order if id(n) in sums for s in _parts(n))
    known = _positional(order)
    stored = {
        id(n) for n in order if (_is_stored(n) and id(n) not in known) or id(n) in forced or id(n) in copied
    }
    stored -= _joined(order, forced.keys() | copied, sums)
    wanted = dict.fromkeys(n for n in outputs if not is_leaf(n))
    homes: dict[Node, Node] = {}
    for n in wanted:
        below = _under_reshapes(n)
        if (
            below is not n
            and not is_leaf(below)
            and id(below) in stored
            and below not in wanted
            and below.op is not Op.LOOP
        ):
            homes.setdefault(below, n)
    needed = {id(n) for n in wanted if homes.get(_under_reshapes(n)) is not n}
    needed.update(map(id, homes))
    found: list[Piece] = []
    for n in reversed(order):
        if id(n) in needed and elements(n.shape) != 0:
            made = _piece(n, stored, id(n) in sums)
            needed.update(id(x) for x in made.leaves if not is_leaf(x))
            found.append(made)
    found.reverse()
    return Pieces(tuple(found), homes)


def moved_apart(piece: Piece) -> tuple[Piece, ...]:
    """The piece reading copies of the slices, and of the padded ones, that it reads: the rest may have a form then."""
    return _apart(piece, [n for n in piece.inside if n.op in PARTS])


def split(piece: Piece) -> tuple[Piece, ...]:
    """The piece in smaller ones, of an op each where they can be: what their programs compute, other graphs need too.
    Products of a contraction stay in its sum."""
    summed = set(map(id, products(piece.root))) if contraction(piece.root) is not None else set[int]()
    ops = [n for n in piece.inside if n.op in ELEMENTWISE or n.op is Op.PAD]
    return _apart(piece, [n for n in ops if id(n) not in summed])


def _apart(piece: Piece, alone: Sequence[Node]) -> tuple[Piece, ...]:
    """The piece without these nodes, each of which is one of its own before it, where it has elements."""
    own = [n for n in alone if elements(n.shape) != 0]
    stored = {id(n) for n in (*piece.leaves, *own)}
    rest = _piece(piece.root, stored, contraction(piece.root) is not None)
    return (*[_piece(n, stored, False) for n in own], rest)


def _positional(order: Sequence[Node]) -> set[int]:
    """The elementwise nodes, by id, that follow from positions and constants in few calls, as masks of windows do: they
    are computed wherever they are read, as those are."""
    calls: dict[int, int] = {}
    for n in order:
        if n.op in FREE:
            calls[id(n)] = 0
        elif not is_leaf(n) and (n.op in MOVEMENT or n.op in ELEMENTWISE):
            below = [calls.get(id(i)) for i in n.inputs]
            if None not in below:
                count = sum(c for c in below if c is not None) + (n.op in ELEMENTWISE)
                if count <= MAX_POSITIONAL_CALLS:
                    calls[id(n)] = count
    return {id(n) for n in order if id(n) in calls and n.op in ELEMENTWISE}


def _parts(root: Node) -> Iterator[Node]:
    """The slices of stored nodes, and stored ones padded, that a contraction reads."""
    below = list(root.inputs)
    found: list[Node] = []
    while below:
        n, cut = below.pop(), None
        while n.op in MOVEMENT and not is_leaf(n):
            if n.op in (Op.SHEAR, Op.UNSHEAR):
                cut = None
            elif n.op in PARTS:
                cut = n
            n = n.inputs[0]
        if cut is not None:
            found.append(cut)
        elif n.op in (Op.MUL, Op.CAST) and not is_leaf(n):
            below += n.inputs
    return iter(found)


def _joined(order: Sequence[Node], kept: Set[int], sums: Set[int]) -> set[int]:
    """The elementwise nodes, by id, that only one piece reads, element by element: they belong to it. And those of one
    tensor, numbers and statistics that several read so: each computes them again from that, which is stored in their
    place. `sums`: the contractions, by id."""
    readers: dict[int, list[Node]] = {}
    for n in order:
        if not is_leaf(n):
            for i in n.inputs:
                readers.setdefault(id(i), []).append(n)
    piece: dict[int, int] = {}  # the root of the piece that a node is in
    uses: dict[int, int] = {}  # how often the tree of that has the node
    calls: dict[int, int] = {}  # the calls in the tree of a root
    again: set[int] = set()
    stay: set[int] = set()
    for n in reversed(order):
        at = id(n)
        piece[at], uses[at], calls[at] = at, 1, 1
        if n.op not in ELEMENTWISE or is_leaf(n) or at in kept or at in stay:
            continue
        over = readers.get(at, ())
        if not over or not all(_reads_elements(r, n, sums) for r in over):
            continue
        roots = {piece[id(r)] for r in over}
        if len(roots) > 1:
            below = _scaled(n)
            counts = {root: sum(uses[id(r)] for r in over if piece[id(r)] == root) for root in roots}
            if below is not None and all(calls[root] + count <= MAX_CALLS for root, count in counts.items()):
                for root, count in counts.items():
                    calls[root] += count
                again.add(at)
                stay.add(id(below))
            continue
        (root,) = roots
        count = sum(uses[id(r)] for r in over)
        if calls[root] + count <= MAX_CALLS:
            piece[at], uses[at] = root, count
            calls[root] += count
    return again | {at for at, root in piece.items() if at != root}


def _scaled(n: Node) -> Node | None:
    """The tensor that a cheap node is computed from, with numbers and statistics alone: None for others."""
    if n.op not in CHEAP:
        return None
    given = [i for i in n.inputs if not _is_small(i, n)]
    return given[0] if len(given) == 1 and _is_stored(given[0]) else None


def _is_small(n: Node, beside: Node) -> bool:
    """True for a number, and for a statistic: what is spread from far fewer elements than there are `beside` it."""
    while n.op in (Op.EXPAND, Op.RESHAPE) and not is_leaf(n):
        n = n.inputs[0]
    return n.op is Op.CONST or high(elements(n.shape)) * SMALL_SHARE <= high(elements(beside.shape))


def _reads_elements(reader: Node, n: Node, sums: Set[int]) -> bool:
    """True for a reader that takes each element of `n` once, where it is."""
    if reader.op in REDUCE:
        return id(reader) not in sums
    return reader.op in ELEMENTWISE and reader.shape == n.shape


def _under_reshapes(n: Node) -> Node:
    """The node of which `n` is a reshape; itself, where it is none."""
    while n.op is Op.RESHAPE and not is_leaf(n):
        n = n.inputs[0]
    return n


def _is_stored(n: Node) -> bool:
    """True for a node that is stored wherever somebody reads it."""
    return is_leaf(n) or not (n.op in MOVEMENT or n.op in FREE)


def _piece(root: Node, stored: set[int], contracts: bool) -> Piece:
    """The piece that stores a node. `contracts`: that is a contraction."""
    summed: Iterable[Node] = products(root) if contracts else ()
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
