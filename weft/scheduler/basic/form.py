"""The form of a piece: what it computes, without names, sizes and numbers. Pieces of one form share a kernel.

    (4, 8, 16) * (16,)  and  (7, 3) * (3,)      form: n0, n1:  leaf(n0, n1) * leaf(n1)      sizes: 32, 16 and 7, 3

Axes that every operand has side by side, or not at all, are one. Each other axis is a runtime variable of the kernel.
Where an operand is read elsewhere than at the axes themselves (a slice, padding, a window) the form keeps all sizes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from operator import itemgetter
from typing import Generic, TypeAlias, TypeVar

from weft.ir import graph
from weft.ir.dtypes import DType, float32, int32, int64, uint32
from weft.ir.graph import Axes, Box, Fill, Node, Shape, elements
from weft.ir.index import Int, Var, high, low
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.cut import Piece
from weft.scheduler.kernelize.contraction import contraction
from weft.scheduler.outline import is_plain

REDUCED_BOUNDS = (1 << 12, 1 << 24, 1 << 40)
"""Largest values of the variables of axes that are reduced: an axis has the first that it does not exceed. A kernel's
rules judge by these, and its local buffers are as large. Each bound more multiplies the programs."""

FREE_BOUNDS = (1 << 24, 1 << 40)
"""The same of other axes; where none is reduced all have the first that the number of elements does not exceed."""

SMALL_BOUND = 1 << 6
"""A further bound of products: lanes do not lie along a small axis, and panels of two small ones fit into the cache."""

LANES = 16
"""Vectors have so many lanes at most."""

PRODUCT_BOUNDS = (SMALL_BOUND, *REDUCED_BOUNDS)

MIN_SIZE = 2
"""The least value of an axis's variable: axes of one element are none."""

COMMUTATIVE = frozenset({Op.ADD, Op.MUL, Op.AND, Op.OR, Op.EQ, Op.NE})
"""Ops whose operands' order makes no difference: to which zero of two a maximum is, it may."""

A = TypeVar("A")
"""An axis: a coordinate while a piece is read, then its number."""


@dataclass(frozen=True, slots=True)
class Read(Generic[A]):
    """An element of leaf `number`, which has these axes in this order."""

    number: int
    axes: tuple[A, ...]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number."""

    dtype: DType
    fill: Fill


@dataclass(frozen=True, slots=True)
class Number:
    """A number that is no part of the form: its 32 bits are a runtime variable, the one of that number."""

    number: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Position(Generic[A]):
    """The position along an axis."""

    dtype: DType
    axis: A


@dataclass(frozen=True, slots=True)
class Call(Generic[A]):
    """An elementwise op on operands."""

    op: Op
    dtype: DType
    operands: tuple[Tree[A], ...]


Tree: TypeAlias = Read[A] | Constant | Number | Position[A] | Call[A]
"""An element, computed from others at the same axes."""


@dataclass(frozen=True, slots=True)
class Form:
    """A tree over axes, of which the last ones are reduced by `op` (None: there are none). `bounds`: the largest value
    of each axis; `own`: the number of those of the result. `leaves`: the dtypes of the leaves. `kept`: sizes that are
    part of the form, 0 for others."""

    tree: Tree[int]
    op: Op | None
    own: int
    bounds: tuple[int, ...]
    leaves: tuple[DType, ...]
    device: str
    numbers: int = 0
    kept: tuple[int, ...] = ()

    @property
    def variables(self) -> tuple[Var, ...]:
        """The axes' sizes that are no part of the form, and the bits of numbers."""
        return (*[n for n in self.axes if isinstance(n, Var)], *bit_variables(self.numbers))

    @property
    def axes(self) -> tuple[Int, ...]:
        """The axes' sizes."""
        kept = self.kept or (0,) * len(self.bounds)
        return tuple([
            n or Var(f"n{k}", MIN_SIZE, hi) for k, (hi, n) in enumerate(zip(self.bounds, kept, strict=True))
        ])  # fmt: skip


@dataclass(frozen=True, slots=True)
class Formed:
    """The form of a piece, with the sizes of its axes, and the node of each leaf."""

    form: Form
    sizes: tuple[Int, ...]
    leaves: tuple[Node, ...]


def formed(piece: Piece, device: str) -> Formed | None:
    """The form of a piece; None where it is no function of elements at the axes themselves."""
    return _Reading(piece, device).run()


class _Reading:
    """One reading of a piece, from its root to its leaves."""

    def __init__(self, piece: Piece, device: str) -> None:
        self.piece, self.device = piece, device
        self.stored = set(piece.leaves)
        self.leaves: dict[tuple[Node, tuple[Var, ...]], int] = {}
        self.sizes: dict[Var, Int] = {}
        """The size of each axis, by its coordinate."""
        self.numbers: list[int] = []
        """The bits of numbers that are no part of the form."""
        self.orders: list[tuple[Var, ...]] = []
        """The axes of each operand, in the order in which it has them."""

    def run(self) -> Formed | None:
        root = self.piece.root
        reduced: list[Var] = []
        if root.op in REDUCE:
            assert isinstance(root.attrs, Axes)
            below = root.inputs[0]
            if any(low(n) < 1 for n in below.shape):
                return None
            index = self.coordinates(below.shape)
            reduced = [v for a in root.attrs.axes if isinstance(v := index[a], Var)]
            own = [v for k, v in enumerate(index) if k not in root.attrs.axes and isinstance(v, Var)]
            tree = self.tree(below, index)
        else:
            index = self.coordinates(root.shape)
            own = [v for v in index if isinstance(v, Var)]
            tree = self.tree(root, index, first=True)
        sizes = self.sizes.values()
        if tree is None or any(low(n) < MIN_SIZE for n in sizes) or prod(map(high, sizes)) > FREE_BOUNDS[-1]:
            return None
        return self.coalesced(tree, own, reduced)

    def coordinates(self, shape: Shape) -> tuple[Int, ...]:
        """An index of one's own for each axis of more than one element."""
        index = tuple([0 if n == 1 else Var(f"@{k}", 0, max(high(n), 1) - 1) for k, n in enumerate(shape)])
        self.sizes.update({v: n for v, n in zip(index, shape, strict=True) if isinstance(v, Var)})
        return index

    def tree(self, n: Node, index: tuple[Int, ...], first: bool = False) -> Tree[Var] | None:
        """The element of a node at an index."""
        while not first and n not in self.stored and n.op in MOVEMENT:
            if n.op is Op.RESHAPE and (below := self.under_reshapes(n)) is not None:
                return self.leaf(below, n.shape, index)
            found = source(n, index)
            if found.guard:
                return None
            n, index = n.inputs[0], found.index
        if not first and n in self.stored:
            return self.leaf(n, n.shape, index)
        match n.op:
            case Op.CONST:
                assert isinstance(n.attrs, Fill)
                bits = bits_of(n.attrs, n.dtype)
                if bits is None:
                    return Constant(n.dtype, n.attrs)
                self.numbers.append(bits)
                return Number(len(self.numbers) - 1, n.dtype)
            case Op.RANGE:
                (at,) = index
                if not isinstance(at, Var) or self.sizes[at] != n.shape[0]:
                    return None
                self.orders.append((at,))
                return Position(n.dtype, at)
            case Op.CONTIGUOUS:
                return self.tree(n.inputs[0], index)
            case op if op in ELEMENTWISE:
                operands = [t for i in n.inputs if (t := self.tree(i, index)) is not None]
                return Call(op, n.dtype, tuple(operands)) if len(operands) == len(n.inputs) else None
            case op if op in MOVEMENT:  # the root
                if op is Op.RESHAPE and (below := self.under_reshapes(n)) is not None:
                    return self.leaf(below, n.shape, index)
                found = source(n, index)
                return None if found.guard else self.tree(n.inputs[0], found.index)
            case _:
                return None

    def under_reshapes(self, n: Node) -> Node | None:
        """The stored node of which `n` is a reshape."""
        while n not in self.stored and n.op is Op.RESHAPE:
            n = n.inputs[0]
        return n if n in self.stored else None

    def leaf(self, n: Node, shape: Shape, index: tuple[Int, ...]) -> Tree[Var] | None:
        """The element of a stored node, as one of that shape."""
        order: list[Var] = []
        for i, size in zip(index, shape, strict=True):
            if size == 1:
                continue
            if not isinstance(i, Var) or self.sizes.get(i) != size or i in order:
                return None
            order.append(i)
        number = self.leaves.setdefault((n, tuple(order)), len(self.leaves))
        self.orders.append(tuple(order))
        return Read(number, tuple(order))

    def coalesced(self, tree: Tree[Var], own: list[Var], reduced: list[Var]) -> Formed:
        """The form, with one axis for all that lie side by side everywhere."""
        groups = [*_runs(own, self.orders), *_runs(reduced, self.orders)]
        number = {g[0]: k for k, g in enumerate(groups)}
        sizes = tuple([elements(tuple([self.sizes[v] for v in g])) for g in groups])
        root = self.piece.root
        count = sum(1 for g in groups if g[0] in own)
        bounds = _bounds(sizes, count, contraction(root) is not None)
        op = root.op if root.op in REDUCE else None
        found, read = canonical(_renamed(tree, number)), list(self.leaves)
        leaves = tuple([read[k][0] for k in found.leaves])
        numbers = [self.numbers[k] for k in found.numbers]
        dtypes = tuple([n.dtype for n in leaves])
        kept = _kept(found.tree, sizes, count)
        form = Form(found.tree, op, count, bounds, dtypes, self.device, len(numbers), kept)
        free = sizes if not kept else tuple([n for n, k in zip(sizes, kept, strict=True) if not k])
        return Formed(form, (*free, *numbers), leaves)


