"""What each pass does to a small program, as text before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load, ScalarCall, Temp, as_index, call, where
from weft.ir.index import InRange, Int, Var, in_range, minimum
from weft.ir.loops import (
    Accumulate,
    Alloc,
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
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.ops import Op
from weft.ir.passes.barriers import place_barriers
from weft.ir.passes.clip import clip
from weft.ir.passes.cse import share
from weft.ir.passes.dead import remove_dead
from weft.ir.passes.fma import contract
from weft.ir.passes.licm import hoist
from weft.ir.passes.peel import peel
from weft.ir.passes.pipeline import Pass, run
from weft.ir.passes.simplify import simplify
from weft.ir.passes.strength import reduce_strength

F, I = dtypes.float32, dtypes.int32
N = Var("n", 1, 4096)


def f(value: float) -> Expr:
    return Const(F, value)


def x(at: Int, *guard: InRange, name: str = "x") -> Load:
    return Load(F, name, (at,), guard)


def program(*body: Stmt) -> Program:
    params = tuple(Buffer(n, F, 128, Scope.GLOBAL) for n in ("x", "w", "y"))
    params += (
        Buffer("p", I, 128, Scope.GLOBAL),
        Buffer("q", I, 128, Scope.GLOBAL),
        Buffer("r", F, N, Scope.GLOBAL),
    )
    return Program("k", params, frozenset({"y", "q", "r"}), (N,), body)


def var(name: str, extent: int) -> Var:
    return Var(name, 0, extent - 1)


def simplify_case() -> Program:
    i, j = var("i", 4), var("j", 1)
    return program(
        Loop(
            i,
            4,
            (
                If(
                    in_range(i, None, 2),
                    (
                        Let("t", call(Op.ADD, f(1), f(1))),
                        Store("y", i, call(Op.MUL, x(i, *in_range(i, None, 3)), Temp(F, "t"))),
                        If(in_range(i, 2, None), (Store("y", i + 5, f(3)),)),
                    ),
                ),
                Store("y", i, where(ex.test(in_range(i, 0, 8)), x(i), f(0)), in_range(i * 2, 0, 4)),
            ),
        ),
        Loop(j, 1, (Store("y", j + 9, x(j + 9)),), LoopKind.PARALLEL),
    )


def dead_case() -> Program:
    i = var("i", 4)
    return program(
        Alloc(Buffer("a", F, 4, Scope.REGISTER)),
        Let("t", call(Op.MUL, x(0), f(2))),
        Let("u", call(Op.MUL, Temp(F, "t"), f(2))),
        Loop(i, 4, (Store("a", i, x(i)),)),
        Store("y", 0, f(1)),
        Store("y", 1, x(1)),
        Store("y", 0, f(2)),
        Store("y", 1, x(1, name="y"), in_range(N, 3, None)),
    )


def cse_case() -> Program:
    square = call(Op.MUL, x(0), x(0))
    again = call(Op.MUL, x(0), x(0))
    i = var("i", 4)
    g = in_range(i * 40, None, 128)
    return program(
        Store("y", 0, call(Op.ADD, call(Op.EXP, square), x(0))),
        Store("y", 1, call(Op.EXP, again)),
        Loop(
            i,
            4,
            (
                Store("y", i, call(Op.ADD, x(i * 40), call(Op.EXP, again)), g),
                Store("y", i + 4, x(i * 40), g),
                Store("y", i + 8, call(Op.MUL, x(i * 2), x(i * 2))),
                Store("y", i, call(Op.ADD, x(0, name="y"), f(1))),
                Store("y", i + 1, call(Op.ADD, x(0, name="y"), f(1))),
            ),
        ),
    )


def licm_of_runtime_size() -> Program:
    i = Var("i", 0, 255)
    scaled = call(Op.MUL, x(i, name="r"), call(Op.EXP, x(0, name="s")))
    s = Alloc(Buffer("s", F, 1, Scope.REGISTER))
    return program(s, Store("s", 0, f(1)), Loop(i, N // 16, (Store("r", i, scaled),)))


def licm_case() -> Program:
    i, j = var("i", 8), Var("j", 0, 4095)
    row = as_index(Load(I, "p", (0,)), 0, 15)
    return program(
        Loop(i, 8, (Store("y", i, call(Op.MUL, x(i), call(Op.EXP, x(0, name="w")))),)),
        Loop(j, N, (Store("r", j, call(Op.ADD, x(N, name="w"), x(row, name="w"))),)),
    )


def strength_case() -> Program:
    p = Load(I, "p", (0,))

    def i(value: int) -> Expr:
        return Const(I, value)

    return program(
        Store("q", 0, call(Op.FLOORDIV, p, i(8))),
        Store("q", 1, call(Op.MOD, p, i(8))),
        Store("q", 2, call(Op.MUL, i(8), p)),
        Store("q", 3, call(Op.POW, p, i(3))),
        Store("q", 4, call(Op.FLOORDIV, p, i(6))),
        Store("y", 0, call(Op.DIV, x(0), f(4))),
        Store("y", 1, call(Op.DIV, x(0), f(3))),
        Store("y", 2, call(Op.POW, x(0), f(2))),
        Store("y", 3, call(Op.POW, x(0), f(-1))),
        Store("y", 4, call(Op.POW, x(0), f(3))),
        Store("y", 5, call(Op.DIV, x(0), f(2.0**127))),
    )


def fma_case() -> Program:
    a, b, c = x(0), x(1), x(2)
    product = call(Op.MUL, a, b)
    other = call(Op.MUL, b, c)
    return program(
        Store("y", 0, call(Op.ADD, product, c)),
        Store("y", 1, call(Op.SUB, call(Op.MUL, a, c), b)),
        Store("y", 2, call(Op.SUB, c, call(Op.MUL, a, call(Op.ADD, call(Op.MUL, c, c), a)))),
        Store("y", 3, call(Op.ADD, call(Op.EXP, other), other)),
        Store("y", 4, call(Op.ADD, f(1), call(Op.NEG, call(Op.MUL, b, b)))),
    )


def peel_tail() -> Program:
    i, j = var("i", 7), var("j", 16)
    k, m = Var("k", 0, 255), var("m", 16)
    at, dyn = i * 16 + j, k * 16 + m
    tail = in_range(dyn, None, N)
    guard = in_range(at, None, 100)
    inner = Loop(j, 16, (Store("y", at, x(at, *guard), guard),), LoopKind.VECTOR)
    return program(
        Loop(i, 7, (inner,)),
        Loop(k, (N + 15) // 16, (Loop(m, 16, (Store("r", dyn, f(1), tail),), LoopKind.VECTOR),)),
    )


def peel_clipped() -> Program:
    t, o, j = Var("t", 0, 31), Var("o", 0, 7), var("j", 16)
    at = t * 128 + o * 16 + j
    guard = in_range(at, None, N)
    inner = Loop(j, 16, (Store("r", at, f(1), guard),), LoopKind.VECTOR)
    left = minimum(8, (N + 15) // 16 - t * 8)
    return program(Loop(t, (N + 127) // 128, (Loop(o, left, (inner,)),), LoopKind.PARALLEL))


def clip_panel() -> Program:
    """A panel of as many rows as a sum has terms."""
    t, o, l, j = Var("t", 0, 15), var("o", 16), var("l", 2), var("j", 16)
    k, c, row = Var("k", 0, 255), var("c", 2), t * 256 + o * 16 + j
    packed = Store("panel", o * 32 + j * 2 + l, Load(F, "r", (row,), in_range(row, None, N)))
    read = Accumulate("y", c, Op.ADD, x(k * 2 + c, name="panel"))
    body = (
        Alloc(Buffer("panel", F, 512, Scope.LOCAL)),
        Loop(o, 16, (Loop(l, 2, (Loop(j, 16, (packed,), LoopKind.VECTOR),)),)),
        Loop(k, minimum(256, N - t * 256), (Loop(c, 2, (read,), LoopKind.VECTOR),)),
    )
    return program(Loop(t, (N + 255) // 256, body))


def clip_tasks() -> Program:
    t, o, j, k, u, other_u = (
        Var("t", 0, 31), var("o", 8), var("j", 16), var("k", 4), var("u", 8), var("u2", 8)
    )  # fmt: skip
    at, row = t * 128 + o * 16 + j, t * 8 + u
    guard, term = in_range(at, None, N), in_range(row, None, (N + 15) // 16)
    part, other = Buffer("part", F, 1, Scope.LOCAL), Buffer("other", F, 1, Scope.LOCAL)
    lanes = Loop(j, 16, (Store("r", at, f(1), guard),), LoopKind.VECTOR)
    add = Accumulate("part", 0, Op.ADD, where(ex.test(term), x(row), f(0)))
    sure = in_range(t * 8 + other_u, None, (N + 15) // 16)
    unsure = Accumulate("other", 0, Op.ADD, where(ex.test(sure), x(other_u), f(0)))
    body = (
        Loop(o, 8, (lanes,)),
        Alloc(part),
        Store("part", 0, f(0)),
        Loop(u, 8, (add,)),
        Store("y", 1, x(0)),
        Alloc(other),
        Store("other", 0, f(-0.0)),
        Loop(k, 4, (Store("y", 2, x(k)),)),
        Loop(other_u, 8, (unsure,)),
        Store("y", t, call(Op.ADD, Load(F, "part", (0,)), Load(F, "other", (0,)))),
    )
    return program(Loop(t, (N + 127) // 128, body, LoopKind.PARALLEL))


def peel_window() -> Program:
    i, k, c = var("i", 16), var("k", 3), var("c", 4)
    pad = in_range(i + k - 1, 0, 16)
    add = Accumulate("y", i * 4 + c, Op.ADD, x((i + k - 1) * 4 + c, *pad))
    return program(Loop(i, 16, (Loop(c, 4, (Loop(k, 3, (add,)),)),), LoopKind.PARALLEL))


def peel_triangle() -> Program:
    i, j = var("i", 32), var("j", 32)
    return program(
        Loop(i, 32, (Loop(j, 32, (Accumulate("y", i, Op.ADD, x(j, *in_range(j - i, None, 1))),)),))
    )


def barrier_case() -> Program:
    k, t, b = var("k", 2), var("t", 64), var("b", 1)
    tile = Buffer("tile", F, 64, Scope.LOCAL)
    acc = Buffer("acc", F, 1, Scope.REGISTER)
    return program(
        Loop(
            b,
            1,
            (
                Alloc(tile),
                Loop(
                    t,
                    64,
                    (
                        Alloc(acc),
                        Store("acc", 0, f(0)),
                        Loop(
                            k,
                            2,
                            (
                                Store("tile", t, x(64 * k + t)),
                                Accumulate("acc", 0, Op.ADD, x(63 - t, name="tile")),
                                Accumulate("acc", 0, Op.ADD, x(t, name="tile")),
                            ),
                        ),
                        Store("y", t, x(0, name="acc")),
                    ),
                    LoopKind.THREAD,
                ),
            ),
            LoopKind.BLOCK,
        )
    )


CASES: dict[str, tuple[Callable[[], Program], list[Pass], str, str]] = {
    "simplify": (
        simplify_case,
        [simplify],
        """
  for i in 4:
    if i < 2:
      t    = 2.0
      y[i] = (x[i] if i < 3 else 0) * t
      if 2 <= i:
        y[i + 5] = 3.0
    y[i] = x[i] if 2*i < 4
  parallel j in 1:
    y[j + 9] = x[j + 9]
