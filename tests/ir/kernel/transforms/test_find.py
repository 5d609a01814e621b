"""What a transform speaks of has to be there, and as yet free."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import INSIDE, ONLINE, ROWS, Row, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.inline import Inline
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.order_reduce import OrderReduce
from weft.ir.kernel.transforms.split import Split

REFUSED: tuple[Row, ...] = (
    (ROWS, Unroll("k"), "there is no loop k"),
    (ROWS, Inline("out"), "out is an output"),
    (ROWS, Inline("t"), "there is no value t"),
    (run(ROWS, Unroll("j")), Split("j", 2), "the loop j is already unroll"),
    (ONLINE, Split("j", 2), "online reductions run in the loop j"),
    (INSIDE, OrderReduce("s", ("j",)), "something is computed in s's loops"),
    (run(ROWS, Split("j", 2)), OrderReduce("s", ("j",)), "s has been scheduled already"),
    (run(ROWS, ComputeAt("s", "out", "y")), OrderReduce("s", ("j",)), "s has been scheduled already"),
)

test_each_reason_is_given = refuses(REFUSED)
