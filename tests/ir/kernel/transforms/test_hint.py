"""Stores past the caches, and prefetches of a later iteration."""

from __future__ import annotations

import pytest

from tests.ir.kernel.transforms.golden import (
    ANY_ROW,
    LONG,
    MATMUL,
    ONLINE,
    ROWS,
    SCATTERED,
    Row,
    changes,
    loops,
    refuses,
)
from weft.ir.index import ceildiv, evaluate
from weft.ir.kernel.hints import MAX_HINTS, of_output
from weft.ir.kernel.schedule import PrefetchSpec, initial
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.hint import PrefetchNext, PrefetchOutput, PrefetchShares, Stream
from weft.ir.kernel.transforms.mark import Unroll
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.testing.kernels import matmul

TILED = run(MATMUL, ComputeAt("c", "out", "y"), Permute("c", ("l2", "j3")))
"""Each row of r after its sums."""

REFUSED: tuple[Row, ...] = (
    (ROWS, Stream("s"), "s is no output"),
    (SCATTERED, Stream("first"), "first combines with what is there"),
    (ROWS, PrefetchNext("s", "i", 0), "0 iterations are not ahead"),
    (ROWS, PrefetchNext("t", "i"), "there is no item t"),
    (ROWS, PrefetchNext("s", "j"), "no loop j is around the innermost one of s"),
    (ROWS, PrefetchShares("t", "i", "x"), "there is no item t"),
    (ROWS, PrefetchShares("s", "i", "r"), "s does not read r"),
    (ANY_ROW, PrefetchShares("s", "i", "x"), "loops within i have sizes of run time"),
    (ROWS, PrefetchOutput("s", "j", "s"), "s is no output"),
    (ROWS, PrefetchOutput("s", "j", "out", 0), "one in 0 iterations is none"),
    (ROWS, PrefetchOutput("t", "j", "out"), "there is no item t"),
    (ROWS, PrefetchOutput("s", "y", "out"), "s has no loop y that runs step by step"),
    (run(ROWS, Unroll("j")), PrefetchOutput("s", "j", "out"), "s has no loop j that runs step by step"),
    (ONLINE, PrefetchOutput("total", "i2", "out"), "total runs in loops of another item"),
    (ROWS, PrefetchOutput("s", "j", "out"), "s is not computed within out"),
    (
        run(ANY_ROW, ComputeAt("s", "out", "y")),
        PrefetchOutput("s", "j2", "out"),
        "loops of s or out have sizes of run time",
    ),
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


def test_what_an_output_needs_is_asked_for_while_its_sums_are_computed() -> None:
    before = """
  for y in 4:
    alloc c: f32[6] local
    for j3_init in 6:
      c[j3_init] = 0.0
    for l2 in 8:
      for j3 in 6:
        c[j3] += a[8*y + l2] * b[6*l2 + j3]
    for x in 6:
      r[6*y + x] = max(c[x] + bias[x], 0.0)
"""
    hinted = """    for l2 in 8:
      if (l2%3) < 1:
        prefetch bias[5]
        prefetch r[6*y + 5]
"""
    changes(TILED, PrefetchOutput("c", "l2", "out", 3), before, before.replace("    for l2 in 8:\n", hinted))
    each = hinted.replace("      if (l2%3) < 1:\n", "").replace("        prefetch", "      prefetch")
    changes(TILED, PrefetchOutput("c", "l2", "out"), before, before.replace("    for l2 in 8:\n", each))


def test_what_is_stored_past_the_caches_is_not_asked_for() -> None:
    hinted = loops(run(TILED, Stream("out"), PrefetchOutput("c", "l2", "out")))
    assert "prefetch bias[5]" in hinted and "prefetch r[" not in hinted


@pytest.mark.parametrize("steps", [1, 2, 3, 16, 100])
@pytest.mark.parametrize("width", [16, 33, 80, 300])
def test_each_line_of_a_tile_is_asked_for(width: int, steps: int) -> None:
    k = run(initial(matmul(6, width, 50).algorithm), Split("y", 2, "yo", "yi"), ComputeAt("c", "out", "yo"))
    k = run(
        k, Permute("c", tuple(sorted((s.var.name for s in k.nests["c"].loops), key=lambda n: n[0] != "l")))
    )
    loop = k.nests["c"].loops[0].var
    wish = PrefetchSpec(loop.name, steps, ("r",), output="out")
    nest = k.nests["out"]
    yo, yi, x = (s.var for s in nest.loops)
    here = (2 * yo + yi) * width + x
    asked = set[int]()
    (r,) = (p for p in k.algorithm.params if p.name == "r")
    for at in of_output(k, wish, "c", r, here):
        asked |= {evaluate(at, {loop.name: n, yo.name: 1}) for n in range(0, 50, steps)}
    ends = {row * width + min(16 * n + 15, width - 1) for row in (2, 3) for n in range(ceildiv(width, 16))}
    enough = ceildiv(50, steps) * MAX_HINTS >= len(ends)
    assert asked <= ends and (asked == ends or not enough)
