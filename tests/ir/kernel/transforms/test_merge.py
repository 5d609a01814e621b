"""Two loops become one."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import COPIED_ROWS, MATMUL, ROWS, TOTAL, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.merge import Merge

REFUSED: tuple[Row, ...] = (
    (ROWS, Merge("k", "j"), "there is no loop k"),
    (ROWS, Merge("i", "k"), "there is no loop k"),
    (ROWS, Merge("j", "i"), "i is not directly inside j"),
    (ROWS, Merge("i", "j"), "only one of i and j reduces"),
    (COPIED_ROWS, Merge("i", "j"), "the extent n of j is only known at run time"),
    (run(MATMUL, ComputeAt("c", "out", "y")), Merge("y", "x"), "something is computed between y and x"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_loop_over_rows_and_one_over_columns_become_one() -> None:
    changes(
        TOTAL,
        Merge("i", "j"),
        """
  alloc s: f32[1] local
  s[0] = 0.0
  for i in 4:
    for j in 6:
      s[0] += x[6*i + j]
  r[0] = s[0]
""",
        """
  alloc s: f32[1] local
  s[0] = 0.0
  for i_j in 24:
    s[0] += x[i_j]
  r[0] = s[0]
""",
    )
