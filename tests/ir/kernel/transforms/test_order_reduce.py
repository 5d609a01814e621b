"""A sum over axes in another order."""

from __future__ import annotations

from dataclasses import replace

from tests.ir.kernel.transforms.golden import ROWS, TOTAL, Row, changes, refuses
from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.order_reduce import OrderReduce
from weft.ir.kernel.transforms.split import Split
from weft.ir.numerics import Tree

_SUM = TOTAL.algorithm.item("s")
assert isinstance(_SUM, ItemValue) and _SUM.reduce is not None
_CHAIN = replace(_SUM, reduce=replace(_SUM.reduce, tree=Tree.CHAIN))
PINNED = replace(
    TOTAL,
    algorithm=replace(
        TOTAL.algorithm, items=tuple(_CHAIN if i is _SUM else i for i in TOTAL.algorithm.items)
    ),
)

REFUSED: tuple[Row, ...] = (
    (ROWS, OrderReduce("out", ("j",)), "out is an output"),
    (TOTAL, OrderReduce("s", ("i",)), "s does not reduce over ('i',)"),
    (run(TOTAL, Split("i", 2)), OrderReduce("s", ("j", "i")), "s has been scheduled already"),
    (PINNED, OrderReduce("s", ("j", "i")), "the order in which s is summed is pinned"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_columns_are_summed_before_rows() -> None:
    changes(
        TOTAL,
        OrderReduce("s", ("j", "i")),
        """
  alloc s: f32[1] local
  s[0] = 0.0
  for i in 4:
    for j in 6:
      s[0] += x[6*i + j]
  r[0] = s[0]
""",
        """
  alloc s: f32[1] local
  s[0] = 0.0
  for j2 in 6:
    for i2 in 4:
      s[0] += x[6*i2 + j2]
  r[0] = s[0]
""",
    )
