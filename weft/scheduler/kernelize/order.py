"""Order of the kernels: producers first, and a kernel that updates a tensor after its other readers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from weft.scheduler.kernelize.facts import is_leaf
from weft.scheduler.kernelize.groups import Group
from weft.scheduler.kernelize.partition import Partition


def ordered(partition: Partition) -> list[Group]:
    """The groups of a partition, in an order of computation.

    Of those that are ready, one that makes final results only (a weight's gradient, while what it is a product of is in
    memory), else the one whose results come first in the graph.
    A group that reads a tensor of the shape of one that it writes may be able to write over it, if all other readers
    have run: it waits for them where it can.
    """
    groups, precedence = partition.groups, partition.precedence
    position = {id(n): k for k, n in enumerate(partition.prepared.order)}
    waiting = dict.fromkeys(groups, 0)
    readers: dict[int, int] = {}
    for g in groups:
        for c in precedence.consumers(g):
            waiting[c] += 1
        for k in _touched(g):
            readers[k] = readers.get(k, 0) + 1
    # what nothing else reads runs at once: its result has memory anyway, and what it reads may be needed no more
    rank = {g: _rank(g, position) if precedence.consumers(g) else -1 for g in groups}
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
        for c in precedence.consumers(g):
            waiting[c] -= 1
            if not waiting[c]:
                heapq.heappush(ready, (rank[c], c.number, c))
    return list(done)


def _rank(g: Group, position: Mapping[int, int]) -> int:
    """The place in the graph of the first node that the group stores: what reads it may be needed from there on."""
    return min((position[k] for k in g.stored), default=0)


def _touched(g: Group) -> set[int]:
    """Ids of the tensors that the group loads or updates in place."""
    return g.read | {id(n) for n in g.inplace.values()}


def _replaceable(g: Group) -> list[int]:
    """Tensors in memory that the group may write over: updated ones, and those that are read just where an element of
    the same place and dtype is written."""
    found: list[int] = [id(n) for n in g.inplace.values()]
    stored = {(store.index, store.node.shape, store.node.dtype) for f in g.outputs() for store in f.stores}
    elsewhere: set[int] = set()
    outputs = frozenset(g.outputs())
    for s in g.loads:
        if not s.frames <= outputs or (s.index, s.node.shape, s.node.dtype) not in stored:
            elsewhere.add(id(s.node))
    found.extend(id(s.node) for s in g.loads if is_leaf(s.node) and id(s.node) not in elsewhere)
    return found
