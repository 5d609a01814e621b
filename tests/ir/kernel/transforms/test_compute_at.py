"""A value is computed in a loop of its reader: the region that the loop's body needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.ir.kernel.transforms.golden import (
    COPIED_ROWS,
    INSIDE,
    MATMUL,
    ONLINE,
    ROWS,
    SCATTERED,
    SOFTMAX,
    F,
    Row,
    changes,
    kernel,
    load,
    refuses,
)
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Int, Var
from weft.ir.kernel.algorithm import ItemValue, Output, Param, StoreTo
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split import Split
from weft.ir.loops import Scope
from weft.ir.ops import Op
from weft.testing.kernels import axis

REFUSED: tuple[Row, ...] = (
    (ROWS, ComputeAt("t", "out", "i2"), "there is no item t"),
    (ROWS, ComputeAt("s", "t", "i2"), "there is no item t"),
    (ROWS, ComputeAt("s", "out", "j"), "out has no loop j"),
    (INSIDE, ComputeAt("s", "out", "y"), "something is computed in s's loops"),
    (ONLINE, ComputeAt("total", "out", "y"), "total runs in another's loop"),
    (ROWS, ComputeAt("out", "s", "i"), "nothing reads out"),
    (run(ROWS, Vectorize("y")), ComputeAt("s", "out", "y"), "y is in a vector loop"),
    (
        SCATTERED,
        ComputeAt("first", "out", "k"),
        "first combines into memory: each point must be computed once",
    ),
    (SOFTMAX, ComputeAt("top", "total", "i2"), "out, which reads top, is not inside i2"),
)

test_each_reason_is_given = refuses(REFUSED)


def test_a_value_is_computed_element_by_element_where_it_is_read() -> None:
    changes(
        ROWS,
        ComputeAt("s", "out", "y"),
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
  for y in 4:
    alloc s: f32[1] local
    s[0] = 0.0
    for j2 in 8:
      s[0] += x[8*y + j2]
    r[y] = s[0]
""",
    )


def test_a_tile_is_computed_for_a_tile_of_readers() -> None:
    changes(
        run(MATMUL, Split("y", 2), Split("x", 3), Permute("out", ("yo", "xo", "yi", "xi"))),
        ComputeAt("c", "out", "xo", Scope.REGISTER),
        """
  alloc c: f32[24] local
  for i in 4:
    for j in 6:
      c[6*i + j] = 0.0
      for l in 8:
        c[6*i + j] += a[8*i + l] * b[6*l + j]
  for yo in 2:
    for xo in 2:
      for yi in 2:
        for xi in 3:
          r[12*yo + 6*yi + 3*xo + xi] = max(c[12*yo + 6*yi + 3*xo + xi] + bias[3*xo + xi], 0.0)
""",
        """
  for yo in 2:
    for xo in 2:
      alloc c: f32[6]
      for i3 in 2:
        for j3 in 3:
          c[3*i3 + j3] = 0.0
          for l2 in 8:
            c[3*i3 + j3] += a[16*yo + 8*i3 + l2] * b[6*l2 + 3*xo + j3]
      for yi in 2:
        for xi in 3:
          r[12*yo + 6*yi + 3*xo + xi] = max(c[3*yi + xi] + bias[3*xo + xi], 0.0)
""",
    )


def read(*places: Callable[[Var], Int]) -> Kernel:
    """r[y] = t(place) + ..., for y in 4, and t(i) = x[i] for i in 8; p is below 8."""
    i, y = axis("i", 8), axis("y", 4)
    t = ItemValue("t", (i,), load("x", i.var))
    first, *others = (Load(F, "t", (place(y.var),)) for place in places)
    total: Expr = first
    for other in others:
        total = ex.call(Op.ADD, total, other)
    out = Output("out", (y,), (StoreTo("r", (y.var,), total),))
    return kernel((Param("x", F, (8,)), Param("p", dtypes.int32, (4,)), Param("r", F, (4,), True)), t, out)


def found(y: Var) -> Int:
    """A place that the data says."""
    return ex.as_index(Load(dtypes.int32, "p", (y,)), 0, 7)


REGIONS: dict[str, tuple[Kernel, str, str, int]] = {
    "one element": (read(lambda y: y + 3), "y", "y + 3", 1),
    "neighbours": (read(lambda y: y, lambda y: y + 1), "y", "y", 2),
    "neighbours, the later first": (read(lambda y: y + 1, lambda y: y), "y", "y", 2),
    "elements apart": (read(lambda y: y + 4, lambda y: y + 1, lambda y: y + 2), "y", "y + 1", 4),
    "a tile of every second": (run(read(lambda y: 2 * y), Split("y", 2)), "yo", "4*yo", 3),
    "a tile, and one element of it": (
        run(read(lambda y: y + 2, lambda y: y - y + 2), Split("y", 2)),
        "yo",
        "0",
        8,
    ),
    "what the data says": (read(found), "y", "0", 8),
    "one element, and what the data says": (read(lambda y: y, found), "y", "0", 8),
}


@pytest.mark.parametrize("name", REGIONS)
def test_a_region_is(name: str) -> None:
    """Where it starts, and how many elements it has."""
    k, loop, first, count = REGIONS[name]
    nest = run(k, ComputeAt("t", "out", loop)).nests["t"]
    assert (repr(nest.origin[0]), nest.size[0]) == (first, count)


def test_an_axis_of_any_size_that_a_loop_runs_over_is_the_region() -> None:
    nest = run(COPIED_ROWS, ComputeAt("t", "out", "y")).nests["t"]
    assert [repr(s.extent) for s in nest.loops] == ["n"]
    assert [repr(o) for o in nest.origin] == ["y", "0"]
    assert nest.size == (1, 64)
