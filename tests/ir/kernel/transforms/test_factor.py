"""A division of every term by the same is one of the sum."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import PRODUCTS, QUOTIENTS, ROWS, Row, changes, load, refuses, value
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.factor import Factor
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.ops import Op

V = load("v", value(QUOTIENTS, "s").all_axes[1].var)
FACTORS_INSIDE = run(QUOTIENTS, Stage("s", V, "t"), ComputeAt("t", "s", "j"))

REFUSED: tuple[Row, ...] = (
    (ROWS, Factor("s"), "s is no sum of products with a constant divisor"),
    (ROWS, Factor("s", Op.MUL), "s is no sum of products with a constant factor"),
    (ROWS, Factor("out"), "out is an output"),
    (FACTORS_INSIDE, Factor("s"), "something is computed in s's loops"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_terms_are_divided_by_a_number_of_the_row_after_the_sum() -> None:
    changes(
        QUOTIENTS,
        Factor("s"),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += (x[8*i + j] / c[i]) * v[j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j] * v[j]
  for y in 4:
    r[y] = s[y] / c[y]
""",
    )


def test_terms_are_multiplied_by_a_number_of_the_row_after_the_sum() -> None:
    changes(
        PRODUCTS,
        Factor("s", Op.MUL),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += (x[8*i + j] * v[j]) * c[i]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j] * v[j]
  for y in 4:
    r[y] = s[y] * c[y]
""",
    )
