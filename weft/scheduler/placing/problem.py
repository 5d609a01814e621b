"""The choice of one option for each block, where options and pairs of neighbours have prices and pools have limits.

    minimize    sum over blocks  ns[x_i]  +  sum over edges (i, j)  ns[x_i, x_j]
    such that   sum over blocks  nbytes[x_i, pool]  <=  limits[pool]

A block is what is decided at once (some nodes and the layout of each), an option one way to lay it out, and the table
of an edge the time of the exchanges between two blocks. Impossible options and pairs have the price inf.
"""
# Tests: tests/scheduler/placing/test_search.py

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass

Array: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Counts: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A decision: the time of each option, and its bytes in each pool. Blocks of different keys are not alike."""

    name: str
    ns: Array
    nbytes: Counts
    key: object = None


@dataclass(frozen=True, slots=True, eq=False)
class Edge:
    """The time of what two blocks exchange, by the option of `source` and that of `target`."""

    source: int
    target: int
    ns: Array


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Blocks, edges, and the limit of each pool in bytes."""

    blocks: tuple[Block, ...]
    edges: tuple[Edge, ...]
    limits: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        pools = len(self.limits)
        for b in self.blocks:
            if not len(b.ns) or b.nbytes.shape != (len(b.ns), pools):
                raise ArgumentError(f"{b.name} has {len(b.ns)} options, and bytes of shape {b.nbytes.shape}")
        for e in self.edges:
            wanted = len(self.blocks[e.source].ns), len(self.blocks[e.target].ns)
            if e.ns.shape != wanted:
                raise ArgumentError(f"an edge has prices of shape {e.ns.shape} for {wanted} options")

    def ns(self, options: Sequence[int]) -> float:
        """The time of a choice."""
        alone = sum(float(b.ns[k]) for b, k in zip(self.blocks, options, strict=True))
        return alone + sum(float(e.ns[options[e.source], options[e.target]]) for e in self.edges)

    def nbytes(self, options: Sequence[int]) -> tuple[int, ...]:
        """The bytes of a choice in each pool."""
        total = np.zeros(len(self.limits), np.int64)
        for b, k in zip(self.blocks, options, strict=True):
            total += b.nbytes[k]
        return tuple(int(n) for n in total)

    def fits(self, options: Sequence[int]) -> bool:
        """True where no pool gets more than its limit."""
        return all(n <= limit for n, limit in zip(self.nbytes(options), self.limits, strict=True))


@dataclass(frozen=True, slots=True)
class Choice:
    """An option for each block, with a certificate: no choice takes less than `bound_ns`."""

    options: tuple[int, ...]
    ns: float
    bound_ns: float
    nbytes: tuple[int, ...]

    @property
    def gap(self) -> float:
        """The part of `ns` by which a better choice could be faster."""
        return max(0.0, self.ns - self.bound_ns) / self.ns if self.ns > 0 else 0.0


@dataclass(slots=True)
class Tables:
    """A problem as alterable tables: times of options, one table for each pair of neighbours, and a constant.

    What a sum of all is for a choice stays the same when a part of a table is moved to another (reparametrization).
    """

    alone: list[Array]
    pairs: dict[tuple[int, int], Array]
    constant: float = 0.0
    around: list[list[int]] = field(default_factory=list[list[int]])

    @classmethod
    def of(cls, p: Problem, big: float) -> Tables:
        """The tables of a problem, `big` in place of inf; an edge of a block with itself counts with its option."""
        alone = [np.where(np.isfinite(b.ns), b.ns, big) for b in p.blocks]
        pairs: dict[tuple[int, int], Array] = {}
        for e in p.edges:
            table = np.where(np.isfinite(e.ns), e.ns, big)
            i, j = e.source, e.target
            if i == j:
                alone[i] = alone[i] + np.diagonal(table)
                continue
            if i > j:
                i, j, table = j, i, table.T
            pairs[i, j] = pairs[i, j] + table if (i, j) in pairs else table.copy()
        around: list[list[int]] = [[] for _ in alone]
        for i, j in pairs:
            around[i].append(j)
            around[j].append(i)
        return cls(alone, pairs, 0.0, around)

    def pair(self, i: int, j: int) -> Array:
        """The table of two neighbours, with the options of i as rows: a view."""
        return self.pairs[i, j] if i < j else self.pairs[j, i].T

    def ns(self, options: Sequence[int]) -> float:
        """The time of a choice."""
        alone = sum(float(a[k]) for a, k in zip(self.alone, options, strict=True))
        pairs = sum(float(t[options[i], options[j]]) for (i, j), t in self.pairs.items())
        return self.constant + alone + pairs

    def given(self, i: int, options: Sequence[int]) -> Array:
        """The time of each option of block i, where its neighbours have these."""
        total = self.alone[i].copy()
        for j in self.around[i]:
            total += self.pair(i, j)[:, options[j]]
        return total

    def bound(self) -> float:
        """The sum of all least entries: no choice takes less."""
        pairs = sum(float(t.min()) for t in self.pairs.values())
        return self.constant + sum(float(a.min()) for a in self.alone) + pairs


def big_number(p: Problem) -> float:
    """More than any choice takes that is possible."""
    tables = [b.ns for b in p.blocks] + [e.ns for e in p.edges]
    return 2.0 * sum(float(np.max(np.abs(t), where=np.isfinite(t), initial=0.0)) for t in tables) + 1.0


def prices(p: Problem, choice: Choice) -> list[Array]:
    """The time that each option of each block would add, all other blocks as they are; inf where it does not fit."""
    big = big_number(p)
    tables = Tables.of(p, big)
    room = np.array(p.limits, np.int64) - np.array(choice.nbytes, np.int64)
    found: list[Array] = []
    for i, b in enumerate(p.blocks):
        k = choice.options[i]
        more = tables.given(i, choice.options)
        more = more - more[k]
        fits = (b.nbytes - b.nbytes[k] <= room).all(axis=1)
        found.append(np.where(fits & (more < big / 2), more, math.inf))
    return found
