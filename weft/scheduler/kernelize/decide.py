"""Whether a node is computed where it is read or stored: each decision with its reason."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from weft.ir.graph import Node
from weft.ir.index import variables
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import divided
from weft.scheduler.kernelize.facts import Facts, is_leaf, leaf_bytes
from weft.scheduler.kernelize.groups import Group, Site
from weft.scheduler.kernelize.place import refusal

if TYPE_CHECKING:
    from weft.scheduler.kernelize.partition import Partition


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a node is stored; `join` when a group that reads it may store it."""

    why: str
    join: bool = True


def decide(p: Partition, node: Node, f: Facts, sites: list[Site]) -> Cut | None:
    """None to compute the node at its sites; else why it is stored."""
    if node.op in REDUCE:
        return _reduction(node, f, sites)
    if id(node) in p.alias:
        return None
    if node.op in MOVEMENT:
        return _layout(p, node, f, sites)
    if node.op is Op.CONCAT and len(node.inputs) > cost.MAX_CONCAT:
        return Cut("choosing among so many pieces for each element costs more than storing them", False)
    return _elementwise(p, node, f, sites)


def _reduction(node: Node, f: Facts, sites: list[Site]) -> Cut | None:
    """A reduction is computed once: where it is read if that is at one place, and the loops allow it."""
    count = len({s.group for s in sites})
    if count > 1:
        return Cut(f"{count} kernels use it, and computing it again would repeat a reduction")
    if len(sites) > 1:
        return Cut("it is read in several ways, and computing it again would repeat a reduction", False)
    why = refusal(node, f, sites[0])
    return None if why is None else Cut(why)


def _layout(p: Partition, node: Node, f: Facts, sites: list[Site]) -> Cut | None:
    """What must be stored anyway is stored as a product will read it, where that would otherwise have to divide."""
    if node.op is not Op.PERMUTE or f.big is None:
        return None
    below = node.inputs[0]
    while below.op in (Op.RESHAPE, Op.PERMUTE) and p.facts[id(below)].consumers == 1 and not is_leaf(below):
        below = below.inputs[0]
    if is_leaf(below) or p.facts[id(below)].consumers != 1 or below.op in MOVEMENT:
        return None
    if any(s.group.contraction & s.frames and any(divided(i) for i in s.index) for s in sites):
        return Cut("a product reads it in this order", False)
    return None


def _elementwise(p: Partition, node: Node, f: Facts, sites: list[Site]) -> Cut | None:
    groups = dict.fromkeys(s.group for s in sites)
    member = any(id(node) in g.online for g in groups)
    if not member and _widens(node):  # what it widens is stored, if anything is: in half the bytes
        return None
    if not member:
        for s in sites:
            if s.group.contraction & s.frames:
                why = _prologue(p, node, f, s)
                if why is not None:
                    return Cut(why)
        if f.big is not None:
            cut = _reduction(node, f, sites)
            if cut is not None:
                return cut
    if len(groups) > 1 and not cost.recompute(
        len(groups), f.nbytes, f.ops, f.size, _more_bytes(p, f, groups)
    ):
        return Cut(f"{len(groups)} kernels use it, and reading it is cheaper than computing it again")
    trivial = f.ops <= cost.PROLOGUE and f.leaves is not None and len(f.leaves) <= 1
    if not trivial and any(g.ops >= cost.MAX_OPS or len(g.read) >= cost.MAX_READS for g in groups):
        return Cut("kernel size limit", False)
    return None if member else _repeated(node, f, sites, len(groups))


def _widens(node: Node) -> bool:
    """A 16-bit float as a wider one: exact, and nearly free wherever it is read."""
    if node.op is not Op.CAST or not node.dtype.is_float:
        return False
    below = node.inputs[0].dtype
    return below.is_float and below.bits == 16 and node.dtype.bits > 16


def _repeated(node: Node, f: Facts, sites: list[Site], groups: int) -> Cut | None:
    """One kernel reads it at several places, in several passes, or in windows that overlap."""
    times = sum(_times(f, s) for s in sites)
    if times == 1:
        return None
    if len(sites) <= cost.MAX_SITES * groups and cost.repeat(
        times // groups, f.ops, node.dtype.itemsize, f.size
    ):
        return None
    return Cut("one kernel would compute it several times over", False)


def _times(f: Facts, site: Site) -> int:
    """How often a site's frames name each element: a reduction over windows, as often as they overlap."""
    group = site.group
    times = site.frames.bit_count()
    on = {v for i in site.index for v in variables(i)}
    for frame in group.frames_of(site.frames & ~group.contraction):
        if len(on) > len(site.index):
            points = prod(v.hi + 1 for v in (*frame.axes, *frame.reduced) if v in on)
            times += max(round(points / max(f.size, 1)), 1) - 1
    return times


def _more_bytes(p: Partition, f: Facts, groups: Iterable[Group]) -> int | None:
    """What all groups but the busiest would read beyond what they read anyway to compute a node; None: too much."""
    if f.leaves is None:
        return None
    known = {k: {at for at, _ in p.sites.get(k, ())} for k in f.leaves}
    each = sorted(sum(p.facts[k].nbytes for k in f.leaves if g.number not in known[k]) for g in groups)
    return sum(each[:-1])


_WAITS = "a product's operand may not wait for a reduction"
_REUSED = "a product uses each element again and again, and "


def _prologue(p: Partition, node: Node, f: Facts, site: Site) -> str | None:
    """Why a function of a product's operand is not computed while the product runs; None if it is."""
    staged = site.group.staged.get(node)
    if staged is False:  # the product itself
        return None
    if f.reduces:
        return _WAITS
    if staged is None:
        points = 1
        for frame in site.group.frames_of(site.frames & site.group.contraction):
            for v in (*frame.axes, *frame.reduced):
                points *= v.hi + 1
        if f.ops * points > cost.LAUNCH:
            read = leaf_bytes(f.leaves, p.facts)
            if not cost.prologue(f.ops, f.size, f.nbytes, read):
                return _REUSED + "computing it every time costs more than storing it"
            if read is None or read > cost.PROLOGUE_BYTES * f.nbytes:
                return _REUSED + "what it is computed from is larger"
    _stage(node, site.group)
    return None


def _stage(node: Node, group: Group) -> None:
    """What an accepted prologue computes is accepted with it, but for reductions."""
    for i in node.inputs:
        while i.op in MOVEMENT and not is_leaf(i):
            i = i.inputs[0]
        if i.op in ELEMENTWISE:
            group.staged.setdefault(i, True)
