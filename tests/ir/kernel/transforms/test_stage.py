"""A part of an expression becomes a value, with a layout."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ROWS, Row, changes, load, refuses, value
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.stage import Arrange, PadRows, Stage
from weft.ir.loops import Scope

I, J = (a.var for a in value(ROWS, "s").all_axes)
X = load("x", I, J)
TILE = run(ROWS, Stage("s", X, "t"))

REFUSED: tuple[Row, ...] = (
    (ROWS, Stage("u", X, "t"), "there is no item u"),
    (ROWS, Stage("s", X, "r"), "the name r is taken"),
    (ROWS, Stage("s", load("x", J, I), "t"), "x[j, i] is no part of s"),
    (ROWS, Stage("s", X, "t", ("i",)), "x[i, j] depends on the axes ['i', 'j'], not ('i',)"),
    (
        run(TILE, ComputeAt("t", "s", "j")),
        Stage("s", load("t", I, J), "u"),
        "t, which t[i, j] reads, already has its place",
    ),
    (TILE, Arrange("out", Scope.LOCAL, (0,), (1,)), "out is an output"),
    (TILE, Arrange("t", Scope.LOCAL, (0,), (1,)), "order (0,) and blocks (1,) do not fit 2 axes"),
    (TILE, Arrange("t", Scope.GLOBAL, (0, 1), (1, 1)), "only parameters live in global memory"),
    (TILE, PadRows("out", 1), "out is an output"),
    (TILE, PadRows("t", -1), "-1 elements are no padding"),
    (run(TILE, ComputeAt("t", "s", "j", Scope.REGISTER)), PadRows("t", 1), "t does not live in local memory"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_part_becomes_a_value_over_the_axes_that_it_depends_on() -> None:
    changes(
        ROWS,
        Stage("s", X, "t"),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc t: f32[32] local
  for i22 in 4:
    for j22 in 8:
      t[8*i22 + j22] = x[8*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += t[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_its_axes_come_in_the_order_that_is_asked_for() -> None:
    changes(
        ROWS,
        Stage("s", X, "t", ("j", "i")),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc t: f32[32] local
  for j22 in 8:
    for i22 in 4:
      t[4*j22 + i22] = x[8*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += t[4*j + i]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_region_is_laid_out_in_blocks() -> None:
    changes(
        TILE,
        Arrange("t", Scope.LOCAL, (1, 0), (2, 1)),
        """
  alloc t: f32[32] local
  for i22 in 4:
    for j22 in 8:
      t[8*i22 + j22] = x[8*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += t[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc t: f32[32] local
  for i22 in 4:
    for j22 in 8:
      t[4*j22 + i22] = x[8*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += t[4*j + i]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_rows_are_padded() -> None:
    changes(
        TILE,
        PadRows("t", 3),
        """
  alloc t: f32[32] local
  for i22 in 4:
    for j22 in 8:
      t[8*i22 + j22] = x[8*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += t[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc t: f32[44] local
  for i22 in 4:
    for j22 in 8:
      t[11*i22 + j22] = x[8*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += t[11*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )
