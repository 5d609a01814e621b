"""The problem of what a session keeps, and what a run does with what is kept.

    | pinned | kept, best first ...  -> |   ...   free   ...   | <- scratch of one run |
    limit                                                                            0

All memory is one arena of `limit` bytes. What is kept hangs from its end, the most useful first, each at an offset that
never changes; the scratch of a run grows from its beginning. What the scratch of a run reaches, that run invalidates:
it is computed again by the next run that needs all of it and reaches less far. So a bucket with much scratch costs
little where it comes seldom, and no run ever needs more than the arena.

A run is told by its bucket and by what is valid when it begins (its validity class). Per bucket, a value is computed
not at all, in part (the part that may differ, or that such parts read) or whole (where a reader needs all of it and it
is not kept): what is not kept is computed from what it reads, recursively.
"""
# Tests: tests/sessions/test_keeping.py

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from weft.errors import ArgumentError
from weft.lazy_dataclass import dataclass
from weft.scheduler.memory import ALIGNMENT, Request
from weft.scheduler.memory import plan as lay_out

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

PART, WHOLE = 1, 2


@dataclass(frozen=True, slots=True)
class Candidate:
    """A value that can be kept: its bytes, the time to compute all of it, the candidates before it that it reads.

    `pinned`: results, and what has to be kept whatever the limit is."""

    name: str
    nbytes: int
    ns: float
    inputs: tuple[int, ...] = ()
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Case:
    """A bucket as keeping sees it: the values of which a part may differ, time and bytes of the part of each value that
    is computed where no more is needed, and the pairs (reader, input) where a part of the reader needs all of the
    input. `scratch`: bytes that a run takes besides what the values do."""

    name: str
    dirty: frozenset[int]
    part_ns: tuple[float, ...]
    part_bytes: tuple[int, ...]
    wide: frozenset[tuple[int, int]] = frozenset()
    scratch: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Effect:
    """The effect of a run, values as bits. `reads` are read as an earlier run left them, `updates` are written in part,
    `stores` are computed whole and stay, `invalidates` are lost to the scratch."""

    ns: float
    scratch: int
    reads: int
    updates: int
    stores: int
    invalidates: int
    after: int


