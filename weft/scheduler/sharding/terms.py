"""Terms of a result: what a block of the operand that is reduced over has to say, for the devices that share the sum.

    y = x.sum(1)        x: (8, 6), in blocks of columns         y = x[:, 0:3].sum(1) + x[:, 3:6].sum(1)
    y = table[ids]      table: (100, 4), in blocks of rows      y = its rows where ids are in the block, else nothing
    y = scatter(x)      values in blocks                        y = x with the first block + nothing with the second
    z = y + y' + b      terms of y and y' on each device        z = (term of y + term of y' + b) + (.. + .. + nothing)

Terms are combined by one op. Where a block has nothing to say, its term is that op's neutral element, with which every
value stays as it is to the bit: of float additions that is -0.0. Additions may take the terms of what they add as they
are, so that their sum is combined, once, instead of each of its summands; other values are counted on one device.
"""
# Tests: tests/scheduler/sharding/test_lower.py

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from weft.ir.dtypes import DType, Kind, bool_, float32, int64, uint64
from weft.ir.expr import Scalar
from weft.ir.graph import Along, Axes, Fill, Node, ScatterCombine, apply, const
from weft.ir.numerics import pinned
from weft.ir.ops import COMBINE, REDUCE, Op
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.parts import Parts, PartsOf, Place, counted_from, parts_of, size_of
from weft.lazy_dataclass import dataclass

ADDITIONS = (Op.ADD, Op.SUB)
"""The ops that may add up terms of several results."""


@dataclass(frozen=True, slots=True)
class Contraction:
    """The input whose blocks along any of `axes` have terms of a node's result, and the op that combines these."""

    number: int
    axes: tuple[int, ...]
    op: Op


def contraction(node: Node) -> Contraction | None:
    """The way in which a node's result may be combined from terms of devices; None where it is no combination, or one
    whose order is pinned (see ir/numerics.py)."""
    if pinned() and node.dtype.is_float and (node.op in (Op.SUM, Op.PROD, Op.SCATTER)):
        return None
    return combination(node)


def combination(node: Node) -> Contraction | None:
    """The way in which a node's result is a combination of terms, in whatever order; None where it is none."""
    match node.op, node.attrs:
        case op, Axes(axes) if op in REDUCE:
            return Contraction(0, axes, COMBINE[op])
        case Op.SCATTER, ScatterCombine(axis, Op() as op):
            return Contraction(2, (axis,), op)
        case Op.GATHER, Along(axis) if node.inputs[1].dtype is not uint64:  # all others fit in int64
            return Contraction(0, (axis,), Op.MAX if node.dtype.kind is Kind.BOOL else Op.ADD)
        case _:
            return None


def neutral(op: Op, dtype: DType) -> Scalar:
    """The value that leaves every other as it is under `op`."""
    match op:
        case Op.ADD:
            return -0.0 if dtype.is_float else 0
        case Op.MUL:
            return 1
        case Op.MAX:
            return dtype.min
        case Op.MIN:
            return dtype.max
        case _:
            raise ValueError(f"{op} combines no terms")


def term_dtype(node: Node) -> DType:
    """The dtype of terms: sums of 16-bit floats are rounded once, when all terms are there."""
    adds = node.op in (Op.SUM, Op.PROD, *ADDITIONS) or (node.op is Op.SCATTER and node.attrs is not None)
    return wide(node.dtype) if adds else node.dtype


def wide(dtype: DType) -> DType:
    """The dtype in which numbers are added up before they are rounded."""
    return float32 if dtype.is_float and dtype.itemsize < 4 else dtype


