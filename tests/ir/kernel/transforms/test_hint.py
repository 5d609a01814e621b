"""Stores past the caches, and prefetches of a later iteration."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import ANY_ROW, LONG, MATMUL, ROWS, SCATTERED, Row, changes, refuses
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.hint import PrefetchNext, PrefetchShares, Stream
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.split import Split

REFUSED: tuple[Row, ...] = (
    (ROWS, Stream("s"), "s is no output"),
    (SCATTERED, Stream("first"), "first combines with what is there"),
    (ROWS, PrefetchNext("s", "i", 0), "0 iterations are not ahead"),
    (ROWS, PrefetchNext("t", "i"), "there is no item t"),
    (ROWS, PrefetchNext("s", "j"), "no loop j is around the innermost one of s"),
    (ROWS, PrefetchShares("t", "i", "x"), "there is no item t"),
    (ROWS, PrefetchShares("s", "i", "r"), "s does not read r"),
    (ANY_ROW, PrefetchShares("s", "i", "x"), "loops within i have sizes of run time"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_an_output_is_stored_past_the_caches() -> None:
    changes(
        ROWS,
        Stream("out"),
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
    for j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    stream r[y] = s[y]
""",
    )


def test_the_next_row_is_prefetched() -> None:
    changes(
        ROWS,
        PrefetchNext("s", "i"),
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
    for j in 8:
      prefetch x[8*i + j + 8]
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_only_named_parameters_are_prefetched() -> None:
    changes(
        MATMUL,
        PrefetchNext("c", "j", 2, ("b",)),
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        prefetch b[6*l + j + 2]
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
    )


def test_an_output_prefetches_the_places_that_it_writes() -> None:
    changes(
        MATMUL,
        PrefetchNext("out", "y"),
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      prefetch r[6*y + x + 6]
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
    )


def test_the_next_panel_is_prefetched_in_shares() -> None:
    changes(
        MATMUL,
        PrefetchShares("c", "i", "a"),
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        prefetch a[8*i + 2*j + 8]
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for y in 4:
    for x in 6:
      r[6*y + x] = max(c[6*y + x] + bias[x], 0.0)
""",
    )


def test_a_share_of_several_lines_is_asked_for_line_by_line() -> None:
    changes(
        run(LONG, Split("j", 32), Unroll("ji")),
        PrefetchShares("s", "i", "x"),
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for jo in 16:
      unroll ji in 32:
        s[i] += x[512*i + 32*jo + ji]
  for y in 4:
    r[y] = s[y]
""",
        """
  alloc s: f32[4] local
  for i in 4:
    s[i] = 0.0
    for jo in 16:
      unroll ji in 32:
        prefetch x[512*i + 32*jo + 512]
        prefetch x[512*i + 32*jo + 528]
        s[i] += x[512*i + 32*jo + ji]
  for y in 4:
    r[y] = s[y]
""",
    )
