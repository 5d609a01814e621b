"""The choice of options is the best one, and its certificate is true."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from weft.errors import ArgumentError, MemoryPlanError
from weft.scheduler.placing.bounds import decode, tighten
from weft.scheduler.placing.clusters import classes, merge, solve_alike
from weft.scheduler.placing.problem import Block, Edge, Problem, Tables, big_number, prices
from weft.scheduler.placing.search import elimination_order, solve


def random_problem(rng: np.random.Generator, blocks: int, extra: int, pools: int = 0) -> Problem:
    """A connected graph; options with less memory take more time, limits are between the least and the mean."""
    counts = rng.integers(2, 5, blocks)
    some = []
    for k, n in enumerate(counts):
        nbytes = rng.integers(0, 100, (n, pools))
        slow = 2000 / (nbytes[:, 0] + 20) if pools else 0
        some.append(Block(f"b{k}", np.round(slow + rng.uniform(0, 60, n)), nbytes))
    ends = [(int(rng.integers(max(0, j - 3), j)), j) for j in range(1, blocks)]
    ends += [tuple(rng.choice(blocks, 2, replace=False).tolist()) for _ in range(extra)]
    edges = tuple(Edge(i, j, np.round(rng.uniform(0, 60, (counts[i], counts[j])))) for i, j in ends)
    tight = rng.uniform(0.05, 0.9)
    limits = tuple(
        int(sum((1 - tight) * b.nbytes[:, k].min() + tight * b.nbytes[:, k].mean() for b in some))
        for k in range(pools)
    )
    return Problem(tuple(some), edges, limits)


def brute_force(p: Problem) -> float:
    every = itertools.product(*(range(len(b.ns)) for b in p.blocks))
    return min((p.ns(x) for x in every if p.fits(x)), default=math.inf)


@pytest.mark.parametrize("pools", [0, 1, 2])
def test_choices_are_the_best_and_bounds_are_true(pools: int) -> None:
    rng = np.random.default_rng(pools)
    for _ in range(10 if pools == 2 else 25):
        p = random_problem(rng, int(rng.integers(2, 7)), int(rng.integers(0, 5)), pools)
        best = brute_force(p)
        if math.isinf(best):
            with pytest.raises(MemoryPlanError, match="at least"):
                solve(p)
            continue
        choice = solve(p)
        assert p.fits(choice.options) and p.nbytes(choice.options) == choice.nbytes
        assert choice.ns == pytest.approx(p.ns(choice.options)) == pytest.approx(best)
        assert choice.bound_ns <= best + 1e-6
        assert choice.gap < 1e-6


def test_a_narrow_beam_does_not_claim_what_it_does_not_know() -> None:
    rng = np.random.default_rng(5)
    cut = 0
    for _ in range(6):
        p = random_problem(rng, 8, 10, 1)
        best = solve(p).ns
        choice = solve(p, beam=1)
        assert p.fits(choice.options)
        assert choice.bound_ns - 1e-6 <= best <= choice.ns + 1e-6
        cut += choice.gap > 1e-6
    assert cut


def test_certified_large_graphs_need_few_labels() -> None:
    p = random_problem(np.random.default_rng(9), 60, 15)
    assert solve(p, beam=256).gap < 1e-9


def test_what_is_impossible_is_not_chosen() -> None:
    def block(*ns: float) -> Block:
        return Block("b", np.array(ns), np.zeros((len(ns), 0), np.int64))

    no = math.inf
    p = Problem((block(0, 9), block(0, no)), (Edge(0, 1, np.array([[no, 0], [5, 0]])),))
    choice = solve(p)
    assert (choice.options, choice.ns) == ((1, 0), 14)
    assert prices(p, choice)[0].tolist() == [no, 0]
    with pytest.raises(ArgumentError, match="no choice of options is possible"):
        solve(Problem((block(0), block(0)), (Edge(0, 1, np.array([[no]])),)))


def test_a_pool_that_is_too_small_is_named_with_what_would_do() -> None:
    block = Block("b", np.zeros(2), np.array([[10, 3], [7, 4]]))
    with pytest.raises(MemoryPlanError, match=r"pool 0 is too small\n  pool 0: limit 20 bytes, at least 21"):
        solve(Problem((block,) * 3, (), (20, 100)))


def test_prices_are_what_another_option_would_add() -> None:
    rng = np.random.default_rng(3)
    p = random_problem(rng, 5, 3, 1)
    choice = solve(p)
    for i, row in enumerate(prices(p, choice)):
        for k, price in enumerate(row):
            other = [k if j == i else x for j, x in enumerate(choice.options)]
            assert price == (pytest.approx(p.ns(other) - choice.ns) if p.fits(other) else math.inf)


def test_tables_that_were_tightened_are_the_same_for_every_choice() -> None:
    rng = np.random.default_rng(4)
    p = random_problem(rng, 6, 6)
    tables = Tables.of(p, big_number(p))
    order = elimination_order(tables)
    before = tables.bound()
    after = tighten(tables, order, 30)
    assert before < after <= brute_force(p) + 1e-9
    for _ in range(20):
        x = [int(rng.integers(len(b.ns))) for b in p.blocks]
        assert tables.ns(x) == pytest.approx(p.ns(x))
    assert tables.ns(decode(tables, order)) >= after


def test_trees_are_solved_by_their_bound_alone() -> None:
    p = random_problem(np.random.default_rng(6), 7, 0)
    tables = Tables.of(p, big_number(p))
    order = elimination_order(tables)
    assert tighten(tables, order, 60) == pytest.approx(brute_force(p))


def layers(count: int) -> Problem:
    """A chain of pairs of blocks; equal tables are equal arrays or the same."""
    rng = np.random.default_rng(0)
    a, b, ab, ba = (
        rng.uniform(0, 9, 3),
        rng.uniform(0, 9, 4),
        rng.uniform(0, 9, (3, 4)),
        rng.uniform(0, 9, (4, 3)),
    )
    none = [np.zeros((n, 0), np.int64) for n in (3, 4)]
    blocks = [
        Block(f"{name}{k}", t.copy(), none[m])
        for k in range(count)
        for m, (name, t) in enumerate([("a", a), ("b", b)])
    ]
    edges = [Edge(k, k + 1, (ab if k % 2 == 0 else ba).copy()) for k in range(2 * count - 1)]
    return Problem(tuple(blocks), tuple(edges))


def test_equal_layers_are_as_few_decisions_however_many_there_are() -> None:
    sizes = [max(classes(layers(n))) + 1 for n in (8, 16, 32)]
    assert sizes == [sizes[0]] * 3 and sizes[0] < 16
    assert max(classes(layers(4), rounds=0)) + 1 == 2


def test_merged_blocks_cost_what_their_members_do() -> None:
    p = layers(6)
    of = classes(p)
    merged = merge(p, of)
    rng = np.random.default_rng(1)
    for _ in range(10):
        x = [int(rng.integers(len(b.ns))) for b in merged.blocks]
        assert merged.ns(x) == pytest.approx(p.ns([x[k] for k in of]))


def test_equal_blocks_get_equal_options() -> None:
    p = layers(12)
    choice = solve_alike(p)
    assert choice.ns == pytest.approx(p.ns(choice.options))
    assert choice.ns == pytest.approx(solve(p).ns, rel=0.02)
    of = classes(p)
    assert len(set(zip(of, choice.options, strict=True))) == max(of) + 1


def test_keys_tell_blocks_apart() -> None:
    none = np.zeros((2, 0), np.int64)
    ns = np.array([1.0, 2.0])
    p = Problem((Block("x", ns, none, "x"), Block("y", ns, none, "y"), Block("x", ns, none, "x")), ())
    assert classes(p) == [0, 1, 0]