""",
        """
  for i in 4:
    if i < 2:
      y[i] = x[i] * 2.0
    y[i] = x[i] if 2*i < 4
  y[9] = x[9]
""",
    ),
    "dead": (
        dead_case,
        [remove_dead],
        """
  alloc a: f32[4]
  t = x[0] * 2.0
  u = t * 2.0
  for i in 4:
    a[i] = x[i]
  y[0] = 1.0
  y[1] = x[1]
  y[0] = 2.0
  y[1] = y[1] if 3 <= n
""",
        """
  y[1] = x[1]
  y[0] = 2.0
  y[1] = y[1] if 3 <= n
""",
    ),
    "cse": (
        cse_case,
        [share],
        """
  y[0] = exp(x[0] * x[0]) + x[0]
  y[1] = exp(x[0] * x[0])
  for i in 4:
    y[i]     = x[40*i] + exp(x[0] * x[0])
    y[i + 4] = x[40*i]
    y[i + 8] = x[2*i] * x[2*i]
    y[i]     = y[0] + 1.0
    y[i + 1] = y[0] + 1.0
""",
        """
  t0   = x[0]
  t1   = exp(t0 * t0)
  y[0] = t1 + t0
  y[1] = t1
  for i in 4:
    t2       = x[40*i]
    y[i]     = t2 + t1
    y[i + 4] = t2
    t3       = x[2*i]
    y[i + 8] = t3 * t3
    y[i]     = y[0] + 1.0
    y[i + 1] = y[0] + 1.0
""",
    ),
    "licm out of a loop of runtime size": (
        licm_of_runtime_size,
        [hoist],
        """
  alloc s: f32[1]
  s[0] = 1.0
  for i in n//16:
    r[i] = r[i] * exp(s[0])
""",
        """
  alloc s: f32[1]
  s[0] = 1.0
  t0   = exp(s[0])
  for i in n//16:
    r[i] = r[i] * t0
""",
    ),
    "licm": (
        licm_case,
        [hoist],
        """
  for i in 8:
    y[i] = x[i] * exp(w[0])
  for j in n:
    r[j] = w[n] + w[[p[0]]]
""",
        """
  t0 = exp(w[0])
  for i in 8:
    y[i] = x[i] * t0
  t1 = w[n] + w[[p[0]]]
  for j in n:
    r[j] = t1
""",
    ),
    "strength": (
        strength_case,
        [reduce_strength],
        """
  q[0] = p[0] // 8
  q[1] = p[0] % 8
  q[2] = 8 * p[0]
  q[3] = pow(p[0], 3)
  q[4] = p[0] // 6
  y[0] = x[0] / 4.0
  y[1] = x[0] / 3.0
  y[2] = pow(x[0], 2.0)
  y[3] = pow(x[0], -1.0)
  y[4] = pow(x[0], 3.0)
  y[5] = x[0] / 1.7014118346046923e+38
