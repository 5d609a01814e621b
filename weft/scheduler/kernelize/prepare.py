"""Preparation of a graph: nodes that kernels cannot compute as they are become others, and nodes that must be stored
are marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from weft.ir import dtypes
from weft.ir.graph import Along, Fill, Node, ProductAxes, ScatterCombine, apply, elements, toposort
from weft.ir.index import high
from weft.ir.ops import Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.contraction import contraction, products
from weft.scheduler.kernelize.facts import is_leaf

STATE = "it is the state of a block"
"""The reason why the maximum and the sums of a block of columns are stored: others are combined with them."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Nodes in topological order; by id, the reason why a node is stored in any case, and the node computed instead."""

    order: tuple[Node, ...]
    forced: Mapping[int, str]
    replaced_by: Mapping[int, Node]
    terms: frozenset[int] = frozenset()
    """The products that a sum in the mode "same" adds in one rounding each, by id, and movement between: in memory they
    would be rounded, so whether they are stored must not depend on sizes."""

    weights: Mapping[int, Sequence[Node]] = field(default_factory=dict[int, Sequence[Node]])
    """The sums along an axis of each exponential, by its id."""

    def sums_of(self, exp: Node) -> Sequence[Node]:
        """The sums along an axis of an exponential."""
        return self.weights.get(id(exp), ())

    def in_own_kernel(self, node: Node) -> bool:
        """True where the node is stored by a kernel of its own kind, never computed inside another."""
        match node.op:
            case Op.CONTIGUOUS | Op.COPY:
                return True
            case Op.SUM:  # the maximum and the plain sum are stored beside
                return self.forced.get(id(node)) == STATE and node.inputs[0].op is not Op.EXP
            case Op.SCATTER:
                return id(node) not in self.replaced_by and not self.is_chosen(node)
            case Op.UPDATE:
                base = node.inputs[0]
                return is_leaf(base) or (id(base) in self.forced and high(elements(base.shape)) > 0)
            case _:
                return False

    def is_chosen(self, scatter: Node) -> bool:
        """True where elements are chosen by comparison, which other kernels can do, rather than written out of order:
        those of a scatter with one per row, but for a result on top of a tensor in memory, as a cache of keys is. Of
        that only these elements are written, if it is replaced."""
        return _is_single(scatter) and not _is_kept(scatter, self.forced)


def prepare(outputs: Sequence[Node], pieces: int = cost.MAX_WRITTEN_PIECES) -> Prepared:
    """The graph as the walk needs it; no concatenation has more than `pieces` inputs."""
    # the largest results are visited first: their kernels can store smaller ones along the way
    nodes = toposort(sorted(outputs, key=lambda n: high(elements(n.shape))))
    replaced_by: dict[int, Node] = {}
    order: dict[Node, None] = {}
    for n in nodes:
        if n.op in (Op.SCATTER, Op.CONCAT) and not is_leaf(n):
            other = _narrow_scatter(n) if n.op is Op.SCATTER else _long_concat(n, pieces)
            if other is not None:
                replaced_by[id(n)] = other
                order.update((m, None) for m in toposort([other]) if m not in order)
        order[n] = None
    forced = {id(n): "it is a result" for n in outputs if not is_leaf(n)}
    for n in order:
        if not is_leaf(n) and id(n) not in replaced_by:
            for m, why in _buffers(n, forced):
                if not is_leaf(m):
                    forced.setdefault(id(m), why)
    sums = [products(n) for n in order if n.op is Op.SUM and isinstance(n.attrs, ProductAxes)]
    terms = frozenset(id(m) for found in sums if any(m.op is Op.MUL for m in found) for m in found)
    weights = _weights(order)
    for n in order:
        for m in _states(n, weights):
            forced.setdefault(id(m), STATE)
    return Prepared(_after_weights(order, weights, forced), forced, replaced_by, terms, weights)


def _weights(order: Iterable[Node]) -> dict[int, list[Node]]:
    found: dict[int, list[Node]] = {}
    for n in order:
        if n.op is Op.SUM and n.storage is None and n.inputs[0].op is Op.EXP and n.inputs[0].storage is None:
            found.setdefault(id(n.inputs[0]), []).append(n)
    return found


