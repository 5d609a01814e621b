"""Masks of indices: where elements are masked out, and where elements are demanded.

    s = where(j <= i, q k^T, -inf);  p = exp(s - m) / l;  dv = p^T g        p is 0, and s -inf, unless j <= i;
    dp = g v^T;  ds = p * dp - ...                                          dp is demanded only where j <= i

Conditions on indices follow a tensor through elementwise ops and movement, from where(condition, x, -inf) down to what
uses its exponential (`masked`), and from there up to what is multiplied by it (`demanded`). So a product over masked
weights leaves out what the mask rules out, and so does one whose result meets such weights. A weight that is ruled out
counts for nothing: an infinity or NaN that it would be multiplied by has no effect; but a row that is masked out as a
whole is NaN, and stays so. A plain where(condition, x, 0) masks nothing here, since 0 times infinity is not a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from itertools import product
from typing import TypeAlias

from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Scalar, ScalarCall
from weft.ir.graph import Fill, Node
from weft.ir.index import (
    NEVER,
    Guard,
    InRange,
    Int,
    Var,
    both,
    coefficient,
    map_guard,
    rewrite,
    substitute,
    variables,
)
from weft.ir.kernel.algorithm import KnownFill, place
from weft.ir.kernel.transforms.trim import implied
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, Op
from weft.ir.regions.ops import Used
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.evaluate import converted

_MOVED = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP})
"""Movement without padding."""

_MAX_CONDITION_DEPTH = 16
"""Nodes on a path through the expression of a condition."""


@dataclass(slots=True)
class Masks:
    """By id of a node: the value of its masked-out elements and where these are, and the condition without which none
    of its elements is used."""

    masked: dict[int, KnownFill] = field(default_factory=dict[int, KnownFill])
    demanded: dict[int, Guard] = field(default_factory=dict[int, Guard])


def find_masks(order: Sequence[Node], outputs: frozenset[int]) -> Masks:
    """The masks of a graph, whose nodes are in topological order; `outputs` are demanded whole."""
    masks = Masks()
    if not any(n.op is Op.CONST and constant(n, float("-inf")) for n in order):
        return masks
    for node in order:
        if node.storage is None and node.inputs and (found := masked_out(node, masks.masked)) is not None:
            masks.masked[id(node)] = found
    if masks.masked:
        _propagate_demand(order, outputs, masks)
    return masks


def places(node: Node) -> tuple[Int, ...]:
    """The place of an element, axis by axis."""
    return tuple(0 if n == 1 else place(k, n) for k, n in enumerate(node.shape))


# masked out -----------------------------------------------------------------------------------------------------------

_Operands: TypeAlias = Sequence[KnownFill | None]


def masked_out(node: Node, known: Mapping[int, KnownFill]) -> KnownFill | None:
    """The masked-out elements of a node: the value that they have, and where they are."""
    rule = _MASKED.get(node.op)
    if rule is None:
        return None
    of = [known.get(id(i)) for i in node.inputs]
    return rule(node, of) if node.op is Op.WHERE or any(of) else None


def _where(node: Node, of: _Operands) -> KnownFill | None:
    """where(condition, x, -inf), or the other way round; where(.., x, 0) of what is 0 by another mask."""
    condition, x, other = node.inputs
    if constant(other, float("-inf")):
        guard, kept = condition_where(condition), of[1]
    elif constant(x, float("-inf")):
        guard, kept = opposite_where(condition), of[2]
    else:
        kept = of[1]
        return kept if kept is not None and kept.value == 0 and constant(other, 0.0) else None
    if kept is not None and kept.value < 0:
        guard = _all(guard, kept.outside)
    return KnownFill(guard, float("-inf")) if guard and guard != NEVER else None


def _moved(node: Node, of: _Operands) -> KnownFill | None:
    """The condition at the place that an element comes from."""
    (fill,) = of
    assert fill is not None
    at = source(node, places(node)).index
    inner = {v: i for v, i in zip(places(node.inputs[0]), at, strict=True) if isinstance(v, Var)}
    guard = map_guard(fill.outside, lambda i: _replaced(i, inner))
    return KnownFill(guard, fill.value) if guard and all(_affine(c) for c in guard) else None


def _product(node: Node, of: _Operands) -> KnownFill | None:
    """0 where any factor is."""
    zeros = [r for r in of if r is not None and r.value == 0]
    return KnownFill(_all(*(r.outside for r in zeros)), 0.0) if zeros else None


def _quotient(node: Node, of: _Operands) -> KnownFill | None:
    """0 where the dividend is, unless whole rows are masked out: these are 0 / 0."""
    a = of[0]
    return a if a is not None and a.value == 0 and _filled(node, node.inputs[1], a.outside) else None


def _sum(node: Node, of: _Operands) -> KnownFill | None:
    """0 where both terms are, -inf where any is."""
    a, b = of
    if a is not None and b is not None and a.value == b.value == 0:
        return a if a == b else None
    lowest = [r for r in of if r is not None and r.value < 0]
    return KnownFill(_all(*(r.outside for r in lowest)), float("-inf")) if lowest else None


def _difference(node: Node, of: _Operands) -> KnownFill | None:
    """0 where both terms are; -inf less a maximum is -inf."""
    a, b = of
    if a is not None and b is not None and a.value == b.value == 0:
        return a if a == b else None
    return a if a is not None and a.value < 0 and _maximum(node.inputs[1], node.inputs[0]) else None


def _negation(node: Node, of: _Operands) -> KnownFill | None:
    """0 where the operand is."""
    a = of[0]
    return a if a is not None and a.value == 0 else None


def _conversion(node: Node, of: _Operands) -> KnownFill | None:
    """The operand's value, if the type has it."""
    a = of[0]
    return a if a is not None and (a.value == 0 or node.dtype.is_float) else None


def _exponential(node: Node, of: _Operands) -> KnownFill | None:
    """0 where the operand is -inf."""
    a = of[0]
    return KnownFill(a.outside, 0.0) if a is not None and a.value < 0 else None


_MASKED: dict[Op, Callable[[Node, _Operands], KnownFill | None]] = {
    **dict.fromkeys(_MOVED, _moved),
    Op.WHERE: _where,
    Op.MUL: _product,
    Op.DIV: _quotient,
    Op.ADD: _sum,
    Op.SUB: _difference,
    Op.NEG: _negation,
    Op.CAST: _conversion,
    Op.CONTIGUOUS: _conversion,
    Op.EXP: _exponential,
}


def _filled(node: Node, divisor: Node, unless: Guard) -> bool:
    """True where each row that is divided by one number has a place where the condition holds. One without is
    0 / 0, which is not a number, and so not masked out."""
    while divisor.op is Op.RESHAPE and divisor.shape == divisor.inputs[0].shape and divisor.storage is None:
        divisor = divisor.inputs[0]
    if divisor.op is not Op.EXPAND or divisor.storage is not None:
        return True
    below = divisor.inputs[0].shape
    rows = [k for k, (n, m) in enumerate(zip(node.shape, below, strict=True)) if n != 1 and m == 1]
    for chosen in product(*(_tried(node, k, rows) for k in rows)):
        where = {place(k, node.shape[k]): i for k, i in zip(rows, chosen, strict=True)}
        if not map_guard(unless, lambda i, where=where: substitute(i, where)):
            return True
    return False


def _tried(node: Node, k: int, rows: Sequence[int]) -> list[Int]:
    """Places along axis `k` where a condition that holds anywhere in the row mostly does: its ends, the diagonal."""
    n, at = node.shape[k], places(node)
    diagonal = [
        at[i]
        for i, m in enumerate(node.shape)
        if i not in rows and isinstance(m, int) and isinstance(n, int) and m <= n
    ]
    return [0, n - 1, *diagonal]


def constant(node: Node, value: float) -> bool:
    """True where each element of the node is `value`."""
    return node.storage is None and isinstance(f := _below(node).attrs, Fill) and float(f.value) == value


def _below(node: Node) -> Node:
    while node.storage is None and node.op in (Op.EXPAND, Op.RESHAPE, Op.COPY):
        node = node.inputs[0]
    return node


