"""A partition of a graph into kernels, in one walk from the outputs to the leaves.

When a node is visited, all that reads it is known: its sites, each in a group (a kernel to be). The decision about it
is computed from a read-only view of the partition (`fusion`, `homes`), applied, and logged. Either the node is computed
at its sites (fused into the groups that read it), or stored: by one of those groups, by a group that computes something
alike, or by a new group; the other sites load it. Consumers come first, so every decision sees all consequences
downstream, and one walk is enough. Groups never form a cycle: a group that stores a node for others must not consume
what these others store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.ir.graph import Node
from weft.ir.loop_body import LoopNode
from weft.ir.ops import ELEMENTWISE, MOVEMENT, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.compute import compute
from weft.scheduler.kernelize.decisions import (
    ComputeRedundantly,
    Cut,
    Decision,
    DeviceCopy,
    FuseInto,
    LoopResult,
    NewGroup,
    StoreIn,
)
from weft.scheduler.kernelize.facts import gather_facts, is_leaf
from weft.scheduler.kernelize.fusion import fuse
from weft.scheduler.kernelize.groups import NO_FRAMES, Group, GroupStore, Kind, Site
from weft.scheduler.kernelize.homes import choose_home, sibling_key
from weft.scheduler.kernelize.precedence import Precedence
from weft.scheduler.kernelize.prepare import prepare
from weft.scheduler.kernelize.roots import root
from weft.scheduler.kernelize.sites import Sites


class Partition:
    """The groups of a graph, and the decisions that made them, in order; `cuts` has those of stored nodes, by id.

    No group has more than `max_buffers` tensors (but for devices with less than any op needs). The methods up to
    `reaches` are the `View` that deciding reads; those after it apply decisions.
    """

    def __init__(self, outputs: Sequence[Node], max_buffers: int = cost.NO_LIMIT) -> None:
        self.max_buffers = max(max_buffers, cost.MIN_BUFFERS)
        self.prepared = prepare(outputs, min(cost.MAX_WRITTEN_PIECES, self.max_buffers - 1))
        self.facts = gather_facts(self.prepared.order, self.prepared.forced)
        self.groups: list[Group] = []
        self.copies: list[Node] = []
        self.cuts: dict[int, Cut] = {}
        self.precedence = Precedence()
        self.log: list[tuple[Node, Decision]] = []
        self._sites = Sites(self.prepared, self.facts)
        self._siblings: dict[tuple[object, ...], list[Group]] = {}
        self._loops: dict[tuple[object, ...], Group] = {}
        for n in reversed(self.prepared.order):
            if not is_leaf(n) and self.facts[id(n)].size:
                self._visit(n)

    def dissolve(self) -> None:
        """Drop references between groups, frames and sites, so that nodes and their memory do not wait for the garbage
        collector."""
        for group in self.groups:
            group.dissolve()
        self.log.clear()
        self._sites.known.clear()

    def _visit(self, node: Node) -> None:
        """Decide about a node, unless nothing reads it."""
        sites = [s for s in self.sites_of(node) if s.kind is Kind.OPEN]
        if sites or id(node) in self.prepared.forced:
            found = fuse(self, node, sites)
            self.apply(node, choose_home(self, node, sites, found) if isinstance(found, Cut) else found)

    # the view (see there) ---------------------------------------------------------------------------------------------

    def sites_of(self, node: Node) -> Iterable[Site]:
        known = self._sites.known.get(id(node))
        return () if known is None else known.values()

    def groups_with(self, node: int) -> Iterable[int]:
        return [number for number, _ in self._sites.known.get(node, ())]

    def users(self, node: Node, sites: Iterable[Site]) -> Mapping[Group, None]:
        return dict.fromkeys([*[s.group for s in sites], *self._sites.updaters.get(id(node), ())])

    def is_updated(self, node: Node) -> bool:
        return id(node) in self._sites.updaters

    def has_room(self, group: Group, node: Node, stores: int = 0) -> bool:
        if self.max_buffers == cost.NO_LIMIT:
            return True
        other = self.prepared.replaced_by.get(id(node))
        inputs = node.inputs if other is None else (other,)
        more = {id(i) for i in inputs if is_leaf(i) or i.op not in (Op.CONST, Op.RANGE)}
        after = len((group.pending - {id(node)}) | more)
        if not stores and after <= len(group.pending):
            return True
        return after + len(group.stored) + stores <= self.max_buffers

    def siblings(self, key: tuple[object, ...]) -> Sequence[Group]:
        return self._siblings.get(key, ())

    def reaches(self, producer: Group, consumer: Group) -> bool:
        return self.precedence.reaches(producer, consumer)

    # applying decisions ----------------------------------------------------------------------------------------------

    def apply(self, node: Node, decision: Decision) -> None:
        """Carry out a decision about `node`, and log it."""
        self.log.append((node, decision))
        if isinstance(decision, FuseInto):
            for s in decision.sites:
                compute(self._sites, s)
            for group in decision.prologues:
                _stage_inputs(node, group)
            return
        self._cut(node, decision.cut, decision.sites)
        match decision:
            case StoreIn(sites=sites, group=group):
                self._load_outside(node, sites, group)
                self._store_in(node, decision)
            case ComputeRedundantly(sites=sites, home=home):
                self._store_redundantly(node, sites, home)
            case NewGroup(sites=sites):
                group = self._new_group(is_loop=False)
                key = sibling_key(node, self.facts[id(node)])
                if key is not None:
                    self._siblings.setdefault(key, []).append(group)
                self._load_outside(node, sites, group)
                root(self._sites, node, group)
            case LoopResult(sites=sites):
                self._load_outside(node, sites, self._loop_of(node))
            case DeviceCopy(sites=sites):
                self.copies.append(node)
                for s in sites:
                    self._sites.load(s)

    def _cut(self, node: Node, cut: Cut, sites: Sequence[Site]) -> None:
        """Record why the node is stored."""
        self.cuts[id(node)] = cut
        if cut.ends_online:
            for s in sites:
                s.group.online = frozenset()

    def _new_group(self, is_loop: bool) -> Group:
        """A group without nodes."""
        group = Group(len(self.groups), is_loop)
        self.groups.append(group)
        return group

    def _loop_of(self, node: Node) -> Group:
        """The group of the loop of which the node is a result, new for its first result."""
        assert isinstance(node.attrs, LoopNode)
        key = (node.attrs.body, *map(id, node.inputs))
        group = self._loops.get(key)
        if group is None:
            group = self._loops[key] = self._new_group(is_loop=True)
            for i in node.inputs:
                self._sites.need(i, group, (), NO_FRAMES)
        return group

    def _load_outside(self, node: Node, sites: Sequence[Site], home: Group) -> None:
        """Make `home` the group that stores the node; all sites outside load it."""
        home.stored[id(node)] = node
        outside = [s for s in sites if s.group is not home]
        for s in outside:
            self._sites.load(s)
        self.precedence.add(home, self.users(node, outside))

    def _store_in(self, node: Node, d: StoreIn) -> None:
        """Store the node as an output of `d.group`: one that it has over those axes, or a new one written beside."""
        group = d.group
        main, frame = group.output_over(d.axes)
        assert main is not None
        if frame is None:
            frame = group.output(tuple([v for v in main.axes if v in d.axes]))
            main.carries.append(frame)
        site = self._sites.need(node, group, d.index, frame.alone)
        frame.stores.append(GroupStore(node, d.index, site))
        group.bases |= self.facts[id(node)].bases
        compute(self._sites, site)

    def _store_redundantly(self, node: Node, sites: Sequence[Site], home: Group) -> None:
        """Compute the node at all sites; `home` stores it as an output of its own."""
        frame, index = home.domain(node.shape)
        site = self._sites.need(node, home, index, frame.alone)
        frame.stores.append(GroupStore(node, index, site))
        home.stored[id(node)] = node
        home.bases |= self.facts[id(node)].bases
        for s in dict.fromkeys((*sites, site)):
            if s.kind is Kind.OPEN:
                compute(self._sites, s)


def _stage_inputs(node: Node, group: Group) -> None:
    """Allow a prologue's inputs, but for reductions, in the prologue too."""
    for i in node.inputs:
        while i.op in MOVEMENT and not is_leaf(i):
            i = i.inputs[0]
        if i.op in ELEMENTWISE:
            group.staged.setdefault(i, True)
