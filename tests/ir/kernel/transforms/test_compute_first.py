"""A value is computed before the others at its place."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import SOFTMAX, Row, changes, load, refuses, value
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_first import ComputeFirst
from weft.ir.kernel.transforms.stage import Stage

PARTS = run(SOFTMAX, Stage("total", load("x", *(a.var for a in value(SOFTMAX, "total").all_axes)), "t"))

REFUSED: tuple[Row, ...] = (
    (SOFTMAX, ComputeFirst("total"), "total reads other values"),
    (SOFTMAX, ComputeFirst("out"), "out is an output"),
    (SOFTMAX, ComputeFirst("t"), "there is no value t"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_what_reads_parameters_only_comes_first() -> None:
    changes(
        PARTS,
        ComputeFirst("t"),
        """
  alloc top: f32[4] local
  for i in 4:
    top[i] = -inf
    for j in 8:
      top[i] max= x[8*i + j]
  alloc t: f32[32] local
  for i222 in 4:
    for j222 in 8:
      t[8*i222 + j222] = x[8*i222 + j222]
  alloc total: f32[4] local
  for i2 in 4:
    total[i2] = 0.0
    for j2 in 8:
      total[i2] += exp(t[8*i2 + j2] - top[i2])
  for y in 4:
    for x2 in 8:
      r[8*y + x2] = exp(x[8*y + x2] - top[y]) / total[y]
""",
        """
  alloc t: f32[32] local
  for i222 in 4:
    for j222 in 8:
      t[8*i222 + j222] = x[8*i222 + j222]
  alloc top: f32[4] local
  for i in 4:
    top[i] = -inf
    for j in 8:
      top[i] max= x[8*i + j]
  alloc total: f32[4] local
  for i2 in 4:
    total[i2] = 0.0
    for j2 in 8:
      total[i2] += exp(t[8*i2 + j2] - top[i2])
  for y in 4:
    for x2 in 8:
      r[8*y + x2] = exp(x[8*y + x2] - top[y]) / total[y]
""",
    )