def opposite_where(condition: Node) -> Guard:
    """A condition on places that holds wherever the bool node does not; empty where there is none."""
    return _affine_only(_truth(condition, places(condition), _MAX_CONDITION_DEPTH, value=False))


def _is_comparison(e: Expr | None) -> bool:
    """True where `e` is no conjunction, of which a part may imply nothing."""
    return not (isinstance(e, ScalarCall) and e.op is Op.AND)


def _maximum(node: Node, of: Node) -> bool:
    """True where the node is the maximum of `of` along some axes, in each place: -inf less that is -inf, but in
    rows of -inf only, which become NaN anyway."""
    top = _below(node)
    return top.storage is None and top.op is Op.REDUCE_MAX and top.inputs[0] is of


# demanded -------------------------------------------------------------------------------------------------------------


def _propagate_demand(order: Sequence[Node], outputs: frozenset[int], masks: Masks) -> None:
    """Propagate demand from users to operands: a node is demanded where any user demands it."""
    demand: dict[int, Guard] = {}
    for node in reversed(order):
        mine: Guard = () if id(node) in outputs else demand.get(id(node), ())
        if mine:
            masks.demanded[id(node)] = mine
        for k, i in enumerate(node.inputs):
            if i.storage is not None or not i.inputs:
                continue
            new = _operand_demand(node, k, mine, masks.masked)
            before = demand.get(id(i))
            demand[id(i)] = new if before is None else tuple(c for c in before if c in new)


def _operand_demand(node: Node, k: int, mine: Guard, masked: Mapping[int, KnownFill]) -> Guard:
    """The condition without which `node`, demanded where `mine` holds, does not use its operand number `k`."""
    op, inputs = node.op, node.inputs
    if op in (Op.PERMUTE, Op.RESHAPE):
        return _carried(node, mine) if mine else ()
    if op is Op.WHERE and k == 1:
        return _all(mine, condition_where(inputs[0]))
    if op is Op.MUL and inputs[0] is not inputs[1]:
        other = masked.get(id(inputs[1 - k]))
        return mine if other is None or other.value != 0 else _all(mine, other.outside)
    return mine if op in ELEMENTWISE else ()


def operand_uses(masks: Masks) -> Used:
    """Conditions without which operands have no effect, for `weft.ir.regions`: weights that are exactly 0 take no part
    in a product, nor does a `where`'s operand where the other one is chosen. Of conditions that mix indices and data,
    the part about indices counts."""

    def used(node: Node, k: int) -> Guard:
        if node.op is Op.WHERE and k == 2:
            return opposite_where(node.inputs[0])
        return _operand_demand(node, k, (), masks.masked)

    return used


def _carried(node: Node, guard: Guard) -> Guard:
    """A condition on the places of a permuted or reshaped tensor as one on those of its operand."""
    at = source(node, places(node)).index
    back = {i: p for i, p in zip(at, places(node.inputs[0]), strict=True) if isinstance(i, Var)}
    used = {
        v for c in guard for i in (c.value, c.lo, c.hi) if not isinstance(i, int | None) for v in variables(i)
    }
    if not all(v in back for v in used):
        return ()
    return map_guard(guard, lambda i: _replaced(i, back))


# conditions -----------------------------------------------------------------------------------------------------------


def _all(*guards: Guard) -> Guard:
    out: Guard = ()
    for g in guards:
        out = both(out, g)
    return out


def _replaced(i: Int, by: Mapping[Var, Int]) -> Int:
    return rewrite(i, lambda x: by.get(x) if isinstance(x, Var) else None)


def _affine(c: InRange) -> bool:
    used = {v for i in (c.value, c.lo, c.hi) if not isinstance(i, int | None) for v in variables(i)}
    return all(coefficient(i, v) is not None for i in (c.value, c.lo, c.hi) if i is not None for v in used)


def condition_where(node: Node) -> Guard:
    """Conditions on places that all hold where the bool `node` does; empty where there are none."""
    e = _scalar(node, places(node), _MAX_CONDITION_DEPTH)
    guard = tuple(dict.fromkeys(implied(e))) if e is not None else ()
    return _affine_only(guard or _truth(node, places(node), _MAX_CONDITION_DEPTH, value=True))


