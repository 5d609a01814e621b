"""Links between devices, and what collectives over them take: the fastest of several algorithms.

A message of n bytes from device i to device j takes latency_ns[i, j] + n * ns_per_byte[i, j] (Hockney's model). All
devices send at once, each one message at a time per link. Over k devices, where a and b are those of the slowest link:

    all-reduce       ring 2 (k-1) (a + n/k b)    doubling log2(k) (a + n b)            at once a + (k-1) n b
    all-gather       ring   (k-1) (a + n/k b)    doubling log2(k) a + (k-1) n/k b      at once a + (k-1) n/k b
    reduce-scatter   as all-gather
    all-to-all       rounds (k-1) (a + n/k b)                                          at once a + (k-1) n/k b
    all-reduce in two: reduce-scatter and all-gather, both at once
    hierarchical     within islands of fast links, across them with the n/m bytes of one of m members, within again

n: bytes of the value that all devices have before (all-reduce, reduce-scatter) or after (all-gather); of an all-to-all,
bytes that one device holds. Source: Thakur, Rabenseifner & Gropp 2005, "Optimization of collective communication".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, TypeAlias

import numpy as np

from weft.lazy_dataclass import dataclass

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Ranks: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Collective(Enum):
    """A pattern of exchanges over a group of devices."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"


@dataclass(frozen=True, slots=True)
class Way:
    """An algorithm for an exchange, which takes fixed_ns + nbytes * ns_per_byte."""

    algorithm: str
    fixed_ns: float
    ns_per_byte: float

    def ns(self, nbytes: float) -> float:
        """The time for this many bytes."""
        return self.fixed_ns + nbytes * self.ns_per_byte


@dataclass(frozen=True, slots=True, eq=False)
class Links:
    """The links of each ordered pair of devices; the diagonal does not count."""

    latency_ns: Array
    ns_per_byte: Array

    @classmethod
    def uniform(cls, devices: int, latency_ns: float, bandwidth: float) -> Links:
        """Equal links, `bandwidth` in bytes per second."""
        return cls.islands([devices], (latency_ns, bandwidth), (latency_ns, bandwidth))

    @classmethod
    def islands(cls, sizes: Sequence[int], inside: tuple[float, float], across: tuple[float, float]) -> Links:
        """Groups of neighbours with one (latency_ns, bandwidth) inside of each, and another between them."""
        island = np.repeat(np.arange(len(sizes)), sizes)
        near = island[:, None] == island[None, :]
        return cls(
            np.where(near, inside[0], across[0]).astype(np.float64),
            np.where(near, 1e9 / inside[1], 1e9 / across[1]).astype(np.float64),
        )

    @property
    def count(self) -> int:
        """The number of devices."""
        return len(self.latency_ns)

    def send_ns(self, source: int, target: int, nbytes: float) -> float:
        """The time of one message; none to oneself."""
        if source == target:
            return 0.0
        return float(self.latency_ns[source, target] + nbytes * self.ns_per_byte[source, target])


def ways(links: Links, groups: Ranks, collective: Collective) -> tuple[Way, ...]:
    """The algorithms that are fastest for some number of bytes. `groups`: rows of devices, which all do it at once."""
    return _envelope(_ways(links, groups, collective)) if groups.shape[1] > 1 else ()


def slowest(links: Links, groups: Ranks) -> Way:
    """A message from anywhere in a group to anywhere else in it, at worst."""
    return Way("p2p", *_at_most(links, groups))


def fastest(some: Sequence[Way], nbytes: float) -> Way:
    """The way that is fastest for this many bytes; nothing to do takes no time."""
    return min(some, key=lambda w: w.ns(nbytes)) if some else NOTHING


NOTHING = Way("nothing", 0.0, 0.0)


