"""What a load can reach becomes a value."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import (
    ROWS,
    SHIFTED,
    TAPS,
    TWO,
    F,
    N,
    Row,
    changes,
    load,
    refuses,
    rows,
    staged,
    value,
)
from weft.ir.expr import Const, Load
from weft.ir.index import in_range
from weft.ir.kernel.algorithm import reads
from weft.ir.kernel.transforms.window import Window

(X,) = (r for r in reads(value(TAPS, "s")) if r.source == "x")
I, J = (a.var for a in value(ROWS, "s").all_axes)
ANY_TAPS = rows(lambda i, j: Load(F, "x", (i + j - 1,), in_range(i + j - 1, 0, N)), m=N, x=(N,))

REFUSED: tuple[Row, ...] = (
    (TAPS, Window("t", X, "a"), "there is no item t"),
    (TAPS, Window("s", X, "w"), "the name w is taken"),
    (TAPS, Window("s", load("x", 0), "a"), "x[0] is not read by s"),
    (SHIFTED, Window("s", Const(F, 1), "a"), "1.0 reads nothing"),
    (staged(ROWS, "s", "t"), Window("s", load("t", I, J), "a"), "t is no parameter"),
    (
        TWO,
        Window("s", value(TWO, "s").expr, "a"),
        "(x[i] * v[j]) is about more than the indices of one load",
    ),
)

test_each_reason_is_given = refuses(REFUSED)


def test_overlapping_windows_share_the_padded_row() -> None:
    changes(
        TAPS,
        Window("s", X, "a"),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 3:
      s[i] += (x[i + j - 1] if 0 <= i + j - 1 < 4 else 0) * w[j]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc a: f32[6] local
  for a02 in 6:
    a[a02] = x[a02 - 1] if 0 <= a02 - 1 < 4 else 0
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in 3:
      s[i] += a[i + j] * w[j]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_window_of_runtime_size_is_as_long_as_what_it_reaches() -> None:
    (x,) = (r for r in reads(value(ANY_TAPS, "s")) if r.source == "x")
    changes(
        ANY_TAPS,
        Window("s", x, "a"),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in n:
      s[i] += x[i + j - 1] if 0 <= i + j - 1 < n else 0
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc a: f32[67] local
  for a02 in n + 3:
    a[a02] = x[a02 - 1] if 0 <= a02 - 1 < n else 0
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for j in n:
      s[i] += a[i + j]
  for y in 4:
    r[y] = s[y]
""",
    )
