"""Regions through nodes and graphs.

    needs(node, region)         per input, the elements that the node's elements in `region` are computed from
    reaches(node, k, region)    the node's elements in which input number k has a part through its elements in `region`
    needed({y: region})         the same for all nodes under y;     reached({x: region}, order)     for all above x

An answer is never too small, and says whether it is too large. Calls are looked into. Of a LOOP, the regions of carries
grow from step to step until they stay the same; a change of row t reaches steps from t on, and what step t makes needs
the rows up to t. So the rows of a batch stay apart through a recurrent network, as they do through a product.
"""
# Tests: tests/ir/regions/test_graphs.py, tests/ir/regions/test_ops.py

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft.ir.graph import Node, buffer, toposort
from weft.ir.index import Int, maximum, minimum
from weft.ir.loop_body import Body, LoopNode, Part
from weft.ir.regions.boxes import Interval
from weft.ir.regions.ops import Used, always, relation
from weft.ir.regions.region import NOTHING, Region, united, within
from weft.ir.template import GraphTemplate

MAX_GROWTH = 8
"""The steps in which the regions of a loop's carries may grow, before all of each is taken."""


def needs(node: Node, region: Region, used: Used = always) -> tuple[Region, ...]:
    """For each input, the region that the output's `region` is computed from."""
    if region.is_empty:
        return (NOTHING,) * len(node.inputs)
    match node.attrs:
        case GraphTemplate():
            leaves, root = _opened(node.attrs)
            found = needed({root: region}, used)
            return tuple([found.get(leaf, NOTHING) for leaf in leaves])
        case LoopNode():
            return _loop_needs(node.attrs, region, used)
        case _:
            accesses = relation(node, used)
            found = {id(of): of for of in accesses}  # an elementwise op has one relation for all operands
            read = {k: united(a.needs(region) for a in of) for k, of in found.items()}
            return tuple([within(read[id(of)], i.shape) for of, i in zip(accesses, node.inputs, strict=True)])


def reaches(node: Node, k: int, region: Region, used: Used = always) -> Region:
    """The output's region that can change when `region` of input number `k` does."""
    if region.is_empty:
        return NOTHING
    match node.attrs:
        case GraphTemplate():
            leaves, root = _opened(node.attrs)
            return reached({leaves[k]: region}, toposort([root]), used)[root]
        case LoopNode():
            return _loop_reaches(node.attrs, k, region, used)
        case _:
            return within(united(a.reaches(region) for a in relation(node, used)[k]), node.shape)


def needed(wanted: Mapping[Node, Region], used: Used = always) -> dict[Node, Region]:
    """The region of every node under the wanted ones that these are computed from; stored nodes count as leaves."""
    found = dict(wanted)
    for n in reversed(toposort(wanted)):
        region = found.setdefault(n, NOTHING)
        if n.storage is None and n.inputs and not region.is_empty:
            for i, r in zip(n.inputs, needs(n, region, used), strict=True):
                found[i] = found[i] | r if i in found else r
    return found


def reached(changed: Mapping[Node, Region], order: Iterable[Node], used: Used = always) -> dict[Node, Region]:
    """The region of every node of a graph, in the order of computation, that can change when those of `changed` do."""
    found = dict(changed)
    for n in order:
        if n not in found:
            parts = [(k, found[i]) for k, i in enumerate(n.inputs) if not found.get(i, NOTHING).is_empty]
            found[n] = united(reaches(n, k, r, used) for k, r in parts)
    return found


def _opened(template: GraphTemplate) -> tuple[list[Node], Node]:
    """The placeholders of a call's graph, and its result."""
    leaves = [buffer(shape, dtype, None, None) for shape, dtype in template.placeholders]
    return leaves, template.build(leaves)[0]


# loops ----------------------------------------------------------------------------------------------------------------


