"""How a loop's iterations run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ir.kernel.transforms.golden import (
    INSIDE,
    LONG,
    MATMUL,
    ROWS,
    SCATTERED,
    TRIMMED,
    F,
    Row,
    changes,
    kernel,
    load,
    refuses,
)
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Load
from weft.ir.index import Int, Var
from weft.ir.kernel.algorithm import Output, Param, StoreTo
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.loops import LoopKind
from weft.testing.kernels import axis

REFUSED: tuple[Row, ...] = (
    (ROWS, Unroll("k"), "there is no loop k"),
    (LONG, Unroll("j"), "the extent 512 of j is not a constant up to 256"),
    (ROWS, Vectorize("k"), "there is no loop k"),
    (LONG, Vectorize("j"), "the extent 512 of j is not a constant up to 256"),
    (INSIDE, Vectorize("i"), "something is computed inside i"),
    (run(ROWS, Vectorize("j")), Vectorize("i"), "there is a parallel or vector loop inside i"),
    *(
        (run(MATMUL, Bind("x", kind)), Vectorize("y"), "there is a parallel or vector loop inside y")
        for kind in (LoopKind.BLOCK, LoopKind.THREAD)
    ),
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
    (
        run(MATMUL, Bind("y", LoopKind.THREAD)),
        Bind("x", LoopKind.BLOCK),
        "a block loop inside y, a thread loop",
    ),
    (
        run(MATMUL, Bind("x", LoopKind.BLOCK)),
        Bind("y", LoopKind.THREAD),
        "x, a block loop, inside a thread loop",
    ),
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


def test_tasks_are_not_started_inside_of_tasks_but_beside_them() -> None:
    """Those of a value that is computed in a loop: not that loop's, but the next one's."""
    k = run(MATMUL, ComputeAt("c", "out", "y"))
    k = run(k, Bind(k.nests["c"].loops[0].var.name))
    assert Bind("y").check(k) == Refusal("there is a parallel loop around y or in it: merge them")
    assert Bind("x").check(k) is None


def stored(index: Callable[[Var, Var, Int], Int], size: int) -> Kernel:
    """r[index(i, k, p[i])] = x[i, k], for i in 8 and k in 4; p is below 8."""
    i, k = axis("i", 8), axis("k", 4)
    at = ex.as_index(Load(dtypes.int32, "p", (i.var,)), 0, 7)
    out = Output("out", (i, k), (StoreTo("r", (index(i.var, k.var, at),), load("x", i.var, k.var)),))
    params = Param("x", F, (8, 4)), Param("p", dtypes.int32, (8,)), Param("r", F, (size,), True)
    return kernel(params, out)


@pytest.mark.parametrize(
    ("index", "apart"),
    {
        "a row that the data says": (lambda i, k, at: 4 * at + k, ["k"]),
        "rows that overlap": (lambda i, k, at: 2 * at + k, []),
        "columns that may be another row's, for all that is known": (lambda i, k, at: 4 * k + at, []),
        "places in rows of their own": (lambda i, k, at: 8 * i + at, ["i"]),
        "places in rows that overlap": (lambda i, k, at: 7 * i + at, []),
        "places in rows from their ends": (lambda i, k, at: 8 * i + 7 - at, ["i"]),
        "places in rows that overlap, from their ends": (lambda i, k, at: 7 * i + 7 - at, []),
        "places beside columns": (lambda i, k, at: 11 * i + k + at, ["i"]),
        "places beside columns that reach into the next row": (lambda i, k, at: 10 * i + k + at, []),
        "places in columns of their own": (lambda i, k, at: 8 * k + at, ["k"]),
        "every element, whatever the data says": (lambda i, k, at: 4 * i + k, ["i", "k"]),
        "only one element of a row": (lambda i, k, at: i, ["i"]),
    }.values(),
)
def test_stores_that_may_meet_are_not_spread(index: Callable[[Var, Var, Int], Int], apart: list[str]) -> None:
    k = stored(index, 96)
    assert [loop for loop in ("i", "k") if Bind(loop).check(k) is None] == apart
