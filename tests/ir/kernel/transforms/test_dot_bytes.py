"""Four products of bytes in each lane are summed at once."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import Row, changes, refuses
from weft.ir.kernel.schedule import initial
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.dot_bytes import DotBytes
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.testing.kernels import byte_sums

BYTES = initial(byte_sums(1, 1, 1, 2, 4).algorithm)
ORDERED = run(BYTES, Permute("dot", ("r2", "k", "l")))
LANES = run(ORDERED, Vectorize("l"))

REFUSED: tuple[Row, ...] = (
    (LANES, DotBytes("n"), "there is no loop n"),
    (LANES, DotBytes("r2"), "r2 is no serial loop over 4 terms of a sum"),
    (LANES, DotBytes("l"), "l is no serial loop over 4 terms of a sum"),
    (run(LANES, Unroll("k")), DotBytes("k"), "k is no serial loop over 4 terms of a sum"),
    (
        initial(byte_sums(1, 1, 4, 2, 4).algorithm),
        DotBytes("b2"),
        "total is no sum in int32 of products of integers of 8 bits",
    ),
    (ORDERED, DotBytes("k"), "inside k there is not just a vector loop"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_four_terms_are_one_instruction() -> None:
    changes(
        LANES,
        DotBytes("k"),
        """
  alloc dot: i32[4] local
  vector l_init in 4:
    dot[l_init] = 0
  for r2 in 2:
    for k in 4:
      vector l in 4:
        dot[l] += i32(x[4*r2 + k]) * i32(q[16*r2 + 4*l + k])
  alloc total: f32[4] local
  for l2 in 4:
    total[l2]  = 0.0
    total[l2] += f32(dot[l2]) * scale[l2]
  for x2 in 4:
    r[x2] = total[x2]
""",
        """
  alloc dot: i32[4] local
  vector l_init in 4:
    dot[l_init] = 0
  for r2 in 2:
    matrix k in 4:
      vector l in 4:
        dot[l] += i32(x[4*r2 + k]) * i32(q[16*r2 + 4*l + k])
  alloc total: f32[4] local
  for l2 in 4:
    total[l2]  = 0.0
    total[l2] += f32(dot[l2]) * scale[l2]
  for x2 in 4:
    r[x2] = total[x2]
""",
    )
