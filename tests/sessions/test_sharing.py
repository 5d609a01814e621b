"""Pools divided by what is worth most per byte."""

from __future__ import annotations

import itertools

import numpy as np

from weft.sessions.sharing import Ladder, Rung, divided, needed


def ladder(rng: np.random.Generator) -> Ladder:
    """Choices that keep less and less, and take longer and longer."""
    steps = int(rng.integers(1, 5))
    kept = np.sort(rng.integers(1, 100, steps))[::-1]
    ns = np.sort(rng.uniform(1, 50, steps))
    rungs = [Rung(int(k), int(rng.integers(0, 40)), float(t)) for k, t in zip(kept, ns, strict=True)]
    runs = int(rng.integers(1, 20))
    return Ladder(tuple(rungs), float(rng.uniform(50, 500)), runs, int(rng.integers(0, runs + 1)))


def test_a_division_has_room_and_costs_less_than_taking_turns() -> None:
    rng, found = np.random.default_rng(0), 0
    for _ in range(400):
        ladders = [ladder(rng) for _ in range(int(rng.integers(2, 4)))]
        nbytes = int(rng.integers(20, 250))
        chosen = divided(ladders, nbytes)
        if chosen is None:
            continue
        found += 1
        assert needed(chosen) <= nbytes and all(r in x.rungs for r, x in zip(chosen, ladders, strict=True))
        apart = sum(x.runs * r.ns for x, r in zip(ladders, chosen, strict=True))
        assert apart < sum((x.runs - x.turns) * x.rungs[0].ns + x.turns * x.whole_ns for x in ladders)
    assert found > 200


def test_divisions_are_close_to_the_best() -> None:
    rng, ratios = np.random.default_rng(1), list[float]()
    for _ in range(300):
        ladders = [ladder(rng) for _ in range(3)]
        nbytes = int(rng.integers(40, 250))
        chosen = divided(ladders, nbytes)
        if chosen is None:
            continue
        every = itertools.product(*(x.rungs for x in ladders))
        times = [
            sum(x.runs * r.ns for x, r in zip(ladders, c, strict=True)) for c in every if needed(c) <= nbytes
        ]
        ratios.append(sum(x.runs * r.ns for x, r in zip(ladders, chosen, strict=True)) / min(times))
    assert np.mean(ratios) < 1.06


def test_nothing_is_divided_where_results_alone_have_no_room() -> None:
    tight = Ladder((Rung(100, 10, 1.0),), 10.0, 5, 5)
    assert divided([tight, tight], 150) is None
    assert divided([tight, tight], 210) == [tight.rungs[0]] * 2
