"""An axis gets further elements, which count for nothing."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ROWS, Row, changes, load, refuses, rows, staged
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.extend import Extend
from weft.ir.kernel.transforms.split import Split
from weft.ir.ops import Op

TOP = rows(lambda i, j: load("x", i, j), 4, 6, Op.MAX, x=(4, 6))
SCORES = staged(TOP, "s", "t")

REFUSED: tuple[Row, ...] = (
    (SCORES, Extend("u", (), 8), "there is no value u"),
    (SCORES, Extend("s", (("s", "j"),), 8), "s is no pure value of floats with such an axis"),
    (SCORES, Extend("t", (("t", "j2"), ("u", "j")), 8), "there is no value u"),
    (SCORES, Extend("t", (("t", "j2"), ("s", "k")), 8), "s has no axis k of at most 8 elements"),
    (run(SCORES, Split("j", 2)), Extend("t", (("t", "j2"), ("s", "j")), 8), "s has been scheduled already"),
    (SCORES, Extend("t", (("t", "j2"),), 8), "s reads along the axis"),
    (
        staged(ROWS, "s", "t"),
        Extend("t", (("t", "j2"), ("s", "j")), 9),
        "s reads t otherwise than in a maximum or a weight",
    ),
)

test_each_reason_is_given = refuses(REFUSED)


def test_further_columns_are_no_maximum() -> None:
    changes(
        SCORES,
        Extend("t", (("t", "j2"), ("s", "j")), 8),
        """
  alloc t: f32[24] local
  for i22 in 4:
    for j22 in 6:
      t[6*i22 + j22] = x[6*i22 + j22]
  alloc s: f32[4] local
  for i in 4:
    s[i] = -inf
    for j in 6:
      s[i] max= t[6*i + j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc t: f32[32] local
  for i23 in 4:
    for j23 in 8:
      t[8*i23 + j23] = where(j23 < 6, x[6*i23 + j23] if j23 < 6 else 0, -inf)
  alloc s: f32[4] local
  for i3 in 4:
    s[i3] = -inf
    for j3 in 8:
      s[i3] max= t[8*i3 + j3]
  for y in 4:
    r[y] = s[y]
""",
    )
