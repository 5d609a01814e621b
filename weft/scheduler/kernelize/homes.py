"""Choice of the group that stores a node: one that reads it, that of the reduction that it is a function of, for
scalars one of all that compute it, a sibling, or a new group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias

from weft.ir.graph import Node
from weft.ir.index import Int, Var, high
from weft.ir.loop_body import LoopNode
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import covers, one_to_one, within
from weft.scheduler.kernelize.decisions import (
    ComputeRedundantly,
    Cut,
    DeviceCopy,
    LoopResult,
    NewGroup,
    Refused,
    Role,
    Stored,
    StoreIn,
)
from weft.scheduler.kernelize.facts import Big, Facts, is_leaf
from weft.scheduler.kernelize.groups import NO_FRAMES, Group, Kind, Site
from weft.scheduler.kernelize.place import refusal
from weft.scheduler.kernelize.view import View

MAX_SIBLINGS = 4
"""Groups of the same key that are considered as siblings at most, the newest ones."""

_Home: TypeAlias = StoreIn | ComputeRedundantly
_Proposal: TypeAlias = Callable[[View, Node, Sequence[Site], Cut], "_Home | list[Refused]"]


def choose_home(view: View, node: Node, sites: Sequence[Site], cut: Cut) -> Stored:
    """The decision which group stores a node; its other readers load it."""
    if node.op is Op.COPY:
        return DeviceCopy(cut, sites)
    if isinstance(node.attrs, LoopNode):
        return LoopResult(cut, sites)
    refused: list[Refused] = []
    proposals = _IN_READERS if cut.in_reader else _ELSEWHERE
    for propose in (store_beside_rows, *proposals) if node in view.prepared.online.beside else proposals:
        found = propose(view, node, sites, cut)
        if not isinstance(found, list):
            return found
        refused += found
    return NewGroup(cut, sites, refused)


# in a group that reads it ---------------------------------------------------------------------------------------------


def store_in_reader(view: View, node: Node, sites: Sequence[Site], cut: Cut) -> StoreIn | list[Refused]:
    """Store the node in the first group that reads it and can: one that computes each of its elements once (in all of
    its loops, or beside them, for rows of reductions), and consumes nothing that the others store."""
    refused: list[Refused] = []
    for group in _by_number(sites):
        found = _in_reader(view, node, sites, cut, group)
        if isinstance(found, StoreIn):
            return found
        refused.append(Refused((group,), found))
    return refused


def store_in_reducer(view: View, node: Node, sites: Sequence[Site], cut: Cut) -> StoreIn | list[Refused]:
    """Store the node, an elementwise function of a reduction and of its shape, in the group of that reduction."""
    below = _reduction_below(view, node)
    if below is None:
        return []
    refused: list[Refused] = []
    users = view.users(node, sites)
    for at in view.sites_of(below):
        if at.group.is_loop or at.group in users or at.kind is not Kind.OPEN:
            continue
        found = _in_reader(view, node, [*sites, _presumed(node, at)], cut, at.group)
        if isinstance(found, StoreIn):
            return replace(found, sites=sites, role=Role.REDUCER)
        refused.append(Refused((at.group,), found))
    return refused


def store_beside_rows(view: View, node: Node, sites: Sequence[Site], cut: Cut) -> StoreIn | list[Refused]:
    """Store the node, a softmax's row maximum, sum, or a function of these, in the group of the product beside them."""
    refused: list[Refused] = []
    chain = view.prepared.online.beside[node]
    for at, axis in [(at, axis) for n, axis in chain.known for at in view.sites_of(n)]:
        if id(node) not in at.group.online:
            continue
        reads = any(s.group is at.group for s in sites)
        found = _in_reader(view, node, sites if reads else [*sites, _presumed(node, at, axis)], cut, at.group)
        if isinstance(found, StoreIn):
            return replace(found, sites=sites, role=Role.READER if reads else Role.REDUCER)
        refused.append(Refused((at.group,), found))
    return refused


