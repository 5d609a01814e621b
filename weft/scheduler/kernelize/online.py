"""Two contractions joined by a softmax: the condition under which one kernel may hold both.

    s = q k;  x = f(s);  m = max j: x;  e = exp(x - m);  l = sum j: e;  p = e / l;  o = sum j: p v

The first contraction's result is used only through a row-wise maximum and sums weighted by exp(x - maximum), over the
axis that the second one sums over: its rows need never be whole, since a running maximum can be corrected for. The
maximum may be kept finite, exp(x - max(m, lowest)).

Others may use m and l, or functions of them alone, row by row (m + log l, which gradients need): the kernel stores
these beside its result. To let others compute them would take all of s. Where the product is not divided by l, it is
with m and l the *state* of a block of columns (`sharding/online.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from weft.ir.dtypes import LARGEST
from weft.ir.graph import Axes, Fill, Node
from weft.ir.index import Int, Var, high
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.contraction import contraction

_Users = Mapping[int, Sequence[Node]]
"""The nodes that read each node, by its id."""


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The contraction `out`, the maximum and the sum along `axis` of its weights, these, and `members`: all nodes from
    the contraction that feeds it on, without `out`. `is_divided`: the product reads the sum."""

    out: Node
    maximum: Node
    total: Node
    weights: Node
    axis: int
    members: Sequence[Node]
    is_divided: bool

    @property
    def known(self) -> Sequence[tuple[Node, int | None]]:
        """Nodes of which the kernel may know the place before that of rows beside: those of their sizes, and the
        weights; with the axis that these have and rows do not."""
        sizes = _sizes(self.total)
        return [*[(n, None) for n in self.members if _sizes(n) == sizes], (self.weights, self.axis)]


@dataclass(frozen=True, slots=True)
class Chains:
    """The chains of a graph that one kernel each may hold: `held`, the ids of the nodes in it, by the last contraction.

    `beside`: the rows' maxima, sums and functions of these that are computed beside results, with their chains, and
    `stored` those of them that others read. `alone`: the contractions that are stored without what is computed of
    them, since it reads the maximum too: what combines states stores a new maximum, which it would wait for."""

    held: dict[Node, frozenset[int]]
    beside: dict[Node, Chain]
    stored: list[Node]
    alone: set[Node]


def chains_in(order: Sequence[Node], outputs: Sequence[Node], forced: Mapping[int, str]) -> Chains:
    """The chains among the nodes `order`, of which those in `forced` are stored in any case."""
    forms = [
        (n, form)
        for n in order
        if n.op is Op.SUM and n.storage is None
        for form in _forms(n, _coordinates(n))
    ]
    found = Chains({}, {}, [], set())
    if not forms:
        return found
    users: dict[int, list[Node]] = {}
    for n in order:
        for i in dict.fromkeys(n.inputs) if n.storage is None else ():
            users.setdefault(id(i), []).append(n)
    for n, form in forms:
        chain = None if n in found.held or contraction(n) is None else _chain(n, *form, users)
        if chain is not None:
            _note(found, chain, users, set(outputs), forced)
    return found


def _note(found: Chains, chain: Chain, users: _Users, results: Set[Node], forced: Mapping[int, str]) -> None:
    """Note what one kernel holds for the chain, where it may."""
    rows = _rows(chain, users)
    inside = {*chain.members, *rows}
    if not _closed(chain, inside, rows, users, forced):
        return
    kept: dict[Node, bool] = {}  # those that are stored; True where others read them
    for n in rows:
        is_read = not inside.issuperset(users.get(id(n), ()))
        shown = n.op is Op.RESHAPE and n.inputs[0] in kept and n not in results  # read as what it reshapes
        if (is_read or n in results) and not shown:
            kept[n] = is_read
    found.held[chain.out] = frozenset(map(id, inside))
    found.stored.extend(kept)
    late = [n for n in rows if n not in chain.members or (n is chain.total and not chain.is_divided)]
    found.beside.update(dict.fromkeys((*kept, *late), chain))
    if not chain.is_divided and any(_without_shape(n) is chain.maximum for n, read in kept.items() if read):
        found.alone.add(chain.out)


def _without_shape(node: Node) -> Node:
    """The node below reshapes, and below what keeps a maximum finite."""
    while node.storage is None and (node.op is Op.RESHAPE or _is_kept_finite(node)):
        node = node.inputs[0]
    return node


def _coordinates(node: Node) -> tuple[Int, ...]:
    """Coordinates of what the node sums."""
    assert isinstance(node.attrs, Axes)
    return tuple([
        0 if n == 1 else Var(f"@{'r' if k in node.attrs.axes else 'i'}{k}", 0, max(high(n) - 1, 0))
        for k, n in enumerate(node.inputs[0].shape)
    ])  # fmt: skip


def _rows(chain: Chain, users: _Users) -> Sequence[Node]:
    """The chain's maximum and sum, and all functions of these alone, element by element, operands first."""
    rows: dict[Node, None] = {chain.maximum: None, chain.total: None}
    sizes = _sizes(chain.total)
    stack = list(rows)
    while stack:
        for n in users.get(id(stack.pop()), ()):
            if n in rows or not (n.op in ELEMENTWISE or n.op is Op.RESHAPE):
                continue
            if _sizes(n) == sizes and all(i in rows or _is_constant(i) for i in n.inputs):
                rows[n] = None
                stack.append(n)
    return list(rows)


