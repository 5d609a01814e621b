"""Lowered loops as text and as DOT."""

from __future__ import annotations

from weft.ir import dtypes
from weft.ir.expr import Const, Expr, Load, ScalarCall
from weft.ir.index import Var, in_range
from weft.ir.loops import (
    Accumulate,
    Alloc,
    Barrier,
    Buffer,
    If,
    Let,
    Loop,
    LoopKind,
    Program,
    Scope,
    Stmt,
    Store,
)
from weft.ir.loops_dot import dot_program
from weft.ir.loops_text import show_head, show_program
from weft.ir.ops import Op

F = dtypes.float32
N = Var("n", 1, 4096)


def program(*body: Stmt) -> Program:
    params = (Buffer("x", F, N, Scope.GLOBAL), Buffer("y", F, 64, Scope.GLOBAL))
    return Program("k", params, frozenset("y"), (N,), body)


def x() -> Load:
    return Load(F, "x", (0,))


def example() -> Program:
    i, j = Var("i", 0, 3), Var("j", 0, 15)
    guard = in_range(i * 16 + j, None, N)
    inside = (
        Accumulate("a", j, Op.MAX, Load(F, "x", (i * 16 + j,), guard)),
        Let("t", ScalarCall(F, Op.SUB, (Load(F, "a", (j,)), Const(F, 1)))),
        Store("y", i * 16 + j, Load(F, "x", (i * 16 + j,), guard), guard, stream=True),
    )
    return program(
        Alloc(Buffer("a", F, 16, Scope.REGISTER)),
        Alloc(Buffer("tile", F, 16, Scope.LOCAL)),
        Loop(
            i,
            4,
            (
                Loop(j, 16, inside, LoopKind.VECTOR),
                If(in_range(i, 1, 3), (Barrier(),)),
                Loop(Var("e", 0, 1), 2, ()),
            ),
        ),
    )


TEXT = """\
kernel k(x: f32[n], y: f32[64] out; n in 1..4096)
  alloc a: f32[16]
  alloc tile: f32[16] local
  for i in 4:
    vector j in 16:
      a[j]               max= x[16*i + j] if 16*i + j < n else 0
      t                     = a[j] - 1.0
      stream y[16*i + j]    = (x[16*i + j] if 16*i + j < n else 0) if 16*i + j < n
    if 1 <= i < 3:
      barrier
    for e in 2:
      pass"""


def test_text() -> None:
    assert show_program(example()) == TEXT


def test_the_head_of_a_loop() -> None:
    assert show_head(example().body[2]) == "for i in 4:"


def test_expressions_that_share_much_are_cut() -> None:
    e: Expr = x()
    for _ in range(40):
        e = ScalarCall(F, Op.ADD, (e, e))
    lines = show_program(program(Store("y", 0, e))).splitlines()
    assert lines[1:3] == ["  %1   = x[0] + x[0]", "  %2   = %1 + %1"]
    assert lines[-1] == "  y[0] = %39 + %39"


def test_deep_expressions_are_cut() -> None:
    e: Expr = x()
    for k in range(3000):
        e = ScalarCall(F, Op.ADD, (e, Const(F, k)))
    lines = show_program(program(Store("y", 0, e))).splitlines()
    assert len(lines) > 100 and max(map(len, lines)) < 400


def test_dot() -> None:
    text = dot_program(example())
    assert text.startswith('digraph "k" {') and text.endswith("}")
    assert text.count("subgraph cluster_") == 4
    assert 'label="vector j in 16:"' in text
    assert "param_0 -> s_2_0_0;" in text
    assert "s_2_0_0 -> s_0 [style=dashed];" in text
