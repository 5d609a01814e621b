"""Which existing group may store a node: one that reads it, one that computes what it is a function of, one that
computes something alike from the same tensors, or, for scalars, any that uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.ir.graph import Node
from weft.ir.index import Int
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import covers, one_to_one, within
from weft.scheduler.kernelize.facts import Big, Facts, is_leaf
from weft.scheduler.kernelize.groups import Group, Kind, Site, Store
from weft.scheduler.kernelize.place import refusal

if TYPE_CHECKING:
    from weft.scheduler.kernelize.partition import Partition

_RECENT = 4
"""How many groups alike are considered."""


def join(p: Partition, node: Node, f: Facts, group: Group, sites: list[Site]) -> bool:
    """Have `group`, which reads the node, store it for the others; False where it cannot.

    It can where it computes each element once (in all of its loops, or beside them, for rows of reductions), and
    consumes nothing that the others store.
    """
    if group.is_loop:
        return False
    mine = [s for s in sites if s.group is group]
    others = p.users(node, [s for s in sites if s.group is not group])
    if len(mine) != 1 or group in others or id(node) in group.online or not p.room(group, node, 1):
        return False
    (site,) = mine
    axes = one_to_one(site.index, node.shape, group.extents)
    if axes is None or not covers(axes, node.shape, group.extents) or group.contraction & site.frames:
        return False
    if not within(site.index, node.shape, group.extents):
        return False
    outputs = [o for o in group.outputs() if axes <= frozenset(o.axes)]
    if not outputs:
        return False
    main = outputs[0]
    frame = next((o for o in outputs if axes == frozenset(o.axes)), None)
    if frame is None and (group.contraction or not f.reduced or len(group.outputs()) > 1 + len(main.carries)):
        return False
    if f.big is not None and refusal(node, f, site) is not None:
        return False
    if any(other.reaches(group) for other in others):
        return False
    p.readers_load(node, sites, group)
    if frame is None:
        frame = group.output(tuple(v for v in main.axes if v in axes))
        main.carries.append(frame)
    site.frames |= frame.bit
    frame.stores.append(Store(node, site.index, site))
    group.bases |= f.bases
    p.compute(site)
    return True


def adopt(p: Partition, node: Node, f: Facts, sites: list[Site]) -> bool:
    """Have a group that computes a reduction store a function of it, of the same shape; False where none can."""
    below = _reduction_below(p, node, f)
    if below is None:
        return False
    users = p.users(node, sites)
    for (_, index), at in list(p.sites.get(id(below), {}).items()):
        group = at.group
        if group.is_loop or group in users or at.kind is not Kind.OPEN:
            continue
        used = (i for i, n in zip(index, below.shape, strict=True) if n != 1)
        here: tuple[Int, ...] = tuple(0 if n == 1 else next(used) for n in node.shape)
        mine = p.need(node, group, here, 0)
        if join(p, node, f, group, [*sites, mine]):
            return True
        del p.sites[id(node)][group.number, here]
        group.needs.discard(id(node))
    return False


def ride(p: Partition, node: Node, f: Facts, groups: list[Group], sites: list[Site]) -> bool:
    """Have one of the groups that read a scalar store it, as an output beside its own; all compute it for themselves.

    Nobody waits for it then, and a step counter that a hundred kernels read takes no kernel of its own. False where
    computing it is more than a trifle: behind a reduction, or in an operand of a product.
    """
    if f.size != 1 or f.reduces or f.leaves is None or f.ops * len(groups) > cost.LAUNCH:
        return False
    if any(g.is_loop for g in groups):
        return False
    if not groups or id(node) in p.based or any(s.group.contraction & s.frames for s in sites):
        return False
    home = groups[0]
    if not all(p.room(g, node, g is home) for g in groups):
        return False
    frame, index = home.domain(node.shape)
    site = p.need(node, home, index, frame.bit)
    frame.stores.append(Store(node, index, site))
    home.stored[id(node)] = node
    home.bases |= f.bases
    for s in dict.fromkeys((*sites, site)):
        if s.kind is Kind.OPEN:
            p.compute(s)
    return True


def _reduction_below(p: Partition, node: Node, f: Facts) -> Node | None:
    """The reduction that the node is an elementwise function of, if it is of one, of the same shape."""
    below = node
    while not is_leaf(below) and (below.op in ELEMENTWISE or below.op is Op.RESHAPE):
        large = [i for i in dict.fromkeys(below.inputs) if i.inputs and p.facts[id(i)].size == f.size]
        if len(large) != 1:
            return None
        below = large[0]
    same = [n for n in below.shape if n != 1] == [n for n in node.shape if n != 1]
    return below if below is not node and below.op in REDUCE and same and not is_leaf(below) else None


def twin(p: Partition, node: Node, f: Facts, sites: list[Site]) -> Group | None:
    """A group over the same domain that reads the same large tensor, independent of this node."""
    if not _may_pair(node, f):
        return None
    users = p.users(node, sites)
    for group in reversed(p.twins.get(_key(node, f), [])[-_RECENT:]):
        if (
            group in users
            or group.contraction
            or group.ops + f.ops > cost.MAX_OPS
            or len(group.outputs()) != 1
            or not p.room(group, node, 1)
        ):
            continue
        if not any(p.facts[k].size >= f.size for k in group.bases & f.bases):
            continue
        if not any(g.reaches(group) for g in users):
            return group
    return None


def remember(p: Partition, node: Node, f: Facts, group: Group) -> None:
    """Note a new group that others may be alike to."""
    if _may_pair(node, f):
        p.twins.setdefault(_key(node, f), []).append(group)


def _may_pair(node: Node, f: Facts) -> bool:
    return bool(f.bases) and f.big is not Big.CONTRACTION and (node.op in ELEMENTWISE or node.op in REDUCE)


def _key(node: Node, f: Facts) -> tuple[object, ...]:
    return (tuple(n for n in node.shape if n != 1), f.reduced)
