"""The walk: what it reaches, how often, and how deep."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.autograd import ops
from weft.autograd.context import grad_mode
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply
from weft.ir import dtypes as d
from weft.ir import graph as g
from weft.ir.ops import Op
from weft.testing.reference import evaluate


def leaf(values: Any, needs_grad: bool = True) -> Value:
    array = np.array(values, np.float32)
    return Value(g.buffer(array.shape, d.float32, "cpu:0", array), needs_grad)


def one(v: Value) -> Value:
    return ops.full(1, v.shape, v.dtype)


def number(v: Value) -> float:
    return float(evaluate([v.node])[0])


def test_leaves_are_found_where_no_inputs_are_named() -> None:
    x, y, c = leaf(2.0), leaf(3.0), leaf(4.0, False)
    f = ops.add(ops.mul(x, y), c)
    found = gradients([f], [one(f)], None, False)
    assert {v: number(dv) for v, dv in found.items()} == {x: 3.0, y: 2.0}


def test_uses_accumulate() -> None:
    x = leaf(3.0)
    f = ops.add(ops.mul(x, x), ops.mul(x, ops.full(5, (), d.float32)))
    assert number(gradients([f], [one(f)], [x], False)[x]) == 11.0


def test_equal_leaves_are_told_apart() -> None:
    """The graph merges equal constants; the tape must not."""
    x = Value(g.const(2.0, d.float32), needs_grad=True)
    y = Value(g.const(2.0, d.float32), needs_grad=True)
    detached = Value(x.node)
    f = ops.mul(ops.mul(x, y), detached)
    found = gradients([f], [one(f)], None, False)
    assert set(found) == {x, y} and [number(v) for v in found.values()] == [4.0, 4.0]


def test_gradients_of_intermediate_values() -> None:
    x = leaf(2.0)
    y = ops.mul(x, x)
    f = ops.mul(y, y)
    found = gradients([f], [one(f)], [y, x], False)
    assert (number(found[y]), number(found[x])) == (8.0, 32.0)


def test_an_input_that_plays_no_part_is_left_out() -> None:
    x, y = leaf(1.0), leaf(1.0)
    f = ops.mul(x, x)
    assert list(gradients([f], [one(f)], [x, y], False)) == [x]


def test_several_outputs() -> None:
    x = leaf(2.0)
    f, h = ops.mul(x, x), ops.neg(x)
    assert number(gradients([f, h], [one(f), one(h)], [x], False)[x]) == 3.0
    assert number(gradients([x], [one(x)], [x], False)[x]) == 1.0


def test_third_derivative() -> None:
    x = leaf(0.7)
    f = ops.sin(x)
    for _ in range(3):
        f = gradients([f], [one(f)], [x], True)[x]
    np.testing.assert_allclose(number(f), -np.cos(np.float32(0.7)), rtol=1e-6)


def test_nothing_is_recorded_without_a_need() -> None:
    x = leaf(1.0)
    with grad_mode(False):
        assert not ops.neg(x).needs_grad
    assert ops.neg(leaf(1.0, False)).inputs == ()
    assert not apply(Op.CAST, (x,), dtype=d.int32).needs_grad
    f = ops.mul(x, x)
    assert not gradients([f], [one(f)], [x], False)[x].needs_grad
    assert gradients([f], [one(f)], [x], True)[x].needs_grad


def chain(n: int) -> tuple[Value, Value]:
    x = leaf([1.0, 2.0])
    y, c = x, leaf([1.0, 1.0], False)
    for _ in range(n):
        y = ops.mul(y, c)
    return x, y


def test_a_chain_of_20_000_nodes_needs_no_recursion() -> None:
    x, y = chain(20_000)
    dx = gradients([y], [one(y)], None, False)[x]
    assert len(g.toposort([dx.node], False)) > 20_000
    assert evaluate([dx.node])[0].tolist() == [1.0, 1.0]


def test_a_wide_sum_of_products_and_shared_subexpressions_take_linear_time() -> None:
    x = leaf(1.0)
    y = x
    for _ in range(60):  # 2**60 paths
        y = ops.add(y, y)
    assert number(gradients([y], [one(y)], [x], False)[x]) == 2.0**60
