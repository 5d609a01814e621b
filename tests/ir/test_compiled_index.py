"""Compiled expressions: the values that a walk through them gives, at every point."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.test_index import VARS, pairs
from weft.ir.compiled_index import compiled, picker
from weft.ir.dtypes import int32
from weft.ir.expr import Load
from weft.ir.index import Int, Opaque, Var, evaluate


@settings(deadline=None)
@given(st.lists(pairs().map(lambda p: p[0]), max_size=4), st.data())
def test_values_are_those_of_a_walk(expressions: list[Int], data: st.DataObject) -> None:
    values = [data.draw(st.integers(v.lo, v.hi)) for v in VARS]
    env = {v.name: n for v, n in zip(VARS, values, strict=True)}
    assert compiled(expressions, VARS)(values) == tuple([evaluate(e, env) for e in expressions])


def test_nothing_and_one_are_tuples() -> None:
    n = Var("n", 0, 9)
    assert compiled((), (n,))((3,)) == ()
    assert compiled((n * 2 - 7,), (n,))((3,)) == (-1,)


def test_whole_expressions_may_be_given() -> None:
    n = Var("n", 1, 99)
    half = n // 2
    assert compiled((half * 3 + 1, 5), (half,))((4,)) == (13, 5)


def test_names_are_no_part_of_the_text() -> None:
    """They may come from a file."""
    strange = Var("__import__('os').abort()", 0, 9)
    assert compiled((strange + 1,), (strange,))((3,)) == (4,)


@pytest.mark.parametrize("x", [Var("m", 0, 3) * 2, Opaque(Load(int32, "t", (Var("n", 0, 9),)), 0, 3)])
def test_what_does_not_follow_is_refused(x: Int) -> None:
    with pytest.raises(ValueError, match="does not follow from n"):
        compiled((x,), (Var("n", 0, 9),))


def test_more_than_python_reads_is_refused() -> None:
    n = Var("n", 1, 10**9)
    x: Int = n
    for k in range(300):
        x = (x + k) // 2 * 3 % (n + k)
    with pytest.raises(ValueError, match="too many parts"):
        compiled((x,), (n,))


def test_any_number_of_places_is_taken_as_a_tuple() -> None:
    assert picker(())((5, 6)) == ()
    assert picker((1,))((5, 6)) == (6,)
    assert picker((1, 0, 1))((5, 6)) == (6, 5, 6)
