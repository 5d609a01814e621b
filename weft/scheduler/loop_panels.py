"""Matrices that a loop multiplies with in each step, laid out in panels before it.

    for t: h = x[t] + h @ w        p = panels of w        for t: h = x[t] + h @ (w as a view of p)

A product with few rows reads a matrix from the caches of a distance, line by line, or packs it first, and both in each
step again. In panels it lies in the order in which a tile reads it (`panels.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.protocol import DeviceInfo
from weft.ir import graph
from weft.ir.graph import Node, toposort
from weft.ir.index import high
from weft.ir.loop_body import Body, LoopNode
from weft.ir.loops import LoopKind
from weft.ir.numerics import pinned
from weft.ir.ops import Op
from weft.ir.rewrite import over, rebuilt, rewritten
from weft.scheduler.panels import panels

MIN_STEPS = 8
"""Steps of a loop from which a matrix is laid out: it is copied once, and read from afar in each step."""

MIN_ROWS = 2
"""Rows of results at least: one reads a matrix once, in the order in which it lies."""


def with_panels(outputs: Sequence[Node], info: DeviceInfo) -> Sequence[Node]:
    """The graph of `outputs`, without calls, with what its loops multiply with in panels; the nodes themselves where
    there is nothing to be gained."""
    if (
        info.task_kind is not LoopKind.PARALLEL
        or pinned()
        or all(n.op is not Op.LOOP for n in toposort(outputs))
    ):
        return outputs
    known: dict[tuple[Body, tuple[Node, ...]], tuple[Body, tuple[Node, ...]]] = {}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        if not isinstance(n.attrs, LoopNode):
            return over(n, inputs)
        key = n.attrs.body, inputs  # each result of a loop is a node of its own
        if key not in known:
            known[key] = _laid_out(*key, info)
        body, given = known[key]
        attrs = LoopNode(body, n.attrs.part, n.attrs.number)
        return graph.made(Op.LOOP, given, attrs, n.shape, n.dtype, lambda: n.device)

    return rewritten(outputs, rule)


def _laid_out(body: Body, inputs: tuple[Node, ...], info: DeviceInfo) -> tuple[Body, tuple[Node, ...]]:
    """A loop's body, and its inputs, with panels among these; as they are where it needs none."""
    if high(body.length) < MIN_STEPS:
        return body, inputs
    roots = [*body.nexts, *body.outs]
    begin = len(inputs) - len(body.fixed)
    given = dict(zip(body.fixed, inputs[begin:], strict=True))
    views = dict[Node, Node]()
    made = dict[Node, Node]()  # panels -> what stands for them in the body
    for p in panels(toposort(roots), frozenset(given), info, MIN_ROWS):
        laid_out = replace(p, weight=given[p.weight]).laid_out()
        if laid_out not in made:
            made[laid_out] = graph.buffer(laid_out.shape, laid_out.dtype, p.weight.device, None)
        views[p.factor] = p.factor_in(made[laid_out])
    if not made:
        return body, inputs
    roots = rebuilt(roots, views)
    read = {*toposort(roots), *roots}
    fixed = [*((p, n) for p, n in given.items() if p in read), *((p, n) for n, p in made.items())]
    changed = Body(
        body.carries, body.slices, body.offsets, tuple(p for p, _ in fixed),
        tuple(roots[: len(body.nexts)]), tuple(roots[len(body.nexts) :]), body.length, body.reverse,
    )  # fmt: skip
    return changed, (*inputs[:begin], *(n for _, n in fixed))
