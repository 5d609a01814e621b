"""The structure of a group: everything that its algorithm follows from, with sites and tensors by number.

A model of many equal layers has equal groups over other tensors, and the algorithm of one is that of all. What `emit`
reads of a group, of its nodes and of their masks is a row here: a site's row says how it gets its value, and of which
sites; a tensor's, its dtype and shape, and whether it is far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from weft.ir.expr import Scalar, bits
from weft.ir.graph import Node
from weft.scheduler.kernelize.groups import Frames, Group, Kind, Site
from weft.scheduler.kernelize.masks import Masks

Key: TypeAlias = tuple[Any, ...]

_ATTRS_READ = frozenset({Kind.CONST, Kind.ONE_HOT})
"""Sources of values that depend on the attributes of their nodes."""


def structure(group: Group, masks: Masks, far: frozenset[int]) -> tuple[Key, Sequence[Node]]:
    """A key that is equal for groups with one algorithm, and the tensors in memory, in the order of their numbers."""
    s = _Structure(group, masks, far)
    return s.key(), s.tensors


class _Structure:
    """Numbers sites and tensors as they are met."""

    def __init__(self, group: Group, masks: Masks, far: frozenset[int]) -> None:
        self.group, self.masks, self.far = group, masks, far
        self.rows: list[Any] = []
        self.site: dict[Site, int] = {}
        self.tensor: dict[int, int] = {}
        self.tensors: list[Node] = []

    def key(self) -> Key:
        """The rows of everything that is computed, then those of the frames."""
        group = self.group
        for s in (*group.loads, *group.index_dependent):
            self.visit(s)
        for mark, (s, size) in group.markers.items():
            self.visit(s)
            self.rows.append((mark, self.site[s], size))
        frames: list[Any] = []
        for f in group.frames:
            node = f.node
            if node is not None:
                self.visit(f.stores[0].site)
                head = (node.op, node.dtype, f in group.contractions)
                frames.append((*head, f.axes, f.reduced, self.site[f.stores[0].site]))
                continue
            stores: list[Any] = []
            for store in f.stores:
                self.visit(store.site)
                at = self.site[store.site]
                stores.append((self.number(store.node), store.index, at, store.guard, store.combine))
            frames.append((f.axes, *stores, *[c.number for c in f.carries]))
        placed = self.site
        loads, dependent = [placed[s] for s in group.loads], [placed[s] for s in group.index_dependent]
        return (tuple(loads), tuple(dependent), *group.extents.items(), *self.rows, *frames)

    def number(self, node: Node) -> int:
        """The number of a tensor that is read or written, with a row when it is met."""
        known = self.tensor.get(id(node))
        if known is None:
            known = self.tensor[id(node)] = len(self.tensors)
            self.tensors.append(node)
            masked, demanded = self.masks.masked.get(id(node)), self.masks.demanded.get(id(node))
            self.rows.append((node.dtype, node.shape, masked, demanded, id(node) in self.far))
        return known

    def visit(self, root: Site) -> None:
        """Number a site, those that it needs before it."""
        placed = self.site
        stack = [root]
        while stack:
            site = stack[-1]
            if site in placed:
                stack.pop()
                continue
            missing = [s for s in site.inputs if s not in placed]
            if missing:
                missing.reverse()
                stack += missing
                continue
            self.rows.append(self.row(site))
            placed[site] = len(placed)
            stack.pop()

    def row(self, site: Site) -> Any:
        """All that the value of a site follows from."""
        placed, node, kind = self.site, site.node, site.kind
        inputs = [placed[s] for s in site.inputs]
        match kind:
            case Kind.CALL:
                return (node.op, node.dtype, node.inputs[0].dtype, *inputs)
            case Kind.LOAD:
                frames = self.frames(site.frames) if self.group.markers else ()
                return (kind, self.number(node), site.index, frames, *inputs)
            case Kind.FORWARD:
                return (kind, *inputs)
            case _:
                frame = None if site.frame is None else site.frame.number
                attrs = node.attrs if kind in _ATTRS_READ else None
                own = (kind, node.op, node.dtype, attrs, site.index, site.axis, frame, _told_apart(site.fill))
                return (*own, tuple(site.guards), *inputs)

    def frames(self, frames: Frames) -> tuple[int, ...]:
        """The numbers of some of the group's frames."""
        return tuple(sorted([f.number for f in frames]))


def _told_apart(fill: Scalar | str | None) -> Any:
    """A fill such that those that differ are unequal: 0.0 is not -0.0, nor 0, nor False."""
    return fill if fill is None or isinstance(fill, str) else (fill.__class__, bits(fill))
