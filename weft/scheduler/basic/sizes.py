"""The sizes of a piece as runtime variables, where it reads elsewhere than at its own axes.

    x[5:9] + y    x: n0, n1    x[n2:]: n3, n1    y: n3, n1         n0 to n3: 20, 8, 5, 4

Each axis of a leaf, and each that an op makes as long as it is asked to, is a variable of its own, until ops say that
two are equal, or that one follows from others. What decides how a kernel is written stays a number: windows, steps, and
paddings of a few elements. Pieces that give the same graph over such variables share its kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.ir import graph
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Fill,
    Node,
    Padding,
    ScatterCombine,
    Shape,
    Window,
    elements,
)
from weft.ir.index import Int, Var, evaluate, high, low, substitute, variables
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.basic.cut import Piece
from weft.scheduler.basic.flat import flat
from weft.scheduler.basic.form import (
    MIN_SIZE,
    PRODUCT_BOUNDS,
    REDUCED_BOUNDS,
    Number,
    bit_variables,
    bits_of,
    number_of,
)
from weft.scheduler.kernelize.contraction import contraction

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37)
"""Numbers by which runtime variables exceed their least values where a reshape is looked at."""

WINDOWS = frozenset({Op.SHEAR, Op.UNSHEAR})

SMALL_PADDING = 8
"""Paddings up to this are part of the form: those of windows."""


@dataclass(frozen=True, slots=True)
class SizedForm:
    """Rows of a graph, leaves first: a leaf's dtype and shape; a node's op, attributes, dtype, shape and inputs.
    `numbers`: how many constants are no part of the form."""

    rows: tuple[tuple[Any, ...], ...]
    leaves: int
    sizes: tuple[Var, ...]
    device: str
    numbers: int = 0

    @property
    def variables(self) -> tuple[Var, ...]:
        """The sizes, and the bits of numbers."""
        return (*self.sizes, *bit_variables(self.numbers))


@dataclass(frozen=True, slots=True)
class Sized:
    """The form of a piece, and the values of its variables. `order`: for each leaf of the form, the number of one of
    the piece's."""

    form: SizedForm
    sizes: tuple[Int, ...]
    order: tuple[int, ...]


class _NoForm(Exception):  # noqa: N818  (no error: a piece without a form has a kernel for its sizes)
    """A piece whose sizes hang together in a way that is not known here."""


def sized(piece: Piece, device: str) -> Sized | None:
    """The form of a piece; None where it has none but for its sizes. Nor has a convolution: tiles for images of any
    size are several times slower than those for the one."""
    nodes = (*piece.leaves, *piece.inside, piece.root)
    if any(n.op in WINDOWS for n in piece.inside) and contraction(piece.root) is not None:
        return None
    if any(low(s) < 1 for n in nodes for s in n.shape):
        return None
    found = flat(piece, device)
    try:
        return _Unknowns(found.piece).run(device, found.order)
    except _NoForm:
        return None