def term_of(node: Node, box: IndexBox, block: IndexBox, first: bool) -> Parts:
    """The parts that a box of the term of a block of the contracted input is made from. What a node has beside the
    sum (the tensor that is scattered into) is in the `first` term."""
    found = contraction(node)
    assert found is not None, node
    parted = [
        axis for axis in found.axes if block[axis] != Interval(0, node.inputs[found.number].shape[axis])
    ]
    dtype = term_dtype(node)
    empty = any(i.hi == i.lo for i in box)
    if any(block[axis].hi == block[axis].lo for axis in parted) and not (node.op is Op.SCATTER and first):
        nothing = const(neutral(found.op, dtype), dtype, size_of(box))
        return Parts((None,) * len(node.inputs), lambda _: nothing)
    if empty:
        return parts_of(node, box)
    match node.op:
        case Op.GATHER:
            return _gathered(node, box, block)
        case Op.SCATTER:
            return _scattered(node, box, block, first)
        case _:
            return _reduced(node, box, block)


def _clipped(box: IndexBox, block: IndexBox, axes: Sequence[int]) -> IndexBox:
    return tuple([block[k] if k in axes else i for k, i in enumerate(box)])


def _reduced(node: Node, box: IndexBox, block: IndexBox) -> Parts:
    assert isinstance(node.attrs, Axes)
    of, dtype = parts_of(node, box), term_dtype(node)
    (around,) = of.inputs
    assert around is not None

    def make(xs: Sequence[Node]) -> Node:
        wide = apply(Op.CAST, (xs[0],), None, None, dtype)
        return apply(node.op, (wide,), node.attrs)

    return Parts((_clipped(around, block, node.attrs.axes),), make)


def _scattered(node: Node, box: IndexBox, block: IndexBox, first: bool) -> Parts:
    """The first term has what is scattered into, the others start from nothing."""
    assert isinstance(node.attrs, ScatterCombine) and node.attrs.op is not None
    axis, op, dtype, start = node.attrs.axis, node.attrs.op, term_dtype(node), box[node.attrs.axis].lo
    part = _clipped(box, block, (axis,))

    def make(xs: Sequence[Node]) -> Node:
        x = xs[0] if first else const(neutral(op, dtype), dtype, size_of(box))
        wide = [apply(Op.CAST, (n,), None, None, dtype) for n in (x, xs[-1])]
        return apply(Op.SCATTER, (wide[0], counted_from(xs[-2], start), wide[1]), node.attrs)

    return Parts((box if first else None, part, part), make)


def _gathered(node: Node, box: IndexBox, block: IndexBox) -> Parts:
    """Rows of the block; an index out of range counts as the first row of all, or the last."""
    assert isinstance(node.attrs, Along)
    axis, (values, _) = node.attrs.axis, node.inputs
    lo, hi = block[axis]
    assert isinstance(lo, int) and isinstance(hi, int)

    def make(xs: Sequence[Node]) -> Node:
        x, index = xs
        at = apply(Op.CAST, (index,), None, None, int64)
        inside = const(True, bool_, index.shape)
        if lo > 0:
            above = apply(Op.LE, (const(lo, int64, index.shape), at))
            inside = apply(Op.AND, (inside, above))
        if hi != values.shape[axis]:
            below = apply(Op.LT, (at, const(hi, int64, index.shape)))
            inside = apply(Op.AND, (inside, below))
        rows = apply(Op.GATHER, (x, counted_from(index, lo)), node.attrs)
        nothing = const(
            neutral(Op.MAX if node.dtype is bool_ else Op.ADD, node.dtype), node.dtype, rows.shape
        )
        return apply(Op.WHERE, (inside, rows, nothing))

    return Parts((_clipped(box, block, (axis,)), box), make)


# additions of terms --------------------------------------------------------------------------------------------------


