"""A reduction in two steps."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ANY_ROW, ROWS, TOTAL, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.split import Split
from weft.ir.kernel.transforms.split_reduce import SplitReduce

REFUSED: tuple[Row, ...] = (
    (ROWS, SplitReduce("out", "j", 4, "p"), "out is an output"),
    (ROWS, SplitReduce("s", "i", 4, "p"), "s does not reduce over i"),
    (ROWS, SplitReduce("s", "j", -1, "p"), "a factor of -1"),
    (ROWS, SplitReduce("s", "j", 4, "p", whole=("i",)), "('i',) are not further axes that s reduces over"),
    (ROWS, SplitReduce("s", "j", 0, "p"), "no axis would be left to the partial results of s"),
    (ROWS, SplitReduce("s", "j", 4, "x"), "the name x is taken"),
    (run(ROWS, Split("j", 2)), SplitReduce("s", "j", 4, "p"), "s has been scheduled already"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_blocks_of_a_row_are_summed_first() -> None:
    changes(
        ROWS,
        SplitReduce("s", "j", 4, "p"),
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
  alloc p: f32[8] local
  for i22 in 4:
    for jo3 in 2:
      p[2*i22 + jo3] = 0.0
      for ji2 in 4:
        p[2*i22 + jo3] += x[8*i22 + 4*jo3 + ji2]
  alloc s: f32[4] local
  for i3 in 4:
    s[i3] = 0.0
    for jo22 in 2:
      s[i3] += p[2*i3 + jo22]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_lanes_sum_every_fourth_element() -> None:
    changes(
        ROWS,
        SplitReduce("s", "j", 4, "p", lanes=True),
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
  alloc p: f32[16] local
  for i22 in 4:
    for jl3 in 4:
      p[4*i22 + jl3] = 0.0
      for jo2 in 2:
        p[4*i22 + jl3] += x[8*i22 + 4*jo2 + jl3]
  alloc s: f32[4] local
  for i3 in 4:
    s[i3] = 0.0
    for jl22 in 4:
      s[i3] += p[4*i3 + jl22]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_last_block_is_guarded() -> None:
    changes(
        ROWS,
        SplitReduce("s", "j", 3, "p"),
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
  alloc p: f32[12] local
  for i22 in 4:
    for jo3 in 3:
      p[3*i22 + jo3] = 0.0
      for ji2 in 3:
        p[3*i22 + jo3] += where(3*jo3 + ji2 < 8, x[8*i22 + 3*jo3 + ji2] if 3*jo3 + ji2 < 8 else 0, 0.0)
  alloc s: f32[4] local
  for i3 in 4:
    s[i3] = 0.0
    for jo22 in 3:
      s[i3] += p[3*i3 + jo22]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_whole_axis_is_summed_last() -> None:
    changes(
        TOTAL,
        SplitReduce("s", "j", 0, "p"),
        """
  alloc s: f32[1] local
  s[0] = 0.0
  for i in 4:
    for j in 6:
      s[0] += x[6*i + j]
  r[0] = s[0]
""",
        """
  alloc p: f32[6] local
  for j23 in 6:
    p[j23] = 0.0
    for i22 in 4:
      p[j23] += x[6*i22 + j23]
  alloc s: f32[1] local
  s[0] = 0.0
  for j222 in 6:
    s[0] += p[j222]
  r[0] = s[0]
""",
    )


def test_further_axes_are_summed_last() -> None:
    changes(
        TOTAL,
        SplitReduce("s", "j", 3, "p", whole=("i",)),
        """
  alloc s: f32[1] local
  s[0] = 0.0
  for i in 4:
    for j in 6:
      s[0] += x[6*i + j]
  r[0] = s[0]
""",
        """
  alloc p: f32[8] local
  for i23 in 4:
    for jo3 in 2:
      p[2*i23 + jo3] = 0.0
      for ji2 in 3:
        p[2*i23 + jo3] += x[6*i23 + 3*jo3 + ji2]
  alloc s: f32[1] local
  s[0] = 0.0
  for i222 in 4:
    for jo22 in 2:
      s[0] += p[2*i222 + jo22]
  r[0] = s[0]
""",
    )


def test_a_row_of_runtime_size_ends_in_its_last_block() -> None:
    changes(
        ANY_ROW,
        SplitReduce("s", "j", 4, "p", lanes=True),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in n:
      s[i] += x[i*n + j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc p: f32[16] local
  for i22 in 4:
    for jl3 in 4:
      p[4*i22 + jl3] = 0.0
      for jo2 in (n + 3)//4:
        p[4*i22 + jl3] += where(4*jo2 + jl3 < n, x[4*jo2 + i22*n + jl3] if 4*jo2 + jl3 < n else 0, 0.0)
  alloc s: f32[4] local
  for i3 in 4:
    s[i3] = 0.0
    for jl22 in 4:
      s[i3] += p[4*i3 + jl22]
  for y in 4:
    r[y] = s[y]
""",
    )
