"""A value is computed in a loop of its reader: the region that the loop's body needs."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import (
    INSIDE,
    MATMUL,
    ONLINE,
    ROWS,
    SCATTERED,
    SOFTMAX,
    Row,
    changes,
    refuses,
)
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.ir.loops import Scope

REFUSED: tuple[Row, ...] = (
    (ROWS, ComputeAt("t", "out", "i2"), "there is no item t"),
    (ROWS, ComputeAt("s", "t", "i2"), "there is no item t"),
    (ROWS, ComputeAt("s", "out", "j"), "out has no loop j"),
    (INSIDE, ComputeAt("s", "out", "y"), "something is computed in s's loops"),
    (ONLINE, ComputeAt("total", "out", "y"), "total runs in another's loop"),
    (ROWS, ComputeAt("out", "s", "i"), "nothing reads out"),
    (run(ROWS, Vectorize("y")), ComputeAt("s", "out", "y"), "y is in a vector loop"),
    (
        SCATTERED,
        ComputeAt("first", "out", "k"),
        "first combines into memory: each point must be computed once",
    ),
    (SOFTMAX, ComputeAt("top", "total", "i2"), "out, which reads top, is not inside i2"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_value_is_computed_element_by_element_where_it_is_read() -> None:
    changes(
        ROWS,
        ComputeAt("s", "out", "y"),
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
  for y in 4:
    alloc s: f32[1] local
    s[0] = 0.0
    for j2 in 8:
      s[0] += x[8*y + j2]
    r[y] = s[0]
""",
    )


def test_a_tile_is_computed_for_a_tile_of_readers() -> None:
    changes(
        run(MATMUL, Split("y", 2), Split("x", 3), Permute("out", ("yo", "xo", "yi", "xi"))),
        ComputeAt("c", "out", "xo", Scope.REGISTER),
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for yo in 2:
    for xo in 2:
      for yi in 2:
        for xi in 3:
          r[12*yo + 6*yi + 3*xo + xi] = max(c[12*yo + 6*yi + 3*xo + xi] + bias[3*xo + xi], 0.0)
""",
        """
  for yo in 2:
    for xo in 2:
      alloc c: f32[6]
      for i3 in 2:
        for j3 in 3:
          c[3*i3 + j3] = 0.0
          for l2 in 8:
            c[3*i3 + j3] += a[16*yo + 8*i3 + l2] * b[6*l2 + 3*xo + j3]
      for yi in 2:
        for xi in 3:
          r[12*yo + 6*yi + 3*xo + xi] = max(c[3*yi + xi] + bias[3*xo + xi], 0.0)
""",
    )
