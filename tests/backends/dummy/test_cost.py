"""The work of a program: what runs is counted as often as it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from weft.backends.dummy import cost
from weft.backends.dummy.cost import work
from weft.ir import dtypes
from weft.ir.expr import Load
from weft.ir.index import Guard, InRange, Int, Opaque, Var, minimum
from weft.ir.loops import Accumulate, Block, Buffer, If, Loop, Program, Scope, Store
from weft.ir.ops import Op

F = dtypes.float32
LOAD = (Store("y", 0, Load(F, "x", (0,))),)
I, J, N = Var("i", 0, 3), Var("j", 0, 7), Var("n", 1, 8)


def operations(body: Block, **given: int) -> float:
    params = (Buffer("x", F, 8, Scope.GLOBAL), Buffer("y", F, 8, Scope.GLOBAL))
    return work(Program("p", params, frozenset("y"), (N,), body), given).operations


def nbytes(body: Block, **given: int) -> int:
    params = (
        Buffer("x", F, 8, Scope.GLOBAL),
        Buffer("y", F, 8, Scope.GLOBAL),
        Buffer("z", F, 8, Scope.GLOBAL),
    )
    return work(Program("p", params, frozenset("y"), (N,), body), given).nbytes


def nested(outer: Int, inner: Int, guard: Guard) -> Block:
    return (Loop(I, outer, (Loop(J, inner, (If(guard, LOAD),)),)),)


HOLDS: list[tuple[Guard, Callable[[int, int], bool]]] = [
    ((InRange(I, None, 3),), lambda i, j: i < 3),
    ((InRange(I, 3, None),), lambda i, j: i >= 3),
    ((InRange(8 * I + J, 5, 29),), lambda i, j: 5 <= 8 * i + j < 29),
    ((InRange(I, 1, None), InRange(J, I, 2 * I)), lambda i, j: i >= 1 and i <= j < 2 * i),
    ((InRange(N, None, 3),), lambda i, j: False),
]


@pytest.mark.parametrize("guard, holds", HOLDS)
def test_a_block_with_a_guard_counts_as_often_as_it_holds(
    guard: Guard, holds: Callable[[int, int], bool]
) -> None:
    assert operations(nested(4, 8, guard), n=6) == sum(holds(i, j) for i, j in np.ndindex(4, 8))


def test_extents_that_depend_on_loops_count_as_they_are() -> None:
    always = nested(4, minimum(2 * I, 5), ())
    assert operations(always, n=1) == 0 + 2 + 4 + 5
    some = nested(4, minimum(2 * I, 5), (InRange(J, 2, None),))
    assert operations(some, n=1) == 0 + 0 + 2 + 3
    assert operations((Loop(J, N, LOAD),), n=6) == 6


def test_the_two_halves_of_a_loop_that_was_peeled_are_the_loop() -> None:
    halves = (If((InRange(I, None, 3),), LOAD), If((InRange(I, 3, None),), LOAD))
    assert operations((Loop(I, 4, (Loop(J, 8, halves),)),), n=1) == 4 * 8


def test_bytes_are_of_what_is_accessed_and_of_each_element_once() -> None:
    assert nbytes((), n=1) == 0
    assert nbytes(LOAD, n=1) == 4 + 4
    assert nbytes((Loop(J, N, LOAD),), n=3) == 3 * 4 + 3 * 4
    assert nbytes(nested(4, 8, ()), n=1) == 8 * 4 + 8 * 4
    assert nbytes((Loop(J, 8, (If((InRange(J, None, 2),), LOAD),)),), n=1) == 2 * 4 + 2 * 4
    added = Accumulate("y", 0, Op.ADD, Load(F, "z", (Opaque(Load(dtypes.int32, "x", (0,)), 0, 7),)))
    assert nbytes((Loop(J, 3, (added,)),), n=1) == 3 * 4 * 3


def test_what_is_not_known_counts_with_its_most(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Opaque(Load(dtypes.int32, "k", (0,)), 0, 7)
    assert operations(nested(4, 8, (InRange(read, None, 3),)), n=1) == 2 * 32  # the load of the guard, too
    monkeypatch.setattr(cost, "MAX_CASES", 3)
    guard = (InRange(I, None, 3),)
    assert operations(nested(4, 8, guard), n=1) == 32
    assert operations(nested(3, 8, guard), n=1) == 24
    shrinking: Any = minimum(2 * I, 5)
    assert operations(nested(4, shrinking, ()), n=1) == 4 * 5