@dataclass(frozen=True, slots=True)
class Canonical:
    """A tree whose commutative ops have their operands in an order that depends on what these are, and whose leaves and
    numbers are counted as it has them. `leaves`, `numbers`: which they were before."""

    tree: Tree[int]
    leaves: tuple[int, ...]
    numbers: tuple[int, ...]


def canonical(tree: Tree[int]) -> Canonical:
    """The tree that all of its kind share."""
    leaves: dict[int, int] = {}
    numbers: dict[int, int] = {}
    made = _counted(_in_order(tree)[0], leaves, numbers)
    return Canonical(made, tuple(leaves), tuple(numbers))


def _in_order(tree: Tree[int]) -> tuple[Tree[int], str]:
    """The tree with operands of commutative ops in order, and what it is ordered by: all but leaves' numbers."""
    match tree:
        case Read(_, axes):
            return tree, f"a{axes}"
        case Constant(dtype, fill):
            return tree, f"b{dtype}{fill.bits!r}"
        case Number(_, dtype):
            return tree, f"c{dtype}"
        case Position(dtype, axis):
            return tree, f"d{dtype}{axis}"
        case Call(op, dtype, operands):
            made = [_in_order(t) for t in operands]
            if op in COMMUTATIVE:
                made.sort(key=itemgetter(1))
            names = ",".join([name for _, name in made])
            return Call(op, dtype, tuple([t for t, _ in made])), f"e{op.name}{dtype}({names})"


def _counted(tree: Tree[int], leaves: dict[int, int], numbers: dict[int, int]) -> Tree[int]:
    """The tree with leaves and numbers counted in the order in which it has them; the counts are added."""
    match tree:
        case Read(k, axes):
            return Read(leaves.setdefault(k, len(leaves)), axes)
        case Number(k, dtype):
            return Number(numbers.setdefault(k, len(numbers)), dtype)
        case Call(op, dtype, operands):
            return Call(op, dtype, tuple([_counted(t, leaves, numbers) for t in operands]))
        case Constant() | Position():
            return tree


def _bounds(sizes: Sequence[Int], own: int, contracts: bool) -> tuple[int, ...]:
    """The largest value of each axis, of which the first ones are the result's own."""
    if own == len(sizes):
        return (next(b for b in FREE_BOUNDS if prod(map(high, sizes)) <= b),) * len(sizes)
    free = (SMALL_BOUND, *FREE_BOUNDS) if contracts else FREE_BOUNDS
    reduced = PRODUCT_BOUNDS if contracts and own < len(sizes) - 1 else REDUCED_BOUNDS
    known = [free] * own + [reduced] * (len(sizes) - own)
    return tuple([next(b for b in bounds if high(n) <= b) for n, bounds in zip(sizes, known, strict=True)])


def _kept(tree: Tree[int], sizes: Sequence[Int], own: int) -> tuple[int, ...]:
    """The sizes that are part of a form: those of blocks of running sums, where positions alone tell apart the results
    along an axis, in whole vectors. With them each element is read once for all results of a row."""
    at, read = _axes_of(tree)
    short = [
        k in at and isinstance(n, int) and n <= SMALL_BOUND and n % LANES == 0 for k, n in enumerate(sizes)
    ]
    if not any(short[k] and k not in read for k in range(own)) or not any(short[own:]):
        return ()
    return tuple([int(n) if k and isinstance(n, int) else 0 for n, k in zip(sizes, short, strict=True)])


def _axes_of(tree: Tree[int]) -> tuple[set[int], set[int]]:
    """The axes whose positions a tree computes with, and those that its leaves have."""
    match tree:
        case Position(_, axis):
            return {axis}, set()
        case Read(_, axes):
            return set(), set(axes)
        case Call(_, _, operands):
            at, read = set[int](), set[int]()
            for t in operands:
                a, r = _axes_of(t)
                at |= a
                read |= r
            return at, read
        case Constant() | Number():
            return set(), set()


