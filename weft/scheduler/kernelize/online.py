"""Two contractions joined by a softmax: the condition under which one kernel may hold both.

    s = q k;  x = f(s);  m = max j: x;  e = exp(x - m);  l = sum j: e;  p = e / l;  o = sum j: p v

The first contraction's result is used only through a row-wise maximum and sums weighted by exp(x - maximum), over the
axis that the second one sums over: its rows need never be whole, since a running maximum can be corrected for. The
maximum and the plain sum may be results as well: they are the state of a block of columns (`sharding/online.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.graph import Axes, Fill, Node
from weft.ir.index import Int, Var
from weft.ir.movement import source
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize.contraction import contraction
from weft.scheduler.kernelize.facts import Facts
from weft.scheduler.kernelize.prepare import Prepared

_NONE: frozenset[int] = frozenset()


def online_members(
    node: Node, index: tuple[Int, ...], facts: Mapping[int, Facts], prepared: Prepared
) -> frozenset[int]:
    """Ids of the nodes between the contraction `node`, whose input is read at `index`, and the contraction that feeds
    it through a softmax over the axis summed over; empty when there is none."""
    product, at = _descend(node.inputs[0], index)
    if product.op is not Op.MUL:
        return _NONE
    for side in product.inputs:
        found = _weights(side, at)
        if found is None:
            continue
        exp, here = found
        members = _members(node, product, exp, here, prepared)
        if members and _closed(members, facts, prepared.forced):
            return frozenset(id(n) for n in members if n is not node)
    return _NONE


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


def _members(
    out: Node, product: Node, exp: Node, index: tuple[Int, ...], prepared: Prepared
) -> list[Node] | None:
    """The nodes from `out` down to the inner contraction; None where the form does not hold."""
    shifted = exp.inputs[0]
    if shifted.op is not Op.SUB:
        return None
    x = shifted.inputs[0]
    top, at = _descend(shifted.inputs[1], index)
    if top.op is Op.MAX and top.storage is None and isinstance(top.inputs[1].attrs, Fill):  # kept finite
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
    if not sums:  # it is a result beside
        sums = [n for n in prepared.sums_of(exp) if n.attrs == top.attrs and id(n) in prepared.forced]
        order += sums
    if any(n.op is not Op.SUM or contraction(n) is not None for n in sums) or len(sums) != 1:
        return None
    return [out, inner, *order]


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


def _closed(members: list[Node], facts: Mapping[int, Facts], forced: Mapping[int, str]) -> bool:
    """True where all uses of the nodes between the contractions lie there too."""
    uses: dict[int, int] = {}
    for n in members:
        for i in dict.fromkeys(n.inputs):
            uses[id(i)] = uses.get(id(i), 0) + 1
    inside = [n for n in members[1:] if id(n) in facts]
    state = [n for n in inside[1:] if n.op in REDUCE]
    return all(
        (uses.get(id(n), 0) == facts[id(n)].consumers and id(n) not in forced)
        or (id(n) in forced and n in state)
        for n in inside
    )
