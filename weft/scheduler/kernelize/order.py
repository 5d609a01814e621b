"""The order in which kernels run: producers first, and what updates a tensor after what else reads it."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from weft.scheduler.kernelize.groups import Group


def ordered(groups: Sequence[Group], position: Mapping[int, int]) -> list[Group]:
    """Groups in an order of computation; of those that are ready, one that makes final results only (a weight's
    gradient, while what it is a product of is in memory), else the one whose results come first in the graph.

    A group that reads a tensor of the shape of one that it writes may be able to write over it, if all other readers
    have run: it waits for them where it can.
    """
    waiting = dict.fromkeys(groups, 0)
    readers: dict[int, int] = {}
    for g in groups:
        for c in g.consumers:
            waiting[c] += 1
        for k in _touched(g):
            readers[k] = readers.get(k, 0) + 1
    # what nothing else reads runs at once: its result has memory anyway, and what it reads may be needed no more
    rank = {g: max((position[k] for k in g.stored), default=0) if g.consumers else -1 for g in groups}
    over = {g: _replaceable(g) for g in groups}
    ready = [(rank[g], g.number, g) for g in groups if not waiting[g]]
    heapq.heapify(ready)
    parked: dict[int, list[tuple[int, int, Group]]] = {}  # tensor -> groups that wait for its other readers
    later: list[tuple[int, int, Group]] = []  # all parked ones, those that have run since included
    done: dict[Group, None] = {}
    while len(done) < len(groups):
        if ready:
            entry = heapq.heappop(ready)
            other = next((k for k in over[entry[2]] if readers[k] > 1), None)
            if other is not None and entry[2] not in done:
                parked.setdefault(other, []).append(entry)
                heapq.heappush(later, entry)
                continue
        else:
            entry = heapq.heappop(later)
        g = entry[2]
        if g in done:
            continue
        done[g] = None
        for k in _touched(g):
            readers[k] -= 1
            if readers[k] <= 1:
                for e in parked.pop(k, ()):
                    heapq.heappush(ready, e)
        for c in g.consumers:
            waiting[c] -= 1
            if not waiting[c]:
                heapq.heappush(ready, (rank[c], c.number, c))
    return list(done)


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
