"""Calls: nodes that stand for a recorded graph over their inputs, and become its root when somebody looks inside.

    softmax(x)      one node        instead of        reduce_max, reshape, expand, sub, exp, sum, reshape, expand, div

A step of an eager loop builds the graph of the last one over other leaves. Its structure alone says which plan serves
it, so nodes that nobody looks into need not be made: a call names what it stands for, and is one row of the signature.
`toposort`, which everything goes through that reads graphs, expands the calls that it meets (`expand`): the node itself
becomes the root of what was recorded, by the rules by which `apply` makes nodes: the graph is the one without calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from weft.ir import graph, shape_rules
from weft.ir.dtypes import DType
from weft.ir.graph import Attrs, Node, Shape
from weft.ir.interning import entering
from weft.ir.loop_body import Loop
from weft.ir.ops import MOVEMENT, Op


@dataclass(frozen=True, slots=True)
class Row:
    """A node to be. Its inputs by number: the body's inputs come first, then the rows."""

    op: Op
    inputs: tuple[int, ...]
    attrs: Attrs
    shape: Shape
    dtype: DType


class Call:
    """CALL: one result of a body. `uses` are the numbers of the body's inputs that it depends on; each result is one
    object, compared by identity."""

    __slots__ = ("dtype", "placed", "root", "rows", "shape", "text", "uses")

    def __init__(
        self, rows: tuple[Row, ...], arity: int, root: Row, placed: bool, uses: tuple[int, ...]
    ) -> None:
        self.rows, self.root, self.uses = rows, arity + len(rows) - 1, uses
        self.shape, self.dtype, self.placed = root.shape, root.dtype, placed
        text = repr((arity, uses, [(r.op.name, r.inputs, r.attrs, r.shape, r.dtype) for r in rows]))
        self.text = hashlib.sha256(text.encode()).hexdigest()

    def __repr__(self) -> str:
        return f"Call({self.text})"

    def on(self, inputs: Sequence[Node]) -> Node:
        """The call of the body on inputs of the shapes and dtypes that it was recorded with."""
        used = tuple([inputs[k] for k in self.uses])
        if not used:  # a constant
            return _built(self.rows, [])[-1]
        device = None
        if self.placed:
            for i in used:
                if i.device is not None:
                    device = i.device
                    break
        return graph.intern(graph.CALL, used, self, self.shape, self.dtype, device)


def recorded(inputs: Sequence[Node], results: Sequence[Node]) -> list[Call] | None:
    """What `results` were made of, as calls on `inputs`, which stood for values (leaves without one). None where they
    are made of other values too, or of what a call cannot say."""
    numbers = {n: k for k, n in enumerate(inputs)}
    out: list[Call] = []
    for result in results:
        order = _between(numbers, result)
        if not order:
            return None
        uses = sorted({numbers[i] for n in order for i in n.inputs if i in numbers})
        own = {inputs[k]: j for j, k in enumerate(uses)}
        rows: list[Row] = []
        for n in order:
            if n.op in (Op.BUFFER, Op.COPY, graph.CALL) or n.storage is not None or isinstance(n.attrs, Loop):
                return None
            if not all(isinstance(s, int) for s in n.shape):
                return None
            rows.append(Row(n.op, tuple([own[i] for i in n.inputs]), n.attrs, n.shape, n.dtype))
            own[n] = len(own)
        out.append(Call(tuple(rows), len(uses), rows[-1], result.device is not None, tuple(uses)))
    return out


def _between(inputs: Mapping[Node, int], result: Node) -> list[Node]:
    """The nodes that `result` is made of, from the inputs on."""
    order: list[Node] = []
    seen = set(inputs)
    stack = [(result, False)]
    while stack:
        n, done = stack.pop()
        if done:
            order.append(n)
        elif n not in seen:
            seen.add(n)
            stack.append((n, True))
            stack.extend([(i, False) for i in reversed(n.inputs)])
    return order


def expand(node: Node, seen: set[int]) -> None:
    """Expand this call, and before it those that it is computed from; `seen` are nodes under which none are left."""
    stack: list[tuple[Node, bool]] = [(node, False)]
    while stack:
        n, done = stack.pop()
        if done:
            _become(n)
        elif id(n) not in seen:
            seen.add(id(n))
            if n.op is graph.CALL:
                stack.append((n, True))
            if n.storage is None or n is node:
                stack.extend([(i, False) for i in n.inputs if id(i) not in seen])


def expand_all(nodes: Sequence[Node], seen: set[int]) -> None:
    """Expand those of the nodes that are calls, the shortest first: what several have in common becomes the root of one
    and an inner node of the others, and not a root that only stands for it (an optimizer's moments, in its step)."""
    sized = [(len(n.attrs.rows), n) for n in nodes if isinstance(n.attrs, Call) and n.storage is None]
    for _, node in sorted(sized, key=lambda s: s[0]):
        expand(node, seen)


def _become(node: Node) -> None:
    """Make a call the root of its body over its inputs."""
    with entering:
        call = node.attrs
        if not isinstance(call, Call):
            return
        made = _built(call.rows[:-1], [_meant(i) for i in node.inputs])
        last = call.rows[-1]
        inputs = tuple([made[k] for k in last.inputs])
        op, attrs = last.op, last.attrs
        device = next((i.device for i in inputs if i.device is not None), None)
        simple = not inputs or shape_rules.simplify(op, inputs, attrs, last.shape, last.dtype) is not None
        if (
            simple
            or op in MOVEMENT
            or graph.known(op, inputs, attrs, last.shape, last.dtype, device) is not None
        ):
            # there is such a node already, or a simpler one: this one is the same elements in the same shape
            root = _made(last, made)
            op, inputs, attrs, device = Op.RESHAPE, (root,), None, root.device
            while graph.known(op, inputs, attrs, node.shape, node.dtype, device) is not None:
                inputs = (graph.intern(op, inputs, attrs, node.shape, node.dtype, device),)
        node.attrs = attrs  # first: who finds a call here has read the call's inputs before
        node.inputs, node.device = inputs, device
        node.op = op  # last: who finds that it is no call finds the rest
        graph.enter(node)


def fields(node: Node) -> tuple[Op, tuple[Node, ...], Attrs]:
    """The op, inputs and attributes of a call, or of what it became: from before or after another thread expands it."""
    with entering:
        return node.op, node.inputs, node.attrs


def _meant(node: Node) -> Node:
    """What a node that only stands for another one stands for."""
    while node.op is Op.RESHAPE and node.storage is None and node.shape == node.inputs[0].shape:
        node = node.inputs[0]
    return node


def _built(rows: Sequence[Row], made: list[Node]) -> list[Node]:
    """The inputs, and the nodes of the rows after them."""
    for row in rows:
        made.append(_made(row, made))
    return made


def _made(row: Row, made: list[Node]) -> Node:
    inputs = tuple([made[k] for k in row.inputs])
    if not inputs:
        return graph.intern(row.op, (), row.attrs, row.shape, row.dtype, None)
    return graph.apply(row.op, inputs, row.attrs, row.shape, row.dtype)
