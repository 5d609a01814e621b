"""A loop runs only where a condition can hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.ir.kernel.transforms.golden import (
    FILLED,
    MASKED,
    ONLINE_BLOCKS,
    ROWS,
    F,
    Row,
    changes,
    load,
    refuses,
    rows,
    staged,
    value,
)
from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.expr import Const, Expr
from weft.ir.index import Guard, Int, Var, in_range
from weft.ir.kernel.algorithm import KnownFill, Output, place
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.base import Refusal, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Unroll, Vectorize
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.ops import Op
from weft.testing.kernels import mul

REFUSED: tuple[Row, ...] = (
    (MASKED, Trim("out", "j"), "out is an output"),
    (MASKED, Trim("s", "k"), "there is no loop k"),
    (MASKED, Trim("s", "i"), "i is no reducing loop of s"),
    (run(MASKED, Unroll("j")), Trim("s", "j"), "the loop j is unroll"),
    (ONLINE_BLOCKS, Trim("total", "j2i"), "total runs in another's loop"),
    (ROWS, Trim("s", "j"), "every iteration of j may count"),
    (run(MASKED, Vectorize("i")), Trim("s", "j"), "every iteration of j may count"),  # in some lane
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


LOWEST, ZERO = Const(F, float("-inf")), Const(F, 0)


def chosen(guard: Guard, x: Expr, other: Expr = ZERO) -> Expr:
    return ex.where(ex.test(guard), x, other)


def counted(v: Var) -> Expr:
    return ex.from_index(v, dtypes.int32)


def weight(i: Var, j: Var) -> Expr:
    """exp(x - 1), where a mask leaves x, else exp(-inf)."""
    masked = chosen(in_range(i - j, 0, None), load("x", i, j), LOWEST)
    return ex.call(Op.EXP, ex.call(Op.SUB, masked, ex.call(Op.MAX, load("v", j), Const(F, 1))))


TERMS: dict[str, tuple[Callable[[Var, Var], Expr], str, str]] = {
    "what is right of the diagonal": (
        lambda i, j: chosen(in_range(j - i, 0, None), load("x", i, j)), "i + j", "-i + 8"
    ),
    "a band": (
        lambda i, j: chosen(in_range(j - i, -1, 2), load("x", i, j)),
        "j + max(i - 1, 0)", "-max(i - 1, 0) + min(8, i + 2)",
    ),
    "every second step": (lambda i, j: chosen(in_range(i - 2 * j, 0, None), load("x", i, j)), "j", "i//2 + 1"),
    "a product, by either factor": (
        lambda i, j: mul(load("v", j), chosen(in_range(i - j, 0, None), load("x", i, j))), "j", "i + 1"
    ),
    "two conditions": (
        lambda i, j: chosen((*in_range(i - j, 0, None), *in_range(j, 2, None)), load("x", i, j)),
        "j + 2", "max(i - 1, 0)",
    ),
    "numbers that are compared": (
        lambda i, j: ex.where(ex.call(Op.LT, counted(j), counted(i)), load("x", i, j), ZERO), "j", "i"
    ),
    "numbers that are added before": (
        lambda i, j: ex.where(
            ex.call(Op.LE, ex.call(Op.ADD, counted(j), Const(dtypes.int32, 2)), counted(i)), load("x", i, j), ZERO
        ), "j", "max(i - 1, 0)"
    ),
    "both of two comparisons": (
        lambda i, j: ex.where(
            ex.call(Op.AND, ex.call(Op.LT, counted(j), counted(i)), ex.test(in_range(j, 1, None))),
            load("x", i, j), ZERO,
        ), "j + 1", "max(i - 1, 0)"
    ),
    "a weight of a masked score": (lambda i, j: mul(weight(i, j), load("v", j)), "j", "i + 1"),
}  # fmt: skip


@pytest.mark.parametrize("name", TERMS)
def test_a_sum_runs_over(name: str) -> None:
    """The terms that may not be 0: from the first of them on, so many."""
    term, first, count = TERMS[name]
    k = run(rows(term, 8, 8, x=(8, 8), v=(8,)), Trim("s", "j"))
    nest, (axis,) = k.nests["s"], value(k, "s").all_axes[1:]
    assert (repr(nest.bind[axis.var]), repr(nest.loops[-1].extent)) == (first, count)


def test_another_value_may_have_the_mask() -> None:
    k = run(staged(MASKED, "s", "t"), Trim("s", "j"))
    assert repr(k.nests["s"].loops[-1].extent) == "i + 1"


KEPT: dict[str, tuple[Callable[[Var, Var], Expr], Op]] = {
    "something else than the identity": (
        lambda i, j: chosen(in_range(i - j, 0, None), load("x", i, j), Const(F, 1)), Op.ADD
    ),
    "0 in a maximum": (lambda i, j: chosen(in_range(i - j, 0, None), load("x", i, j)), Op.MAX),
    "a condition on other axes": (lambda i, j: chosen(in_range(i, 3, None), load("x", i, j)), Op.ADD),
    "a weight whose maximum may be -inf": (
        lambda i, j: ex.call(
            Op.EXP, ex.call(Op.SUB, chosen(in_range(i - j, 0, None), load("x", i, j), LOWEST), load("v", j))
        ), Op.ADD
    ),
    "numbers that may wrap around": (
        lambda i, j: ex.where(
            ex.call(Op.LT, ex.call(Op.MUL, counted(j), Const(dtypes.int32, 1 << 30)), counted(i)), load("x", i, j), ZERO
        ), Op.ADD
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_every_iteration_counts_where_terms_are(name: str) -> None:
    term, op = KEPT[name]
    k = rows(term, 8, 8, op, x=(8, 8), v=(8,))
    assert Trim("s", "j").check(k) == Refusal("every iteration of j may count")


def filled(index: Callable[[Var, Var], Int], least: Int, divided: bool = False) -> Kernel:
    """Sums of exp(x - top) * v, of an x that is -inf but where column <= row + least."""

    def term(i: Var, j: Var) -> Expr:
        e = ex.call(Op.EXP, ex.call(Op.SUB, load("x", i, j), load("top", index(i, j))))
        return mul(ex.call(Op.DIV, e, load("top", i)) if divided else e, load("v", j))

    k = rows(term, 8, 8, x=(8, 8), top=(8,), v=(8,))
    below = KnownFill(in_range(place(0, 8) - place(1, 8) + least, 0, None), float("-inf"))
    params = tuple([replace(p, fill=below) if p.name == "x" else p for p in k.algorithm.params])
    return initial(replace(k.algorithm, params=params))


@pytest.mark.parametrize("divided", [False, True])
def test_weights_end_where_memory_is_filled_if_that_leaves_some_of_each_row(divided: bool) -> None:
    k = run(filled(lambda i, j: i, 0, divided), Trim("s", "j", strict=True))
    assert repr(k.nests["s"].loops[-1].extent) == "i + 1"
    changed = run(filled(lambda i, j: i, 2, divided), Trim("s", "j", strict=True))
    assert repr(changed.nests["s"].loops[-1].extent) == "min(8, i + 3)"


@pytest.mark.parametrize("index", [lambda i, j: i, lambda i, j: j])
def test_weights_of_rows_or_columns_that_may_be_filled_whole_are_all_added(
    index: Callable[[Var, Var], Int],
) -> None:
    """Their maximum is -inf, and their sum NaN."""
    k = filled(index, -1)
    assert Trim("s", "j", strict=True).check(k) == Refusal("every iteration of j may count")


def test_nothing_is_summed_where_no_reader_uses_the_sum() -> None:
    k = rows(lambda i, j: load("x", i, j), 8, 8, x=(8, 8))
    s, out = k.algorithm.items
    assert isinstance(out, Output)
    (store,) = out.stores
    (y,) = store.index
    assert isinstance(y, Var)
    reader = replace(out, stores=(replace(store, expr=chosen(in_range(y, 3, None), store.expr)),))
    k = initial(replace(k.algorithm, items=(s, reader)))
    k = run(k, ComputeAt("s", "out", "y"))
    changes(
        k,
        Trim("s", k.nests["s"].loops[0].var.name),
        """
  for y in 8:
    alloc s: f32[1] local
    s[0] = 0.0
    for j2 in 8:
      s[0] += x[8*y + j2]
    r[y] = where(3 <= y, s[0], 0.0)
""",
        """
  for y in 8:
    alloc s: f32[1] local
    s[0] = 0.0
    for j2 in min(8, 8*max(y - 2, 0)):
      s[0] += x[8*y + j2]
    r[y] = where(3 <= y, s[0], 0.0)
""",
    )
