"""What is kept is the best there is, nearly; runs on it are right; and no limit is refused that would do."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tests.sessions.retention_problems import Machine, priced, random_problem
from weft.errors import ArgumentError, MemoryPlanError
from weft.sessions.keeping import MAX_CLASSES, Keeping, keep, least, rank, stacked, unlimited
from weft.sessions.retention import Candidate, Case, Retention, members


def best_of_all(p: Retention, limit: int) -> float:
    """The least time of any values in any order."""
    first = members(p.pinned)
    others = [k for k in range(len(p.values)) if k not in first]
    found = [
        stacked(p, (*first, *some), limit // 256 * 256)
        for count in range(len(others) + 1)
        for some in itertools.permutations(others, count)
    ]
    return min(a.ns for a in found if a is not None)


def walked(p: Retention, answer: Keeping, rng: np.random.Generator, runs: int) -> None:
    for s in answer.states:
        assert s.ns == pytest.approx(priced(p, s, answer.classes))
    machine = Machine(p, answer)
    machine.run(0)
    for case in rng.integers(0, len(p.cases), runs):
        machine.run(int(case))


def test_answers_are_the_best_after_exchange_and_close_to_it_before() -> None:
    rng = np.random.default_rng(7)
    greedy: list[float] = []
    for _ in range(40):
        p = random_problem(rng, int(rng.integers(3, 7)), int(rng.integers(1, 4)))
        order = rank(p)
        limit = int(rng.uniform(least(p, order)[0], unlimited(p, order) + 256))
        best = best_of_all(p, limit)
        at_once, exchanged = keep(p, limit), keep(p, limit, seconds=1e9)
        assert exchanged.bound_ns <= best + 1e-9 and exchanged.bound_ns <= at_once.bound_ns + 1e-9
        assert exchanged.ns == pytest.approx(best) and exchanged.gap <= at_once.gap + 1e-12
        greedy.append(at_once.ns / best - 1)
    assert np.mean(greedy) < 0.03


def test_no_limit_overruns_and_none_that_would_do_is_refused() -> None:
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(150):
        p = random_problem(rng, int(rng.integers(2, 14)), int(rng.integers(1, 5)))
        order = rank(p)
        need, _ = least(p, order)
        for limit in (need - 1, need, int(rng.uniform(0, need)), int(rng.uniform(need, unlimited(p, order)))):
            try:
                answer = keep(p, limit, seconds=1e9, moves=3)
            except MemoryPlanError as error:
                assert limit < need and f"at least {need:,}" in error.message
                refused += 1
                continue
            assert answer.nbytes <= limit and len(answer.classes) <= MAX_CLASSES
            walked(p, answer, rng, 12)
    assert refused > 250


def test_without_a_limit_nothing_is_lost_and_no_run_takes_more_than_it_must() -> None:
    rng = np.random.default_rng(3)
    for _ in range(30):
        p = random_problem(rng, int(rng.integers(2, 14)), int(rng.integers(1, 5)))
        answer = keep(p)
        assert not any(s.invalidates for s in answer.states)
        walked(p, answer, rng, 12)
        assert set(answer.kept) - {k for s in answer.states for k in s.reads} <= set(members(p.pinned))


def attention(layers: int, rows: int, width: int) -> Retention:
    """A decoder's layers: the scores of a row read all keys, and the weighted sum all values."""
    values, wide = list[Candidate](), set[tuple[int, int]]()

    def add(name: str, elements: int, ns: float, *inputs: int, pinned: bool = False) -> int:
        values.append(Candidate(name, elements * 4, ns, inputs, pinned))
        return len(values) - 1

    x = add("x", rows * width, 1e4)
    for layer in range(layers):
        q, k, v = (add(f"{name}{layer}", rows * width, 1e6, x) for name in "qkv")
        scores = add("scores", rows * rows, 2e6, q, k)
        out = add("out", rows * width, 1e6, scores, v)
        wide |= {(scores, k), (out, v)}
        x = add("x", rows * width, 8e6, out, x, pinned=layer == layers - 1)

    def case(name: str, share: float) -> Case:
        ns, nbytes = [v.ns * share for v in values], [int(v.nbytes * share) for v in values]
        return Case(name, frozenset(range(len(values))), tuple(ns), tuple(nbytes), frozenset(wide))

    cases = (case("all", 1.0), case("one", 1 / rows))
    return Retention(tuple(values), cases, np.array([[0.1, 0.9], [0.01, 0.99]]))


def test_keys_and_values_are_what_is_kept_of_attention() -> None:
    p = attention(4, 512, 64)
    kept = {p.values[k].name for k in keep(p).kept}
    assert kept == {"x", *(f"{name}{layer}" for name in "kv" for layer in range(4))}


def test_a_large_bucket_that_comes_seldom_takes_the_room_of_what_small_ones_keep() -> None:
    p = attention(4, 512, 64)
    everything, one = p.cases
    p = replace(p, cases=(replace(everything, scratch=4 << 20), one))
    answer = keep(p, least(p, rank(p))[0])
    lost = {p.cases[s.case].name for s in answer.states if s.invalidates}
    alone = stacked(p, members(p.pinned), answer.nbytes)
    assert alone is not None and lost == {"all"} and answer.ns < 0.3 * alone.ns
    walked(p, answer, np.random.default_rng(0), 30)


def test_a_bucket_that_comes_often_is_kept_for() -> None:
    """Two values of the same size, each needed by one bucket: the log says which of them has the room."""
    values = (
        Candidate("a", 1024, 100.0),
        Candidate("b", 1024, 100.0),
        Candidate("ya", 256, 1.0, (0,), pinned=True),
        Candidate("yb", 256, 1.0, (1,), pinned=True),
    )

    def case(name: str, dirty: set[int], wide: tuple[int, int]) -> Case:
        return Case(name, frozenset(dirty), (1.0, 1.0, 1.0, 1.0), (256,) * 4, frozenset({wide}))

    cases = (
        Case("all", frozenset(range(4)), tuple(v.ns for v in values), tuple(v.nbytes for v in values)),
        case("edit a", {2}, (2, 0)),
        case("edit b", {3}, (3, 1)),
    )
    for often, kept in ((1, 0), (2, 1)):
        steps = np.full((3, 3), 0.05)
        steps[:, often] = 0.9
        p = Retention(values, cases, steps)
        answer = keep(p, least(p, rank(p))[0] + 1024)
        found = next(s for s in answer.states if s.case == often and s.before == s.after)
        assert kept in found.reads, "and is there when its bucket comes again and again"


def test_an_exchange_that_is_stopped_leaves_an_answer_that_is_no_worse() -> None:
    rng = np.random.default_rng(11)
    p = random_problem(rng, 12, 4)
    limit = (least(p, rank(p))[0] + unlimited(p, rank(p))) // 2
    times = [keep(p, limit, seconds=1e9, moves=n).ns for n in (0, 1, 5, 50, 500)]
    assert times == sorted(times, reverse=True)


def test_what_is_no_problem_is_refused() -> None:
    p = attention(1, 8, 8)
    with pytest.raises(ArgumentError, match="reads"):
        replace(p, values=tuple(reversed(p.values)))
    with pytest.raises(ArgumentError, match="bucket all is of 7 values, not of 5"):
        replace(p, values=p.values[:5])
    with pytest.raises(ArgumentError, match="chances"):
        replace(p, chances=np.ones((3, 3)))