def _after_weights(
    order: Iterable[Node], weights: Mapping[int, Sequence[Node]], forced: Mapping[int, str]
) -> tuple[Node, ...]:
    """The order, with sums of a block's weights right after these: the product is looked at before them then, whose
    kernel stores them beside."""
    states = {k: [n for n in of if forced.get(id(n)) == STATE] for k, of in weights.items()}
    moved = {id(n) for of in states.values() for n in of}
    if not moved:
        return tuple(order)
    return tuple([m for n in order if id(n) not in moved for m in (n, *states.get(id(n), ()))])


def _is_single(scatter: Node) -> bool:
    """True where a scatter has one element per row."""
    return isinstance(scatter.attrs, ScatterCombine) and scatter.inputs[1].shape[scatter.attrs.axis] == 1


def _is_kept(scatter: Node, forced: Mapping[int, str]) -> bool:
    return id(scatter) in forced and is_leaf(scatter.inputs[0])


def _narrow_scatter(n: Node) -> Node | None:
    """A scatter in f32 in place of one that combines narrow floats: memory accumulates no narrower ones."""
    if not n.dtype.is_narrow or not isinstance(n.attrs, ScatterCombine) or n.attrs.op is None:
        return None
    x, index, src = n.inputs
    wide = [apply(Op.CAST, (i,), dtype=dtypes.float32) for i in (x, src)]
    return apply(Op.CAST, (apply(Op.SCATTER, (wide[0], index, wide[1]), n.attrs),), dtype=n.dtype)


def _long_concat(n: Node, pieces: int) -> Node | None:
    """A concatenation in stages in place of one of very many pieces."""
    if len(n.inputs) <= pieces:
        return None
    assert isinstance(n.attrs, Along)
    chunks = [n.inputs[k : k + pieces] for k in range(0, len(n.inputs), pieces)]
    joined = apply(Op.CONCAT, tuple(apply(Op.CONCAT, c, n.attrs) for c in chunks), n.attrs)
    return _long_concat(joined, pieces) or joined


def _buffers(n: Node, forced: Mapping[int, str]) -> list[tuple[Node, str]]:
    """Nodes that must be stored because of `n`, with the reasons."""
    match n.op:
        case Op.CONTIGUOUS:
            return [(n, "contiguous() asks for it")]
        case Op.COPY:
            return [(m, "it is copied to another device") for m in (n, n.inputs[0])]
        case Op.SCATTER if not _is_single(n) or _is_kept(n, forced):
            base = [] if n.inputs[0].op is Op.CONST else [(n.inputs[0], "it is updated in place")]
            return [(n, "scattered writes need memory"), *base]
        case Op.LOOP:
            return [(n, "a loop makes it"), *((i, "a loop reads it") for i in n.inputs)]
        case Op.UPDATE if n.inputs[0].op is Op.UPDATE:
            return [(m, "it is updated in place") for m in (n, n.inputs[0])]
        case _:
            return []


def _states(n: Node, weights: Mapping[int, Sequence[Node]]) -> list[Node]:
    """A product summed with the weights of a block of columns, their maximum, and their sum: what is stored."""
    product = _below(n.inputs[0]) if n.op is Op.SUM and n.storage is None else n
    if product is n or product.op is not Op.MUL or product.storage is not None or contraction(n) is None:
        return []
    found: list[Node] = []
    for w in map(_below, product.inputs):
        top = finite_maximum(w)
        if top is not None:
            found += [n, top, *[m for m in weights.get(id(w), ()) if m.attrs == top.attrs]]
    return found


def _below(n: Node) -> Node:
    while n.storage is None and (n.op in (Op.RESHAPE, Op.EXPAND, Op.PERMUTE, Op.CAST)):
        (n,) = n.inputs
    return n


def finite_maximum(weights: Node) -> Node | None:
    """The maximum m of exp(x - max(m, lowest)), as the sums of a block of columns are weighted, which others are to be
    combined with; None of other nodes."""
    if weights.op is not Op.EXP or weights.storage is not None or weights.inputs[0].op is not Op.SUB:
        return None
    top = weights.inputs[0].inputs[1]
    while top.op in (Op.RESHAPE, Op.EXPAND) and top.storage is None:
        (top,) = top.inputs
    if top.op is not Op.MAX or top.storage is not None or not isinstance(top.inputs[1].attrs, Fill):
        return None
    (m, _) = top.inputs
    return m if m.op is Op.REDUCE_MAX and m.storage is None else None