class _Unknowns:
    """Sizes that are variables, as far as is known by now."""

    def __init__(self, piece: Piece) -> None:
        self.piece, self.leaves = piece, frozenset(piece.leaves)
        summed = piece.root.op in REDUCE and any(n.op in WINDOWS for n in piece.inside)
        tiled = summed or contraction(piece.root) is not None
        self.bounds = PRODUCT_BOUNDS if tiled else REDUCED_BOUNDS
        self.numbers: list[int] = []
        """The bits of numbers that are no part of the form."""
        self.values: dict[Var, Int] = {}
        self.known: dict[Var, Int] = {}
        """The variables that were found to be other expressions."""

    def run(self, device: str, order: tuple[int, ...]) -> Sized:
        piece = self.piece
        shapes: dict[Node, Shape] = {}
        attrs: dict[Node, Attrs | Number] = {}
        for n in piece.leaves:
            shapes[n] = tuple(map(self.size, n.shape))
        for n in (*piece.inside, piece.root):
            shapes[n], attrs[n] = self.node(n, [shapes[i] for i in n.inputs])
        names: dict[Var, Int] = {}
        number: dict[Node, int] = {}
        rows: list[tuple[Any, ...]] = []
        for n in (*piece.leaves, *piece.inside, piece.root):
            shape = self.renamed(shapes[n], names)
            if n in attrs:
                own = self.with_names(attrs[n], names)
                rows.append((n.op, own, n.dtype, shape, tuple([number[i] for i in n.inputs])))
            else:
                rows.append((n.dtype, shape))
            number[n] = len(number)
        found = {v: self.values[k] for k, v in names.items() if isinstance(v, Var)}
        for n in number:
            if tuple([substitute(s, found) for s in self.renamed(shapes[n], names)]) != n.shape:
                raise _NoForm
        form = SizedForm(tuple(rows), len(piece.leaves), tuple(found), device, len(self.numbers))
        return Sized(form, (*found.values(), *self.numbers), order)

    def size(self, value: Int, least: int = MIN_SIZE) -> Int:
        """A size of which nothing is known yet; a number where variables begin at a larger one."""
        if isinstance(value, int) and value < least:
            return value
        least = min(least, low(value))
        if least < 0:
            raise _NoForm
        if high(value) > self.bounds[-1]:
            raise _NoForm
        v = Var(f"@{len(self.values)}", least, next(b for b in self.bounds if high(value) <= b))
        self.values[v] = value
        return v

    def resolved(self, x: Int) -> Int:
        """The expression as it is known by now."""
        while used := variables(x) & self.known.keys():
            x = substitute(x, {v: self.known[v] for v in used})
        return x

    def same(self, a: Int, b: Int) -> Int:
        """The two are equal."""
        a, b = self.resolved(a), self.resolved(b)
        if a == b:
            return a
        if not isinstance(a, Var):
            a, b = b, a
        if not isinstance(a, Var) or a in variables(b):
            raise _NoForm
        if isinstance(b, Var) and b.lo > a.lo:  # the narrower one stays
            a, b = b, a
        self.known[a] = b
        return b

    def all_same(self, a: Shape, b: Shape, but: int | None = None) -> None:
        """Two shapes are equal, but along an axis."""
        for k, (x, y) in enumerate(zip(a, b, strict=True)):
            if k != but:
                self.same(x, y)

    def renamed(self, shape: Sequence[Int], names: dict[Var, Int]) -> tuple[Int, ...]:
        """Sizes over variables that are numbered as they are met."""
        out: list[Int] = []
        for x in shape:
            x = self.resolved(x)
            for v in sorted(variables(x), key=lambda v: int(v.name[1:])):
                if v not in names:
                    names[v] = Var(f"n{len(names)}", v.lo, v.hi)
            out.append(substitute(x, {v: names[v] for v in variables(x)}))
        return tuple(out)

    def with_names(self, attrs: Attrs | Number, names: dict[Var, Int]) -> Attrs | Number:
        """Attributes over these variables."""
        match attrs:
            case Box(start, step):
                return Box(self.renamed(start, names), step)
            case Padding(low, high, interior, fill):
                return Padding(self.renamed(low, names), self.renamed(high, names), interior, fill)
            case _:
                return attrs

    def node(self, n: Node, inputs: Sequence[Shape]) -> tuple[Shape, Attrs | Number]:
        """The shape of a node, and its attributes."""
        match n.op, n.attrs:
            case Op.CONST, Fill() if (bits := bits_of(n.attrs, n.dtype)) is not None:
                self.numbers.append(bits)
                return tuple(map(self.size, n.shape)), Number(len(self.numbers) - 1, n.dtype)
            case ((Op.CONST | Op.RANGE), attrs):
                return tuple(map(self.size, n.shape)), attrs
            case op, attrs if op in ELEMENTWISE or op is Op.CONTIGUOUS or op is Op.FLIP:
                for other in inputs[1:]:
                    self.all_same(inputs[0], other)
                return inputs[0], attrs
            case op, Axes(axes) if op in REDUCE:
                return tuple([s for k, s in enumerate(inputs[0]) if k not in axes]), n.attrs
            case Op.PERMUTE, Axes(axes):
                return tuple([inputs[0][a] for a in axes]), n.attrs
            case Op.RESHAPE, _:
                return self.reshaped(inputs[0], n.inputs[0].shape, n.shape), None
            case Op.EXPAND, _:
                made = zip(inputs[0], n.inputs[0].shape, n.shape, strict=True)
                return tuple([s if a == b else self.size(b) for s, a, b in made]), None
            case Op.SHRINK, Box():
                start, shape = self.box(n.attrs, inputs[0], n.inputs[0].shape, n.shape)
                return shape, Box(start, n.attrs.step)
            case Op.UPDATE, Box():
                start, shape = self.box(n.attrs, inputs[0], n.shape, n.inputs[1].shape)
                self.all_same(shape, inputs[1])
                return inputs[0], Box(start, n.attrs.step)
            case Op.PAD, Padding(low, high, interior, fill) if not any(interior):
                before, after = ([self.padding(x) for x in side] for side in (low, high))
                shape = [s + a + b for s, a, b in zip(inputs[0], before, after, strict=True)]
                return tuple(shape), Padding(tuple(before), tuple(after), interior, fill)
            case ((Op.SHEAR | Op.UNSHEAR), Window(axis, window)) if isinstance(n.shape[window], int):
                self.same(inputs[0][window], n.shape[window])
                made = self.size(n.shape[axis])
                return tuple([made if k == axis else s for k, s in enumerate(inputs[0])]), n.attrs
            case Op.GATHER, Along(axis) if n.inputs[0] in self.leaves:  # whose size bounds the indices
                self.all_same(inputs[0], inputs[1], axis)
                return inputs[1], n.attrs
            case Op.SCATTER, ScatterCombine(axis):
                self.all_same(inputs[0], inputs[1], axis)
                self.all_same(inputs[1], inputs[2])
                return inputs[0], n.attrs
            case Op.CONCAT, Along(axis):
                total: Int = 0
                for x in inputs:
                    self.all_same(inputs[0], x, axis)
                    total = total + x[axis]
                return tuple([total if k == axis else s for k, s in enumerate(inputs[0])]), n.attrs
            case _:
                raise _NoForm

    def padding(self, x: Int) -> Int:
        """A number of elements added at one end."""
        return x if isinstance(x, int) and x <= SMALL_PADDING else self.size(x)

    def box(
        self, box: Box, whole: Shape, given: Shape, part: Shape
    ) -> tuple[tuple[Int, ...], tuple[Int, ...]]:
        """The start and the sizes of a box, `part` large, in a shape that is `given` as numbers."""
        start: list[Int] = []
        sizes: list[Int] = []
        for at, n, of, size in zip(box.start, whole, given, part, strict=True):
            start.append(self.size(at, 1))
            sizes.append(n if size == of else self.size(size))
        return tuple(start), tuple(sizes)

    def reshaped(self, sizes: Shape, before: Shape, after: Shape) -> tuple[Int, ...]:
        """The sizes after a reshape that makes one axis of several, or several of one, in each of its parts."""
        # which parts these are shows at some values of runtime sizes; that they are right is looked at in the end
        used = sorted({v for n in (*before, *after) for v in variables(n)}, key=lambda v: v.name)
        env = {v.name: v.lo + p for v, p in zip(used, PRIMES, strict=False)}
        if len(env) < len(used):
            raise _NoForm
        old, new = ([int(evaluate(n, env)) for n in shape] for shape in (before, after))
        out: list[Int] = []
        i = j = 0
        while i < len(old) or j < len(new):
            first_i, first_j = i, j
            a = b = 1
            while True:
                if i < len(old) and (i == first_i or a < b or (a == b and old[i] == 1)):
                    a, i = a * old[i], i + 1
                elif j < len(new) and (j == first_j or b < a or (a == b and new[j] == 1)):
                    b, j = b * new[j], j + 1
                else:
                    break
            if a != b:
                raise _NoForm
            given = [s for s, n in zip(sizes[first_i:i], old[first_i:i], strict=True) if n != 1]
            wanted = [s for s, n in zip(after[first_j:j], new[first_j:j], strict=True) if n != 1]
            if [n for n in old[first_i:i] if n != 1] == [n for n in new[first_j:j] if n != 1]:
                made: list[Int] = given
            elif len(wanted) == 1:
                made = [elements(tuple(given))]
            elif len(given) == 1:
                made = list(map(self.size, wanted))
                self.same(given[0], elements(tuple(made)))
            else:
                raise _NoForm
            rest = iter(made)
            out.extend(1 if n == 1 else next(rest) for n in new[first_j:j])
        return tuple(out)


@dataclass(frozen=True, slots=True)
class SizedGraph:
    """The graph of a form: its result on leaves of its own."""

    root: Node
    leaves: tuple[Node, ...]


def graph_of(form: SizedForm) -> SizedGraph:
    """The graph of a form, on leaves of its own."""
    made: list[Node] = []
    for row in form.rows[: form.leaves]:
        dtype, shape = row
        made.append(graph.buffer(shape, dtype, form.device, None))
    for op, attrs, dtype, shape, inputs in form.rows[form.leaves :]:
        if isinstance(attrs, Number):
            value = number_of(form.variables[len(form.sizes) + attrs.number], dtype)
            value = graph.apply(Op.RESHAPE, (value,), shape=(1,) * len(shape))
            made.append(graph.apply(Op.EXPAND, (value,), shape=shape))
            continue
        numbers: tuple[int, ...] = inputs
        over = tuple([made[k] for k in numbers])
        made.append(graph.intern(op, over, attrs, shape, dtype, form.device if over else None))
    return SizedGraph(made[-1], tuple(made[: form.leaves]))
