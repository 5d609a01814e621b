"""Two axes of a value and of the output that reads it become one."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import COPIED_ROWS, MATMUL, TRANSPOSED, Row, changes, refuses, staged
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.merge_axes import MergeAxes
from weft.ir.kernel.transforms.split import Split

REFUSED: tuple[Row, ...] = (
    (MATMUL, MergeAxes("out", "y", "x"), "out is an output"),
    (MATMUL, MergeAxes("c", "j", "i"), "j, i are not adjacent axes of c"),
    (COPIED_ROWS, MergeAxes("t", "i", "j"), "an extent of i, j is only known at run time"),
    (staged(MATMUL, "c", "t"), MergeAxes("t", "i2", "j2"), "t is not read by one output"),
    (TRANSPOSED, MergeAxes("t", "i", "j"), "out does not read t at adjacent axes of its own"),
    (run(MATMUL, Split("y", 2)), MergeAxes("c", "i", "j"), "out has been scheduled already"),
    (run(MATMUL, ComputeAt("c", "out", "x")), MergeAxes("c", "i", "j"), "c has been scheduled already"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_rows_and_columns_of_a_product_become_one_axis() -> None:
    changes(
        MATMUL,
        MergeAxes("c", "i", "j"),
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
        """
  alloc c: f32[24] local
  for ij2 in 24:
    c[ij2] = 0.0
    for l2 in 8:
      c[ij2] += a[8*(ij2//6) + l2] * b[6*l2 + (ij2%6)]
  for yx2 in 24:
    r[yx2] = max(c[yx2] + bias[(yx2%6)], 0.0)
""",
    )
