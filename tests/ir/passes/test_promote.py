"""Sums that loops add up in one element of memory run in a register, where nothing else touches the element."""

from __future__ import annotations

import pytest

from weft.ir import dtypes
from weft.ir.expr import Const, Expr, Load
from weft.ir.index import Int, Var
from weft.ir.loops import Accumulate, Barrier, Block, Buffer, Loop, LoopKind, Program, Scope, Stmt, Store
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.ir.passes.promote import promoted
from weft.ir.passes.rewrite import Fresh

F = dtypes.float32
I, K = Var("i", 0, 3), Var("k", 0, 7)


def at(name: str, i: Int) -> Load:
    return Load(F, name, (i,))


def zero(place: Int = I) -> Store:
    return Store("y", place, Const(F, 0))


def add(place: Int = I, value: Expr | None = None) -> Accumulate:
    return Accumulate("y", place, Op.ADD, value or at("x", 8 * I + K))


def inner(*body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> Loop:
    return Loop(K, 8, body, kind)


def text(body: Block) -> str:
    buffers = (Buffer("x", F, 32, Scope.GLOBAL), Buffer("y", F, 32, Scope.GLOBAL))
    p = Program("k", buffers, frozenset("y"), (), body)
    verify(p)
    return "\n".join(show_program(p).splitlines()[1:])


def passed(*body: Stmt) -> tuple[str, str]:
    """The loop over rows before and after the pass."""
    before = (Loop(I, 4, body),)
    p = Program("k", (), frozenset(), (), before)
    return text(before), text(promoted(before, Fresh(p)))


def test_a_sum_runs_in_a_register_and_is_stored_at_the_end() -> None:
    assert passed(zero(), inner(add())) == (
        """\
  for i in 4:
    y[i] = 0.0
    for k in 8:
      y[i] += x[8*i + k]""",
        """\
  for i in 4:
    alloc y_sum0: f32[1]
    y_sum0[0] = 0.0
    for k in 8:
      y_sum0[0] += x[8*i + k]
    y[i] = y_sum0[0]""",
    )


@pytest.mark.parametrize(
    "body",
    {
        "the element moves with the loop": (zero(8 * I), inner(add(8 * I + K))),
        "another element is added to": (zero(), inner(add(), add(I + 8))),
        "the sum is read on the way": (zero(), inner(add(), add(I, at("y", 31)))),
        "the buffer is stored to on the way": (zero(), inner(add(), Store("y", 31, at("x", 0)))),
        "lanes add to it": (zero(), inner(add(), kind=LoopKind.VECTOR)),
        "nothing is added": (zero(), inner(Store("y", 31, at("x", 0)))),
        "it is read before the loop": (zero(), Store("y", 31, at("y", I)), inner(add())),
        "it starts with what is not constant": (Store("y", I, at("x", 0)), inner(add())),
    }.items(),
    ids=lambda case: case[0],
)
def test_a_sum_stays_in_memory_where(body: tuple[str, tuple[Stmt, ...]]) -> None:
    before, after = passed(*body[1])
    assert before == after


def test_threads_that_wait_for_one_another_do_so_for_memory() -> None:
    body = (zero(), inner(add(), Barrier()))
    p = Program("k", (), frozenset(), (), body)
    assert promoted(body, Fresh(p)) == body
