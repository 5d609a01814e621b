"""Preparation of a graph: nodes that kernels cannot compute as they are become others, and nodes that must be stored
are marked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from weft.ir import dtypes
from weft.ir.graph import Along, Node, ProductAxes, ScatterCombine, apply, elements, toposort
from weft.ir.index import high
from weft.ir.ops import COMPARE, ELEMENTWISE, MOVEMENT, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.contraction import products
from weft.scheduler.kernelize.facts import is_leaf
from weft.scheduler.kernelize.online import Chains, chains_in


@dataclass(frozen=True, slots=True)
class Prepared:
    """Nodes in topological order; by id, the reason why a node is stored in any case, and the node computed instead."""

    order: tuple[Node, ...]
    forced: Mapping[int, str]
    replaced_by: Mapping[int, Node]
    terms: frozenset[int]
    """The products that a sum in the mode "same" adds in one rounding each, by id, and movement between: in memory they
    would be rounded, so whether they are stored must not depend on sizes."""
    online: Chains
    """Two products and the softmax between them, of which one kernel each may be made."""

    def in_own_kernel(self, node: Node) -> bool:
        """True where the node is stored by a kernel of its own kind, never computed inside another."""
        match node.op:
            case Op.CONTIGUOUS | Op.COPY:
                return True
            case Op.SUM:
                return node in self.online.alone
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
    for m in _compared_with_their_extrema(order, forced):
        forced.setdefault(
            id(m), "it is compared with its own extremum, which has to be one of these elements"
        )
    sums = [products(n) for n in order if n.op is Op.SUM and isinstance(n.attrs, ProductAxes)]
    terms = frozenset(id(m) for found in sums if any(m.op is Op.MUL for m in found) for m in found)
    online = chains_in(tuple(order), outputs, forced)
    for m in online.stored:
        forced.setdefault(id(m), "the kernel of a softmax and a product knows it, and no other does")
    for m in online.alone:
        forced.setdefault(id(m), "its rows' maximum and sum are stored beside, and read with it")
    nodes = _early(order, online.beside) if online.beside else list(order)
    return Prepared(tuple(nodes), forced, replaced_by, terms, online)


_EXACT = frozenset({Op.NEG, Op.ABS, Op.MAX, Op.MIN, Op.WHERE, Op.CAST, Op.BITCAST}) | MOVEMENT
"""Ops whose results are their operands, or follow from each without regard to what reads them."""


def _compared_with_their_extrema(order: Iterable[Node], stored: Mapping[int, str]) -> Iterator[Node]:
    """The nodes that are compared with the greatest or least of their own elements, and that two kernels might compute
    to different last bits: a product and a sum become one rounding or two, by what reads them. Then no element would be
    equal to the extremum, which gradients of maxima divide by the number of.

        softmax(x) == softmax(x).amax()    softmax(x) is stored
    """
    for n in order:
        if n.op in COMPARE and not is_leaf(n):
            for x, extremum in (n.inputs, n.inputs[::-1]):
                root = _exactly(x)
                if any(root is _exactly(m) for m in _extreme_of(_rearranged(extremum))):
                    yield from _inexact(root, stored)


def _extreme_of(n: Node) -> tuple[Node, ...]:
    """The nodes of whose elements some are the results of `n`, as the greatest or least."""
    if is_leaf(n):
        return ()
    if isinstance(n.attrs, ScatterCombine):
        return (n.inputs[0], n.inputs[2]) if n.attrs.op in (Op.MAX, Op.MIN) else ()
    return n.inputs if n.op in (Op.REDUCE_MAX, Op.REDUCE_MIN) else ()


def _rearranged(n: Node) -> Node:
    """The node of whose elements `n` consists."""
    while (n.op in MOVEMENT or n.op is Op.GATHER) and not is_leaf(n):
        n = n.inputs[0]
    return n


def _exactly(n: Node) -> Node:
    """The node that `n` follows from, element by element, without rounding."""
    while n.op in _EXACT and len(n.inputs) == 1 and not is_leaf(n):
        n = n.inputs[0]
    return n


def _inexact(root: Node, stored: Mapping[int, str]) -> Iterator[Node]:
    """The nodes that `root` follows from without rounding, and that take more than one from what is in memory."""

    def in_memory(n: Node) -> bool:
        return is_leaf(n) or id(n) in stored or n.op not in ELEMENTWISE | MOVEMENT

    work = [root]
    while work:
        n = work.pop()
        below = [m for m in map(_exactly, n.inputs) if not in_memory(m)]
        if in_memory(n) or not n.dtype.is_float or not below:
            continue
        if n.op in _EXACT:
            work += below
        else:
            yield n


def _early(order: Iterable[Node], moved: Mapping[Node, object]) -> list[Node]:
    """The topological order with the nodes `moved` (but for constants, functions of others) right after the last of
    these: whatever else reads those is visited before."""
    out: list[Node] = []
    waiting: dict[Node, int] = {n: len(set(n.inputs)) for n in moved}
    readers: dict[Node, list[Node]] = {}
    for n in moved:
        for i in dict.fromkeys(n.inputs):
            readers.setdefault(i, []).append(n)
    stack: list[Node] = []
    for n in order:
        if n in moved:
            continue
        stack.append(n)
        while stack:
            m = stack.pop()
            out.append(m)
            for r in readers.get(m, ()):
                waiting[r] -= 1
                if not waiting[r]:
                    stack.append(r)
    return out


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
