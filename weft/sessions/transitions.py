"""The buckets of a session's runs, one after the other: how often which follows which, and what follows from that.

    log       prefill, decode, decode, decode, edit, decode ...      counts of pairs, for ever
    chances   decode -> decode 0.97, decode -> edit 0.02 ...         counts, and one more run that went anywhere
    shares    decode 0.95, edit 0.03, prefill 0.02                   the stationary distribution of the chances

Without a log every bucket is as probable as any other, whatever came before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

import numpy as np

from weft.lazy_dataclass import dataclass

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

MAX_PAIRS = 4096
"""Pairs that a log counts: more than any session has plans; what is new beyond that is not counted."""


@dataclass(slots=True)
class TransitionLog:
    """Counts of pairs of buckets, by their names, in a session's order of runs."""

    counts: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    last: str | None = None

    def record(self, bucket: str) -> None:
        """Count a run of this bucket after the last one."""
        if self.last is not None:
            pair = self.last, bucket
            if pair in self.counts or len(self.counts) < MAX_PAIRS:
                self.counts[pair] = self.counts.get(pair, 0) + 1
        self.last = bucket

    def chances(self, buckets: Sequence[str]) -> Matrix:
        """The chance of each bucket after each: rows are what came before."""
        return chances(self.counts, buckets)


def chances(counts: Mapping[tuple[str, str], int], buckets: Sequence[str]) -> Matrix:
    """Bigrams, with one run more for each bucket that is spread evenly: none is impossible."""
    number = {b: k for k, b in enumerate(buckets)}
    found = np.full((len(buckets), len(buckets)), 1.0 / max(len(buckets), 1))
    for (a, b), n in counts.items():
        if a in number and b in number:
            found[number[a], number[b]] += n
    return found / found.sum(axis=1, keepdims=True)


def stationary(steps: Matrix) -> Matrix:
    """The shares of states in the long run: x = x @ steps, sum(x) = 1. One of them, where there are several."""
    count = len(steps)
    system = np.vstack([steps.T - np.eye(count), np.ones(count)])
    right = np.zeros(count + 1)
    right[-1] = 1.0
    found = np.linalg.lstsq(system, right, rcond=None)[0]
    return np.maximum(found, 0.0) / np.maximum(found, 0.0).sum()


def visits(steps: Matrix, runs: float) -> Matrix:
    """The shares of states, where a session begins in the first, and ends after each run with chance 1 / runs."""
    start = np.zeros(len(steps))
    start[0] = 1.0 / runs
    return np.asarray(np.linalg.solve(np.eye(len(steps)) - (1.0 - 1.0 / runs) * steps.T, start), np.float64)
