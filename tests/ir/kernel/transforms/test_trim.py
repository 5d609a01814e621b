"""A loop runs only where a condition can hold."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import FILLED, MASKED, ONLINE_BLOCKS, ROWS, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.trim import Trim

REFUSED: tuple[Row, ...] = (
    (MASKED, Trim("out", "j"), "out is an output"),
    (MASKED, Trim("s", "k"), "there is no loop k"),
    (MASKED, Trim("s", "i"), "i is no reducing loop of s"),
    (run(MASKED, Unroll("j")), Trim("s", "j"), "the loop j is unroll"),
    (ONLINE_BLOCKS, Trim("total", "j2i"), "total runs in another's loop"),
    (ROWS, Trim("s", "j"), "every iteration of j may count"),
    (MASKED, Trim("s", "j", strict=True), "every iteration of j may count"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_masked_maximum_ends_at_the_diagonal() -> None:
    changes(
        MASKED,
        Trim("s", "j"),
        """
  alloc s: f32[8] local
  for i in 8:
    s[i] = -inf
    for j in 8:
      s[i] max= where(0 <= i - j, x[8*i + j], -inf)
  for y in 8:
    r[y] = s[y]
""",
        """
  alloc s: f32[8] local
  for i in 8:
    s[i] = -inf
    for j in i + 1:
      s[i] max= where(0 <= i - j, x[8*i + j], -inf)
  for y in 8:
    r[y] = s[y]
""",
    )


def test_what_is_known_of_a_parameter_ends_a_loop_too() -> None:
    changes(
        FILLED,
        Trim("s", "j", strict=True),
        """
  alloc s: f32[8] local
  for i in 8:
    s[i] = 0.0
    for j in 8:
      s[i] += p[8*i + j] * v[j]
  for y in 8:
    r[y] = s[y]
""",
        """
  alloc s: f32[8] local
  for i in 8:
    s[i] = 0.0
    for j in i + 1:
      s[i] += p[8*i + j] * v[j]
  for y in 8:
    r[y] = s[y]
""",
    )
