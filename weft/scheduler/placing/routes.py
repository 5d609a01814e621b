"""Routes from one layout of a tensor to another: the shortest path over collectives and direct exchanges.

    (S(0), P)  --reduce-scatter axis 1-->  (S(0), S(1))                 steps change one axis of the mesh,
    (P, P)     --all-reduce axes 0, 1-->   (R, R)                       or all that are partial alike,
    (S(0), R)  --p2p-->                    (S(1), S(0))                 or everything, box by box

Distances are shortest paths, so they are a metric (not symmetric): a detour is never shorter. An axis of a tensor that
several axes of the mesh shard is nested from left to right; only the innermost of them can be gathered or sliced alone.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from weft.errors import ArgumentError
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard
from weft.lazy_dataclass import dataclass
from weft.scheduler.placing.links import NOTHING, Array, Collective, Links, Ranks, Way, fastest, slowest, ways

_MAX_PAIRED_SIDES = 1 << 25
"""Sides of boxes that are compared for direct exchanges of one tensor: beyond, only collectives are looked at."""

_KEPT_TENSORS = 256
"""Shapes whose distances are kept; the oldest is dropped."""

Ends: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Move(Enum):
    """A step of a route that is no collective."""

    SLICE = "slice"
    TERM = "term"
    P2P = "p2p"


@dataclass(frozen=True, slots=True)
class Hop:
    """A step of a route: to this layout, over these axes of the mesh; `nbytes` as the way counts them."""

    kind: Collective | Move
    axes: tuple[int, ...]
    layout: Layout
    nbytes: int
    way: Way

    @property
    def ns(self) -> float:
        """The time that it takes."""
        return self.way.ns(self.nbytes)


@dataclass(frozen=True, slots=True)
class _Table:
    """Distances between all layouts of one tensor, and the layout before the last on each shortest path."""

    layouts: tuple[Layout, ...]
    index: dict[Layout, int]
    distance: Array
    before: Ends
    hops: dict[tuple[int, int], Hop]


@dataclass(slots=True)
class Routes:
    """The routes on a mesh with these links."""

    mesh: Mesh
    links: Links
    _ways: dict[tuple[Collective, tuple[int, ...]], tuple[Way, ...]] = field(
        default_factory=dict[tuple[Collective, tuple[int, ...]], tuple[Way, ...]]
    )
    _slowest: dict[tuple[int, ...], Way] = field(default_factory=dict[tuple[int, ...], Way])
    _tables: dict[Any, _Table] = field(default_factory=dict[Any, _Table])

    def ways(self, collective: Collective, axes: tuple[int, ...]) -> tuple[Way, ...]:
        """The algorithms for a collective over these axes of the mesh, of all groups at once."""
        key = collective, axes
        if key not in self._ways:
            self._ways[key] = ways(self.links, self.groups(axes), collective)
        return self._ways[key]

    def slowest(self, axes: tuple[int, ...]) -> Way:
        """A message from anywhere to anywhere along these axes of the mesh, at worst."""
        if axes not in self._slowest:
            self._slowest[axes] = slowest(self.links, self.groups(axes)) if axes else NOTHING
        return self._slowest[axes]

    def groups(self, axes: tuple[int, ...]) -> Ranks:
        """The groups of devices that differ along these axes of the mesh only."""
        ranks = np.arange(self.links.count).reshape(self.mesh.shape)
        return np.moveaxis(ranks, axes, range(-len(axes), 0)).reshape(-1, self._count(axes))

    def _count(self, axes: Iterable[int]) -> int:
        return math.prod(self.mesh.shape[i] for i in axes)

    def distances(
        self, shape: Sequence[int], itemsize: int, sources: Sequence[Layout], targets: Sequence[Layout]
    ) -> Array:
        """The times from each source to each target."""
        table = self._table(tuple(shape), itemsize, (*sources, *targets))
        rows = [table.index[x] for x in sources]
        return table.distance[np.ix_(rows, [table.index[x] for x in targets])]

    def route(self, shape: Sequence[int], itemsize: int, source: Layout, target: Layout) -> tuple[Hop, ...]:
        """The steps from one layout to another."""
        table = self._table(tuple(shape), itemsize, (source, target))
        first, at = table.index[source], table.index[target]
        found: list[Hop] = []
        while at != first:
            last = int(table.before[first, at])
            found.append(table.hops[last, at])
            at = last
        return tuple(reversed(found))

    def _table(self, shape: tuple[int, ...], itemsize: int, asked: Iterable[Layout]) -> _Table:
        asked = list(asked)
        for x in asked:
            if len({p.op for p in x if isinstance(p, Partial)}) > 1:
                raise ArgumentError(f"{x} is partial in two operations, whose order decides what it is")
        more = _beside_canonical(asked)
        key = shape, itemsize, more, tuple(sorted({x for x in asked if not _usual(x)}, key=repr))
        if key not in self._tables:
            if len(self._tables) >= _KEPT_TENSORS:
                del self._tables[next(iter(self._tables))]
            self._tables[key] = self._measure(*key)
        return self._tables[key]

    def _measure(
        self,
        shape: tuple[int, ...],
        itemsize: int,
        more: tuple[frozenset[Placement], ...],
        unusual: tuple[Layout, ...],
    ) -> _Table:
        choices = [
            [Replicate(), *(Shard(d) for d in range(len(shape))), *sorted(others, key=repr)]
            for others in more
        ]
        layouts = (*(x for x in itertools.product(*choices) if _usual(x)), *unusual)
        index = {x: k for k, x in enumerate(layouts)}
        ends = np.stack([block_ends(x, shape, self.mesh.shape) for x in layouts])
        held = (ends[..., 1] - ends[..., 0]).prod(-1).max(-1) * itemsize  # bytes of the largest block
        hops = {
            (index[source], index[hop.layout]): hop
            for source in layouts
            for hop in self._collectives(source, index, held)
        }
        for hop_from, hop in self._direct(layouts, ends, itemsize):
            to = index[hop.layout]
            if (hop_from, to) not in hops or hop.ns < hops[hop_from, to].ns:
                hops[hop_from, to] = hop
        distance = np.full((len(layouts), len(layouts)), np.inf)
        before = np.tile(np.arange(len(layouts))[:, None], (1, len(layouts)))
        for (i, j), hop in hops.items():
            distance[i, j] = hop.ns
        np.fill_diagonal(distance, 0.0)
        for k in range(len(layouts)):
            through = distance[:, k, None] + distance[None, k, :]
            better = through < distance
            distance = np.where(better, through, distance)
            before = np.where(better, before[None, k, :], before)
        return _Table(layouts, index, distance, before, hops)

    def _collectives(self, source: Layout, index: dict[Layout, int], held: Ends) -> Iterator[Hop]:
        """The steps from a layout that change one axis of the mesh, or reduce several."""
        here = int(held[index[source]])

        def hop(kind: Collective | Move, axes: tuple[int, ...], new: Placement) -> Iterator[Hop]:
            target = tuple(new if i in axes else p for i, p in enumerate(source))
            if target not in index:
                return
            there = int(held[index[target]])
            match kind:  # of uneven blocks, all wait for the largest
                case Collective.ALL_REDUCE:
                    nbytes = here
                case Collective.REDUCE_SCATTER:
                    nbytes = max(here, there * self._count(axes))
                case Collective.ALL_GATHER:
                    nbytes = max(there, here * self._count(axes))
                case Collective.ALL_TO_ALL:
                    nbytes = max(here, there)
                case _:
                    yield Hop(kind, axes, target, here, NOTHING)
                    return
            yield Hop(kind, axes, target, nbytes, fastest(self.ways(kind, axes), nbytes))

        new_axes = sorted({p for x in index for p in x if isinstance(p, Shard)}, key=repr)
        for i, p in enumerate(source):
            inner = {q.dim for q in source[i + 1 :] if isinstance(q, Shard)}
            shards = [s for s in new_axes if s.dim not in inner and s != p]
            match p:
                case Partial():
                    yield from hop(Collective.ALL_REDUCE, (i,), Replicate())
                    for s in shards:
                        yield from hop(Collective.REDUCE_SCATTER, (i,), s)
                case Replicate():
                    for s in shards:
                        yield from hop(Move.SLICE, (i,), s)
                    for q in {q for x in index for q in x if isinstance(q, Partial)}:
                        yield from hop(Move.TERM, (i,), q)
                case Shard() if p.dim not in inner:
                    yield from hop(Collective.ALL_GATHER, (i,), Replicate())
                    for s in (s for s in shards if s.dim != p.dim):
                        yield from hop(Collective.ALL_TO_ALL, (i,), s)
                case _:
                    pass
        for op in {p.op for p in source if isinstance(p, Partial)}:
            axes = tuple(i for i, p in enumerate(source) if p == Partial(op))
            for count in range(2, len(axes) + 1):
                for some in itertools.combinations(axes, count):
                    yield from hop(Collective.ALL_REDUCE, some, Replicate())

    def _direct(self, layouts: Sequence[Layout], ends: Ends, itemsize: int) -> Iterator[tuple[int, Hop]]:
        """Each device fetches what it lacks from those that have it."""
        whole = [k for k, x in enumerate(layouts) if not any(isinstance(p, Partial) for p in x)]
        if len(whole) ** 2 * max(1, ends[0].size) > _MAX_PAIRED_SIDES:
            return
        some = ends[whole]
        first = np.maximum(some[:, None, ..., 0], some[None, :, ..., 0])
        last = np.minimum(some[:, None, ..., 1], some[None, :, ..., 1])
        shared = np.maximum(last - first, 0).prod(-1)
        wanted = (some[..., 1] - some[..., 0]).prod(-1)
        lacking = (wanted[None] - shared).max(-1) * itemsize
        for (a, i), (b, j) in itertools.permutations(enumerate(whole), 2):
            axes = _touched(layouts[i], layouts[j])
            nbytes = int(lacking[a, b])
            yield i, Hop(Move.P2P, axes, layouts[j], nbytes, self.slowest(axes) if nbytes else NOTHING)


def _beside_canonical(asked: Iterable[Layout]) -> tuple[frozenset[Placement], ...]:
    """Per axis of the mesh, the placements in use that are neither Replicate nor a Shard of even blocks."""
    columns = list(zip(*asked, strict=True))
    return tuple(
        frozenset(p for p in column if isinstance(p, Partial) or (isinstance(p, Shard) and p.bounds))
        for column in columns
    )


def _usual(layout: Layout) -> bool:
    """True unless blocks of blocks have explicit bounds, or terms of two operations meet."""
    seen: set[int] = set()
    for p in layout:
        if isinstance(p, Shard):
            if p.bounds is not None and p.dim in seen:
                return False
            seen.add(p.dim)
    return len({p.op for p in layout if isinstance(p, Partial)}) <= 1


def block_ends(layout: Layout, shape: Sequence[int], grid: Sequence[int]) -> Ends:
    """The boxes of all devices at once, as (devices, axes of the tensor, first and end)."""
    count = math.prod(grid)
    found = np.empty((count, len(shape), 2), np.int64)
    found[..., 0], found[..., 1] = 0, shape
    for p, n, k in zip(layout, grid, np.indices(grid).reshape(len(grid), count), strict=True):
        if isinstance(p, Shard):
            first, size = found[:, p.dim, 0].copy(), found[:, p.dim, 1] - found[:, p.dim, 0]
            if p.bounds is None:
                each = -(-size // n)
                begin, end = np.minimum(each * k, size), np.minimum(each * (k + 1), size)
            else:
                stops = np.array([0, *p.bounds[:-1], np.iinfo(np.int64).max])
                begin, end = np.minimum(stops[k], size), np.minimum(stops[k + 1], size)
            found[:, p.dim, 0], found[:, p.dim, 1] = first + begin, first + end
    return found


def _touched(source: Layout, target: Layout) -> tuple[int, ...]:
    """The axes of the mesh along which two layouts differ, and those that shard the same axes of the tensor."""
    differ = [i for i, (p, q) in enumerate(zip(source, target, strict=True)) if p != q]
    dims = {p.dim for i in differ for p in (source[i], target[i]) if isinstance(p, Shard)}
    nested = [i for i, p in enumerate(source) if isinstance(p, Shard) and p.dim in dims and p == target[i]]
    return tuple(sorted({*differ, *nested}))