def _presumed(node: Node, at: Site, summed: int | None = None) -> Site:
    """A site of the node where one of the same shape is computed, but for sizes of 1, and for an axis summed over."""
    pairs = enumerate(zip(at.index, at.node.shape, strict=True))
    used = (i for k, (i, n) in pairs if n != 1 and k != summed)
    here: tuple[Int, ...] = tuple([0 if n == 1 else next(used) for n in node.shape])
    return Site(node, at.group, here, NO_FRAMES, Kind.OPEN)


def _in_reader(view: View, node: Node, sites: Sequence[Site], cut: Cut, group: Group) -> StoreIn | str:
    """The decision to store the node in `group`, which reads it; else why the group cannot."""
    if group.is_loop:
        return "a loop stores its results only"
    mine = [s for s in sites if s.group is group]
    if len(mine) != 1:
        return "it reads the node in several ways"
    others = view.users(node, [s for s in sites if s.group is not group])
    if group in others:
        return "it updates a copy of the node in place"
    if not view.has_room(group, node, 1):
        return "it has no buffer left"
    (site,) = mine
    axes = one_to_one(site.index, node.shape, group.extents)
    if axes is None or not covers(axes, node.shape, group.extents):
        return "it does not read each element once"
    is_online = id(node) in group.online
    if site.in_contraction and not is_online:
        return "its product would compute the node again and again"
    if not within(site.index, node.shape, group.extents):
        return "it reads outside of the node, behind a guard"
    f = view.facts[id(node)]
    if node.op in REDUCE and f.big is Big.CONTRACTION and _moves_much(view, group, node):
        return "it reads and writes far more than the node, piece by piece in a product's tiles"
    why = _domain_refusal(group, axes, f, is_online)
    if why is not None:
        return why
    if f.big is not None and (other := refusal(node, f, site)) is not None:
        return other.why
    if any(view.reaches(other, group) for other in others):
        return "it reads what another reader of the node stores"
    return StoreIn(cut, sites, group, Role.READER, site.index, axes)


def _moves_much(view: View, group: Group, product: Node) -> bool:
    """True where the group reads and writes so many tensors of the size of a product that it reads, beyond the caches,
    that to read the product, too, is little, and to compute it takes less: an optimizer's update with moments. While
    longer sums are computed, what tiles need comes from memory."""
    facts, f = view.facts, view.facts[id(product)]
    own, steps = f.nbytes, prod(map(high, f.reduced))
    read = set[int]()
    for k in group.pending:
        leaves = facts[k].leaves
        read |= {k} if leaves is None else leaves
    large = sum(n for k in (*(read - {id(product)}), *group.stored) if (n := facts[k].nbytes) >= own)
    return large >= max(cost.MUCH_MOVED * own, cost.CACHED_BYTES, steps / cost.OPS_PER_BYTE - own)


def _domain_refusal(group: Group, axes: frozenset[Var], f: Facts, is_online: bool) -> str | None:
    """The reason why the group can have no output over `axes`; None where it has one, or can write rows beside it, as
    one with a softmax between two products can those of the softmax."""
    main, frame = group.output_over(axes)
    if main is None:
        return "its outputs are computed in other loops"
    if frame is not None:
        return None
    if group.contractions and not is_online:
        return "a kernel around a product has one output domain"
    if not f.reduced:
        return "it would compute the node again for each point of its other axes"
    if len(group.outputs()) > 1 + len(main.carries):
        return "it has several output domains"
    return None


def _reduction_below(view: View, node: Node) -> Node | None:
    """The reduction that the node is an elementwise function of, if it is of one, of the same shape."""
    below, size = node, view.facts[id(node)].size
    while not is_leaf(below) and (below.op in ELEMENTWISE or below.op is Op.RESHAPE):
        large = [i for i in dict.fromkeys(below.inputs) if i.inputs and view.facts[id(i)].size == size]
        if len(large) != 1:
            return None
        below = large[0]
    same = [n for n in below.shape if n != 1] == [n for n in node.shape if n != 1]
    return below if below is not node and below.op in REDUCE and same and not is_leaf(below) else None


