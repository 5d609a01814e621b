"""Parts of loops: boxes of results of a LOOP, made by a loop over boxes of what its steps work on.

    h, _ = scan(step, h0, xs)        xs: (steps, batch, d)        rows [0:4] of h: a scan of xs[:, 0:4], from h0[0:4]

Axes that a step keeps apart may be parted, all steps are taken. Results of one loop are made together, by one loop.
"""
# Tests: tests/scheduler/sharding/test_networks.py

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.ir.graph import Node, apply, buffer
from weft.ir.loop_body import Body, LoopNode, Part, in_memory
from weft.ir.ops import LEAVES, Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import needs
from weft.ir.regions.parts import Parts, PartsOf, Place, pulled, shrunk, size_of, whole_of
from weft.ir.regions.region import Region, united
from weft.lazy_dataclass import dataclass

_COPIED = LEAVES | {Op.UPDATE, Op.SCATTER, Op.LOOP, Op.COPY}
"""Ops whose results a step does not leave in a row of a larger tensor, as they are memory of their own."""


class _OutsideError(Exception):
    """A step needs more of what goes from step to step than the region that was found for it."""


@dataclass(frozen=True, slots=True)
class _Inside:
    """The placeholders of a body in smaller ones: the box that each has, and its own new placeholder."""

    boxes: Mapping[Node, IndexBox]
    new: Mapping[Node, Node]

    def taken(self, n: Node, box: IndexBox) -> Node | None:
        if n not in self.boxes:
            if n.op is Op.BUFFER:
                raise _OutsideError
            return None
        if not bx.holds(self.boxes[n], box):
            raise _OutsideError
        return shrunk(self.new[n], self.boxes[n], box)


def loop_parts(node: Node, box: IndexBox, beside: Mapping[Node, IndexBox]) -> Parts:
    """The parts that a box of a loop's result is made from. `beside`: boxes of all of its results that are wanted."""
    loop = node.attrs
    assert isinstance(loop, LoopNode)
    wanted = {n: _all_rows(n, b) for n, b in {**beside, node: box}.items() if not bx.is_empty(b)}
    if loop.body.height > 1 or bx.is_empty(box):
        return whole_of(node, box)
    try:
        return _parted(node, box, loop.body, wanted)
    except _OutsideError:
        return whole_of(node, box)


def _all_rows(n: Node, box: IndexBox) -> IndexBox:
    """The box with all steps."""
    assert isinstance(n.attrs, LoopNode)
    return box if n.attrs.part is Part.FINAL else (Interval(0, n.shape[0]), *box[1:])


def _parted(node: Node, box: IndexBox, body: Body, wanted: Mapping[Node, IndexBox]) -> Parts:
    each = zip(*[needs(n, Region((b,))) for n, b in wanted.items()], strict=True)
    found = [united(of) for of in each]
    carried, sliced = len(body.carries), len(body.slices)
    inputs: list[IndexBox | None] = [None if r.is_empty else r.enclosing for r in found]
    inside = list(inputs)
    for k in range(carried, carried + sliced):
        part = inputs[k]
        if part is not None:
            inputs[k], inside[k] = (Interval(0, node.inputs[k].shape[0]), *part[1:]), part[1:]
    placeholders = (*body.carries, *body.slices, *body.fixed)
    own = {p: b for p, b in zip(placeholders, inside, strict=True) if b is not None}
    new = {p: buffer(size_of(b), p.dtype, p.device, None) for p, b in own.items()}
    made, parts, at = dict[Place, Node](), PartsOf(), _Inside(own, new)

    def root(n: Node, b: IndexBox) -> Node:
        n = pulled(n, b, at.taken, made, parts)
        return apply(Op.CONTIGUOUS, (n,)) if n.op in _COPIED else n

    kept = [k for k, p in enumerate(body.carries) if p in own]
    results = [(n.attrs, b) for n, b in wanted.items() if isinstance(n.attrs, LoopNode)]
    stacked = {of.number: b[1:] for of, b in sorted(results, key=_number) if of.part is Part.STACK}
    local = Body(
        tuple([new[body.carries[k]] for k in kept]),
        tuple([new[p] for p in body.slices if p in own]),
        tuple([o for p, o in zip(body.slices, body.offsets, strict=True) if p in own]),
        tuple([new[p] for p in body.fixed if p in own]),
        tuple([root(body.nexts[k], own[body.carries[k]]) for k in kept]),
        tuple([root(body.outs[k], b) for k, b in stacked.items()]),
        body.length,
        body.reverse,
    )
    loop = node.attrs
    assert isinstance(loop, LoopNode)
    if loop.part is Part.STACK:
        number, around = list(stacked).index(loop.number), wanted[node]
    else:
        number, around = kept.index(loop.number), own[body.carries[loop.number]]
        around = around if loop.part is Part.FINAL else (Interval(0, node.shape[0]), *around)

    def make(xs: Sequence[Node]) -> Node:
        result = apply(Op.LOOP, tuple(map(in_memory, xs)), LoopNode(local, loop.part, number))
        return shrunk(result, around, box)

    return Parts(tuple(inputs), make)


def _number(result: tuple[LoopNode, IndexBox]) -> int:
    return result[0].number