def _sizes(node: Node) -> list[Int]:
    """The sizes other than 1."""
    return [n for n in node.shape if n != 1]


def _is_constant(node: Node) -> bool:
    while node.storage is None and node.op in MOVEMENT:
        node = node.inputs[0]
    return node.storage is None and node.op is Op.CONST


def _forms(node: Node, index: tuple[Int, ...]) -> Sequence[tuple[Node, Node, tuple[Int, ...]]]:
    """The product that the node sums, whose operand is read at `index`, with an exponential that is a factor of it and
    the index at which that is read: one for each factor that has one."""
    product, at = _descend(node.inputs[0], index)
    if product.op is not Op.MUL:
        return ()
    found = [_weights(side, at) for side in product.inputs]
    return [(product, *weights) for weights in found if weights is not None]


def _descend(node: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]]:
    while node.storage is None and node.op in MOVEMENT:
        node, index = node.inputs[0], source(node, index).index
    return node, index


def _weights(
    node: Node, index: tuple[Int, ...], without: set[Node] | None = None
) -> tuple[Node, tuple[Int, ...]] | None:
    """The exponential that is a factor of `node`, and the index at which it is read. `without`: products that are known
    to have none; a factor may be shared many times over."""
    without = set() if without is None else without
    while node.storage is None:
        if node.op in MOVEMENT:
            index = source(node, index).index
            node = node.inputs[0]
        elif node.op is Op.EXP:
            return node, index
        elif node.op is Op.DIV or node.op is Op.CAST:
            node = node.inputs[0]
        elif node.op is Op.MUL:
            if node in without:
                return None
            found = _weights(node.inputs[0], index, without) or _weights(node.inputs[1], index, without)
            if found is None:
                without.add(node)
            return found
        elif node.op is Op.WHERE and isinstance(zero := node.inputs[2].attrs, Fill) and zero.value == 0:
            node = node.inputs[1]
        else:
            return None
    return None


def _chain(out: Node, product: Node, exp: Node, index: tuple[Int, ...], users: _Users) -> Chain | None:
    """The nodes from `out` down to the inner contraction; None where the form does not hold."""
    shifted = exp.inputs[0]
    if shifted.op is not Op.SUB:
        return None
    x = shifted.inputs[0]
    top, at = _descend(shifted.inputs[1], index)
    if _is_kept_finite(top):
        top, _ = _descend(top.inputs[0], at)
    if top.op is not Op.REDUCE_MAX or top.inputs[0] is not x or not isinstance(top.attrs, Axes):
        return None
    if len(top.attrs.axes) != 1:
        return None
    axis = index[top.attrs.axes[0]]
    if not isinstance(axis, Var) or not axis.name.startswith("@r"):
        return None
    inner = _scores(x)
    if inner is None:
        return None
    between = _between(out, product, inner)
    sums = [n for n in between if n.op in REDUCE and n is not top]
    is_divided = bool(sums)
    if not is_divided:  # it is read beside the product only
        sums = [n for n in users.get(id(exp), ()) if n.op is Op.SUM and n.attrs == top.attrs]
        between += sums
    if any(n.op is not Op.SUM or contraction(n) is not None for n in sums) or len(sums) != 1:
        return None
    return Chain(out, top, sums[0], exp, top.attrs.axes[0], [inner, *between], is_divided)


def _is_kept_finite(top: Node) -> bool:
    """True for max(m, lowest): it differs from m only where m is -inf, so that a running maximum may stand for it."""
    if top.op is not Op.MAX or top.storage is not None or top.dtype not in LARGEST:
        return False
    lowest = top.inputs[1]
    return (
        isinstance(lowest.attrs, Fill) and lowest.op is Op.CONST and lowest.attrs.value == -LARGEST[top.dtype]
    )


def _between(out: Node, product: Node, inner: Node) -> list[Node]:
    """All nodes between `product` and `inner`, operands first."""
    found: set[int] = {id(inner)}
    order: list[Node] = []
    stack: list[tuple[Node, bool]] = [(product, False)]
    seen: set[int] = {id(inner)}
    while stack:
        node, done = stack.pop()
        if done:
            if any(id(i) in found for i in node.inputs):
                found.add(id(node))
                order.append(node)
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.storage is not None or not (
            node.op in ELEMENTWISE or node.op in MOVEMENT or node.op in REDUCE
        ):
            continue
        stack.append((node, True))
        if contraction(node) is None:
            stack.extend((i, False) for i in node.inputs)
    return order


def _scores(x: Node) -> Node | None:
    """The contraction that x is an elementwise function of, if it is of exactly one."""
    found: dict[int, Node] = {}
    stack, seen = [x], set[int]()
    while stack:
        node = stack.pop()
        if id(node) in seen or node.storage is not None:
            continue
        seen.add(id(node))
        if node.op in REDUCE:
            found[id(node)] = node
        elif node.op in ELEMENTWISE or node.op in MOVEMENT:
            stack.extend(node.inputs)
        elif node.inputs:
            return None
    nodes = list(found.values())
    return nodes[0] if len(nodes) == 1 and contraction(nodes[0]) is not None else None


def _closed(
    chain: Chain, inside: Set[Node], rows: Sequence[Node], users: _Users, forced: Mapping[int, str]
) -> bool:
    """True where all uses of the nodes between the contractions lie there too, but for those of rows, which can be
    stored."""
    own = {chain.out, *inside}
    others = [n for n in chain.members if n not in rows]
    return all(id(n) not in forced and own.issuperset(users.get(id(n), ())) for n in others)
