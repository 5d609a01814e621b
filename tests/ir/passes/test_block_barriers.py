"""Where threads of a block wait for one another: before they may meet at an element that another one touched."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.expr import Const, Load
from weft.ir.index import Int, Var
from weft.ir.loops import Accumulate, Alloc, Buffer, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_names import Names
from weft.ir.loops_text import show_program
from weft.ir.ops import Op
from weft.ir.passes.block_barriers import Barriers, Pending

F = dtypes.float32
K, T, U, V = Var("k", 0, 2), Var("t", 0, 3), Var("u", 0, 3), Var("v", 0, 3)
TILE = Alloc(Buffer("tile", F, 4, Scope.LOCAL))


def at(name: str, i: Int) -> Load:
    return Load(F, name, (i,))


def thread(var: Var, *body: Stmt) -> Loop:
    return Loop(var, 4, body, LoopKind.THREAD)


def placed(*body: Stmt) -> str:
    """The statements with barriers, as text."""
    out = Barriers({"tile"}, set(), Names()).block((TILE, *body), Pending())
    params = (Buffer("x", F, 16, Scope.GLOBAL), Buffer("y", F, 16, Scope.GLOBAL))
    return "\n".join(show_program(Program("k", params, frozenset("y"), (), out)).splitlines()[2:])


FILL = thread(T, Store("tile", T, at("x", T)))


def test_what_one_thread_stored_another_reads_after_a_barrier() -> None:
    assert placed(FILL, thread(U, Store("y", U, at("tile", 3 - U)))) == (
        """\
  thread t in 4:
    tile[t] = x[t]
  barrier
  thread u in 4:
    y[u] = tile[-u + 3]"""
    )


def test_no_thread_waits_for_what_it_stored_itself() -> None:
    assert placed(FILL, thread(U, Store("y", U, at("tile", U)))) == (
        """\
  thread t in 4:
    tile[t] = x[t]
  thread u in 4:
    y[u] = tile[u]"""
    )


def test_a_tile_is_filled_again_after_all_have_read_it() -> None:
    fill = thread(T, Store("tile", T, at("x", 4 * K + T)))
    read = thread(U, Accumulate("y", U, Op.ADD, at("tile", 3 - U)))
    assert placed(Loop(K, 3, (fill, read))) == (
        """\
  for k in 3:
    barrier
    thread t in 4:
      tile[t] = x[4*k + t]
    barrier
    thread u in 4:
      y[u] += tile[-u + 3]"""
    )


def test_one_barrier_orders_everything_before_it() -> None:
    read = (Store("y", U, at("tile", 3 - U)), Store("y", U + 4, at("tile", 0)))
    again = thread(V, Store("y", V + 8, at("tile", 3 - V)))
    assert placed(
        FILL, thread(U, *read), again, thread(Var("w", 0, 3), Store("tile", Var("w", 0, 3), Const(F, 0)))
    ) == (
        """\
  thread t in 4:
    tile[t] = x[t]
  barrier
  thread u in 4:
    y[u]     = tile[-u + 3]
    y[u + 4] = tile[0]
  thread v in 4:
    y[v + 8] = tile[-v + 3]
  barrier
  thread w in 4:
    tile[w] = 0.0"""
    )
