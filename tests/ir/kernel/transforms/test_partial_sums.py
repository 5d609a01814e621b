"""A loop adds to partial sums."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import (
    ONLINE,
    ONLINE_BLOCKS,
    ROWS,
    SOFTMAX,
    TOTAL,
    Row,
    changes,
    refuses,
)
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Vectorize
from weft.ir.kernel.transforms.partial_sums import PartialSums
from weft.ir.kernel.transforms.permute import Permute

REFUSED: tuple[Row, ...] = (
    (ROWS, PartialSums("out", "j", (4,)), "out is an output"),
    (ROWS, PartialSums("s", "k", (4,)), "there is no loop k"),
    (ROWS, PartialSums("s", "j", (0,)), "levels of (0,) iterations"),
    (ROWS, PartialSums("s", "i", (4,)), "i is no serial reducing loop of s"),
    (ONLINE_BLOCKS, PartialSums("total", "j2i", (4,)), "total runs in another's loop"),
    (SOFTMAX, PartialSums("top", "j", (4,)), "top is no sum, and none runs beside it in j"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_so_many_iterations_have_a_sum_of_their_own() -> None:
    changes(
        ROWS,
        PartialSums("s", "j", (4,)),
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
    alloc s_part: f32[1] local
    for j_o in 2:
      s_part[0] = 0.0
      for j_i in 4:
        s_part[0] += x[8*i + 4*j_o + j_i]
      s[i] += s_part[0]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_partial_sums_have_partial_sums() -> None:
    changes(
        ROWS,
        PartialSums("s", "j", (2, 2)),
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
    alloc s_part: f32[1] local
    alloc s_part2: f32[1] local
    for j_o_o in 2:
      s_part[0] = 0.0
      for j_o_i in 2:
        s_part2[0] = 0.0
        for j_i in 2:
          s_part2[0] += x[8*i + 4*j_o_o + 2*j_o_i + j_i]
        s_part[0] += s_part2[0]
      s[i] += s_part[0]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_lanes_that_reduce_have_a_partial_sum_each() -> None:
    changes(
        run(TOTAL, Permute("s", ("j", "i")), Vectorize("j")),
        PartialSums("s", "i", (2,)),
        """
  alloc s: f32[1] local
  s[0] = 0.0
  vector j in 6:
    for i in 4:
      s[0] += x[6*i + j]
  r[0] = s[0]
""",
        """
  alloc s: f32[1] local
  s[0] = 0.0
  alloc s_part: f32[6] local
  vector j in 6:
    for i_o in 2:
      s_part[j] = 0.0
      for i_i in 2:
        s_part[j] += x[12*i_o + 6*i_i + j]
      s[0] += s_part[j]
  r[0] = s[0]
""",
    )


def test_a_sum_beside_a_maximum_has_partial_sums_relative_to_it() -> None:
    changes(
        ONLINE,
        PartialSums("top", "j", (4,)),
        """
  alloc top: f32[4] local
  alloc total: f32[4] local
  for i2_init in 4:
    total[i2_init] = 0.0
  for i_init in 4:
    top[i_init] = -inf
  for j in 8:
    alloc top_old: f32[4] local
    alloc top_scale: f32[4] local
    vector i_old in 4:
      top_old[i_old] = top[i_old]
    for i in 4:
      top[i] max= x[8*i + j]
    vector i_scale in 4:
      top_scale[i_scale] = where(top_old[i_scale] == top[i_scale], 1.0, exp(top_old[i_scale] - top[i_scale]))
    for i2 in 4:
      total[i2] = (total[i2] * top_scale[i2]) + exp(x[8*i2 + j] - max(top[i2], -3.4028234663852886e+38))
  for y in 4:
    for x2 in 8:
      r[8*y + x2] = exp(x[8*y + x2] - top[y]) / total[y]
""",
        """
  alloc top: f32[4] local
  alloc total: f32[4] local
  for i2_init in 4:
    total[i2_init] = 0.0
  for i_init in 4:
    top[i_init] = -inf
  alloc total_part: f32[4] local
  for j_o in 2:
    vector i22 in 4:
      total_part[i22] = 0.0
    alloc top_before: f32[4] local
    alloc top_since: f32[4] local
    vector i3 in 4:
      top_before[i3] = top[i3]
    for j_i in 4:
      alloc top_old: f32[4] local
      alloc top_scale: f32[4] local
      vector i_old in 4:
        top_old[i_old] = top[i_old]
      for i in 4:
        top[i] max= x[8*i + 4*j_o + j_i]
      vector i_scale in 4:
        top_scale[i_scale] = where(top_old[i_scale] == top[i_scale], 1.0, exp(top_old[i_scale] - top[i_scale]))
      for i2 in 4:
        total_part[i2] = (total_part[i2] * top_scale[i2]) + exp(x[8*i2 + 4*j_o + j_i] - max(top[i2], -3.4028234663852886e+38))
    vector i4 in 4:
      top_since[i4] = where(top_before[i4] == top[i4], 1.0, exp(top_before[i4] - top[i4]))
    vector i23 in 4:
      total[i23] = (total[i23] * top_since[i23]) + total_part[i23]
  for y in 4:
    for x2 in 8:
      r[8*y + x2] = exp(x[8*y + x2] - top[y]) / total[y]
""",  # noqa: E501
    )
