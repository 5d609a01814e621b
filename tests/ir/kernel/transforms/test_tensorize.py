"""The innermost loops of a product become instructions of a matrix unit."""

from __future__ import annotations

from dataclasses import replace

from tests.ir.kernel.transforms.golden import MATMUL, SOFTMAX, F, Row, changes, refuses, value
from weft.ir import dtypes
from weft.ir.kernel.algorithm import reads
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Bind, Unroll
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.kernel.transforms.tensorize import Tensorize
from weft.ir.loops import LoopKind
from weft.ir.matrix import MatrixUnit

UNIT = MatrixUnit(1, 1, 8, F, F, (), ())
PANELS = run(MATMUL, *(Stage("c", x, f"panel_{x.source}") for x in reads(value(MATMUL, "c"))))
THREADS = run(PANELS, Bind("i", LoopKind.THREAD), Unroll("j"))

REFUSED: tuple[Row, ...] = (
    (THREADS, Tensorize("k", UNIT), "there is no loop k"),
    (THREADS, Tensorize("j", UNIT), "j is not the innermost loop, over 8 terms of a sum"),
    (SOFTMAX, Tensorize("j", UNIT), "top is no sum"),
    (
        THREADS,
        Tensorize("l", replace(UNIT, accumulator=dtypes.float64)),
        "c is float32, and sums of the unit are float64",
    ),
    (MATMUL, Tensorize("l", UNIT), "c is no product of two staged values of float32"),
    (
        run(PANELS, Bind("i", LoopKind.THREAD)),
        Tensorize("l", UNIT),
        "the loops of c inside its threads are not all unrolled",
    ),
)

test_each_reason_is_given = refuses(REFUSED)


def test_eight_terms_are_one_instruction() -> None:
    changes(
        THREADS,
        Tensorize("l", UNIT),
        """
  alloc panel_a: f32[32] local
  for i22 in 4:
    for l22 in 8:
      panel_a[8*i22 + l22] = a[8*i22 + l22]
  alloc panel_b: f32[48] local
  for j22 in 6:
    for l32 in 8:
      panel_b[8*j22 + l32] = b[6*l32 + j22]
  alloc c: f32[24] local
  thread i in 4:
    unroll j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += panel_a[8*i + l] * panel_b[8*j + l]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
        """
  alloc panel_a: f32[32] local
  for i22 in 4:
    for l22 in 8:
      panel_a[8*i22 + l22] = a[8*i22 + l22]
  alloc panel_b: f32[48] local
  for j22 in 6:
    for l32 in 8:
      panel_b[8*j22 + l32] = b[6*l32 + j22]
  alloc c: f32[24] local
  thread i in 4:
    unroll j in 6:
      c[6*i + j] = 0.0
      matrix l in 8:
        c[6*i + j] += panel_a[8*i + l] * panel_b[8*j + l]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
    )
