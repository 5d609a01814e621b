"""A part that a value has computed reads the value."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import SOFTMAX, Row, changes, refuses, staged
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.share import Share

WEIGHTS = staged(SOFTMAX, "total", "w")

REFUSED: tuple[Row, ...] = (
    (WEIGHTS, Share("out", "t", ("y", "x")), "there is no value t"),
    (WEIGHTS, Share("out", "total", ("y",)), "total is a reduction"),
    (run(WEIGHTS, ComputeAt("w", "total", "j2")), Share("out", "w", ("y", "x")), "w already has its place"),
    (WEIGHTS, Share("top", "w", ("i", "j")), "top does not come after w"),
    (WEIGHTS, Share("out", "w", ("y",)), "out has no axes ('y',)"),
    (WEIGHTS, Share("out", "w", ("x", "y")), "out has no axes ('x', 'y')"),
    (WEIGHTS, Share("total", "w", ("i2", "j2")), "total does not compute w"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_weights_of_the_sum_are_those_of_the_output() -> None:
    changes(
        WEIGHTS,
        Share("out", "w", ("y", "x")),
        """
  alloc top: f32[4] local
  for i in 4:
    top[i] = -inf
    for j in 8:
      top[i] max= x[8*i + j]
  alloc w: f32[32] local
  for i222 in 4:
    for j222 in 8:
      w[8*i222 + j222] = exp(x[8*i222 + j222] - top[i222])
  alloc total: f32[4] local
  for i2 in 4:
    total[i2] = 0.0
    for j2 in 8:
      total[i2] += w[8*i2 + j2]
  for y in 4:
    for x2 in 8:
      r[8*y + x2] = exp(x[8*y + x2] - top[y]) / total[y]
""",
        """
  alloc top: f32[4] local
  for i in 4:
    top[i] = -inf
    for j in 8:
      top[i] max= x[8*i + j]
  alloc w: f32[32] local
  for i222 in 4:
    for j222 in 8:
      w[8*i222 + j222] = exp(x[8*i222 + j222] - top[i222])
  alloc total: f32[4] local
  for i2 in 4:
    total[i2] = 0.0
    for j2 in 8:
      total[i2] += w[8*i2 + j2]
  for y in 4:
    for x2 in 8:
      r[8*y + x2] = w[8*y + x2] / total[y]
""",
    )
