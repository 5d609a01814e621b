"""Places of boxes that runtime variables say: what is proven holds for each value, and what is not is asked."""

from __future__ import annotations

from random import Random

import pytest

from weft.errors import CallSite
from weft.errors import IndexError as PlaceError
from weft.ir import graph
from weft.ir.dtypes import float32
from weft.ir.graph import Box, Node
from weft.ir.index import Int, Var, evaluate, maximum, minimum
from weft.ir.ops import Op
from weft.ir.places import Asked, Place, asked, check, placed
from weft.ir.template import GraphTemplate

T, N = Var("t", 0, 6), Var("n", 1, 5)
VALUES = [{"t": t, "n": n} for t in range(7) for n in range(1, 6)]


def number(random: Random) -> Int:
    """An expression of the variables, mostly not below 0."""
    kinds = [
        lambda: random.randint(0, 9),
        lambda: T + random.randint(-1, 4),
        lambda: N * random.randint(1, 3),
        lambda: 6 - T,
        lambda: T // 2,
        lambda: (T * 3) % 5,
        lambda: minimum(T, N),
        lambda: maximum(T, N),
        lambda: T + N,
    ]
    return random.choice(kinds)()


def is_there(p: Place) -> bool:
    """True where all elements of a place with known numbers are among those of its axis."""
    first, length, size = (int(evaluate(x, {})) for x in (p.first, p.length, p.size))
    return first >= 0 <= length and all(0 <= first + k * p.step < size for k in range(length))


def test_what_is_proven_holds_for_each_value() -> None:
    random, seen = Random(3), set[str]()
    for _ in range(3000):
        p = Place(0, number(random), number(random), random.randint(1, 2), number(random))
        truth = [is_there(p.at(env)) for env in VALUES]
        if p.is_within:
            assert all(truth), p
            seen.add("within")
        if p.is_outside:
            assert not any(truth), p
            seen.add("outside")
    assert seen == {"within", "outside"}


def test_each_value_that_leads_out_is_refused_and_no_other() -> None:
    random, site = Random(4), CallSite("user.py:7", "narrow")
    refused = 0
    for _ in range(400):
        p = Place(1, number(random), number(random), random.randint(1, 2), number(random))
        for env in VALUES:
            if is_there(p.at(env)):
                check(env, [Asked(p, site)])
                continue
            refused += 1
            with pytest.raises(PlaceError, match=r"narrow: .*dimension 1.*\n  at user.py:7"):
                check(env, [Asked(p, site)])
    assert refused > 100


def leaf(*shape: Int) -> Node:
    return graph.buffer(shape, float32, "cpu:0", None)


def taken(x: Node, first: Int, count: Int = 1) -> Node:
    return graph.apply(Op.SHRINK, (x,), placed(x.shape, (first,), (1,), (count,)), (count,))


def test_boxes_of_a_graph_are_asked_where_variables_decide() -> None:
    x = leaf(5)
    assert asked([taken(x, T // 2), taken(x, 3), taken(leaf(N), 0, N)]) == []
    (found,) = asked([graph.apply(Op.EXP, (taken(x, T),))])
    assert found.place == Place(0, T, 1, 1, 5)
    assert found.said is not None
    update = graph.apply(Op.UPDATE, (x, leaf(2)), placed((5,), (T,), (1,), (2,)))
    assert [a.place for a in asked([update])] == [Place(0, T, 2, 1, 5)]


def test_boxes_in_functions_that_a_graph_calls_and_in_loops_are_asked() -> None:
    x = leaf(5)
    inner = GraphTemplate.of([x], [taken(x, T)])
    assert isinstance(inner, GraphTemplate)
    called = graph.intern(Op.CALL, (leaf(5),), inner, (1,), float32, "cpu:0")
    outer = GraphTemplate.of([called.inputs[0]], [called])
    assert isinstance(outer, GraphTemplate)
    nested = graph.intern(Op.CALL, (leaf(5),), outer, (1,), float32, "cpu:0")
    for n in (called, nested):
        assert [a.place for a in asked([n])] == [Place(0, T, 1, 1, 5)]


def test_the_steps_of_a_loop_are_not_asked() -> None:
    step = Var("step", 0, 9)
    check({"t": 3}, asked([taken(leaf(5), step)]))


def test_what_no_value_brings_within_is_refused_at_once() -> None:
    for first, count in ((T + 5, 1), (T, 6 + N), (6, N)):
        with pytest.raises(PlaceError, match="dimension 0 of size 5"):
            placed((5,), (first,), (1,), (count,))


def test_what_may_be_negative_is_refused_at_once() -> None:
    for first, count in ((T - 1, 1), (0, T - 1), (-1 - T, 1), (T, 5 - T)):
        with pytest.raises(PlaceError, match="in dimension 0 may be negative, -"):
            placed((5,), (first,), (1,), (count,))
    placed((6,), (T,), (1,), (6 - T,))


def test_known_numbers_are_left_to_who_asks() -> None:
    assert placed((5,), (7,), (1,), (1,)) == Box((7,), (1,))


def test_calls_are_not_part_of_what_boxes_are() -> None:
    a, b = Box((T,), (1,), CallSite("a.py:1", "")), Box((T,), (1,), CallSite("b.py:2", ""))
    assert a == b
    assert hash(a) == hash(b)
    assert repr(a) == repr(b)
