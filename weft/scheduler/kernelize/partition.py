"""Which kernel computes which nodes: one walk from the outputs to the leaves.

When a node is visited, all that reads it is known: its sites, each in a group (a kernel to be). It is then either
computed at its sites (fused into the groups that read it), or stored: by one of those groups, by a group that computes
something alike, or by a new group; the other sites load it. Consumers come first, so every decision sees all
consequences downstream, and one walk is enough. Groups never form a cycle: a group that stores a node for others must
not consume what these others store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.ir.graph import Node
from weft.ir.index import Int
from weft.ir.loop_body import Loop
from weft.ir.ops import ELEMENTWISE, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.compute import COMPUTE
from weft.scheduler.kernelize.decide import Cut, decide
from weft.scheduler.kernelize.facts import Facts, gather_facts, is_leaf
from weft.scheduler.kernelize.groups import Frame, Group, Kind, Site, Store, markers_in
from weft.scheduler.kernelize.prepare import prepare, single
from weft.scheduler.kernelize.roots import root
from weft.scheduler.kernelize.sharing import adopt, join, remember, ride, twin


class Partition:
    """The groups of a graph. `why` gives the reason behind each stored node, by id. No group has more than `buffers`
    tensors (but for devices with less than any op needs)."""

    def __init__(self, outputs: Sequence[Node], buffers: int = cost.NO_LIMIT) -> None:
        self.buffers = max(buffers, cost.MIN_BUFFERS)
        prepared = prepare(outputs, min(cost.MAX_PIECES, self.buffers - 1))
        self.order, self.forced, self.alias = prepared.order, prepared.forced, prepared.alias
        self.facts: dict[int, Facts] = gather_facts(self.order, self.forced)
        self.groups: list[Group] = []
        self.copies: list[Node] = []
        self.why: dict[int, str] = {}
        self.sites: dict[int, dict[tuple[int, tuple[Int, ...]], Site]] = {}
        self.twins: dict[tuple[object, ...], list[Group]] = {}
        self.loops: dict[tuple[object, ...], Group] = {}
        # id of a node -> the groups that update a copy of it in place
        self.based: dict[int, list[Group]] = {}
        for n in reversed(self.order):
            if not is_leaf(n):
                self.visit(n)

    def dissolve(self) -> None:
        """Let go of what groups, frames and sites know of each other, so that nodes and their memory do not wait for
        the garbage collector."""
        for group in self.groups:
            group.dissolve()
        self.sites.clear()

    # sites -----------------------------------------------------------------------------------------------------------

    def need(self, node: Node, group: Group, index: tuple[Int, ...], frames: int) -> Site:
        """The site of `node` at `index` in `group`, now also needed by `frames`."""
        if node.op is Op.CONST and node.storage is None:
            index = ()
        known = self.sites.get(id(node))
        if known is None:
            known = self.sites[id(node)] = {}
        key = (group.number, index)
        site = known.get(key)
        if site is not None:
            site.frames |= frames
            return site
        site = known[key] = Site(node, group, index, frames, Kind.OPEN)
        if is_leaf(node):
            self.load(site)
        elif node.op is Op.CONST:
            site.kind = Kind.CONST
        elif node.op is Op.RANGE:
            site.kind = Kind.RANGE
            self.depend(site)
        if self.facts[id(node)].size == 0:
            site.kind, site.fill = Kind.CONST, 0
        if site.kind in (Kind.OPEN, Kind.LOAD):
            group.needs.add(id(node))
        return site

    def load(self, site: Site) -> None:
        """The site reads the node's buffer."""
        site.kind = Kind.LOAD
        if self.facts[id(site.node)].size:
            site.group.loads.append(site)
            site.group.read.add(id(site.node))
            self.wait(site)

    def depend(self, site: Site) -> None:
        """The site's value depends on its index itself."""
        site.group.others.append(site)
        self.wait(site)

    def wait(self, site: Site) -> None:
        """Computed indices in the site's index come before it."""
        if site.group.markers:
            site.inputs.extend(site.group.markers[m][0] for m in markers_in(site.index))

    # the walk --------------------------------------------------------------------------------------------------------

    def visit(self, node: Node) -> None:
        """Decide about one node, all of whose consumers have been visited."""
        f = self.facts[id(node)]
        if f.size == 0:
            return
        why = self.forced.get(id(node))
        sites = [s for s in self.sites.get(id(node), {}).values() if s.kind is Kind.OPEN]
        if why is not None:
            self.store(node, f, sites, Cut(why, not self.alone(node)))
            return
        cut = decide(self, node, f, sites) if sites else None
        groups = dict.fromkeys(s.group for s in sites)
        if cut is None and not all(self.room(g, node) for g in groups):
            cut = Cut(f"a kernel has at most {self.buffers} buffers on this device", False)
            for g in groups:
                g.online = frozenset()
        if cut is not None:
            self.store(node, f, sites, cut)
            return
        for s in sites:
            self.compute(s)

    def room(self, group: Group, node: Node, stores: int = 0) -> bool:
        """Whether the group may compute the node, and store so many more, with the buffers that a kernel can have."""
        if self.buffers == cost.NO_LIMIT:
            return True
        other = self.alias.get(id(node))
        inputs = node.inputs if other is None else (other,)
        more = {id(i) for i in inputs if is_leaf(i) or i.op not in (Op.CONST, Op.RANGE)}
        after = len((group.needs - {id(node)}) | more)
        if not stores and after <= len(group.needs):
            return True
        return after + len(group.stored) + stores <= self.buffers

    def alone(self, node: Node) -> bool:
        """The node is stored by a kernel of its own kind, never computed inside another."""
        match node.op:
            case Op.CONTIGUOUS | Op.COPY:
                return True
            case Op.SCATTER:
                return id(node) not in self.alias and not single(node)
            case Op.UPDATE:
                base = node.inputs[0]
                return is_leaf(base) or (id(base) in self.forced and self.facts[id(base)].size > 0)
            case _:
                return False

    def compute(self, site: Site) -> None:
        """Compute the node at this site, from sites of its inputs."""
        node, group, index, frames = site.node, site.group, site.index, site.frames
        group.needs.discard(id(node))
        other = self.alias.get(id(node))
        if other is not None:
            site.kind = Kind.SAME
            site.inputs = [self.need(other, group, index, frames)]
        elif node.op in ELEMENTWISE:
            site.kind = Kind.CALL
            site.inputs = [self.need(i, group, index, frames) for i in node.inputs]
            group.ops += frames.bit_count() * node.op.info.cost
        else:
            COMPUTE[node.op](self, site)

    # stored nodes ----------------------------------------------------------------------------------------------------

    def store(self, node: Node, f: Facts, sites: list[Site], cut: Cut) -> None:
        """Find or make the group that stores the node; the other groups that read it load it."""
        self.why[id(node)] = cut.why
        if node.op is Op.COPY:
            self.copies.append(node)
            for s in sites:
                self.load(s)
            return
        if isinstance(node.attrs, Loop):
            self.loop(node, node.attrs, sites)
            return
        if cut.join:
            groups = sorted({s.group for s in sites}, key=lambda g: g.number)
            if any(join(self, node, f, g, sites) for g in groups) or adopt(self, node, f, sites):
                return
            if ride(self, node, f, groups, sites):
                return
        group = twin(self, node, f, sites)
        if group is not None:
            self.readers_load(node, sites, group)
            self.add_store(node, f, group, group.outputs()[0])
            return
        group = Group(len(self.groups))
        self.groups.append(group)
        remember(self, node, f, group)
        self.readers_load(node, sites, group)
        root(self, node, group)

    def loop(self, node: Node, attrs: Loop, sites: list[Site]) -> None:
        """The loop of which the node is a result stores it."""
        key = (attrs.body, *map(id, node.inputs))
        group = self.loops.get(key)
        if group is None:
            group = self.loops[key] = Group(len(self.groups), True)
            self.groups.append(group)
            for i in node.inputs:
                self.need(i, group, (), 0)
        self.readers_load(node, sites, group)

    def users(self, node: Node, sites: Iterable[Site]) -> dict[Group, None]:
        """The groups of `sites`, and those that update a copy of the node."""
        return {**dict.fromkeys(s.group for s in sites), **dict.fromkeys(self.based.get(id(node), ()))}

    def readers_load(self, node: Node, sites: list[Site], home: Group) -> None:
        """`home` stores the node; all sites outside load it."""
        home.stored[id(node)] = node
        outside = [s for s in sites if s.group is not home]
        for s in outside:
            self.load(s)
        users = self.users(node, outside)
        home.feed(users)

    def add_store(self, node: Node, f: Facts, group: Group, frame: Frame) -> None:
        """Store the node also, computed in the loops of `frame`, which have its shape."""
        axes = iter(frame.axes)
        index: tuple[Int, ...] = tuple(0 if n == 1 else next(axes) for n in node.shape)
        site = self.need(node, group, index, frame.bit)
        frame.stores.append(Store(node, index, site))
        group.bases |= f.bases
        if site.kind is Kind.OPEN:
            self.compute(site)

    def on_top_of(self, node: Node, base: Node, group: Group) -> None:
        """The node's buffer starts as a copy of the base's."""
        group.inplace[id(node)] = base
        if not is_leaf(base):
            self.based.setdefault(id(base), []).append(group)