def _ways(links: Links, groups: Ranks, collective: Collective) -> list[Way]:
    k = groups.shape[1]
    a, b = _slowest(links, groups, np.roll(groups, -1, axis=1))
    latency, serial = _at_once(links, groups)
    rounds = [
        _slowest(links, groups, np.roll(groups, -(1 << j), axis=1)) for j in range((k - 1).bit_length())
    ]
    match collective:
        case Collective.ALL_REDUCE:
            own = [
                Way("ring", 2 * (k - 1) * a, 2 * (k - 1) / k * b),
                Way("doubling", sum(r[0] for r in rounds), sum(r[1] for r in rounds)),
                Way("at once", latency, serial),
                Way("in two", 2 * latency, 2 * serial / k),
            ]
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER:
            parts = [min(1 << j, k - (1 << j)) / k for j in range(len(rounds))]
            doubled = sum(part * r[1] for part, r in zip(parts, rounds, strict=True))
            own = [
                Way("ring", (k - 1) * a, (k - 1) / k * b),
                Way("doubling", sum(r[0] for r in rounds), doubled),
                Way("at once", latency, serial / k),
            ]
        case Collective.ALL_TO_ALL:
            turns = [_slowest(links, groups, np.roll(groups, -s, axis=1)) for s in range(1, k)]
            own = [
                Way("rounds", sum(t[0] for t in turns), sum(t[1] for t in turns) / k),
                Way("at once", latency, serial / k),
            ]
    return own + list(_hierarchical(links, groups, collective))


def _hierarchical(links: Links, groups: Ranks, collective: Collective) -> Iterable[Way]:
    size = _island(links, groups)
    if size is None:
        return
    k = groups.shape[1]
    islands = groups.reshape(-1, size)
    peers = groups.reshape(len(groups), k // size, size).swapaxes(1, 2).reshape(-1, k // size)
    match collective:
        case Collective.ALL_REDUCE:
            stages = [
                (islands, Collective.REDUCE_SCATTER, 1.0),
                (peers, Collective.ALL_REDUCE, 1 / size),
                (islands, Collective.ALL_GATHER, 1.0),
            ]
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER:
            stages = [(peers, collective, 1 / size), (islands, collective, 1.0)]
        case Collective.ALL_TO_ALL:
            stages = [(islands, collective, 1.0), (peers, collective, 1.0)]
    sums = [Way("hierarchical", 0.0, 0.0)]
    for ranks, stage, share in stages:
        sums = [
            Way("hierarchical", done.fixed_ns + w.fixed_ns, done.ns_per_byte + share * w.ns_per_byte)
            for done in sums
            for w in ways(links, ranks, stage)
        ]
    yield from sums


def _island(links: Links, groups: Ranks) -> int | None:
    """The largest number of neighbours, which parts every group, whose links are faster than the slowest of a group."""
    k = groups.shape[1]
    whole = _at_most(links, groups)
    for size in range(k // 2, 1, -1):
        if k % size == 0:
            inside = _at_most(links, groups.reshape(-1, size))
            if inside[0] < whole[0] or inside[1] < whole[1]:
                return size
    return None


def _slowest(links: Links, sources: Ranks, targets: Ranks) -> tuple[float, float]:
    return float(links.latency_ns[sources, targets].max()), float(links.ns_per_byte[sources, targets].max())


def _pairs(links: Links, groups: Ranks) -> tuple[Array, Array]:
    """The links of all pairs of each group; none from a device to itself."""
    pairs = groups[:, :, None], groups[:, None, :]
    others = ~np.eye(groups.shape[1], dtype=bool)
    return links.latency_ns[pairs] * others, links.ns_per_byte[pairs] * others


def _at_once(links: Links, groups: Ranks) -> tuple[float, float]:
    """The largest latency, and the time per byte of a device that sends to all others one after the other."""
    latency, per_byte = _pairs(links, groups)
    return float(latency.max()), float(np.maximum(per_byte.sum(axis=1), per_byte.sum(axis=2)).max())


def _at_most(links: Links, groups: Ranks) -> tuple[float, float]:
    latency, per_byte = _pairs(links, groups)
    return float(latency.max()), float(per_byte.max())


def _envelope(some: Iterable[Way]) -> tuple[Way, ...]:
    """The ways that are not slower than another one for every number of bytes, by their fixed time."""
    kept: list[Way] = []
    for w in sorted(some, key=lambda w: (w.fixed_ns, w.ns_per_byte)):
        if not kept or w.ns_per_byte < kept[-1].ns_per_byte:
            kept.append(w)
    return tuple(kept)