def _loop_needs(loop: LoopNode, region: Region, used: Used) -> tuple[Region, ...]:
    body, k = loop.body, loop.number
    own = region if loop.part is Part.FINAL else _in_rows(region)
    rows = Interval(0, body.length) if loop.part is Part.FINAL else _rows(region)
    root = body.outs[k] if loop.part is Part.STACK else body.nexts[k]
    results = (*body.nexts, *body.outs)
    wanted = dict.fromkeys(results, NOTHING) | {root: own}
    carries = [own if loop.part is not Part.STACK and n == k else NOTHING for n in range(len(body.carries))]
    found = needed(wanted, used)
    for growth in range(MAX_GROWTH + 1):
        grown = [
            _grown(c, found.get(p, NOTHING), p, growth) for c, p in zip(carries, body.carries, strict=True)
        ]
        if grown == carries:
            break
        carries = grown
        after = dict.fromkeys(results, NOTHING) | {root: own}
        for n, c in zip(body.nexts, carries, strict=True):
            after[n] = after[n] | c
        found = needed(after, used)
    steps = _steps_before(loop.part, body, rows, any(not c.is_empty for c in carries))
    slices = [
        _stacked(Interval(steps.lo + at, steps.hi + at), found.get(p, NOTHING))
        for p, at in zip(body.slices, body.offsets, strict=True)
    ]
    fixed = [found.get(p, NOTHING) for p in body.fixed]
    return tuple([replace(r, exact=False) for r in (*carries, *slices, *fixed)])


def _loop_reaches(loop: LoopNode, k: int, region: Region, used: Used) -> Region:
    """The part that the changed input has itself, in the steps that read it, and the part it has by way of carries."""
    body, c = loop.body, len(loop.body.carries)
    placeholder = (*body.carries, *body.slices, *body.fixed)[k]
    steps, own = Interval(0, body.length), region
    if c <= k < c + len(body.slices):
        rows, at = _rows(region), body.offsets[k - c]
        steps, own = steps & Interval(rows.lo - at, rows.hi - at), _in_rows(region)
    if steps.is_empty:
        return NOTHING
    order = toposort((*body.nexts, *body.outs))
    directly = reached({placeholder: own}, order, used)
    carries = [own if p is placeholder else NOTHING for p in body.carries]
    carried = dict.fromkeys(order, NOTHING)
    for growth in range(MAX_GROWTH + 1):
        grown = [
            _grown(r, directly[n] | carried[n], n, growth) for r, n in zip(carries, body.nexts, strict=True)
        ]
        if grown == carries:
            break
        carries = grown
        carried = reached(dict(zip(body.carries, carries, strict=True)), order, used)
    later = _steps_after(body, steps)
    match loop.part:
        case Part.FINAL:
            reach = carries[loop.number]
        case Part.STACK:
            out = body.outs[loop.number]
            reach = _stacked(steps, directly[out]) | _stacked(later, carried[out])
        case Part.HISTORY:
            made = Interval(later.lo + body.after, later.hi + body.after)
            reach = _stacked(Interval(0, body.length + 1) if k < c else made, carries[loop.number])
    return replace(reach, exact=False)


def _grown(before: Region, more: Region, node: Node, growth: int) -> Region:
    """A carry's region with what one more step adds: all of it, after many steps."""
    if before.contains(more):
        return before
    return before | more if growth < MAX_GROWTH - 1 else Region.whole(node.shape)


def _steps_before(part: Part, body: Body, rows: Interval, carried: bool) -> Interval:
    """The steps that rows of a result depend on."""
    if part is Part.STACK and not carried:
        return rows
    if part is Part.HISTORY:
        rows = Interval(rows.lo - body.after, rows.hi - body.after) & Interval(0, body.length)
    return Interval(rows.lo, body.length) if body.reverse else Interval(0, rows.hi)


def _steps_after(body: Body, steps: Interval) -> Interval:
    """The steps that these have a part in."""
    return Interval(0, steps.hi) if body.reverse else Interval(steps.lo, body.length)


def _rows(region: Region) -> Interval:
    """The rows of a region, from the first to the last."""
    lo: Int = region.boxes[0][0].lo
    hi: Int = region.boxes[0][0].hi
    for b in region.boxes[1:]:
        lo, hi = minimum(lo, b[0].lo), maximum(hi, b[0].hi)
    return Interval(lo, hi)


def _in_rows(region: Region) -> Region:
    """The elements of a row that are in any row of a region."""
    return Region.of([b[1:] for b in region.boxes], exact=False)


def _stacked(rows: Interval, region: Region) -> Region:
    """The same elements of several rows."""
    return Region.of([(rows, *b) for b in region.boxes], exact=False)
