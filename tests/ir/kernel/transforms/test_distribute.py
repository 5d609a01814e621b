"""A sum of products with a sum is two sums of products."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import (
    PRODUCTS,
    QUOTIENTS,
    ROWS,
    Row,
    changes,
    load,
    mul,
    refuses,
    rows,
)
from weft.ir import expr as ex
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.distribute import Distribute
from weft.ir.ops import Op

SUMS = rows(
    lambda i, j: mul(load("x", i, j), ex.call(Op.ADD, load("v", j), load("c", i))), x=(4, 8), c=(4,), v=(8,)
)
LARGEST = rows(
    lambda i, j: mul(ex.call(Op.ADD, load("v", j), load("c", i)), load("x", i, j)),
    8, 4, Op.MAX, x=(4, 8), c=(4,), v=(8,),
)  # fmt: skip

REFUSED: tuple[Row, ...] = (
    (ROWS, Distribute("s", "t"), "s is no sum of products with a sum"),
    (PRODUCTS, Distribute("s", "t"), "s is no sum of products with a sum"),
    (QUOTIENTS, Distribute("s", "t"), "s is no sum of products with a sum"),
    (LARGEST, Distribute("s", "t"), "s is no sum of products with a sum"),
    (SUMS, Distribute("out", "t"), "out is an output"),
    (SUMS, Distribute("s", "x"), "the name x is taken"),
    (run(SUMS, ComputeAt("s", "out", "y")), Distribute("s", "t"), "s has been scheduled already"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_each_part_has_a_sum_of_its_own() -> None:
    changes(
        SUMS,
        Distribute("s", "t"),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j] * (v[j] + c[i])
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j] * v[j]
  alloc t: f32[4] local
  for i22 in 4:
    t[i22] = 0.0
    for j22 in 8:
      t[i22] += x[8*i22 + j22] * c[i22]
  for y in 4:
    r[y] = s[y] + t[y]
""",
    )
