"""Boxes and regions against sets of points: numbers, and runtime variables with every value that they can have."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir.index import Var, evaluate, high, low, substitute
from weft.ir.index import variables as variables_of
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import (
    MAX_BOXES,
    NOTHING,
    Region,
    _absorbed,
    _coarsened,
    _disjoint,
    _most_elements,
    _runs_joined,
)
from weft.testing.dependence import at_runtime, points, some_region

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)
SHAPE = (5, 1, 6)


def box(*sides: tuple[Any, Any]) -> bx.IndexBox:
    return tuple(Interval(*side) for side in sides)


def two(random: Random) -> tuple[Region, Region, np.ndarray, np.ndarray]:
    a, b = some_region(random, SHAPE), some_region(random, SHAPE)
    return a, b, points(a, SHAPE), points(b, SHAPE)


def stands_for(region: Region, wanted: np.ndarray) -> bool:
    """The points are in the region; no others where it is exact."""
    found = points(region, SHAPE)
    return bool((found == wanted).all() if region.exact else (found | ~wanted).all())


@settings(max_examples=100, **QUIET)
@given(RANDOM)
def test_operations_are_those_of_sets_of_points(random: Random) -> None:
    a, b, of_a, of_b = two(random)
    assert stands_for(a | b, of_a | of_b)
    assert stands_for(a & b, of_a & of_b)
    assert stands_for(a - b, of_a & ~of_b)
    assert all(len(r.boxes) <= MAX_BOXES for r in (a | b, a & b, a - b))
    assert a.volume == of_a.sum()
    assert a.contains(b) == bool((of_a | ~of_b).all())
    if not (a & b).is_empty:
        around = np.argwhere(of_a & of_b)
        if (a & b).exact:
            assert (a & b).enclosing == tuple(map(Interval, around.min(0), around.max(0) + 1))


@settings(max_examples=60, **QUIET)
@given(RANDOM)
def test_pieces_are_disjoint_and_make_up_the_whole(random: Random) -> None:
    a = some_region(random, SHAPE)
    axis, count = random.randrange(3), random.randint(1, 4)
    parts = [points(p, SHAPE) for p in a.pieces(axis, count)]
    assert len(parts) == count
    assert (sum(p.astype(int) for p in parts) == points(a, SHAPE)).all()


@settings(max_examples=60, **QUIET)
@given(RANDOM)
def test_operations_hold_for_all_values_of_runtime_variables(random: Random) -> None:
    """Not only for the values from which the regions were made."""
    (a, _), (b, _) = (at_runtime(random, some_region(random, SHAPE)) for _ in range(2))
    b = Region.of([tuple(map(renamed, i)) for i in b.boxes], b.exact)
    names = {v.name: v for r in (a, b) for i in r.boxes for side in i for v in variables(side)}
    union, both, left = a | b, a & b, a - b
    chosen = list(itertools.product(*[range(v.lo, v.hi + 1) for v in names.values()]))
    for numbers in random.sample(chosen, min(10, len(chosen))):
        at = dict(zip(names, numbers, strict=True))
        of_a, of_b = (inside(r, at) for r in (a, b))
        for found, wanted in ((union, of_a | of_b), (both, of_a & of_b), (left, of_a & ~of_b)):
            got = inside(found, at)
            assert (got == wanted).all() if found.exact and a.exact and b.exact else (got | ~wanted).all()
        assert evaluate(a.volume, at) == of_a.sum()


def variables(side: Interval) -> list[Var]:
    return [v for end in side for v in variables_of(end)]


def renamed(side: Interval) -> Interval:
    by: dict[Var, Any] = {v: Var(f"{v.name}b", v.lo, v.hi) for v in variables(side)}
    return Interval(substitute(side.lo, by), substitute(side.hi, by))


def inside(region: Region, at: dict[str, int]) -> np.ndarray:
    """Points of a region in a space that has room for what variables add; boxes do not overlap there either."""
    room = tuple(n + 12 for n in SHAPE)
    found = np.zeros(room, int)
    for b in region.boxes:
        sides = [(evaluate(i.lo, at), evaluate(i.hi, at)) for i in b]
        found[tuple(slice(lo, max(lo, hi)) for lo, hi in sides)] += 1
    assert (found <= 1).all()
    return found > 0


def test_a_difference_takes_away_only_what_is_certainly_there() -> None:
    a = Region.of([box((0, 4), (0, 4))])
    inexact = Region.of([box((0, 2), (0, 4))], exact=False)
    assert (a - inexact) == Region(a.boxes, exact=False)
    assert (a - Region.of([box((0, 2), (0, 4))])) == Region((box((2, 4), (0, 4)),))


def test_boxes_are_joined_where_that_adds_least_work() -> None:
    rows = [box((k, k + 1), (0, n)) for k, n in ((0, 6), (2, 6), (10, 1), (20, 6), (30, 6))]
    found = Region.of(rows)
    assert not found.exact
    assert box((0, 3), (0, 6)) in found.boxes and len(found.boxes) == MAX_BOXES
    by_rows = Region.of(rows, most=2, work=lambda b: high(b[0].hi) - low(b[0].lo))
    assert [b[0] for b in by_rows.boxes] in ([(20, 31), (0, 11)], [(0, 11), (20, 31)])


def plainly_coarsened(boxes: list[IndexBox], most: int, work: Callable[[IndexBox], int]) -> list[IndexBox]:
    """The rule in its plain form: all pairs anew after each join."""
    while len(boxes) > most:
        a, b = min(
            combinations(boxes, 2), key=lambda two: work(bx.enclosing(two)) - work(two[0]) - work(two[1])
        )
        boxes = [c for c in boxes if c is not a and c is not b]
        around, rest = _absorbed(bx.enclosing((a, b)), boxes)
        boxes = [*rest, around]
    return boxes


@pytest.mark.parametrize("seed", range(20))
def test_those_that_add_least_are_joined_first(seed: int) -> None:
    rng = Random(seed)
    for work in (_most_elements, lambda box: len(box) + bx.volume(box) // 3):
        found: list[IndexBox] = []
        for _ in range(rng.randint(5, 30)):
            lo = [rng.randint(0, 12) for _ in range(3)]
            found.append(tuple([Interval(n, n + rng.randint(1, 3)) for n in lo]))
        disjoint, _ = _disjoint(found)
        assert _coarsened(disjoint, 4, work) == plainly_coarsened(disjoint, 4, work)


def test_each_pair_of_hundreds_of_boxes_is_looked_at_once() -> None:
    looks = 0

    def work(box: IndexBox) -> int:
        nonlocal looks
        looks += 1
        return bx.volume(box)

    boxes = [(Interval(3 * k, 3 * k + 1), Interval(k % 7, k % 7 + 1)) for k in range(200)]
    assert len(Region.of(boxes, work=work).boxes) <= 4
    assert looks < 200 * 200 + 1000


def test_thousands_of_boxes_that_touch_are_one() -> None:
    assert Region.of([box((k, k + 1)) for k in range(2000)]).boxes == (box((0, 2000)),)


def test_the_tiles_of_a_grid_are_one_in_any_order() -> None:
    """As runs along the last axis, then along the others: 4,000 tiles, where all pairs would be looked at for long."""
    tiles = [
        box((k, k + 1), (j, j + 2), (i, i + 3))
        for k in range(10)
        for j in range(0, 40, 2)
        for i in range(0, 60, 3)
    ]
    Random(1).shuffle(tiles)
    assert len(_runs_joined(tiles)) == 1
    assert Region.of(tiles) == Region((box((0, 10), (0, 40), (0, 60)),))
    assert Region.of(tiles[1:], most=6).volume == 10 * 40 * 60 - 6


@pytest.mark.parametrize("most", [12, 16])
def test_unions_of_more_boxes_than_a_region_has_lose_nothing(most: int) -> None:
    exact = 0
    for seed in range(100):
        random = Random(seed)
        found, wanted = list[bx.IndexBox](), np.zeros((12, 12), bool)
        for _ in range(random.randint(most + 1, 60)):
            at = [random.randrange(12) for _ in range(2)]
            sides = [(i, min(12, i + random.randint(1, 4))) for i in at]
            found.append(box(*sides))
            wanted[tuple(slice(*side) for side in sides)] = True
        got = Region.of(found, most=most)
        held = points(got, (12, 12))
        exact += got.exact
        assert len(got.boxes) <= most
        assert (held == wanted).all() if got.exact else (held | ~wanted).all()
    assert exact > 5


def test_unions_of_many_boxes_lose_nothing_and_stay_disjoint() -> None:
    for seed in range(300):
        random = Random(seed)
        found, wanted = list[bx.IndexBox](), np.zeros((12, 12), bool)
        for _ in range(random.randint(2, 12)):
            at = [random.randrange(12) for _ in range(2)]
            sides = [(i, min(12, i + random.randint(1, 3))) for i in at]
            found.append(box(*sides))
            wanted[tuple(slice(*side) for side in sides)] = True
        got = Region.of(found)
        held = points(got, (12, 12))
        assert len(got.boxes) <= MAX_BOXES
        assert (held == wanted).all() if got.exact else (held | ~wanted).all()


def test_touching_boxes_are_one() -> None:
    n = Var("n", 0, 9)
    assert Region.of([box((0, n)), box((n, n + 1))]) == Region((box((0, n + 1)),))
    assert Region.of([box((0, 2), (0, 3)), box((2, 4), (0, 3))]) == Region((box((0, 4), (0, 3)),))


def test_an_interval_that_may_end_before_it_begins_takes_nothing_away() -> None:
    """[n:5) and [5:8) are not [n:8) where n may be more than 5: [6:8) would lack 5."""
    n = Var("n", 0, 9)
    found = Region.of([box((n, 5)), box((5, 8))])
    for at in range(10):
        wanted = {*range(at, 5), *range(5, 8)}
        got = {i for (side,) in found.boxes for i in range(*(evaluate(e, {"n": at}) for e in side))}
        assert wanted <= got


def test_regions_print() -> None:
    n = Var("n", 0, 9)
    assert repr(Region.of([box((0, 2), (n, n + 1))])) == "[0:2, n:n + 1]"
    assert repr(Region.of([box((0, 2))], exact=False)) == "[0:2] at most"
    assert repr(NOTHING) == "nothing"


def test_a_tensor_without_axes_has_one_element() -> None:
    one = Region.whole(())
    assert one.volume == 1 and not one.is_empty and (one - one).is_empty
    assert Region.whole((3, 0)).is_empty


@pytest.mark.parametrize("by", [(1, -2), (0, 5)])
def test_a_shifted_region_is_elsewhere(by: tuple[int, int]) -> None:
    found = Region.of([box((0, 4), (2, 4))]).shifted(by)
    assert found == Region((box((by[0], 4 + by[0]), (2 + by[1], 4 + by[1])),))
