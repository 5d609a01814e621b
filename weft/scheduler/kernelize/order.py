"""The order in which kernels run: producers first, and what updates a tensor after what else reads it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from weft.ir.graph import Node
from weft.scheduler.kernelize.groups import Group


def ordered(groups: Sequence[Group], position: Mapping[int, int]) -> list[Group]:
    """Groups in an order of computation; of those that are ready, the one whose results come first in the graph.

    A group that reads a tensor of the shape of one that it writes may be able to write over it, if all other readers
    have run: it waits for them where it can.
    """
    waiting = {g: 0 for g in groups}
    for g in groups:
        for c in g.consumers:
            waiting[c] += 1
    readers: dict[int, int] = {}
    for g in groups:
        for k in _touched(g):
            readers[k] = readers.get(k, 0) + 1
    rank = {g: max((position[k] for k in g.stored), default=0) for g in groups}
    ready = [(rank[g], g.number, g) for g in groups if not waiting[g]]
    heapq.heapify(ready)
    later: list[tuple[int, int, Group]] = []
    out: list[Group] = []
    while ready or later:
        if ready:
            entry = heapq.heappop(ready)
            if any(readers[k] > 1 for k in _replaceable(entry[2])):
                heapq.heappush(later, entry)
                continue
        else:
            entry = heapq.heappop(later)
        g = entry[2]
        out.append(g)
        for k in _touched(g):
            readers[k] -= 1
        woken = [e for e in later if all(readers[k] <= 1 for k in _replaceable(e[2]))]
        if woken:
            later = [e for e in later if e not in woken]
            heapq.heapify(later)
            for e in woken:
                heapq.heappush(ready, e)
        for c in g.consumers:
            waiting[c] -= 1
            if not waiting[c]:
                heapq.heappush(ready, (rank[c], c.number, c))
    return out


def _touched(g: Group) -> set[int]:
    return g.read | {id(n) for n in g.inplace.values()}


def _replaceable(g: Group) -> list[int]:
    """Tensors of a written one's shape and dtype that the group reads."""
    kinds = {(n.shape, n.dtype) for n in g.stored.values()}
    found: list[int] = [id(n) for n in g.inplace.values()]
    seen: dict[int, Node] = {id(s.node): s.node for s in g.loads}
    found.extend(k for k, n in seen.items() if (n.shape, n.dtype) in kinds and n.storage is not None)
    return found
