"""Two loops become one."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import (
    COPIED_ROWS,
    MATMUL,
    ROWS,
    TOTAL,
    N,
    Row,
    changes,
    copied,
    refuses,
)
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.clip import Clip
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.split import Split

REFUSED: tuple[Row, ...] = (
    (ROWS, Merge("k", "j"), "there is no loop k"),
    (ROWS, Merge("i", "k"), "there is no loop k"),
    (ROWS, Merge("j", "i"), "i is not directly inside j"),
    (ROWS, Merge("i", "j"), "only one of i and j reduces"),
    (COPIED_ROWS, Merge("i", "j"), "the extent n of j is only known at run time"),
    (
        run(COPIED_ROWS, Pad("y", 3), Split("y", 3), Clip("yi")),
        Merge("yo", "yi", dividing=True),
        "the extent min(3, -3*yo + 4) of yi is another in each iteration",
    ),
    (
        COPIED_ROWS,
        Merge("i", "j", dividing=True),
        "t is a value, whose readers ask how far a loop of runtime length goes",
    ),
    (copied(4, N - 8), Merge("y", "x", dividing=True), "the extent n - 8 of x may be zero"),
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


def test_a_loop_whose_length_is_known_at_run_time_is_found_by_division() -> None:
    inside = "y_x//n < 4 and (y_x%n) < n"
    changes(
        COPIED_ROWS,
        Merge("y", "x", dividing=True),
        """
  alloc t: f32[256] local
  for i in 4:
    for j in n:
      t[64*i + j] = a[i*n + j]
  for y in 4:
    for x in n:
      r[n*y + x] = t[64*y + x]
""",
        f"""
  alloc t: f32[256] local
  for i in 4:
    for j in n:
      t[64*i + j] = a[i*n + j]
  for y_x in 4*n:
    r[y_x] = (t[64*(y_x//n) + (y_x%n)] if {inside} else 0) if {inside}
""",
    )
