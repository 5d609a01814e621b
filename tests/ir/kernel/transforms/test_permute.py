"""Loops in another order."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import INSIDE, MASKED, MATMUL, ONLINE, ROWS, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Bind, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.ir.kernel.transforms.trim import Trim

REFUSED: tuple[Row, ...] = (
    (ROWS, Permute("t", ("j", "i")), "there is no item t"),
    (ROWS, Permute("s", ("j",)), "('j',) is no order of ('i', 'j')"),
    (INSIDE, Permute("s", ("j", "i")), "something is computed at j, whose surroundings would change"),
    (run(ONLINE, Split("i", 2)), Permute("top", ("j", "ii", "io")), "online reductions run with top"),
    (
        run(MASKED, Trim("s", "j")),
        Permute("s", ("j", "i")),
        "how far j runs follows from i, which would be inside",
    ),
    (
        run(MATMUL, Bind("y"), Vectorize("x")),
        Permute("out", ("x", "y")),
        "a parallel loop inside a vector loop",
    ),
)

test_each_reason_is_given = refuses(REFUSED)


def test_the_reducing_loop_goes_outside() -> None:
    changes(
        ROWS,
        Permute("s", ("j", "i")),
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
  for i_init in 4:
    s[i_init] = 0.0
  for j in 8:
    for i in 4:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )
