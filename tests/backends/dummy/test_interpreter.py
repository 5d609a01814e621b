"""What the interpreter says lowered loops mean, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from weft.backends.dummy.interpreter import interpret
from weft.backends.dummy.vectorized import Vectorized
from weft.ir import dtypes
from weft.ir.errors import IRError
from weft.ir.expr import Const, Expr, Load, Temp, as_index, call, cast, from_index
from weft.ir.index import Int, Var, in_range
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Buffer,
    Combine,
    If,
    Let,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_verify import verify
from weft.ir.ops import Op

F, I = dtypes.float32, dtypes.int32
N = Var("n", 0, 100)
i, j = Var("i", 0, 7), Var("j", 0, 7)
SERIAL, UNROLL, MATRIX, VECTOR, ACROSS, PARALLEL, BLOCK, THREAD = LoopKind


def loop(*body: Stmt, var: Var = i, extent: Int = 8, kind: LoopKind = SERIAL) -> Loop:
    return Loop(var, extent, body, kind)


def local(name: str, size: int, scope: Scope = Scope.LOCAL) -> Alloc:
    return Alloc(Buffer(name, F, size, scope))


def load(name: str, at: Int, *guard: Any) -> Load:
    return Load(F, name, (at,), guard)


def run(*body: Stmt, check: bool = True, races: bool = False, n: int = 8) -> dict[str, Any]:
    params = tuple(Buffer(name, d, 8, Scope.GLOBAL) for name, d in (("x", F), ("y", F), ("k", I)))
    p = Program("p", params, frozenset("y"), (N,), body)
    if check:
        verify(p)
    arrays = {
        "x": np.arange(1, 9, dtype=np.float32),
        "y": np.zeros(8, np.float32),
        "k": np.array([3, 1, 2, 9, 0, 0, 0, 0], np.int32),
    }
    quick = {name: a.copy() for name, a in arrays.items()}
    refusal: IRError | None = None
    try:
        interpret(p, arrays, {"n": n}, races=races)
    except IRError as error:
        refusal = error
    if refusal is None or "run independently" not in str(
        refusal
    ):  # races are the plain interpreter's to find
        if refusal is None:
            try:
                Vectorized(p).run(quick, {"n": n})
            except IRError as error:
                pytest.fail(f"refused by lanes alone: {error}")
            for name, a in arrays.items():
                np.testing.assert_array_equal(quick[name], a)
        else:
            with pytest.raises(IRError) as same:
                Vectorized(p).run(quick, {"n": n})
            assert str(same.value) == str(refusal)
    if refusal is not None:
        raise refusal
    return arrays


def add(a: Expr, b: Expr) -> Expr:
    return call(Op.ADD, a, b)


@pytest.mark.parametrize("kind", [SERIAL, UNROLL, VECTOR, PARALLEL, THREAD, BLOCK])
def test_every_kind_of_loop_runs_every_iteration(kind: LoopKind) -> None:
    y = run(loop(Store("y", 7 - i, add(load("x", i), Const(F, 1))), kind=kind))["y"]
    assert y.tolist() == [9, 8, 7, 6, 5, 4, 3, 2]


def test_a_recurrence_runs_in_order() -> None:
    v = Var("i", 0, 6)
    y = run(
        Store("y", 0, Const(F, 1)), loop(Store("y", v + 1, add(load("y", v), load("y", v))), var=v, extent=7)
    )["y"]
    assert y.tolist() == [1, 2, 4, 8, 16, 32, 64, 128]


def test_a_vector_loop_does_each_statement_for_all_lanes() -> None:
    v = Var("i", 0, 6)
    y = run(
        Store("y", 0, Const(F, 1)),
        loop(Store("y", v + 1, load("x", v)), Store("y", v, load("y", v + 1)), var=v, extent=7, kind=VECTOR),
    )["y"]
    assert y.tolist() == [1, 2, 3, 4, 5, 6, 7, 7]


def test_a_let_is_evaluated_where_it_stands() -> None:
    y = run(Let("t", load("y", 0)), Store("y", 0, Const(F, 5)), Store("y", 1, Temp(F, "t")))["y"]
    assert y[:2].tolist() == [5, 0]


def test_lanes_that_share_an_element_are_combined_as_a_tree() -> None:
    big = Const(F, 2.0**24)
    value = add(call(Op.MUL, from_value(i), big), Const(F, 1))
    lanes = [np.float32(np.float32(k * 2.0**24) + np.float32(1)) for k in range(8)]
    tree, order = np.array(lanes), np.float32(0)
    while len(tree) > 1:
        tree = tree[: len(tree) // 2] + tree[len(tree) // 2 :]
    for x in lanes:
        order = np.float32(order + x)
    assert run(loop(Accumulate("y", 0, Op.ADD, value), kind=VECTOR))["y"][0] == tree[0]
    assert run(loop(Accumulate("y", 0, Op.ADD, value)))["y"][0] == order


def from_value(index: Int) -> Expr:
    return cast(from_index(index, I), F)


def test_each_lane_has_its_own_buffer() -> None:
    y = run(
        loop(
            local("a", 1, Scope.REGISTER),
            Store("a", 0, load("x", i)),
            Accumulate("a", 0, Op.MUL, Const(F, 2)),
            Store("y", i, load("a", 0)),
            kind=VECTOR,
        )
    )["y"]
    assert y.tolist() == [2, 4, 6, 8, 10, 12, 14, 16]


def test_guards() -> None:
    inside = in_range(i, 2, 5)
    y = run(loop(Store("y", i, load("x", i - 2, *in_range(i, 2, 4)), inside)))["y"]
    assert y.tolist() == [0, 0, 1, 2, 0, 0, 0, 0]
    y = run(loop(If(inside, (Store("y", i - 2, load("x", i)),)), kind=VECTOR))["y"]
    assert y.tolist() == [3, 4, 5, 0, 0, 0, 0, 0]


def test_gathers_and_runtime_extents() -> None:
    v = Var("i", 0, 99)
    at = as_index(Load(I, "k", (v,)), 0, 7)
    y = run(loop(Store("y", v, load("x", at)), var=v, extent=N), n=3)["y"]
    assert y.tolist() == [4, 2, 3, 0, 0, 0, 0, 0]


def test_threads_meet_at_barriers() -> None:
    body = (
        local("tile", 8),
        loop(
            Store("tile", i, load("x", i)),
            Barrier(),
            Store("y", i, load("tile", 7 - i)),
            Barrier(),
            Store("tile", 7 - i, Const(F, 0)),
            kind=THREAD,
        ),
    )
    assert run(*body, races=True)["y"].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize("races", [True, False])
def test_threads_combine_what_they_have(races: bool) -> None:
    """In groups of four, as a tree: (1 + 3) + (2 + 4), whatever the sums of others are."""
    big = call(Op.MUL, load("x", i), Const(F, 2.0**23))
    body = loop(
        local("a", 2, Scope.REGISTER),
        Store("a", 1, big),
        Combine("a", 1, Op.ADD, 4),
        Store("y", i, load("a", 1)),
        kind=THREAD,
    )
    x = np.arange(1, 9, dtype=np.float32) * np.float32(2**23)
    sums = [(g[0] + g[2]) + (g[1] + g[3]) for g in (x[:4], x[4:])]
    assert run(body, races=races)["y"].tolist() == [sums[0]] * 4 + [sums[1]] * 4


def test_across_is_as_a_vector() -> None:
    bodies = [loop(Accumulate("y", 3, Op.MAX, load("x", i)), kind=kind) for kind in (VECTOR, ACROSS)]
    assert run(bodies[0])["y"].tolist() == run(bodies[1])["y"].tolist() == [0, 0, 0, 8, 0, 0, 0, 0]


REFUSED: dict[str, tuple[tuple[Stmt, ...], str]] = {
    "threads combine what is not set": (
        (loop(local("a", 1, Scope.REGISTER), Combine("a", 0, Op.ADD, 8), kind=THREAD),),
        "a[0] is read before it is written",
    ),
    "load out of range": (
        (loop(Store("y", i, load("x", i + 1))),),
        "offset 8 is outside x, which has 8 elements",
    ),
    "store below zero": ((loop(Store("y", i - 1, Const(F, 0))),), "offset -1 is outside y"),
    "lane out of range": ((loop(Store("y", i, load("x", i + 1)), kind=VECTOR),), "offset 8 is outside x"),
    "lane below zero": ((loop(Store("y", i, load("x", i - 1)), kind=VECTOR),), "offset -1 is outside x"),
    "store to what is only read": ((Store("x", 0, Const(F, 0)),), "x is not among the program's writes"),
    "read of an unset local": (
        (local("a", 2), Store("y", 0, load("a", 1))),
        "a[1] is read before it is written",
    ),
    "read of a local that lanes have set in part": (
        (local("a", 8), Store("a", 3, Const(F, 1)), loop(Store("y", i, load("a", i)), kind=VECTOR)),
        "a[0] is read before it is written",
    ),
    "accumulation into an unset local": (
        (local("a", 2), Accumulate("a", 0, Op.ADD, Const(F, 1))),
        "a[0] is read before it is written",
    ),
    "broken promise": (
        (loop(Store("y", i, load("x", as_index(Load(I, "k", (i,)), 0, 7)))),),
        "leaves its bounds 0..7",
    ),
    "tasks that share": (
        (loop(Accumulate("y", 0, Op.ADD, load("x", i)), kind=PARALLEL),),
        "y[0] is shared by iterations that run independently",
    ),
    "tasks that read what another writes": (
        (loop(Store("y", i, load("y", 7 - i)), kind=PARALLEL),),
        "is shared by iterations that run independently",
    ),
    "tasks that write what another has read": (
        (loop(Let("t", load("y", 0)), If(in_range(i, 7, 8), (Store("y", 0, Const(F, 1)),)), kind=PARALLEL),),
        "y[0] is shared by iterations that run independently",
    ),
    "tasks that write what several have read, itself last": (
        (
            loop(
                If(in_range(i, 6, 8), (Let("t", load("y", 0)),)),
                If(in_range(i, 7, 8), (Store("y", 0, Const(F, 1)),)),
                kind=PARALLEL,
            ),
        ),
        "y[0] is shared by iterations that run independently",
    ),
    "threads without a barrier": (
        (local("a", 8), loop(Store("a", i, load("x", i)), Store("y", i, load("a", 0)), kind=THREAD)),
        "a[0] is shared by iterations that run independently",
    ),
    "threads apart": (
        (loop(If(in_range(i, 0, 4), (Barrier(),)), kind=THREAD),),
        "the threads of a block reach different barriers",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    body, why = REFUSED[name]
    with pytest.raises(IRError) as error:
        run(*body, check=False, races=True)
    assert why in str(error.value)


def test_arguments_are_checked() -> None:
    p = Program("p", (Buffer("y", F, N, Scope.GLOBAL),), frozenset("y"), (N,), ())
    y = np.zeros(4, np.float32)
    interpret(p, {"y": y}, {"n": 4})
    Vectorized(p).run({"y": y}, {"n": 4})
    for arrays, variables, why in (
        ({"y": y}, {"n": 5}, "parameter y needs 5 of float32"),
        ({"y": y.astype(np.float64)}, {"n": 4}, "parameter y needs 4 of float32, got float64"),
        ({"y": y}, {"n": 101}, "variable n in 0..100 is given as 101"),
        ({"y": y}, {}, "variable n in 0..100 is given as None"),
    ):
        for run_ in (interpret, lambda *given: Vectorized(given[0]).run(*given[1:])):
            with pytest.raises(IRError) as error:
                run_(p, arrays, variables)
            assert why in str(error.value)
