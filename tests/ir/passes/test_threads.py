"""Loops over threads as parts of one: which buffers move into each thread's registers, and what the others do."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.expr import Const, Load
from weft.ir.index import Int, Var
from weft.ir.loops import Accumulate, Alloc, Block, Buffer, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_text import show_program
from weft.ir.ops import Op
from weft.ir.passes.rewrite import Fresh
from weft.ir.passes.threads import ThreadLoop, most_threads

F = dtypes.float32
I, J, K, L = Var("i", 0, 7), Var("j", 0, 7), Var("k", 0, 3), Var("l", 0, 3)
T = Var("t", 0, 7)


def at(name: str, i: Int) -> Load:
    return Load(F, name, (i,))


def local(name: str, size: int) -> Alloc:
    return Alloc(Buffer(name, F, size, Scope.LOCAL))


def thread(var: Var, *body: Stmt) -> Loop:
    return Loop(var, var.hi + 1, body, LoopKind.THREAD)


def fused(*body: Stmt) -> tuple[str, str, list[str]]:
    """The block's body before, as thread t of eight runs it, and the buffers that stay shared."""
    whole = Program(
        "k", (Buffer("x", F, 64, Scope.GLOBAL), Buffer("y", F, 64, Scope.GLOBAL)), frozenset("y"), (), body
    )
    loop = ThreadLoop(body, most_threads(body), Fresh(whole))
    parts = loop.block(loop.in_registers(body), T, 8)

    def text(b: Block) -> str:
        return "\n".join(show_program(Program("k", (), frozenset(), (), b)).splitlines()[1:])

    return text(body), text(parts), [b.name for b in loop.shared]


def test_a_buffer_whose_elements_have_one_thread_each_is_a_register() -> None:
    assert fused(
        local("acc", 8),
        thread(I, Store("acc", I, at("x", I))),
        thread(J, Store("y", J, at("acc", J))),
    ) == (
        """\
  alloc acc: f32[8] local
  thread i in 8:
    acc[i] = x[i]
  thread j in 8:
    y[j] = acc[j]""",
        """\
  alloc acc: f32[1]
  acc[0] = x[t]
  y[t]   = acc[0]""",
        [],
    )


def test_a_buffer_whose_elements_other_threads_read_stays_shared() -> None:
    assert fused(
        local("tile", 8),
        thread(I, Store("tile", I, at("x", I))),
        thread(J, Store("y", J, at("tile", 7 - J))),
    ) == (
        """\
  alloc tile: f32[8] local
  thread i in 8:
    tile[i] = x[i]
  thread j in 8:
    y[j] = tile[-j + 7]""",
        """\
  tile[t] = x[t]
  y[t]    = tile[-t + 7]""",
        ["tile"],
    )


def test_a_shorter_loop_is_run_by_the_first_threads() -> None:
    assert fused(
        thread(I, Store("y", I, at("x", I))),
        thread(K, Store("y", K + 8, at("x", K + 8))),
    ) == (
        """\
  thread i in 8:
    y[i] = x[i]
  thread k in 4:
    y[k + 8] = x[k + 8]""",
        """\
  y[t] = x[t]
  if t < 4:
    y[t + 8] = x[t + 8]""",
        [],
    )


def test_what_all_threads_do_alike_each_does_to_its_own_copy_or_the_first_to_the_shared_one() -> None:
    assert fused(
        local("own", 4),
        local("tile", 8),
        Loop(L, 4, (Store("own", L, Const(F, 0)),)),
        Store("tile", 0, Const(F, 1)),
        thread(I, Store("y", I, at("own", 3)), Store("tile", 7 - I, at("x", I))),
        thread(J, Store("y", J, at("tile", J))),
    ) == (
        """\
  alloc own: f32[4] local
  alloc tile: f32[8] local
  for l in 4:
    own[l] = 0.0
  tile[0] = 1.0
  thread i in 8:
    y[i]         = own[3]
    tile[-i + 7] = x[i]
  thread j in 8:
    y[j] = tile[j]""",
        """\
  alloc own: f32[4]
  for l in 4:
    own[l] = 0.0
  tile[0]      = 1.0 if t < 1
  y[t]         = own[3]
  tile[-t + 7] = x[t]
  y[t]         = tile[t]""",
        ["tile"],
    )


def test_neighbouring_threads_combine_their_terms() -> None:
    assert fused(
        local("s", 1),
        Store("s", 0, Const(F, 0)),
        Loop(I, 8, (Accumulate("s", 0, Op.ADD, at("x", I)),), LoopKind.ACROSS),
        thread(J, Store("y", J, at("s", 0))),
    ) == (
        """\
  alloc s: f32[1] local
  s[0] = 0.0
  across i in 8:
    s[0] += x[i]
  thread j in 8:
    y[j] = s[0]""",
        """\
  alloc s: f32[1]
  s[0] = 0.0
  alloc s_lane0: f32[1]
  s_lane0[0] = 0.0
  s_lane0[0] = x[t]
  combine s_lane0[0] += of 8 threads
  s[0] += s_lane0[0]
  y[t]  = s[0]""",
        [],
    )