def _runs(axes: Sequence[Var], orders: Sequence[tuple[Var, ...]]) -> Iterator[list[Var]]:
    """The axes in runs that each operand has side by side, or not at all."""
    run: list[Var] = []
    for v in axes:
        if run and all(_together(run[-1], v, order) for order in orders):
            run.append(v)
            continue
        if run:
            yield run
        run = [v]
    if run:
        yield run


def _together(a: Var, b: Var, order: tuple[Var, ...]) -> bool:
    if a not in order:
        return b not in order
    at = order.index(a) + 1
    return at < len(order) and order[at] is b


def _renamed(tree: Tree[Var], number: Mapping[Var, int]) -> Tree[int]:
    """The tree over numbers of axes."""
    match tree:
        case Read(k, axes):
            return Read(k, tuple([number[v] for v in axes if v in number]))
        case Position(dtype, axis):
            return Position(dtype, number[axis])
        case Call(op, dtype, operands):
            return Call(op, dtype, tuple([_renamed(t, number) for t in operands]))
        case Constant() | Number():
            return tree


@dataclass(frozen=True, slots=True)
class Built:
    """The graph of a form: its result on leaves of its own."""

    root: Node
    leaves: tuple[Node, ...]


def built(form: Form) -> Built:
    """The graph of a form, with runtime variables for its sizes."""
    sizes = form.axes
    leaves: dict[int, Node] = {}
    root = _built(form, form.tree, leaves)
    if form.op is not None:
        root = graph.apply(form.op, (root,), Axes(tuple(range(form.own, len(sizes)))))
    if not root.inputs:
        root = graph.intern(Op.CONTIGUOUS, (root,), None, root.shape, root.dtype, root.device)
    return Built(root, tuple([leaves[k] for k in range(len(form.leaves))]))


def _built(form: Form, tree: Tree[int], leaves: dict[int, Node]) -> Node:
    """The node of a part of a form; its leaves are added to those that are there."""
    sizes = form.axes
    match tree:
        case Read(k, axes):
            if k not in leaves:
                leaves[k] = graph.buffer(tuple([sizes[a] for a in axes]), form.leaves[k], form.device, None)
            return _spread(leaves[k], axes, sizes)
        case Constant(dtype, fill):
            return graph.const(fill.value, dtype, sizes)
        case Number(k, dtype):
            return _spread(number_of(form.variables[len(sizes) + k], dtype), (), sizes)
        case Position(dtype, axis):
            return _spread(graph.arange(sizes[axis], dtype), (axis,), sizes)
        case Call(op, dtype, operands):
            return graph.apply(op, tuple([_built(form, t, leaves) for t in operands]), dtype=dtype)


def bits_of(fill: Fill, dtype: DType) -> int | None:
    """The bits of a number that is no part of a form; None for one that is."""
    value = fill.value
    if is_plain(value, dtype):
        return None
    if dtype is float32:
        return int.from_bytes(struct.pack("<f", value), "little")
    if dtype in (int32, int64) and -(1 << 31) <= value < 1 << 31:
        return int(value) % (1 << 32)
    return None


def bit_variables(numbers: int) -> list[Var]:
    """The variables of so many numbers' bits."""
    return [Var(f"c{k}", 0, (1 << 32) - 1) for k in range(numbers)]


def number_of(bits: Var, dtype: DType) -> Node:
    """The number of these bits, without dimensions."""
    at = graph.apply(Op.SHRINK, (graph.arange(bits.hi + 1),), Box((bits,), (1,)), shape=(1,))
    word = graph.apply(Op.CAST, (graph.apply(Op.RESHAPE, (at,), shape=()),), dtype=uint32)
    if dtype is float32:
        return graph.apply(Op.BITCAST, (word,), dtype=float32)
    signed = graph.apply(Op.BITCAST, (word,), dtype=int32)
    return signed if dtype is int32 else graph.apply(Op.CAST, (signed,), dtype=dtype)


def _spread(n: Node, axes: tuple[int, ...], sizes: Shape) -> Node:
    """A leaf that has these axes, in this order, over all axes."""
    order = sorted(axes)
    if list(axes) != order:
        n = graph.apply(Op.PERMUTE, (n,), Axes(tuple([axes.index(a) for a in order])))
    if len(order) < len(sizes):
        n = graph.apply(Op.RESHAPE, (n,), shape=tuple([s if k in order else 1 for k, s in enumerate(sizes)]))
        n = graph.apply(Op.EXPAND, (n,), shape=sizes)
    return n
