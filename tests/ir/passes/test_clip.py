"""The last element of a buffer that is read: what is stored behind it is left out."""

from __future__ import annotations

import pytest

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load, ScalarCall, as_index, where
from weft.ir.index import Guard, Int, Var, in_range, maximum, minimum
from weft.ir.loops import Accumulate, Alloc, Buffer, Combine, If, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.ir.passes.clip import clip

F, I = dtypes.float32, dtypes.int32
N, O, K, J = Var("n", 1, 64), Var("o", 0, 63), Var("k", 0, 63), Var("j", 0, 3)


def row(at: Int) -> Load:
    return Load(F, "row", (at,))


def program(*body: Stmt, scope: Scope = Scope.LOCAL) -> Program:
    """A row of 64 that is stored whole, and what reads it."""
    params = (
        Buffer("x", F, 64, Scope.GLOBAL),
        Buffer("y", F, 64, Scope.GLOBAL),
        Buffer("q", I, 64, Scope.GLOBAL),
    )
    stored = Loop(O, 64, (Store("row", O, Load(F, "x", (O,))),))
    return Program("k", params, frozenset("y"), (N,), (Alloc(Buffer("row", F, 64, scope)), stored, *body))


def stored(p: Program) -> Int:
    """The elements of the row that are stored."""
    verify(p)
    made = clip(p)
    verify(made)
    (loop,) = (
        s for s in made.body if isinstance(s, Loop) and any(getattr(b, "buffer", "") == "row" for b in s.body)
    )
    return loop.extent


def add(value: Expr, guard: Guard = (), extent: Int = 64) -> Loop:
    return Loop(K, extent, (Accumulate("y", K, Op.ADD, value, guard),))


def where_holds(at: Int, read: Expr, other: Expr | None = None) -> Expr:
    return where(ex.test(in_range(at, None, N)), read, Const(F, 0.0) if other is None else other)


CASES: dict[str, tuple[Loop, Int]] = {
    "as far as a loop goes": (add(row(K), extent=N), N),
    "as far as a store goes": (add(row(K), in_range(K, None, N)), N),
    "as far as a value counts": (add(where_holds(K, row(K))), N),
    "before where a value counts": (add(where_holds(K + 3, row(K))), maximum(N - 3, 0)),
    "under a condition around it": (Loop(K, 64, (If(in_range(K, None, N), (Store("y", K, row(K)),)),)), N),
    "where a value does not count": (add(where_holds(K, Load(F, "x", (K,)), row(K))), 64),
    "where a load is guarded": (add(Load(F, "row", (K,), in_range(K, None, N))), N),
    "at a place that is computed": (add(row(as_index(Load(I, "q", (K,)), 0, 31)), extent=N), 32),
    "backwards": (add(row(63 - K), extent=N), 64),
    "at a place that data names, if at all": (
        add(where_holds(K, Load(F, "x", (as_index(ScalarCall(I, Op.CAST, (row(K),)), 0, 63),)))), 64,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_stores_end_where_reads_do(case: str) -> None:
    reader, extent = CASES[case]
    found = stored(program(reader))
    assert found == extent or found == minimum(64, extent)


def test_the_last_of_two_reads_is_not_guessed() -> None:
    other = Loop(J, 4, (Store("y", J, row(J + 60)),))
    assert stored(program(add(row(K), extent=N), other)) == 64


def test_what_threads_combine_is_read_by_all() -> None:
    read, combined = add(row(K), extent=N), Combine("row", 0, Op.ADD, 4)
    assert clip(program(read, combined)).body[1] == program().body[1]


def test_registers_are_not_loops_of_a_runtime_size() -> None:
    assert stored(program(add(row(K), extent=N), scope=Scope.REGISTER)) == 64


def test_lanes_that_go_on_are_read_too() -> None:
    k = Var("k", 0, 15)
    lanes = Loop(J, 4, (Accumulate("y", J, Op.ADD, row(k * 4 + J)),), LoopKind.VECTOR)
    assert stored(program(Loop(k, (N + 3) // 4, (lanes,)))) == (N + 3) // 4 * 4
