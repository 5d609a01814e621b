"""Conditions under which a reduction fits into the kernel that reads it, with a reason when one fails."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from weft.ir.graph import Node
from weft.ir.index import Var, high
from weft.ir.numerics import Tree
from weft.ir.ops import Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import divided, one_to_one
from weft.scheduler.kernelize.contraction import scales_bytes
from weft.scheduler.kernelize.decisions import Cut
from weft.scheduler.kernelize.emit import tree_of
from weft.scheduler.kernelize.facts import Big, Facts
from weft.scheduler.kernelize.groups import Frame, Group, Site

WAITS = "a product's operand may not wait for a reduction"
_ALONE = "a kernel around a product reduces nothing else"


def refusal(node: Node, f: Facts, site: Site) -> Cut | None:
    """The reason why the reduction `node` (or a function of one, of its size) is not computed where it is read.

    It can be where each of its elements is computed once: its index uses some of the reader's axes one to one, and the
    axes of all reductions of the kernel are nested in each other (rows inside blocks of rows).
    """
    group = site.group
    axes = one_to_one(site.index, node.shape, group.extents)
    if axes is None:
        return Cut("its elements are not read once each, in some order of loops", forced=True)
    if id(node) in group.online:
        return None
    readers = group.frames_of(site.frames)
    if f.big is Big.CONTRACTION:
        why = _contraction_refusal(node, group, site, axes, readers)
    else:
        why = _reduction_refusal(group, site, axes, readers)
    if why is not None:
        return Cut(why, forced=True)
    if f.big is not Big.CONTRACTION and _waits_for_long_rows(group, f, axes, readers):
        return Cut("all of a long row is needed before its first use", forced=False)
    return None


def _reduction_refusal(
    group: Group, site: Site, axes: frozenset[Var], readers: Sequence[Frame]
) -> str | None:
    """The reason why a reduction other than a contraction does not fit into the loops of its readers."""
    if site.in_contraction or any(map(_is_pinned_product, readers)):
        return WAITS
    if group.contractions:
        return _ALONE
    if len(readers) > 1 and any(len({id(r.loop_owner(v)) for r in readers}) > 1 for v in axes):
        return "more than one pass over its elements is needed"
    for other in group.reductions():
        theirs = frozenset(other.axes)
        if not (axes <= theirs or theirs <= axes) and _meet(group, other, readers):
            return "it runs over other axes than the kernel's other reductions"
    return None


def _is_pinned_product(reader: Frame) -> bool:
    """True for a pinned sum of products: whatever its size, each result has an order of its own, so that lanes take
    squares of what is stored."""
    return reader.node is not None and tree_of(reader.node) is Tree.PRODUCTS


def _contraction_refusal(
    node: Node, group: Group, site: Site, axes: frozenset[Var], readers: Sequence[Frame]
) -> str | None:
    """The reason why a contraction does not fit into the loops of its readers."""
    if _scaled(node, group, axes, readers):
        return "a reshape splits its axes" if any(divided(i) for i in site.index) else None
    if any(r.node is not None for r in readers):
        return "a product is not computed inside another reduction"
    if len(readers) != 1 or len(group.outputs()) != 1:
        return "a kernel around a product has one output domain"
    if axes != frozenset(readers[0].axes):
        return "a product is not recomputed along axes that it does not have"
    if group.reductions():
        return _ALONE
    if any(divided(i) for i in site.index):
        return "a reshape splits its axes"
    return None


def _scaled(node: Node, group: Group, axes: frozenset[Var], readers: Sequence[Frame]) -> bool:
    """True for sums of a few products of bytes that one other sum adds up, the kernel's only one: as integers, they are
    a small part of its work, and to store them takes more bytes than what they are made of."""
    if not scales_bytes(node) or len(readers) != 1 or group.reductions() != list(readers):
        return False
    (reader,) = readers
    assert reader.node is not None
    every = frozenset((*reader.axes, *reader.reduced))
    return reader.node.op is Op.SUM and len(group.outputs()) == 1 and axes == every


def _meet(group: Group, other: Frame, readers: Sequence[Frame]) -> bool:
    """True where a reduction is computed for an output that another one, read by `readers`, is computed for too."""
    if len(group.outputs()) == 1:
        return True
    assert other.site is not None
    return not other.site.frames.isdisjoint(readers) or not all(r.node is None for r in readers)


def _waits_for_long_rows(group: Group, f: Facts, axes: frozenset[Var], readers: Sequence[Frame]) -> bool:
    """True where few long rows must be complete before their first use: cores would wait."""
    rows = _points(group, axes)
    whole = max((_points(group, frozenset(r.axes)) for r in readers), default=rows)
    row = prod(map(high, f.reduced)) // max(f.size, 1)
    return rows < cost.MIN_ROWS and whole > rows and row > cost.LONG_ROW_ELEMENTS


def _points(group: Group, axes: frozenset[Var]) -> int:
    """Points of a domain over those coordinates."""
    return prod(high(group.extents[v]) for v in axes)
