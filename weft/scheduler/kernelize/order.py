"""The order in which kernels run: producers first, and what updates a tensor after what else reads it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from weft.scheduler.kernelize.groups import Group


def ordered(groups: Sequence[Group], position: Mapping[int, int]) -> list[Group]:
    """Groups in an order of computation; of those that are ready, the one whose results come first in the graph.

    A group that reads a tensor of the shape of one that it writes may be able to write over it, if all other readers
    have run: it waits for them where it can.
    """
    waiting = dict.fromkeys(groups, 0)
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
    """Tensors in memory that the group may write over: updated ones, and those that are read just where an element of
    the same place and dtype is written."""
    found: list[int] = [id(n) for n in g.inplace.values()]
    stored = {(store.index, store.node.shape, store.node.dtype) for f in g.outputs() for store in f.stores}
    elsewhere: set[int] = set()
    outputs = sum(f.bit for f in g.outputs())
    for s in g.loads:
        if s.frames & ~outputs or (s.index, s.node.shape, s.node.dtype) not in stored:
            elsewhere.add(id(s.node))
    found.extend(id(s.node) for s in g.loads if s.node.storage is not None and id(s.node) not in elsewhere)
    return found
