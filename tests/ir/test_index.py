"""Index expressions: simplification keeps values, and bounds hold."""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from weft.ir import dtypes
from weft.ir.expr import Load
from weft.ir.index import (
    NEVER,
    FloorDiv,
    Int,
    Mod,
    Opaque,
    Var,
    at_least,
    atoms,
    bounds,
    coefficient,
    evaluate,
    flatten,
    high,
    in_range,
    low,
    maximum,
    minimum,
    span,
    substitute,
    unflatten,
    variables,
)

VARS = (Var("i", 0, 3), Var("j", 0, 7), Var("k", -2, 5), Var("n", 1, 6))
GRID = {v.name: g for v, g in zip(VARS, np.meshgrid(*[np.arange(v.lo, v.hi + 1) for v in VARS]), strict=True)}
DIVISORS = (
    (VARS[3], GRID["n"]),
    (VARS[3] * (VARS[0] + 1), GRID["n"] * (GRID["i"] + 1)),
    (VARS[3] + VARS[1], GRID["n"] + GRID["j"]),
    (VARS[3] * 6, GRID["n"] * 6),
    (VARS[3] * (VARS[0] + 1) * 4, GRID["n"] * (GRID["i"] + 1) * 4),
)
CONSTANTS = (1, 2, 3, 4, 5, 7, 8, 16, 32)