def _affine_only(guard: Guard) -> Guard:
    return guard if all(_affine(c) for c in guard) else ()


def _truth(node: Node, at: tuple[Int, ...], depth: int, value: bool) -> Guard:
    """Conditions on places that all hold wherever the bool node is `value`, at an index; empty where none are known."""
    if node.storage is not None or depth == 0:
        return ()
    if node.op in _MOVED:
        return _truth(node.inputs[0], source(node, at).index, depth - 1, value)
    match node.op:
        case Op.COPY:
            return _truth(node.inputs[0], at, depth - 1, value)
        case Op.NOT:
            return _truth(node.inputs[0], at, depth - 1, not value)
        case Op.AND | Op.OR:
            a, b = (_truth(i, at, depth - 1, value) for i in node.inputs)
            return _all(a, b) if (node.op is Op.AND) is value or a == b else ()
        case Op.WHERE:
            return _chosen(node, at, depth, lambda x: bool(x) is value)
        case Op.EQ | Op.NE if (number := _number(node.inputs[1])) is not None:
            choice, at = _unmoved(node.inputs[0], at)
            equal = (node.op is Op.EQ) is value
            return _chosen(choice, at, depth, lambda x: (x == number) is equal)
        case _:
            return _compared(node, at, depth, value)


def _chosen(node: Node, at: tuple[Int, ...], depth: int, fits: Callable[[Scalar], bool]) -> Guard:
    """Conditions that all hold wherever a `where` of constants is one that fits: such that only one of them does."""
    if node.op is not Op.WHERE or node.storage is not None:
        return ()
    numbers = [_number(i) for i in node.inputs[1:]]
    fitting = [x is not None and fits(x) for x in numbers]
    if None in numbers or all(fitting) or not any(fitting):
        return ()
    return _truth(node.inputs[0], at, depth - 1, fitting[0])


def _unmoved(node: Node, at: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]]:
    """The node that a movement is of, and where an element is in it."""
    while node.op in _MOVED | {Op.COPY} and node.storage is None:
        node, at = node.inputs[0], at if node.op is Op.COPY else source(node, at).index
    return node, at


def _number(node: Node) -> Scalar | None:
    """The one value that a node has."""
    node = _below(node)
    return node.attrs.value if node.storage is None and isinstance(node.attrs, Fill) else None


def _compared(node: Node, at: tuple[Int, ...], depth: int, value: bool) -> Guard:
    """A comparison of indices, or what fails where it does."""
    e = _scalar(node, at, depth, exactly=not value)
    if e is None or value:
        return () if e is None else tuple(dict.fromkeys(implied(e)))
    match tuple(implied(e)):
        case (InRange(value=i, lo=lo, hi=None),) if lo is not None and _is_comparison(e):
            return (InRange(i, None, lo),)
        case (InRange(value=i, lo=None, hi=hi),) if hi is not None and _is_comparison(e):
            return (InRange(i, hi, None),)
        case _:
            return ()


def _scalar(node: Node, at: tuple[Int, ...], depth: int, exactly: bool = False) -> Expr | None:
    """The node's value at a place, if it follows from the place alone. Of a conjunction, the part that does, unless it
    has to be exactly the value."""
    if node.storage is not None or depth == 0:
        return None
    if node.op in _MOVED:
        return _scalar(node.inputs[0], source(node, at).index, depth - 1, exactly)
    match node.op:
        case Op.COPY:
            return _scalar(node.inputs[0], at, depth - 1, exactly)
        case Op.RANGE:
            return converted(ex.from_index(at[0]), node.dtype)
        case Op.CONST if isinstance(node.attrs, Fill) and not node.dtype.is_float:
            return Const(node.dtype, node.attrs.value)
        case Op.LT | Op.LE | Op.AND | Op.ADD | Op.SUB | Op.MUL if not node.inputs[0].dtype.is_float:
            args = [_scalar(i, at, depth - 1, exactly) for i in node.inputs]
            known = [a for a in args if a is not None]
            if len(known) == len(args):
                return ex.call(node.op, *known, dtype=node.dtype)
            return known[0] if node.op is Op.AND and known and not exactly else None
        case _:
            return None