# beside what else a group computes ------------------------------------------------------------------------------------


def compute_redundantly(
    view: View, node: Node, sites: Sequence[Site], cut: Cut
) -> ComputeRedundantly | list[Refused]:
    """Compute the node, a scalar, in all groups that read it, and store it in the first as an output beside its own.

    Nobody waits for it then, and a step counter that a hundred kernels read takes no kernel of its own.
    """
    f = view.facts[id(node)]
    groups = _by_number(sites)
    if f.size != 1 or not groups:
        return []
    why = _redundancy_refusal(view, node, sites, groups)
    return ComputeRedundantly(cut, sites, groups[0]) if why is None else [Refused(groups, why)]


def _redundancy_refusal(view: View, node: Node, sites: Sequence[Site], groups: Sequence[Group]) -> str | None:
    """The reason why the scalar is not computed by each of the groups that read it."""
    f = view.facts[id(node)]
    if f.reduces:
        return "computing the scalar everywhere would repeat a reduction"
    if f.leaves is None or f.ops * len(groups) > cost.OPS_PER_LAUNCH:
        return "computing the scalar everywhere costs more than a kernel"
    if any(g.is_loop for g in groups):
        return "a loop reads the scalar from memory"
    if view.is_updated(node):
        return "the scalar is updated in place"
    if any(s.in_contraction for s in sites):
        return "a product would compute the scalar again and again"
    if not all(view.has_room(g, node, g is groups[0]) for g in groups):
        return "a kernel that reads the scalar has no buffer left"
    return None


def sibling_group(view: View, node: Node, sites: Sequence[Site], cut: Cut) -> StoreIn | list[Refused]:
    """Store the node in a group over the same domain that reads the same large tensor and is independent of it."""
    f = view.facts[id(node)]
    key = sibling_key(node, f)
    if key is None:
        return []
    refused: list[Refused] = []
    users = view.users(node, sites)
    for group in reversed(view.siblings(key)[-MAX_SIBLINGS:]):
        why = _sibling_refusal(view, node, group)
        if why is None and (group in users or any(view.reaches(g, group) for g in users)):
            why = "it depends on the node"
        if why is None:
            axes = group.outputs()[0].axes
            own = iter(axes)
            index: tuple[Int, ...] = tuple([0 if n == 1 else next(own) for n in node.shape])
            return StoreIn(cut, sites, group, Role.SIBLING, index, frozenset(axes))
        refused.append(Refused((group,), why))
    return refused


def sibling_key(node: Node, f: Facts) -> tuple[object, ...] | None:
    """The shapes that two nodes must share for one group to store both; None for nodes that have no siblings."""
    if not f.bases or f.big is Big.CONTRACTION or not (node.op in ELEMENTWISE or node.op in REDUCE):
        return None
    return (tuple([n for n in node.shape if n != 1]), f.reduced)


def _sibling_refusal(view: View, node: Node, group: Group) -> str | None:
    """The reason why an independent group does not compute the node beside its own output."""
    f = view.facts[id(node)]
    if group.contractions:
        return "a kernel around a product has one output domain"
    if group.ops + f.ops > cost.MAX_KERNEL_OPS:
        return "kernel size limit"
    if len(group.outputs()) != 1:
        return "it has several output domains"
    if not view.has_room(group, node, 1):
        return "it has no buffer left"
    if not any(view.facts[k].size >= f.size for k in group.bases & f.bases):
        return "it reads no large tensor that the node is computed from"
    return None


def _by_number(sites: Sequence[Site]) -> list[Group]:
    """The groups of the sites, in the order in which they were made."""
    return sorted({s.group for s in sites}, key=lambda g: g.number)


_ELSEWHERE: tuple[_Proposal, ...] = (sibling_group,)
_IN_READERS: tuple[_Proposal, ...] = (store_in_reader, store_in_reducer, compute_redundantly, *_ELSEWHERE)
