"""Boxes that begin where runtime variables say: made from their parts, they are the result's, wherever they begin."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weft.ir.graph import Node
from weft.ir.index import Var
from weft.ir.regions.boxes import IndexBox, Interval, at, full
from weft.ir.regions.moving import axis_groups, rows_of
from weft.ir.regions.parts import PartsOf, parts_of, pulled, shrunk
from weft.testing.dependence import leaf, sizes, some_node, some_shape
from weft.testing.reference import evaluate

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}
RANDOM = st.randoms(use_true_random=False)
MOST_PLACES = 12


def some_box(random: Random, node: Node) -> tuple[IndexBox, list[Var]]:
    """A box that begins at a runtime variable along some axes: now and then at a multiple of it."""
    sides, variables = list[Interval](), list[Var]()
    for axis, n in enumerate(sizes(node)):
        count = random.randint(1, n) if n else 0
        step = random.choice((1, 1, 2))
        if count == n or random.random() < 0.3:
            lo = random.randint(0, n - count)
            sides.append(Interval(lo, lo + count))
        else:
            v = Var(f"t{axis}", 0, (n - count) // step)
            variables.append(v)
            sides.append(Interval(v * step, v * step + count))
    return tuple(sides), variables


def places(random: Random, variables: list[Var]) -> list[dict[str, int]]:
    every = list(itertools.product(*[range(v.lo, v.hi + 1) for v in variables]))
    chosen = random.sample(every, min(MOST_PLACES, len(every)))
    return [dict(zip([v.name for v in variables], of, strict=True)) for of in chosen]


def check(random: Random, whole: Node, made: Node, box: IndexBox, variables: list[Var], what: object) -> None:
    (wanted,) = evaluate([whole])
    for env in places(random, variables):
        (got,) = evaluate([made], env)
        part = tuple(slice(i.lo, i.hi) for i in at(box, env))
        np.testing.assert_array_equal(got, wanted[part], err_msg=f"{what} {box} {env}")


@settings(max_examples=300, **QUIET)
@given(RANDOM)
def test_a_moving_part_is_made_from_the_boxes_that_it_names(random: Random) -> None:
    node = some_node(random, leaf(*some_shape(random)))
    box, variables = some_box(random, node)
    parts = parts_of(node, box)
    both = [(i, part) for i, part in zip(node.inputs, parts.inputs, strict=True) if part is not None]
    for i, part in both:
        for env in places(random, variables):
            assert all(lo >= 0 and hi <= n for (lo, hi), n in zip(at(part, env), sizes(i), strict=True))
            assert all(isinstance(hi - lo, int) for lo, hi in part)
    made = parts.make([shrunk(i, full(i.shape), part) for i, part in both])
    check(random, node, made, box, variables, (node, node.attrs))


@settings(max_examples=100, **QUIET)
@given(RANDOM)
def test_moving_parts_are_pulled_through_graphs(random: Random) -> None:
    node = x = leaf(*some_shape(random))
    for _ in range(random.randint(2, 5)):
        node = some_node(random, node)
    box, variables = some_box(random, node)

    def taken(n: Node, part: IndexBox) -> Node | None:
        return shrunk(n, full(n.shape), part) if n is x else None

    check(random, node, pulled(node, box, taken, {}, PartsOf()), box, variables, node)


@pytest.mark.parametrize("by", [2, 3, 4])
def test_rows_hold_the_elements_wherever_they_begin(by: int) -> None:
    for most, count in itertools.product((2, 3, 5), (1, 2, 3, 5)):
        if count > most * by:
            continue
        t = Var("t", 0, most * by - count)
        rows = rows_of(t, count, by, most)
        for value in range(t.hi + 1):
            ((first, end), (lo, _)) = at(
                (Interval(rows.first, rows.first + rows.number), Interval(rows.offset, 0)), {"t": value}
            )
            assert first >= 0 and end <= most
            assert first * by + lo == value and lo >= 0 and lo + count <= rows.number * by
        assert rows.number <= min(most, (count + 2 * by - 2) // by)
    q = Var("q", 0, 4)
    assert rows_of(q * by, by, by, 5) == (q, 1, 0)  # it begins with a row, so it has no part in the next


def test_axes_that_are_reshaped_apart_stay_apart() -> None:
    found = list(axis_groups((1, 6, 4, 1, 35), (6, 2, 2, 1, 5, 7, 1)))
    assert found == [([1], [0]), ([2], [1, 2]), ([4], [4, 5])]
    assert list(axis_groups((6, 4), (4, 6))) == [([0, 1], [0, 1])]
    assert list(axis_groups((1, 1), ())) == []
