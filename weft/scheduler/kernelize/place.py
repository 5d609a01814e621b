"""Where a reduction may be computed inside the kernel that reads it: the conditions, with a reason when one fails."""

from __future__ import annotations

from weft.ir.graph import Node
from weft.ir.index import Var, high
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import divided, one_to_one
from weft.scheduler.kernelize.facts import Big, Facts
from weft.scheduler.kernelize.groups import Frame, Group, Site


def refusal(node: Node, f: Facts, site: Site) -> str | None:
    """Why the reduction `node` (or a function of one, of its size) cannot be computed where it is read; None if it can.

    It can where each of its elements is computed once: its index uses some of the reader's axes one to one, and the
    axes of all reductions of the kernel are nested in each other (rows inside blocks of rows).
    """
    group = site.group
    axes = one_to_one(site.index, node.shape, group.extents)
    if axes is None:
        return "its elements are not read once each, in some order of loops"
    if id(node) in group.online:
        return None
    if f.big is Big.CONTRACTION:
        return _contraction_refusal(group, site, axes)
    if group.contraction & site.frames:
        return "a product's operand may not wait for a reduction"
    if group.contraction:
        return "a kernel around a product reduces nothing else"
    readers = group.frames_of(site.frames)
    if len(readers) > 1 and any(len({id(r.home(v)) for r in readers}) > 1 for v in axes):
        return "more than one pass over its elements is needed"
    for other in group.reductions():
        theirs = frozenset(other.axes)
        if not (axes <= theirs or theirs <= axes) and _meet(group, other, readers):
            return "it runs over other axes than the kernel's other reductions"
    return _rows_refusal(group, f, axes, readers)


def _contraction_refusal(group: Group, site: Site, axes: frozenset[Var]) -> str | None:
    readers = group.frames_of(site.frames)
    if any(r.node is not None for r in readers):
        return "a product is not computed inside another reduction"
    if len(readers) != 1 or len(group.outputs()) != 1:
        return "a kernel around a product has one output domain"
    if axes != frozenset(readers[0].axes):
        return "a product is not recomputed along axes that it does not have"
    if group.reductions():
        return "a kernel around a product reduces nothing else"
    if any(divided(i) for i in site.index):
        return "a reshape splits its axes"
    return None


def _meet(group: Group, other: Frame, readers: list[Frame]) -> bool:
    """Both are computed for one output."""
    outputs = group.outputs()
    if len(outputs) == 1:
        return True
    assert other.site is not None
    mine = 0
    for r in readers:
        mine |= r.bit
    return bool(other.site.frames & mine) or not all(r.node is None for r in readers)


def _rows_refusal(group: Group, f: Facts, axes: frozenset[Var], readers: list[Frame]) -> str | None:
    """Few long rows, all of which must be complete before the first use: cores would wait."""
    rows = _points(group, axes)
    whole = max((_points(group, frozenset(r.axes)) for r in readers), default=rows)
    row = _size(f) // max(f.size, 1)
    if rows < cost.MIN_ROWS and whole > rows and row > cost.LONG_ROW:
        return "all of a long row is needed before its first use"
    return None


def _points(group: Group, axes: frozenset[Var]) -> int:
    n = 1
    for v in axes:
        n *= high(group.extents[v])
    return n


def _size(f: Facts) -> int:
    n = 1
    for s in f.reduced:
        n *= high(s)
    return n