""",
        """
  q[0] = p[0] >> 3
  q[1] = p[0] & 7
  q[2] = p[0] << 3
  q[3] = p[0] * (p[0] * p[0])
  q[4] = p[0] // 6
  y[0] = x[0] * 0.25
  y[1] = x[0] / 3.0
  y[2] = x[0] * x[0]
  y[3] = recip(x[0])
  y[4] = pow(x[0], 3.0)
  y[5] = x[0] / 1.7014118346046923e+38
""",
    ),
    "fma": (
        fma_case,
        [contract],
        """
  y[0] = (x[0] * x[1]) + x[2]
  y[1] = (x[0] * x[2]) - x[1]
  y[2] = x[2] - (x[0] * ((x[2] * x[2]) + x[0]))
  y[3] = exp(x[1] * x[2]) + (x[1] * x[2])
  y[4] = 1.0 + neg(x[1] * x[1])
""",
        """
  y[0] = fma(x[0], x[1], x[2])
  y[1] = fma(x[0], x[2], neg(x[1]))
  y[2] = fma(neg(x[0]), fma(x[2], x[2], x[0]), x[2])
  y[3] = exp(x[1] * x[2]) + (x[1] * x[2])
  y[4] = 1.0 + neg(x[1] * x[1])
""",
    ),
    "peel_tail": (
        peel_tail,
        [peel, simplify],
        """
  for i in 7:
    vector j in 16:
      y[16*i + j] = (x[16*i + j] if 16*i + j < 100 else 0) if 16*i + j < 100
  for k in (n + 15)//16:
    vector m in 16:
      r[16*k + m] = 1.0 if 16*k + m < n
