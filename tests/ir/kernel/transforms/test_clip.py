"""A loop inside a block of an output ends where the output does."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import COPIED_ROWS, ROWS, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.clip import Clip
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.split import Split

BLOCKS = run(COPIED_ROWS, Pad("x", 8), Split("x", 8))
FIXED = run(ROWS, Pad("y", 3), Split("y", 3))

REFUSED: tuple[Row, ...] = (
    (ROWS, Clip("k"), "there is no loop k"),
    (ROWS, Clip("i"), "s is a value, whose readers may run over more"),
    (ROWS, Clip("y"), "no iteration of y is known to be outside"),
    (run(FIXED, Unroll("yi")), Clip("yi"), "the loop yi is already unroll"),
    (run(FIXED, Vectorize("yo")), Clip("yi"), "no iteration of yi is known to be outside"),  # in each lane
)

test_each_reason_is_given = refuses(REFUSED)


def test_the_last_block_is_as_short_as_what_is_left() -> None:
    changes(
        BLOCKS,
        Clip("xi"),
        """
  alloc t: f32[256] local
  for i in 4:
    for j in n:
      t[64*i + j] = a[i*n + j]
  for y in 4:
    for xo in (n + 7)//8:
      for xi in 8:
        r[8*xo + n*y + xi] = (t[64*y + 8*xo + xi] if 8*xo + xi < n else 0) if 8*xo + xi < n
""",
        """
  alloc t: f32[256] local
  for i in 4:
    for j in n:
      t[64*i + j] = a[i*n + j]
  for y in 4:
    for xo in (n + 7)//8:
      for xi in min(8, max(-8*xo + n, 0)):
        r[8*xo + n*y + xi] = (t[64*y + 8*xo + xi] if 8*xo + xi < n else 0) if 8*xo + xi < n
""",
    )


def test_what_is_computed_in_a_clipped_block_is_as_small() -> None:
    changes(
        run(BLOCKS, Clip("xi")),
        ComputeAt("t", "out", "xo"),
        """
  alloc t: f32[256] local
  for i in 4:
    for j in n:
      t[64*i + j] = a[i*n + j]
  for y in 4:
    for xo in (n + 7)//8:
      for xi in min(8, max(-8*xo + n, 0)):
        r[8*xo + n*y + xi] = (t[64*y + 8*xo + xi] if 8*xo + xi < n else 0) if 8*xo + xi < n
""",
        """
  for y in 4:
    for xo in (n + 7)//8:
      alloc t: f32[8] local
      for j3 in min(8, max(-8*xo + n, 0)):
        t[j3] = a[8*xo + j3 + n*y] if 8*xo + j3 < n else 0
      for xi in min(8, max(-8*xo + n, 0)):
        r[8*xo + n*y + xi] = t[xi] if 8*xo + xi < n
""",
    )
