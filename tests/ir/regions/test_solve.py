"""Images of boxes under random index expressions, against every point."""

from __future__ import annotations

import itertools
from random import Random

import numpy as np

from weft.ir.index import Int, Var, evaluate, maximum, minimum
from weft.ir.regions.access import Access
from weft.ir.regions.boxes import Interval
from weft.ir.regions.region import Region
from weft.ir.regions.solve import Condition, image


def some_index(random: Random, variables: list[Var], depth: int = 2) -> Int:
    """Sums, quotients, remainders, minima and maxima of variables."""
    if depth == 0 or random.random() < 0.2:
        return random.choice(variables) * random.choice((1, 1, 1, 2, 3, 4, -1, -2)) + random.randrange(-1, 3)
    a, b = (some_index(random, variables, depth - 1) for _ in range(2))
    match random.randrange(8):
        case 0 | 1 | 2:
            return a + b
        case 3 | 4:
            return a // random.choice((2, 3, 4))
        case 5 | 6:
            return a % random.choice((2, 3, 4, 6))
        case _:
            return random.choice((minimum, maximum))(a, b)


def held(region: Region) -> set[tuple[int, ...]]:
    """The points of a region; its boxes are disjoint."""
    found = [p for b in region.boxes for p in itertools.product(*[range(*map(int, i)) for i in b])]
    assert len(found) == len(set(found))
    return set(found)


def test_images_hold_every_value_and_no_other_where_they_are_exact() -> None:
    exact = 0
    for seed in range(1500):
        random = Random(seed)
        sizes = [random.randint(1, 7) for _ in range(random.randint(1, 3))]
        variables = [Var(f"v{k}", 0, n - 1) for k, n in enumerate(sizes)]
        given = [some_index(random, variables) for _ in range(random.randint(1, 2))]
        wanted = [some_index(random, variables) for _ in range(random.randint(1, 2))]
        box: list[tuple[int, int]] = []
        for _ in given:
            first = random.randint(-3, 8)
            box.append((first, first + random.randint(1, 6)))
        points = [dict(zip([v.name for v in variables], at, strict=True)) for at in np.ndindex(*sizes)]
        inside = [
            p
            for p in points
            if all(lo <= evaluate(g, p) < hi for g, (lo, hi) in zip(given, box, strict=True))
        ]
        truth = {tuple(int(evaluate(w, p)) for w in wanted) for p in inside}
        ranges = {v: Interval(0, n) for v, n in zip(variables, sizes, strict=True)}
        asked = Region.of([tuple(Interval(*side) for side in box)])
        access = Access.of([(v, n) for v, n in zip(variables, sizes, strict=True)], given, wanted)
        conditions = [Condition(g, lo, hi) for g, (lo, hi) in zip(given, box, strict=True)]
        for found in (image(ranges, conditions, wanted), access.needs(asked)):
            assert truth <= held(found), (seed, given, box, wanted, found)
            assert not found.exact or held(found) == truth, (seed, given, box, wanted, found)
            exact += found.exact
    assert exact > 1200


def test_emptiness_that_the_answer_does_not_show_makes_it_inexact() -> None:
    """x[0:n, j] summed over its rows: nothing is reached where n is 0."""
    i, j = Var("i", 0, 8), Var("j", 0, 3)
    total = Access.of([(i, 9), (j, 4)], (j,), (i, j))
    maybe, surely = Var("n", 0, 9), Var("n", 1, 9)
    for n, exact in ((maybe, False), (surely, True)):
        found = total.reaches(Region((((Interval(0, n), Interval(1, 2))),)))
        assert found == Region(((Interval(1, 2),),), exact)


def test_steps_with_gaps_and_shared_variables_are_no_boxes() -> None:
    row, column = Var("row", 0, 5), Var("column", 0, 2)
    flat = Access.of([(row, 6), (column, 3)], (row * 3 + column,), (row, column))
    narrow = Region(((Interval(0, 6), Interval(0, 2)),))
    assert flat.reaches(narrow) == Region(((Interval(0, 17),),), exact=False)
    windows = Access.of([(row, 6), (column, 3)], (row, column), (row * 2 + column, column))
    asked = Region(((Interval(2, 4), Interval(0, 3)),))
    assert windows.needs(asked) == Region(((Interval(4, 9), Interval(0, 3)),), exact=False)
