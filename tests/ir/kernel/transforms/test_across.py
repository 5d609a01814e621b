"""Neighbouring threads sum the terms of a reduction."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import INSIDE, ROWS, TOTAL, Row, changes, refuses
from weft.ir.kernel.transforms.across import Across
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Vectorize

REFUSED: tuple[Row, ...] = (
    (TOTAL, Across("j"), "the extent 6 of j is no power of two up to 256"),
    (ROWS, Across("i"), "i is not the innermost loop, over the terms of a reduction"),
    (INSIDE, Across("j"), "something is computed inside j"),
    (run(ROWS, Vectorize("i")), Across("j"), "s already has a vector loop"),
    (ROWS, Across("k"), "there is no loop k"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_the_terms_of_a_row_are_threads() -> None:
    changes(
        ROWS,
        Across("j"),
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
    across j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )
