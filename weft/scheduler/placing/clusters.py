"""Equal blocks with equal neighbours are one decision: a network of 96 equal layers has no more of them than one of 32.

    a0 - b0 - a1 - b1 - a2 - b2 - ...        becomes        A = B        (times of A and of their edges added up)

Blocks are told apart by their tables and keys, then, round after round, by their edges and the classes at the other
ends (colour refinement). With r rounds, blocks are equal whose surroundings are equal up to r edges away.
"""
# Tests: tests/scheduler/placing/test_search.py

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from weft.scheduler.placing.problem import Array, Block, Choice, Edge, Problem
from weft.scheduler.placing.search import BEAM, solve

ROUNDS = 2


def classes(p: Problem, rounds: int = ROUNDS) -> list[int]:
    """The class of each block, numbered in the order of first members."""
    tables = _Contents()
    names: list[Hashable] = [(b.key, tables.number(b.ns), tables.number(b.nbytes)) for b in p.blocks]
    found = _numbered(names)
    edges = [(e.source, e.target, tables.number(e.ns)) for e in p.edges]
    for _ in range(rounds):
        around: list[list[tuple[int, int, int]]] = [[] for _ in found]
        for i, j, table in edges:
            around[i].append((0, table, found[j]))
            around[j].append((1, table, found[i]))
        refined = _numbered([(k, tuple(sorted(a))) for k, a in zip(found, around, strict=True)])
        if max(refined, default=0) == max(found, default=0):
            break
        found = refined
    return found


def merge(p: Problem, of: Sequence[int]) -> Problem:
    """The problem with one block per class: the sum of its members' tables."""
    members: list[list[int]] = [[] for _ in range(max(of, default=-1) + 1)]
    for i, k in enumerate(of):
        members[k].append(i)
    blocks = tuple(
        Block(p.blocks[some[0]].name, p.blocks[some[0]].ns * len(some), p.blocks[some[0]].nbytes * len(some))
        for some in members
    )
    counts: dict[tuple[int, int, int], int] = {}
    tables: dict[int, Array] = {}
    for e in p.edges:
        key = of[e.source], of[e.target], id(e.ns)
        counts[key] = counts.get(key, 0) + 1
        tables[id(e.ns)] = e.ns
    sums: dict[tuple[int, int], Array] = {}
    for (i, j, table), count in counts.items():
        more = tables[table] * count
        sums[i, j] = sums[i, j] + more if (i, j) in sums else more
    return Problem(blocks, tuple(Edge(i, j, ns) for (i, j), ns in sums.items()), p.limits)


def solve_alike(p: Problem, beam: int = BEAM, rounds: int = ROUNDS) -> Choice:
    """The best choice of those that treat equal blocks alike. Its bound is one of such choices."""
    of = classes(p, rounds)
    choice = solve(merge(p, of), beam)
    return Choice(tuple(choice.options[k] for k in of), choice.ns, choice.bound_ns, choice.nbytes)


class _Contents:
    """Numbers of tables, the same for tables of equal contents."""

    def __init__(self) -> None:
        self._of_object: dict[int, int] = {}
        self._of_content: dict[Hashable, int] = {}

    def number(self, table: np.ndarray) -> int:  # pyright: ignore[reportMissingTypeArgument, reportUnknownParameterType]
        """The number of a table; it must stay alive."""
        known = self._of_object.get(id(table))
        if known is None:
            content = table.shape, table.dtype.str, table.tobytes()
            known = self._of_content.setdefault(content, len(self._of_content))
            self._of_object[id(table)] = known
        return known


def _numbered(names: Sequence[Hashable]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(n, len(numbers)) for n in names]
