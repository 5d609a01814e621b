"""Calls: nodes that stand for a recorded graph over their inputs.

    softmax(x)      one node        instead of        reduce_max, reshape, expand, sub, exp, sum, reshape, expand, div

A step of an eager loop builds the graph of the last one over other leaves. Its structure alone says which plan serves
it, so nodes that nobody looks into need not be made: a call is one row of the signature. Who looks inside makes a graph
without calls first (`expand_calls`): the one that would have been built without them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from operator import itemgetter
from typing import Any

from weft.ir import graph
from weft.ir.dtypes import DType
from weft.ir.graph import Node, Shape, toposort
from weft.ir.loop_body import LoopNode, in_memory
from weft.ir.ops import Op
from weft.ir.rewrite import rewritten
from weft.ir.template import GraphTemplate
from weft.lazy_dataclass import dataclass

_CALL = Op.CALL
_REFUSED = frozenset({Op.COPY, Op.CALL})


@dataclass(frozen=True, slots=True)
class GraphCall:
    """One result of a recorded graph, and the numbers of the inputs that it depends on."""

    template: GraphTemplate
    uses: tuple[int, ...]
    pick: Callable[[Sequence[Node]], Any] = field(init=False, repr=False, compare=False)
    """Takes the inputs that are used, two at least, out of all."""
    shape: Shape = field(init=False, repr=False, compare=False)
    dtype: DType = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape, dtype = self.template.root
        object.__setattr__(self, "pick", itemgetter(*self.uses) if len(self.uses) > 1 else None)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)

    @property
    def whole(self) -> GraphCall:
        """The call, equal to all that do the same."""
        return GraphCall(self.template.whole, self.uses)

    def on(self, inputs: Sequence[Node]) -> Node:
        """The node that stands for the result on inputs of the shapes and dtypes that it was recorded with."""
        used: tuple[Node, ...]
        if len(self.uses) > 1:
            used = self.pick(inputs)
        elif self.uses:
            used = (inputs[self.uses[0]],)
        else:  # a constant
            return self.template.build(())[0]
        device = None
        for i in used:
            if i.device is not None:
                device = i.device
                break
        return graph.intern(_CALL, used, self.template, self.shape, self.dtype, device)


@dataclass(frozen=True, slots=True)
class Given:
    """A result that is one of the inputs, by its number: the gradient of a sum, say."""

    number: int

    @property
    def whole(self) -> Given:
        """As of calls."""
        return self

    def on(self, inputs: Sequence[Node]) -> Node:
        """The input."""
        return inputs[self.number]


def recorded(inputs: Sequence[Node], results: Sequence[Node]) -> list[GraphCall] | str:
    """`results` as calls on `inputs`, placeholders (leaves without a value); or the reason why they are none."""
    number = {n: k for k, n in enumerate(inputs)}
    out: list[GraphCall] = []
    for result in results:
        order = toposort([result], known=inputs)
        if not order:
            return f"{result!r} is one of its inputs"
        used: set[int] = set()
        for n in order:
            if n.op in _REFUSED or isinstance(n.attrs, LoopNode):
                return f"it contains {n!r}"
            for s in n.shape:
                if not isinstance(s, int):
                    return f"the shape of {n!r} is known only when it runs"
            for i in n.inputs:
                if i in number:
                    used.add(number[i])
        uses = sorted(used)
        template = GraphTemplate.of([inputs[k] for k in uses], [result], order)
        if isinstance(template, str):
            return template
        out.append(GraphCall(template, tuple(uses)))
    return out


def expand_calls(roots: Sequence[Node], stop_at_storage: bool = True) -> list[Node]:
    """The graph under `roots` without calls. Nodes are shared, so what several calls have in common is one node (an
    optimizer's moments, in its step). Different roots stay different nodes, each with a value to compute."""
    found = rewritten(roots, _expanded, stop_at_storage=stop_at_storage)
    taken = {new for old, new in zip(roots, found, strict=True) if new is old}
    made: dict[Node, Node] = {}
    for old, new in zip(roots, found, strict=True):
        if new is not old and old not in made:
            while new in taken or new.op is Op.BUFFER or new.storage is not None:
                new = graph.intern(Op.CONTIGUOUS, (new,), None, new.shape, new.dtype, new.device)
            taken.add(new)
            made[old] = new
    return [made.get(old, old) for old in roots]


def _expanded(n: Node, inputs: tuple[Node, ...]) -> Node:
    """The node on inputs without calls. A constant that a call became is put in memory for a loop."""
    if isinstance(n.attrs, GraphTemplate):
        return n.attrs.build(inputs, lambda: n.device)[0]
    if inputs == n.inputs:
        return n
    if n.op is Op.LOOP:
        inputs = tuple(map(in_memory, inputs))
    return graph.made(n.op, inputs, n.attrs, n.shape, n.dtype, lambda: n.device)
