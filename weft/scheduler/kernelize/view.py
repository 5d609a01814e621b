"""The part of a partition that deciding reads. Nothing in it changes the partition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from weft.ir.graph import Node
from weft.scheduler.kernelize.facts import Facts
from weft.scheduler.kernelize.groups import Group, Site
from weft.scheduler.kernelize.prepare import Prepared


class View(Protocol):
    """A partition between two decisions. Nodes are visited consumers first: all that reads the next one is known."""

    @property
    def prepared(self) -> Prepared:
        """The graph, with nodes that are stored in any case, and those computed as others."""
        ...

    @property
    def facts(self) -> Mapping[int, Facts]:
        """Facts of each node, by id."""
        ...

    @property
    def max_buffers(self) -> int:
        """Tensors that a kernel may read and write."""
        ...

    def sites_of(self, node: Node) -> Iterable[Site]:
        """The sites of a node, in all groups."""
        ...

    def groups_with(self, node: int) -> Iterable[int]:
        """Numbers of the groups with a site of the node whose id is given."""
        ...

    def users(self, node: Node, sites: Iterable[Site]) -> Mapping[Group, None]:
        """The groups of `sites`, and those that update a copy of the node in place."""
        ...

    def is_updated(self, node: Node) -> bool:
        """True where a group updates a copy of the node in place."""
        ...

    def has_room(self, group: Group, node: Node, stores: int = 0) -> bool:
        """True where `group` may compute the node, and store so many more, with the buffers of one kernel."""
        ...

    def siblings(self, key: tuple[object, ...]) -> Sequence[Group]:
        """The groups made for a node of this key (see `homes.sibling_key`), oldest first."""
        ...

    def reaches(self, producer: Group, consumer: Group) -> bool:
        """True where `consumer` reads, directly or not, what `producer` stores."""
        ...
