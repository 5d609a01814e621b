"""Two contractions joined by a softmax: the condition under which one kernel may hold both.

    s = q k;  x = f(s);  m = max j: x;  e = exp(x - m);  l = sum j: e;  p = e / l;  o = sum j: p v

The first contraction's result is used only through a row-wise maximum and sums weighted by exp(x - maximum), over the
axis that the second one sums over: its rows need never be whole, since a running maximum can be corrected for.

Others may use m and l, through functions of them alone, row by row (m + log l, which gradients need): the kernel stores
these beside its result. To let others compute them would take all of s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.ir.graph import Axes, Fill, Node
from weft.ir.index import Int, Var, high
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize.contraction import contraction
from weft.scheduler.kernelize.facts import Facts

_NONE: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """The contraction `out`, the maximum and the sum of its weights' rows, and `members`: all nodes from the
    contraction that feeds it on, without `out`."""

    out: Node
    maximum: Node
    total: Node
    members: Sequence[Node]


@dataclass(frozen=True, slots=True)
class Beside:
    """Functions of the maximum and the sum of a chain's rows, each with the chain's nodes of that size, operands first;
    and those of them that others than such functions read."""

    below: Mapping[Node, Sequence[Node]]
    stored: Sequence[Node]


def online_members(
    node: Node,
    index: tuple[Int, ...],
    facts: Mapping[int, Facts],
    forced: Mapping[int, str],
    below: Mapping[Node, Sequence[Node]],
) -> frozenset[int]:
    """Ids of the nodes between the contraction `node`, whose input is read at `index`, and the contraction that feeds
    it through a softmax over the axis summed over, and of those beside it; empty when there is none."""
    for chain in _chains(node, index):
        beside = [n for n, rows in below.items() if chain.total in rows]
        consumers = {id(n): facts[id(n)].consumers for n in chain.members if id(n) in facts}
        if _closed(chain, beside, consumers, forced):
            return frozenset([id(n) for n in (*chain.members, *beside)])
    return _NONE


def rows_beside(order: Sequence[Node], outputs: Sequence[Node], forced: Mapping[int, str]) -> Beside:
    """The functions of rows' maxima and sums that chains among the nodes `order` can store beside their results."""
    chains = [
        chain
        for n in order
        if n.op is Op.SUM and n.storage is None
        for chain in _chains(n, _coordinates(n))[:1]
        if contraction(n) is not None
    ]
    below: dict[Node, Sequence[Node]] = {}
    stored: list[Node] = []
    if not chains:
        return Beside(below, stored)
    users: dict[int, list[Node]] = {}
    for n in order:
        for i in dict.fromkeys(n.inputs) if n.storage is None else ():
            users.setdefault(id(i), []).append(n)
    consumers = {k: len(found) for k, found in users.items()}
    results = set(map(id, outputs))
    for chain in chains:
        mine = _functions_of(chain, users)
        if mine and _closed(chain, list(mine), consumers, forced):
            rows = [n for n in chain.members if _sizes(n) == _sizes(chain.total)]
            below.update(dict.fromkeys(mine, rows))
            stored += [
                n for n in mine if id(n) in results or any(u not in mine for u in users.get(id(n), ()))
            ]
    return Beside(below, stored)


def _coordinates(node: Node) -> tuple[Int, ...]:
    """Coordinates of what the node sums."""
    assert isinstance(node.attrs, Axes)
    return tuple([
        0 if n == 1 else Var(f"@{'r' if k in node.attrs.axes else 'i'}{k}", 0, max(high(n) - 1, 0))
        for k, n in enumerate(node.inputs[0].shape)
    ])  # fmt: skip


