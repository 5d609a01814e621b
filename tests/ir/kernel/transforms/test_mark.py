"""How a loop's iterations run."""

from __future__ import annotations

from tests.ir.kernel.transforms.golden import (
    INSIDE,
    LONG,
    MATMUL,
    ROWS,
    SCATTERED,
    TRIMMED,
    Row,
    changes,
    refuses,
)
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.loops import LoopKind

REFUSED: tuple[Row, ...] = (
    (ROWS, Unroll("k"), "there is no loop k"),
    (LONG, Unroll("j"), "the extent 512 of j is not a constant up to 256"),
    (ROWS, Vectorize("k"), "there is no loop k"),
    (LONG, Vectorize("j"), "the extent 512 of j is not a constant up to 256"),
    (INSIDE, Vectorize("i"), "something is computed inside i"),
    (run(ROWS, Vectorize("j")), Vectorize("i"), "there is a parallel or vector loop inside i"),
    (TRIMMED, Vectorize("i"), "a loop inside i is as long as its iteration says"),
    (run(ROWS, Vectorize("i")), Vectorize("j"), "s already has a vector loop"),
    (ROWS, Bind("k"), "there is no loop k"),
    (ROWS, Bind("i", LoopKind.UNROLL), "unroll is no parallel kind"),
    (ROWS, Bind("j"), "j reduces: split the reduction into steps first"),
    (SCATTERED, Bind("i"), "iterations of i may store to the same element"),
    (run(MATMUL, Vectorize("y")), Bind("x"), "x is inside a vector loop"),
    (run(MATMUL, Bind("y")), Bind("x"), "there is a parallel loop around x or in it: merge them"),
    (run(MATMUL, Bind("x")), Bind("y"), "there is a parallel loop around y or in it: merge them"),
    (run(MATMUL, Bind("y", LoopKind.BLOCK)), Bind("x"), "x is inside a loop of a GPU's grid"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_loop_is_unrolled() -> None:
    changes(
        ROWS,
        Unroll("j"),
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
    unroll j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_loop_becomes_lanes() -> None:
    changes(
        ROWS,
        Vectorize("j"),
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
    vector j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_loop_becomes_tasks() -> None:
    changes(
        ROWS,
        Bind("i"),
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
  alloc s: f32[4] global
  parallel i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )


def test_a_loop_becomes_threads() -> None:
    changes(
        ROWS,
        Bind("i", LoopKind.THREAD),
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
  thread i in 4:
    s[i] = 0.0
    for j in 8:
      s[i] += x[8*i + j]
  for y in 4:
    r[y] = s[y]
""",
    )