@dataclass(frozen=True, eq=False)
class Retention:
    """Candidates, inputs before readers; buckets, of which the first is the run that computes everything; `chances[a,
    b]`: how probable bucket b is after bucket a."""

    values: tuple[Candidate, ...]
    cases: tuple[Case, ...]
    chances: Matrix
    _worked: dict[tuple[int, int, int], tuple[float, int, int, int, int]] = field(
        init=False, repr=False, default_factory=dict[tuple[int, int, int], tuple[float, int, int, int, int]]
    )

    def __post_init__(self) -> None:
        count = len(self.values)
        for k, v in enumerate(self.values):
            if any(not 0 <= i < k for i in v.inputs):
                raise ArgumentError(f"{v.name}, value {k}, reads {v.inputs}: values read what is before them")
        for c in self.cases:
            if len(c.part_ns) != count or len(c.part_bytes) != count:
                raise ArgumentError(f"bucket {c.name} is of {len(c.part_ns)} values, not of {count}")
        if self.chances.shape != (len(self.cases), len(self.cases)) or not self.cases:
            raise ArgumentError(f"chances of shape {self.chances.shape} for {len(self.cases)} buckets")

    @cached_property
    def pinned(self) -> int:
        """The pinned values, as bits."""
        return bits(k for k, v in enumerate(self.values) if v.pinned)

    @cached_property
    def inputs(self) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
        """Per bucket and value, its inputs with how much of each a part of it needs."""
        return tuple(
            tuple(
                tuple((i, WHOLE if (k, i) in c.wide else PART) for i in v.inputs)
                for k, v in enumerate(self.values)
            )
            for c in self.cases
        )

    def levels(self, case: int, valid: int) -> tuple[list[int], list[int]]:
        """The part of each value that is computed, and the part that is demanded, where `valid` is kept."""
        dirty, inputs = self.cases[case].dirty, self.inputs[case]
        demand, level = [0] * len(self.values), [0] * len(self.values)
        for k in range(len(self.values) - 1, -1, -1):
            if valid >> k & 1:
                done = PART if k in dirty else 0
            else:
                done = WHOLE if self.values[k].pinned else demand[k]
            level[k] = done
            if done == WHOLE:
                for i in self.values[k].inputs:
                    demand[i] = WHOLE
            elif done:
                for i, wanted in inputs[k]:
                    if demand[i] < wanted:
                        demand[i] = wanted
        return level, demand

    def work(self, case: int, valid: int, stored: int) -> tuple[float, int, int, int, int]:
        """Time and scratch of a run, what it reads of what is kept, updates and stores: where `valid` is kept, and what
        is computed whole stays where it is in `stored`."""
        key = case, valid, stored
        found = self._worked.get(key)
        if found is None:
            if len(self._worked) >= MAX_WORKED:
                self._worked.clear()
            found = self._worked[key] = self._work(case, valid, stored)
        return found

    def _work(self, case: int, valid: int, stored: int) -> tuple[float, int, int, int, int]:
        c, values = self.cases[case], self.values
        level, demand = self.levels(case, valid)
        ns, reads, updates, stores = 0.0, 0, 0, 0
        last: dict[int, int] = {}
        for k, done in enumerate(level):
            bit = 1 << k
            if valid & bit:
                updates |= bit if done else 0
                anew = WHOLE if done and c.part_bytes[k] >= values[k].nbytes else done
                reads |= bit if demand[k] > anew else 0  # what is computed now is not what was left
            if not done:
                continue
            ns += values[k].ns if done == WHOLE else c.part_ns[k]
            for i in values[k].inputs:
                last[i] = k
            if done == WHOLE and stored & bit and not valid & bit:
                stores |= bit
        requests = [
            Request(values[k].nbytes if done == WHOLE else c.part_bytes[k], k, last.get(k, k))
            for k, done in enumerate(level)
            if done and not (updates | stores) >> k & 1
        ]
        return ns, lay_out(requests).nbytes + aligned(c.scratch), reads, updates, stores

    def effect(
        self, case: int, valid: int, offsets: Sequence[tuple[int, int]], shares: bool = True
    ) -> Effect | None:
        """The effect of a run, where the kept values are at `offsets`: pairs of a value and its offset. None where its
        scratch reaches what is pinned, or any kept value where these may not share memory with it."""
        stored = bits(k for k, _ in offsets)
        while True:
            ns, scratch, reads, updates, stores = self.work(case, valid & stored, stored)
            reached = bits(k for k, at in offsets if stored >> k & 1 and at < scratch)
            if not reached:
                kept = valid & stored
                return Effect(ns, scratch, reads, updates, stores, valid & ~stored, kept | stores)
            if reached & self.pinned or not shares:
                return None
            stored &= ~reached

    @cached_property
    def least_ns(self) -> tuple[float, ...]:
        """A time per bucket that no run can be below, whatever is kept: the parts that may differ of what the pinned
        values are made of."""
        every = (1 << len(self.values)) - 1
        found: list[float] = []
        for case, c in enumerate(self.cases):
            level, needed = self.levels(case, every)[0], self.pinned
            for k in range(len(self.values) - 1, -1, -1):
                if needed >> k & 1 and level[k]:
                    needed |= bits(self.values[k].inputs)
            found.append(sum(ns for k, ns in enumerate(c.part_ns) if level[k] and needed >> k & 1))
        return tuple(found)


MAX_WORKED = 1 << 14
"""Runs whose work is remembered for a problem: a search asks for the same ones again and again."""


def bits(numbers: Any) -> int:
    """Numbers as the bits of one."""
    found = 0
    for k in numbers:
        found |= 1 << k
    return found


def members(mask: int) -> tuple[int, ...]:
    """The numbers of the bits that are set."""
    return tuple(k for k in range(mask.bit_length()) if mask >> k & 1)


def aligned(nbytes: int) -> int:
    """Bytes rounded up to what an offset is a multiple of."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
