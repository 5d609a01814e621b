"""A weighted sum runs beside the maximum that its weights are relative to."""

from __future__ import annotations

from dataclasses import replace

from tests.ir.kernel.transforms.golden import (
    COLUMNS_FIRST,
    NOT_WEIGHTED,
    SOFTMAX,
    Row,
    changes,
    refuses,
    staged,
)
from weft.ir import expr as ex
from weft.ir.dtypes import LARGEST, float32
from weft.ir.expr import Expr, Load
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.inline import map_exprs
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.online import OnlineReduce
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.ir.ops import Op

ONLINE_STEP = OnlineReduce("top", "total", "j", "j2")

REFUSED: tuple[Row, ...] = (
    (SOFTMAX, OnlineReduce("t", "total", "j", "j2"), "there is no value t"),
    (SOFTMAX, OnlineReduce("top", "out", "j", "j2"), "out is an output"),
    (SOFTMAX, OnlineReduce("total", "top", "j2", "j"), "total is no maximum"),
    (SOFTMAX, OnlineReduce("top", "top", "j", "j"), "top is no sum"),
    (SOFTMAX, OnlineReduce("top", "total", "k", "j2"), "there is no loop k"),
    (SOFTMAX, OnlineReduce("top", "total", "j", "k"), "there is no loop k"),
    (SOFTMAX, OnlineReduce("top", "total", "i", "j2"), "i and j2 are not reducing loops of top and total"),
    (
        run(SOFTMAX, Split("j2", 2)),
        OnlineReduce("top", "total", "j", "j2o"),
        "top and total do not run over the same steps at the same place",
    ),
    (
        run(staged(COLUMNS_FIRST, "total", "t"), ComputeAt("t", "total", "j2")),
        ONLINE_STEP,
        "something is computed in total's loops",
    ),
    (run(COLUMNS_FIRST, Unroll("j2")), ONLINE_STEP, "the loop j2 is already unroll"),
    (run(COLUMNS_FIRST, Unroll("j")), ONLINE_STEP, "j is unroll"),
    (SOFTMAX, ONLINE_STEP, "j is inside a loop of top that does not reduce"),
    (run(COLUMNS_FIRST, Pad("i", 3)), ONLINE_STEP, "the first axes of total are not those of top"),
    (
        run(
            SOFTMAX, Split("j", 2), Split("jo", 2), Split("j2", 4), Permute("top", ("joi", "joo", "ji", "i"))
        ),
        OnlineReduce("top", "total", "joi", "j2o"),
        "joi and j2o do not step along the same axis alike",
    ),
    (NOT_WEIGHTED, OnlineReduce("top", "total", "j", "j2"), "total is not weighted by exp(x - top)"),
)

test_each_reason_is_given = refuses(REFUSED)


def at_least(limit: float) -> Kernel:
    """A softmax whose weights are exp(x - max(top, limit))."""

    def limited(e: Expr) -> Expr | None:
        is_top = isinstance(e, Load) and e.source == "top"
        return ex.call(Op.MAX, e, ex.const(e.dtype, limit)) if is_top else None

    items = tuple(
        map_exprs(i, limited) if isinstance(i, Output) or i.name == "total" else i
        for i in COLUMNS_FIRST.algorithm.items
    )
    return replace(COLUMNS_FIRST, algorithm=replace(COLUMNS_FIRST.algorithm, items=items))


def test_a_maximum_has_no_limit_but_the_lowest_number() -> None:
    """The factor exp(old - new) knows of no other: sums would be rescaled while the limit holds."""
    assert ONLINE_STEP.check(at_least(-LARGEST[float32])) is None
    for limit in (0.0, -1e30, float("-inf")):
        refusal = ONLINE_STEP.check(at_least(limit))
        assert refusal is not None and "not weighted by exp(x - top)" in refusal.why


def test_a_sum_is_rescaled_whenever_the_maximum_moves() -> None:
    changes(
        COLUMNS_FIRST,
        ONLINE_STEP,
        """
  alloc top: f32[4] local
  for i_init in 4:
    top[i_init] = -inf
  for j in 8:
    for i in 4:
      top[i] max= x[8*i + j]
  alloc total: f32[4] local
  for i2 in 4:
    total[i2] = 0.0
    for j2 in 8:
      total[i2] += exp(x[8*i2 + j2] - top[i2])
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
    )