""",
        """
  for i in 6:
    vector j in 16:
      y[16*i + j] = x[16*i + j]
  vector j_0 in 16:
    y[j_0 + 96] = (x[j_0 + 96] if j_0 + 96 < 100 else 0) if j_0 + 96 < 100
  for k in n//16:
    vector m in 16:
      r[16*k + m] = 1.0
  for k_0 in (n + 15)//16 - n//16:
    vector m_0 in 16:
      r[16*k_0 + 16*(n//16) + m_0] = 1.0 if 16*k_0 + 16*(n//16) + m_0 < n
""",
    ),
    "clip_panel": (
        clip_panel,
        [clip],
        """
  for t in (n + 255)//256:
    alloc panel: f32[512] local
    for o in 16:
      for l in 2:
        vector j in 16:
          panel[32*o + 2*j + l] = r[256*t + 16*o + j] if 256*t + 16*o + j < n else 0
    for k in min(256, -256*t + n):
      vector c in 2:
        y[c] += panel[2*k + c]
""",
        """
  for t in (n + 255)//256:
    alloc panel: f32[512] local
    for o in max(min(16, -16*t + (n + 15)//16), 0):
      for l in 2:
        vector j in 16:
          panel[32*o + 2*j + l] = r[256*t + 16*o + j] if 256*t + 16*o + j < n else 0
    for k in min(256, -256*t + n):
      vector c in 2:
        y[c] += panel[2*k + c]
""",
    ),
    "clip_tasks": (  # a sum that may be -0.0 keeps its zeros
        clip_tasks,
        [clip],
        """
  parallel t in (n + 127)//128:
    for o in 8:
      vector j in 16:
        r[128*t + 16*o + j] = 1.0 if 128*t + 16*o + j < n
    alloc part: f32[1] local
    part[0] = 0.0
    for u in 8:
      part[0] += where(8*t + u < (n + 15)//16, x[8*t + u], 0.0)
    y[1] = x[0]
    alloc other: f32[1] local
    other[0] = -0.0
    for k in 4:
      y[2] = x[k]
    for u2 in 8:
      other[0] += where(8*t + u2 < (n + 15)//16, x[u2], 0.0)
    y[t] = part[0] + other[0]
""",
        """
  parallel t in (n + 127)//128:
    for o in max(min(8, -8*t + (n + 15)//16), 0):
      vector j in 16:
        r[128*t + 16*o + j] = 1.0 if 128*t + 16*o + j < n
    alloc part: f32[1] local
    part[0] = 0.0
    for u in max(min(8, -8*t + (n + 15)//16), 0):
      part[0] += where(8*t + u < (n + 15)//16, x[8*t + u], 0.0)
    y[1] = x[0]
    alloc other: f32[1] local
    other[0] = -0.0
    for k in 4:
      y[2] = x[k]
    for u2 in 8:
      other[0] += where(8*t + u2 < (n + 15)//16, x[u2], 0.0)
    y[t] = part[0] + other[0]
""",
    ),
    "peel_window": (
        peel_window,
        [peel, simplify],
        """
  parallel i in 16:
    for c in 4:
      for k in 3:
        y[4*i + c] += x[4*i + 4*k + c - 4] if 0 <= i + k - 1 < 16 else 0
""",
        """
  parallel i in 16:
    if i < 1:
      for c_0 in 4:
        for k_0 in 3:
          y[4*i + c_0] += x[4*i + 4*k_0 + c_0 - 4] if 0 <= i + k_0 - 1 else 0
    if 1 <= i < 15:
      for c in 4:
        for k in 3:
          y[4*i + c] += x[4*i + 4*k + c - 4]
    if 15 <= i:
      for c_1 in 4:
        for k_1 in 3:
          y[4*i + c_1] += x[4*i + 4*k_1 + c_1 - 4] if i + k_1 - 1 < 16 else 0
""",
    ),
    "peel_triangle": (
        peel_triangle,
        [peel, simplify],
        """
  for i in 32:
    for j in 32:
      y[i] += x[j] if -i + j < 1 else 0
""",
        """
  for i in 32:
    for j in i + 1:
      y[i] += x[j]
    for j_0 in -i + 31:
      y[i] += 0.0
""",
    ),
    "barriers": (
        barrier_case,
        [place_barriers],
        """
  block b in 1:
    alloc tile: f32[64] local
    thread t in 64:
      alloc acc: f32[1]
      acc[0] = 0.0
      for k in 2:
        tile[t]  = x[64*k + t]
        acc[0]  += tile[-t + 63]
        acc[0]  += tile[t]
      y[t] = acc[0]
""",
        """
  block b in 1:
    alloc tile: f32[64] local
    thread t in 64:
      alloc acc: f32[1]
      acc[0] = 0.0
      for k in 2:
        barrier
        tile[t] = x[64*k + t]
        barrier
        acc[0] += tile[-t + 63]
        acc[0] += tile[t]
      y[t] = acc[0]
""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str) -> None:
    make, steps, before, after = CASES[name]
    p = make()
    verify(p)
    assert body(p) == before.strip("\n")
    assert body(run(p, steps, verify=True)) == after.strip("\n")


def body(p: Program) -> str:
    return "\n".join(show_program(p).splitlines()[1:])


def test_what_ends_inside_a_task_is_split_there() -> None:
    """One body for all tasks, where a task that is whole and one that is not would have one each."""
    p = run(peel_clipped(), [peel, simplify], verify=True)
    (task,) = p.body
    assert isinstance(task, Loop)
    whole, rest = task.body
    assert isinstance(whole, Loop) and isinstance(rest, Loop)
    (lanes,), (guarded,) = whole.body, rest.body
    assert body(replace(p, body=(lanes,))).splitlines()[-1] == "    r[128*t + 16*o + j] = 1.0"
    assert isinstance(guarded, Loop) and isinstance(guarded.body[0], Store) and guarded.body[0].guard


def test_choices_among_bools() -> None:
    b = dtypes.bool_
    c, m, yes, no = ScalarCall(b, Op.LT, (x(0), f(1))), Load(b, "m", (0,)), Const(b, True), Const(b, False)
    pairs = ((yes, yes), (no, no), (yes, no), (no, yes), (m, yes), (m, no), (yes, m), (no, m))
    params = (
        Buffer("x", F, 1, Scope.GLOBAL),
        Buffer("m", b, 1, Scope.GLOBAL),
        Buffer("y", b, 8, Scope.GLOBAL),
    )
    stores = tuple([Store("y", k, ScalarCall(b, Op.WHERE, (c, *pair))) for k, pair in enumerate(pairs)])
    found = simplify(Program("k", params, frozenset("y"), (), stores)).body
    same = [ScalarCall(b, Op.WHERE, (c, *pair)) for pair in pairs[4:]]
    assert [s.value for s in found if isinstance(s, Store)] == [
        yes,
        no,
        c,
        ScalarCall(b, Op.NOT, (c,)),
        *same,
    ]