def passing(node: Node) -> tuple[int, ...]:
    """The inputs whose terms make terms of a node's result, which is a linear function of them; () where there are
    none. Roundings apart: a cast is one that rounds nothing, and a factor is one number."""
    match node.op:
        case Op.ADD | Op.SUB:
            return 0, 1
        case Op.NEG | Op.RESHAPE | Op.PERMUTE | Op.EXPAND | Op.SHRINK | Op.FLIP:
            return (0,)
        case Op.MUL:
            scaled = tuple([k for k in (0, 1) if _number(node.inputs[1 - k]) is not None])
            return scaled if len(scaled) == 1 else ()
        case Op.CAST:
            (x,) = node.inputs
            widens = x.dtype.is_float and node.dtype.is_float and x.dtype.itemsize < node.dtype.itemsize
            return (0,) if widens else ()
        case _:
            return ()


def additions(order: Sequence[Node], fixed: Collection[Node]) -> dict[Node, tuple[Node, ...]]:
    """The additions that may add up terms instead of values, each with the sums that have these and that nobody else
    reads. Of a chain it is the last one that adds such sums. `order`: a graph, inputs before users; what is `fixed` is
    read from outside, or laid out as somebody asks."""
    readers = Counter(i for n in order for i in set(n.inputs))
    below: dict[Node, dict[Node, None]] = {}
    last: dict[Node, Node] = {}
    for n in order:
        terms = contraction(n) if n.storage is None else None
        if terms is not None or n.storage is not None or is_ordered(n):
            below[n] = {n: None} if terms is not None and terms.op is Op.ADD else {}
            continue
        alone = [i for k in passing(n) if readers[i := n.inputs[k]] == 1 and i not in fixed]
        below[n] = {s: None for i in alone for s in below[i]}
        if n.op in ADDITIONS and sum(bool(below[i]) for i in dict.fromkeys(alone)) > 1:
            last.update(dict.fromkeys(below[n], n))
    found: dict[Node, list[Node]] = {}
    for s, n in last.items():
        found.setdefault(n, []).append(s)
    return {n: tuple(of) for n, of in found.items()}


def is_ordered(node: Node) -> bool:
    """True of additions in an order that is pinned, which terms of several results would not keep."""
    return pinned() and node.dtype.is_float and node.op in ADDITIONS


def term_places(node: Node, box: IndexBox, cuts: Collection[Node], parts: PartsOf) -> list[Place]:
    """The boxes of cuts, and of what passes no terms, that a box of an addition of terms is made of."""
    found: list[Place] = []
    seen: set[Place] = set()
    stack = [(node, box)]
    while stack:
        place = stack.pop()
        if place in seen or any(i.hi == i.lo for i in place[1]):
            continue
        seen.add(place)
        n, _ = place
        if n is not node and is_summand(n, cuts):
            found.append(place)
        else:
            of = parts[place].inputs
            stack += [(n.inputs[k], b) for k in passing(n) if (b := of[k]) is not None]
    return found


def is_summand(n: Node, cuts: Collection[Node]) -> bool:
    """True for what an addition of terms finds below it: terms, or a value that is counted once."""
    return n in cuts or not passing(n)


class TermParts(PartsOf):
    """Parts of what passes terms, computed in the dtype of these."""

    def __init__(self, values: PartsOf) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, key: Place) -> Parts:
        node, _ = key
        of = self._values[key]
        if node.op is Op.CAST:
            of = Parts(of.inputs, lambda xs: apply(Op.CAST, (xs[0],), None, None, wide(node.dtype)))
        elif node.op is Op.MUL:
            (scaled,) = passing(node)
            number = _number(node.inputs[1 - scaled])
            assert number is not None

            def make(xs: Sequence[Node]) -> Node:
                (x,) = xs
                by = apply(Op.CAST, (const(number, node.dtype, x.shape),), None, None, x.dtype)
                return apply(Op.MUL, (x, by))

            of = Parts(tuple([b if k == scaled else None for k, b in enumerate(of.inputs)]), make)
        self[key] = of
        return of


def _number(n: Node) -> Scalar | None:
    """The value that all elements of a node have, if it is made of one constant."""
    while n.op in (Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP):
        (n,) = n.inputs
    return n.attrs.value if isinstance(n.attrs, Fill) else None