@st.composite
def pairs(draw: Any, depth: int = 4) -> tuple[Int, Any]:
    """An index expression, and its value at every point, computed without any simplification."""
    kind = draw(st.integers(0, 11)) if depth else draw(st.integers(0, 2))
    if kind == 0:
        c = draw(st.integers(-20, 20))
        return c, c
    if kind <= 2:
        v = VARS[draw(st.integers(0, 3))]
        return v, GRID[v.name]
    a, x = draw(pairs(depth - 1))
    if kind == 3:
        return a * (c := draw(st.integers(-9, 9))), x * c
    if kind in (4, 5):
        return a // (c := draw(st.sampled_from(CONSTANTS))), x // c
    if kind in (6, 7):
        return a % (c := draw(st.sampled_from(CONSTANTS))), x % c
    if kind == 8:
        n, g = draw(st.sampled_from(DIVISORS))
        whole = a // n * n + a % n, x
        cases = ((a // n, x // g), (a % n, x % g), (a * n, x * g), (a * VARS[2], x * GRID["k"]), whole)
        return draw(st.sampled_from(cases))
    b, y = draw(pairs(depth - 1))
    if kind == 9:
        return (minimum(a, b), np.minimum(x, y)) if draw(st.booleans()) else (maximum(a, b), np.maximum(x, y))
    return (a + b, x + y) if kind == 10 else (a - b, x - y)


@settings(deadline=None, max_examples=1500)
@given(pairs())
def test_operators_keep_the_value_and_bounds_hold(pair: tuple[Int, Any]) -> None:
    e, expected = pair
    assert np.array_equal(
        np.broadcast_to(evaluate(e, GRID), GRID["i"].shape), np.broadcast_to(expected, GRID["i"].shape)
    )
    lo, hi = bounds(e)
    assert lo <= np.min(expected) and np.max(expected) <= hi
    assert lo <= at_least(e) <= np.min(expected)


def test_what_all_have_in_common_is_divided_out() -> None:
    h, w = Var("h", 2, 500), Var("w", 2, 500)
    assert (6 * h * w) // (3 * w) == 2 * h
    assert (6 * h * w + 9 * w) // (3 * w) == 2 * h + 3
    assert (4 * h * w) // (6 * w) == (2 * h) // 3
    assert (12 * w) // (6 * w) == 2 and (5 * w) // (3 * w) == 1
    assert evaluate((5 * h * w + 1) // (3 * w), {"h": 7, "w": 4}) == 141 // 12


def test_a_multiple_above_is_known_to_be_no_less() -> None:
    n = Var("n", 2, 5000)
    blocks = (n + 31) // 32
    assert at_least(32 * blocks - n) == 0
    assert at_least(32 * ((blocks + 31) // 32) - blocks) == 0
    assert at_least(n - 32 * blocks) == -31
    half = (n + 1) // 2
    assert at_least(32 * ((5 * half + 26) // 32) - 5 * half + 5) == 0, "what is inside is a term, too"
    assert at_least(32 * blocks - 16 * ((n + 15) // 16) + 1) == 1, "two halves of a block"


def test_what_is_left_of_something_beyond_a_part_of_it_is_not_negative() -> None:
    n, k, start = Var("n", 2, 64), Var("k", 2, 64), Var("start", 0, 64)
    first = minimum(start, n)
    part = minimum(k, n - first)
    assert low(n - minimum(k, n)) == 0 and high(minimum(k, n) - n) == 0
    assert low(maximum(k, n) - k) == 0 and high(k - maximum(k, n)) == 0
    assert low(n - first - part) == 0, "of several"
    assert at_least(n - 2 * minimum(k, n // 2)) == 0 and at_least(n - 2 * minimum(k, (n + 1) // 2)) == -1
    parts = [minimum(Var(f"k{i}", 2, 64), n) for i in range(9)]
    assert low(4 * n - reduce(add, parts[:4])) == 0
    assert low(9 * n - reduce(add, parts)) == 9 * (2 - 64), "too many to be looked at one by one"
    bounds_of: list[int] = []
    deep: Int = n
    for i in range(6):
        deep = minimum(Var(f"k{i}", 2, 64), deep)
        bounds_of.append(low(n - deep))
    assert bounds_of == [0, 0, 0, 0, -62, -62], "too many, each in another"


@settings(deadline=None, max_examples=300)
@given(pairs(), st.integers(-30, 30), st.integers(0, 30))
def test_guards_drop_only_what_always_holds(pair: tuple[Int, Any], lo: int, extent: int) -> None:
    e, value = pair
    holds = np.broadcast_to((value >= lo) & (value < lo + extent), GRID["i"].shape)
    guard = in_range(e, lo, lo + extent)
    assert guard != () or holds.all()
    assert guard != NEVER or not holds.any()
    for c in guard:
        x = evaluate(c.value, GRID)
        holds = holds | ~((c.lo is None or x >= c.lo) & (c.hi is None or x < c.hi))
    assert holds.all()


@settings(deadline=None, max_examples=300)
@given(pairs(), pairs(2))
def test_substitution(pair: tuple[Int, Any], other: tuple[Int, Any]) -> None:
    e, _ = pair
    by, value = other
    divided = any(isinstance(x, FloorDiv | Mod) and VARS[0] in variables(x.den) for x in atoms(e))
    assume(not divided or bounds(by)[0] >= VARS[0].lo)  # divisors are above 0 for what a variable may be
    i = Var("i", *bounds(by))
    wider = substitute(e, {VARS[0]: i})
    expected = evaluate(wider, {**GRID, "i": np.broadcast_to(value, GRID["i"].shape)})
    assert np.all(evaluate(substitute(wider, {i: by}), GRID) == expected)


@settings(deadline=None, max_examples=300)
@given(pairs())
def test_coefficient_and_span(pair: tuple[Int, Any]) -> None:
    e, _ = pair
    i, j = VARS[:2]
    step = coefficient(e, i)
    if step is not None:
        at = [evaluate(e, {**GRID, "i": np.full_like(GRID["i"], v)}) for v in range(4)]
        assert all(np.all(b - a == step) for a, b in pairwise(at))
    known = span(e, {i, j})
    if known is not None:
        first, extent = known
        reached = np.broadcast_to(evaluate(e, GRID), GRID["i"].shape) - evaluate(first, GRID)
        assert np.min(reached) >= 0 and np.max(reached) < extent


def test_what_the_simplifier_is_for() -> None:
    i, j, _, n = VARS
    assert repr((i * 8 + j) // 8) == "i"
    assert repr((i * 8 + j) % 8) == "j"
    assert repr((i * 8 + j) // 8 * 8 + (i * 8 + j) % 8) == "8*i + j"
    assert repr((i * 8 + j) % 16 // 8) == "(i%2)"
    assert repr((j // 2) * 2 + j % 2) == "j"
    assert repr((n * 4 + i * n) // n) == "i + 4"
    assert repr((n * i + j) // n) == "i + j//n"
    assert repr((n * i + j) % n) == "(j%n)"
    assert repr((i + j) // n * n * 3 + (i + j) % n * 3 + 1) == "3*i + 3*j + 1"
    assert repr(minimum(j, 9)) == "j"
    assert repr(minimum((n + 15) // 16, n // 16)) == "0"
    m = Var("m", 2, 256)
    assert repr((i * n * m + j) // (n * m)) == "i + j//(m*n)"
    assert repr(j % (n * m) + j // (n * m) * m * n) == "j"
    assert repr(maximum(16 * ((m + 15) // 16), m)) == "16*((m + 15)//16)"
    assert repr(minimum(16 * (m // 16), m)) == "16*(m//16)"
    assert unflatten(flatten((i, j), (4, 8)), (4, 8)) == (i, j)


def test_a_quotient_is_no_larger_than_one_that_is_rounded_up() -> None:
    n, t = Var("n", 1, 4096), Var("t", 0, 63)
    down, up = n // 16 - t, (n + 15) // 16 - t
    assert minimum(down, up) is down and maximum(up, down) is up
    assert minimum(down + 1, up) is not down + 1


def test_a_remainder_is_no_larger_than_what_is_divided() -> None:
    i, n = Var("i", 0, 3), Var("n", 1, 6)
    assert bounds(i % n) == (0, 3)


def test_steps_longer_than_the_divisor_leave_the_quotient() -> None:
    i, j = Var("i", 0, 3), Var("j", 0, 7)
    assert repr((i * 5 + j) // 4) == "(i + j)//4 + i"
    assert repr((i * 5 + j) % 4) == "((i + j)%4)"


def test_what_is_substituted_in_a_quotient_stays_divided() -> None:
    i, j, n = Var("i", 0, 3), Var("j", 0, 7), Var("n", 1, 6)
    assert repr(substitute((i * 5 + j) // n, {j: Var("k", 0, 5) + 2})) == "(5*i + k + 2)//n"


def test_numbers_are_compared_as_arrays_are() -> None:
    i, j = Var("i", 0, 3), Var("j", 0, 7)
    for at in ({"i": 1, "j": 2}, {"i": 2, "j": 1}):
        assert evaluate(maximum(i, j), at) == 2
        assert evaluate(minimum(i, j), at) == 1


def test_an_opaque_index_is_evaluated_by_who_knows_it() -> None:
    value = Load(dtypes.int32, "p", (VARS[0],))
    opaque = Opaque(value, 0, 9)
    assert evaluate(opaque + 1, {}, lambda of: 7 if of is value else None) == 8
    with pytest.raises(ValueError, match="no evaluator given for"):
        evaluate(opaque, {})
