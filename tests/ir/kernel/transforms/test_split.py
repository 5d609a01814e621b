"""One loop becomes two."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ROWS, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Vectorize
from weft.ir.kernel.transforms.split import Split

REFUSED: tuple[Row, ...] = (
    (ROWS, Split("k", 4), "there is no loop k"),
    (ROWS, Split("j", 0), "a factor of 0"),
    (ROWS, Split("j", 3), "3 does not divide the extent 8 of j: pad first"),
    (run(ROWS, Vectorize("j")), Split("j", 2), "the loop j is already vector"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_eight_iterations_become_two_times_four() -> None:
    changes(
        ROWS,
        Split("j", 4),
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
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for jo in 2:
      for ji in 4:
        s[i] += x[8*i + 4*jo + ji]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_the_loops_inside_stay_where_they_are() -> None:
    changes(
        ROWS,
        Split("i", 2),
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
  alloc s: f32[4] local
  for io in 2:
    for ii in 2:
      s[2*io + ii] = 0.0
      for j in 8:
        s[2*io + ii] += x[16*io + 8*ii + j]
  for y in 4:
    r[y] = s[y]
""",
    )
