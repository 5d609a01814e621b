"""A value is computed wherever it is read."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ROWS, Row, changes, refuses, staged
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.inline import Inline

REFUSED: tuple[Row, ...] = (
    (ROWS, Inline("s"), "s is a reduction"),
    (ROWS, Inline("out"), "out is an output"),
    (
        run(staged(staged(ROWS, "s", "t"), "t", "u"), ComputeAt("u", "t", "j22")),
        Inline("t"),
        "something is computed in t's loops",
    ),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_pure_value_vanishes_into_its_readers() -> None:
    changes(
        staged(ROWS, "s", "t"),
        Inline("t"),
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
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )
