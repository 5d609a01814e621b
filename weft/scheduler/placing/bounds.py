"""Lower bounds of a problem: tables are moved along edges until the sum of their least entries grows no more.

    for each block in order:   its time  +=  the row minima of its pairs,   which lose them
                               its pairs with later blocks  +=  equal parts of its time,   which loses them
    and the same backwards

Source: SRMP, Kolmogorov 2015, arXiv:1309.5655, on pairs the same as TRW-S (Kolmogorov 2006). The fixed points are close
to the bound of the linear program over the local polytope, and mostly reach it.
"""
# Tests: tests/scheduler/placing/test_search.py

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.scheduler.placing.problem import Tables

_LEAST_GAIN = 1e-4
"""Rounds end when one gains less than this part of what was gained since the first."""


def tighten(tables: Tables, order: Sequence[int], rounds: int) -> float:
    """Move entries, both ways over `order`, at most `rounds` times; the bound."""
    place = {i: k for k, i in enumerate(order)}
    earlier = [[j for j in tables.around[i] if place[j] < place[i]] for i in range(len(order))]
    later = [[j for j in tables.around[i] if place[j] > place[i]] for i in range(len(order))]
    first = bound = tables.bound()
    for _ in range(rounds):
        for i in order:
            _pass_on(tables, i, later[i], len(earlier[i]))
        for i in reversed(order):
            _pass_on(tables, i, earlier[i], len(later[i]))
        reached = tables.bound()
        if reached - bound <= _LEAST_GAIN * (reached - first):
            return reached
        bound = reached
    return bound


def _pass_on(tables: Tables, i: int, targets: Sequence[int], others: int) -> None:
    collect(tables, i, tables.around[i])
    if targets:
        part = tables.alone[i] / max(len(targets), others)
        for j in targets:
            tables.pair(i, j)[...] += part[:, None]
        tables.alone[i] -= part * len(targets)


def collect(tables: Tables, i: int, neighbours: Sequence[int]) -> None:
    """Move the row minima of the pairs of a block with these neighbours to its own times, and their least to the
    constant."""
    alone = tables.alone[i]
    for j in neighbours:
        table = tables.pair(i, j)
        least = table.min(axis=1)
        table -= least[:, None]
        alone += least
    least = float(alone.min())
    alone -= least
    tables.constant += least


def decode(tables: Tables, order: Sequence[int]) -> list[int]:
    """A choice by the tables: block after block, the best beside those that are decided."""
    options = [-1] * len(order)
    for i in order:
        total = tables.alone[i].copy()
        for j in tables.around[i]:
            table = tables.pair(i, j)
            total += table[:, options[j]] if options[j] >= 0 else table.min(axis=1)
        options[i] = int(np.argmin(total))
    return options
