"""A loop runs on to a multiple."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ONLINE, ONLINE_BLOCKS, ROWS, TRIMMED, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.split import Split

REFUSED: tuple[Row, ...] = (
    (ROWS, Pad("k", 3), "there is no loop k"),
    (ROWS, Pad("j", 0), "a multiple of 0"),
    (
        run(ROWS, ComputeAt("s", "out", "y")),
        Pad("y", 3),
        "something is computed in out's loops, whose regions would grow",
    ),
    (TRIMMED, Pad("i", 3), "a loop inside i is as long as its iteration says"),
    (ONLINE, Pad("i2", 3), "total is rescaled with top, whose rows would not grow"),
    (run(ROWS, Split("j", 4)), Pad("ji", 3), "ji is no longer a whole axis"),
    (ONLINE_BLOCKS, Pad("j2i", 4), "j2i runs over a part of the axis at a time, and would over the next"),
    (run(ROWS, Unroll("j")), Pad("j", 3), "the loop j is already unroll"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_further_iterations_are_guarded() -> None:
    changes(
        ROWS,
        Pad("j", 3),
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
    for j in 9:
      s[i] += where(j < 8, x[8*i + j] if j < 8 else 0, 0.0)
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_region_grows_with_the_loop_that_runs_over_it() -> None:
    changes(
        ROWS,
        Pad("i", 3),
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
  alloc s: f32[6] local
  for i in 6:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j] if i < 4 else 0
  for y in 4:
    r[y] = s[y]
""",
    )
