"""Random problems of what to keep, and a machine that follows an answer."""

from __future__ import annotations

import numpy as np

from weft.sessions.keeping import Keeping, State
from weft.sessions.retention import Candidate, Case, Retention


def random_problem(rng: np.random.Generator, count: int, cases: int) -> Retention:
    """Values that read up to two before them; buckets of random changes, the first of everything."""
    values: list[Candidate] = []
    for k in range(count):
        inputs = tuple({int(i) for i in rng.integers(0, k, int(rng.integers(0, 3)))}) if k else ()
        pinned = k == count - 1 or rng.random() < 0.1
        nbytes = int(rng.integers(1, 20)) * 256 - int(rng.integers(0, 200))
        values.append(Candidate(f"v{k}", nbytes, float(rng.integers(1, 100)), inputs, pinned))

    def case(name: str, everything: bool) -> Case:
        dirty = set[int]()
        for k, v in enumerate(values):
            if everything or dirty & set(v.inputs) or rng.random() < 0.3:
                dirty.add(k)
        share = [1.0 if everything else float(rng.uniform(0.02, 0.6)) for _ in values]
        wide = frozenset(
            (k, i) for k, v in enumerate(values) for i in v.inputs if everything or rng.random() < 0.3
        )
        return Case(
            name,
            frozenset(dirty),
            tuple(v.ns * s for v, s in zip(values, share, strict=True)),
            tuple(int(v.nbytes * s) for v, s in zip(values, share, strict=True)),
            wide,
            int(rng.integers(0, 600)) if rng.random() < 0.3 else 0,
        )

    steps = rng.uniform(0.05, 1, (cases, cases)) ** 2
    every = (case("all", True), *(case(f"c{k}", False) for k in range(1, cases)))
    return Retention(tuple(values), every, steps / steps.sum(axis=1, keepdims=True))


class Machine:
    """An arena in which each 256 bytes hold a value, as of a version that each change of it makes anew; a session that
    runs on it. What a run reads of the arena must be there, and up to date."""

    def __init__(self, p: Retention, answer: Keeping) -> None:
        self._p, self._answer = p, answer
        self._arena: list[tuple[int, int] | None] = [None] * -(-answer.nbytes // 256)
        self._at = dict(zip(answer.kept, answer.offsets, strict=True))
        self._newest = [0] * len(p.values)
        self._class = 0
        self._state = {(s.case, s.before): s for s in answer.states}

    def _place(self, k: int) -> range:
        first = self._at[k] // 256
        return range(first, first - (-self._p.values[k].nbytes // 256))

    def _holds(self, k: int, version: int) -> bool:
        return all(self._arena[a] == (k, version) for a in self._place(k))

    def run(self, case: int) -> None:
        """A change of a bucket's kind, and the run after it. AssertionError for a wrong value."""
        state, before = self._state[case, self._class], list(self._newest)
        for k in self._p.cases[case].dirty:
            self._newest[k] += 1
        for a in range(-(-state.scratch // 256)):
            self._arena[a] = None
        for k in (*state.reads, *state.updates):
            assert self._holds(k, before[k]), f"value {k} is not there"
        for k in (*state.updates, *state.stores):
            for a in self._place(k):
                self._arena[a] = (k, self._newest[k])
        self._class = state.after
        for k, v in enumerate(self._p.values):
            wanted = v.pinned or k in self._answer.classes[self._class]
            assert not wanted or self._holds(k, self._newest[k]), f"value {k} is not up to date"


def priced(p: Retention, state: State, classes: tuple[tuple[int, ...], ...]) -> float:
    """The time of a run, by recursion from the results. AssertionError where it would read what it does not say."""
    c, level = p.cases[state.case], dict[int, int]()
    valid = set(classes[state.before]) - set(state.invalidates)

    def make(k: int, whole: bool) -> None:
        if k in valid:
            anew = k in c.dirty and (not whole or c.part_bytes[k] >= p.values[k].nbytes)
            assert k in state.reads or anew
            return
        compute(k, 2 if whole else 1)

    def compute(k: int, wanted: int) -> None:
        if level.get(k, 0) < wanted:
            level[k] = wanted
            for i in p.values[k].inputs:
                make(i, wanted == 2 or (k, i) in c.wide)

    for k, v in enumerate(p.values):
        if k in valid and k in c.dirty:
            compute(k, 1)
        elif k not in valid and v.pinned:
            compute(k, 2)
    assert set(state.stores) <= {k for k, wanted in level.items() if wanted == 2}
    return sum(p.values[k].ns if wanted == 2 else c.part_ns[k] for k, wanted in level.items())
