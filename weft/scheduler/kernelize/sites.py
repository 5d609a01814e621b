"""Sites of a partition: the indices at which nodes are needed in groups, and the sources of their values."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.graph import Node
from weft.ir.index import Int
from weft.ir.ops import Op
from weft.scheduler.kernelize.facts import Facts, is_leaf
from weft.scheduler.kernelize.groups import Frames, Group, Kind, Site, markers_in
from weft.scheduler.kernelize.prepare import Prepared


class Sites:
    """The sites of each node, one per group and index; only applying a decision adds to them."""

    def __init__(self, prepared: Prepared, facts: Mapping[int, Facts]) -> None:
        self.prepared, self.facts = prepared, facts
        # by id of a node: group number and index -> site
        self.known: dict[int, dict[tuple[int, tuple[Int, ...]], Site]] = {}
        # by id of a node: the groups that update a copy of it in place
        self.updaters: dict[int, list[Group]] = {}

    def need(self, node: Node, group: Group, index: tuple[Int, ...], frames: Frames) -> Site:
        """The site of `node` at `index` in `group`, now also needed by `frames`."""
        number, op = id(node), node.op
        if op is Op.CONST and node.storage is None:
            index = ()
        known = self.known.get(number)
        if known is None:
            known = self.known[number] = {}
        key = (group.number, index)
        site = known.get(key)
        if site is not None:
            if site.frames is not frames:
                site.frames |= frames
            return site
        site = known[key] = Site(node, group, index, frames, Kind.OPEN)
        if self.facts[number].size == 0:
            site.kind, site.fill = Kind.CONST, 0
        elif is_leaf(node):
            self.load(site)
            group.pending.add(number)
        elif op is Op.CONST:
            site.kind = Kind.CONST
        elif op is Op.RANGE:
            site.kind = Kind.RANGE
            self.depend(site)
        else:
            group.pending.add(number)
        return site

    def load(self, site: Site) -> None:
        """Let the site read the node's buffer."""
        site.kind = Kind.LOAD
        if self.facts[id(site.node)].size:
            site.group.loads.append(site)
            site.group.read.add(id(site.node))
            self._wait(site)

    def depend(self, site: Site) -> None:
        """Record that the site's value depends on its index itself."""
        site.group.index_dependent.append(site)
        self._wait(site)

    def update(self, node: Node, base: Node, group: Group) -> None:
        """Let the buffer of `node`, which `group` stores, start as a copy of that of `base`."""
        group.inplace[id(node)] = base
        if not is_leaf(base):
            self.updaters.setdefault(id(base), []).append(group)

    def _wait(self, site: Site) -> None:
        """Make the computed indices in the site's index its inputs, computed before it."""
        if site.group.markers:
            site.inputs += [site.group.markers[m][0] for m in markers_in(site.index)]
