"""Sums over all that is of a channel: factors that are the same for all of it stand outside of the sum.

    sum of -(dy g r + k xc)      ->   -(g r (sum of dy) + k (sum of xc))
    sum of (dy g) xc             ->   g (sum of dy xc)
    sum of dy (xc r)             ->   r (sum of dy xc)

g, r and k have a number for each channel. What is left inside are sums that other results need too, as here of a batch
norm's gradients, and none that waits for another: `k` is made of the second one. So all of them are of one pass over
memory where they took three. Over rows of one kernel, as in a softmax, nothing would be gained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir import graph
from weft.ir.graph import Axes, Fill, Node, toposort
from weft.ir.index import low
from weft.ir.numerics import pinned
from weft.ir.ops import REDUCE, Op
from weft.ir.rewrite import over
from weft.lazy_dataclass import dataclass

MOST_TERMS, MOST_FACTORS, MOST_DEPTH = 4, 8, 16
"""Sums that one becomes, at most; factors of a product; ops from a sum to what it is of."""


@dataclass(frozen=True, slots=True)
class _Term:
    """A product: `inside` of what differs along the summed axes, times `factors` over `divisors` that do not."""

    negative: bool
    inside: tuple[Node, ...]
    factors: tuple[Node, ...] = ()
    divisors: tuple[Node, ...] = ()

    @property
    def size(self) -> int:
        return len(self.inside) + len(self.factors) + len(self.divisors)

    @property
    def has_factors(self) -> bool:
        """Some factor is more than a number."""
        return any(x.op is not Op.CONST for x in (*self.factors, *self.divisors))

    def times(self, other: _Term) -> _Term:
        return _Term(
            self.negative is not other.negative,
            self.inside + other.inside,
            self.factors + other.factors,
            self.divisors + other.divisors,
        )


def factored(outputs: Sequence[Node]) -> Sequence[Node]:
    """The graph of `outputs`, without calls, with factors outside of such sums; the nodes themselves where there are
    none, and with `weft.numerics("same")`."""
    if pinned():
        return outputs
    order = toposort(outputs)
    found = {n: terms for n in order if (terms := _products(n)) is not None}
    waiting = _waiting(order, found) if found else set[Node]()
    if not waiting:
        return outputs
    parts = {t.inside for n in waiting for t in found[n]}
    shared = {n for n, terms in found.items() if n in waiting or any(t.inside in parts for t in terms)}
    made: dict[Node, Node] = {}
    for n in order:  # a factor may be of a sum
        same = over(n, tuple([made[i] for i in n.inputs])) if n.inputs and n.storage is None else n
        terms = _products(same) if n in shared else None
        made[n] = same if terms is None else _with_factors_outside(same, terms)
    return [made[n] for n in outputs]


def _waiting(order: Sequence[Node], found: Mapping[Node, Sequence[_Term]]) -> set[Node]:
    """The sums with factors that are made of reductions."""
    of_reductions: set[Node] = set()
    for n in order:
        if n.storage is None and (n.op in REDUCE or not of_reductions.isdisjoint(n.inputs)):
            of_reductions.add(n)
    return {
        n
        for n, terms in found.items()
        if any(not of_reductions.isdisjoint((*t.factors, *t.divisors)) for t in terms)
    }


def _products(n: Node) -> list[_Term] | None:
    """The products that a sum over all that is of a channel adds, where some have factors that may stand outside; None
    for other nodes."""
    if n.op is not Op.SUM or type(n.attrs) is not Axes or not n.dtype.is_float or n.dtype.bits < 32:
        return None
    x, axes = n.inputs[0], n.attrs.axes
    sizes = dict(enumerate(x.shape))
    summed = [a for a in axes if sizes[a] != 1]
    if len(summed) < 2 or sum(size != 1 for a, size in sizes.items() if a not in axes) > 1:
        return None
    if any(low(size) < 1 for size in sizes.values()):
        return None  # a sum of nothing is 0 whatever its factor is, which may be 0 / 0
    terms = _Products(frozenset(summed), {}).of(x)
    whole = all(t.inside for t in terms)
    return terms if whole and any(t.factors or t.divisors for t in terms) else None


def _with_factors_outside(n: Node, terms: Sequence[_Term]) -> Node:
    """The sum `n` of these products."""
    assert isinstance(n.attrs, Axes)
    total, *others = [_outside(t, n, n.attrs.axes) for t in terms]
    for more in others:
        total = graph.apply(Op.ADD, (total, more))
    return total


@dataclass(frozen=True, slots=True)
class _Products:
    """The products whose sums values are, along the axes `summed`; `known`: of those that were asked for."""

    summed: frozenset[int]
    known: dict[Node, list[_Term]]

    def of(self, e: Node, depth: int = 0) -> list[_Term]:
        if e not in self.known:
            found = self._found(e, depth)
            small = len(found) <= MOST_TERMS and all(t.size <= MOST_FACTORS for t in found)
            self.known[e] = found if small else [_Term(False, (e,))]
        return self.known[e]

    def _found(self, e: Node, depth: int) -> list[_Term]:
        if self._is_same(e):
            return [_Term(False, (), (e,))]
        whole = [_Term(False, (e,))]
        if (
            e.storage is not None
            or e.op not in (Op.NEG, Op.ADD, Op.SUB, Op.MUL, Op.DIV)
            or depth == MOST_DEPTH
        ):
            return whole
        a, *others = [self.of(x, depth + 1) for x in e.inputs]
        b = others[0] if others else a
        terms = *a, *b
        alike = all(t.inside for t in terms)
        match e.op:
            case Op.NEG:
                return [t.times(_MINUS) for t in a]
            case Op.ADD | Op.SUB if alike and any(t.has_factors for t in terms):
                return [*a, *(t.times(_MINUS) if e.op is Op.SUB else t for t in b)]
            case Op.MUL if len(a) == len(b) == 1 or (1 in (len(a), len(b)) and not alike):
                return [s.times(t) for s in a for t in b]
            case Op.DIV if len(b) == 1 and not b[0].inside and not b[0].divisors:
                over = _Term(b[0].negative, (), (), b[0].factors)
                return [t.times(over) for t in a]
            case _:
                return whole

    def _is_same(self, e: Node) -> bool:
        """A value is the same along the summed axes."""
        if e.storage is not None:
            return False
        expanded = e.op is Op.EXPAND and all(e.inputs[0].shape[a] == 1 for a in self.summed)
        return expanded or e.op is Op.CONST


_MINUS = _Term(True, ())


def _outside(t: _Term, n: Node, axes: tuple[int, ...]) -> Node:
    """The sum of a term, with its factors."""
    inside = t.inside[0]
    for x in t.inside[1:]:
        inside = graph.apply(Op.MUL, (inside, x))
    total = graph.apply(Op.SUM, (inside,), Axes(axes))
    for op, nodes in ((Op.MUL, t.factors), (Op.DIV, t.divisors)):
        for x in nodes:
            total = graph.apply(op, (total, _for_each_sum(x, n, axes)))
    return graph.apply(Op.NEG, (total,)) if t.negative else total


def _for_each_sum(x: Node, n: Node, axes: tuple[int, ...]) -> Node:
    """A factor that is the same along the summed axes, for each of the sums."""
    if x.op is Op.CONST:
        assert isinstance(x.attrs, Fill)
        return graph.const(x.attrs.value, x.dtype, n.shape)
    small = x.inputs[0]
    kept = tuple([size for a, size in enumerate(small.shape) if a not in axes])
    return graph.apply(Op.EXPAND, (graph.apply(Op.RESHAPE, (small,), shape=kept),), shape=n.shape)