def _functions_of(chain: Chain, users: Mapping[int, Sequence[Node]]) -> dict[Node, None]:
    """The nodes outside of the chain that are functions of its rows' maximum and sum alone, element by element."""
    inside = {id(n) for n in chain.members}
    rows = {id(chain.maximum), id(chain.total)}
    sizes = _sizes(chain.total)
    found: dict[Node, None] = {}
    stack = [chain.maximum, chain.total]
    while stack:
        for n in users.get(id(stack.pop()), ()):
            if id(n) in rows or not (n.op in ELEMENTWISE or n.op is Op.RESHAPE):
                continue
            if _sizes(n) == sizes and all(id(i) in rows or _is_constant(i) for i in n.inputs):
                rows.add(id(n))
                stack.append(n)
                if id(n) not in inside:
                    found[n] = None
    return found


def _sizes(node: Node) -> list[Int]:
    """The sizes other than 1."""
    return [n for n in node.shape if n != 1]


def _is_constant(node: Node) -> bool:
    while node.storage is None and node.op in MOVEMENT:
        node = node.inputs[0]
    return node.storage is None and node.op is Op.CONST


def _chains(node: Node, index: tuple[Int, ...]) -> Sequence[Chain]:
    """The chains that end in the contraction `node`, whose input is read at `index`: one for a factor of weights."""
    product, at = _descend(node.inputs[0], index)
    if product.op is not Op.MUL:
        return ()
    found: list[Chain] = []
    for side in product.inputs:
        weights = _weights(side, at)
        chain = None if weights is None else _chain(node, product, *weights)
        if chain is not None:
            found.append(chain)
    return found


def _descend(node: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]]:
    while node.storage is None and node.op in MOVEMENT:
        node, index = node.inputs[0], source(node, index).index
    return node, index


def _weights(node: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]] | None:
    """The exponential that is a factor of `node`, and the index at which it is read."""
    while node.storage is None:
        if node.op in MOVEMENT:
            index = source(node, index).index
            node = node.inputs[0]
        elif node.op is Op.EXP:
            return node, index
        elif node.op is Op.DIV or node.op is Op.CAST:
            node = node.inputs[0]
        elif node.op is Op.MUL:
            left = _weights(node.inputs[0], index)
            return left if left is not None else _weights(node.inputs[1], index)
        elif node.op is Op.WHERE and isinstance(zero := node.inputs[2].attrs, Fill) and zero.value == 0:
            node = node.inputs[1]
        else:
            return None
    return None


def _chain(out: Node, product: Node, exp: Node, index: tuple[Int, ...]) -> Chain | None:
    """The nodes from `out` down to the inner contraction; None where the form does not hold."""
    shifted = exp.inputs[0]
    if shifted.op is not Op.SUB:
        return None
    x = shifted.inputs[0]
    top, _ = _descend(shifted.inputs[1], index)
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
    found: dict[int, Node] = {id(out): out, id(inner): inner}
    order: list[Node] = []
    stack: list[tuple[Node, bool]] = [(product, False)]
    seen: set[int] = {id(inner)}
    while stack:  # all nodes between `product` and `inner`, operands first
        node, done = stack.pop()
        if done:
            if any(id(i) in found for i in node.inputs):
                found[id(node)] = node
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
        if node is not out and contraction(node) is not None:
            continue
        stack.extend((i, False) for i in node.inputs)
    sums = [n for n in order if n.op in REDUCE and n is not top]
    if any(n.op is not Op.SUM or contraction(n) is not None for n in sums) or len(sums) != 1:
        return None
    return Chain(out, top, sums[0], [inner, *(n for n in order if n is not out)])


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
    chain: Chain, beside: Sequence[Node], consumers: Mapping[int, int], forced: Mapping[int, str]
) -> bool:
    """True where all uses of the nodes between the contractions lie there too, or `beside` them."""
    uses: dict[int, int] = {}
    for n in (chain.out, *chain.members, *beside):
        for i in dict.fromkeys(n.inputs):
            uses[id(i)] = uses.get(id(i), 0) + 1
    inside = [n for n in chain.members if id(n) in consumers]
    return all(uses.get(id(n), 0) == consumers[id(n)] and id(n) not in forced for n in inside)
