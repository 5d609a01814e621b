"""The marks of work over devices: that they measure what they say, on small problems."""

from __future__ import annotations

from benchmarks import sharding
from benchmarks.sharding import chain_ns, explained, planned, random_graph, stages_ns


def test_plans_of_more_layers_have_as_many_programs() -> None:
    few, more = planned(1, (8, 8), 64), planned(3, (8, 8), 64)
    assert more.parts > few.parts > 2 and more.programs <= few.programs + 3
    assert 0 < few.proof_seconds < few.seconds


def test_weights_that_arrive_take_longer_and_hide() -> None:
    here, _ = chain_ns(4, 64, 1e15, away=False)
    away, predicted = chain_ns(4, 64, 4 * 64 * 64 * 4 / (here / 1e9), away=True)
    assert here < away < 2 * here + 10_000 and predicted > 0


def test_stages_overlap() -> None:
    whole, five = stages_ns()
    assert five <= whole <= 1.05 * five


def test_random_graphs_are_those_of_their_seed() -> None:
    import weft

    leaves = [weft.ones(16, 16) * k for k in range(3)]
    a, b = ([t.numpy() for t in random_graph(5, leaves)] for _ in range(2))
    assert all((x == y).all() for x, y in zip(a, b, strict=True))


def test_explanations_are_of_several_devices() -> None:
    found = explained(2)
    assert found.collectives and len(found.pools) == 2 and found.timeline is not None


def test_all_marks_have_a_number_once() -> None:
    numbers = [n for of in sharding.MARKS for n in of.split(",")]
    assert len(numbers) == len(set(numbers))
