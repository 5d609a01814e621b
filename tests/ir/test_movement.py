"""Movement ops as index functions against the reference; over runtime sizes, indices pass through the axes that they
leave alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, settings

from weft.ir import dtypes, graph
from weft.ir.graph import Node, Padding
from weft.ir.index import InRange, Var
from weft.ir.index import evaluate as index_value
from weft.ir.movement import reshape_index, source
from weft.ir.ops import MOVEMENT, Op
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs

N, M = Var("n", 2, 256), Var("m", 2, 64)
I, J, K = Var("i", 0, 255), Var("j", 0, 255), Var("k", 0, 63)


def test_an_axis_of_one_element_comes_and_goes() -> None:
    assert reshape_index((0, I, J), (1, N, N), (N, N)) == (I, J)
    assert reshape_index((I, J), (N, N), (N, 1, N)) == (I, 0, J)


def test_indices_into_nothing_are_not_divided_by_its_size() -> None:
    shapes = [s for rank in (1, 2, 3) for s in itertools.product((0, 1, 3), repeat=rank) if 0 in s]
    for shape, to in itertools.product(shapes, repeat=2):
        assert reshape_index((I, J, K)[: len(shape)], shape, to) == (0,) * len(to)


def test_axes_that_merge_leave_those_beside_them_alone() -> None:
    assert reshape_index((I, J, K), (N, 4, M), (N * 4, M)) == (4 * I + J, K)
    assert reshape_index((I, K, J), (N, M, N), (N * M, N)) == (I * M + K, J)


def test_an_axis_that_is_not_padded_needs_no_guard() -> None:
    x = graph.buffer((N, 8), dtypes.float32, "cpu:0", None)
    padded = graph.apply(Op.PAD, (x,), Padding((0, 1), (0, 1), (0, 0), 0.0))
    found = source(padded, (I, K))
    assert found.index == (I, K - 1)
    assert [repr(c) for c in found.guard] == ["0 <= k - 1 < 8"]


@settings(max_examples=80, suppress_health_check=list(HealthCheck), deadline=None)
@given(programs(max_steps=5))
def test_index_functions_move_data_as_the_reference_does(p: GraphProgram) -> None:
    """`movement.source`, element by element, against the reference."""
    values = [numpy_leaf(a) for a in p.leaves]
    moved = 0
    for step in p.steps:
        values.append(step.apply(values))
        if step.op not in MOVEMENT or values[-1].op is not step.op:
            continue
        node = values[-1]
        x = np.arange(1, 1 + int(np.prod(node.inputs[0].shape)), dtype=np.int64).reshape(node.inputs[0].shape)
        attrs = Padding(*_padding(node)) if isinstance(node.attrs, Padding) else node.attrs
        same = graph.apply(node.op, (numpy_leaf(x),), attrs, node.shape)
        if same.op is not node.op:
            continue
        want = evaluate([same])[0]
        for at in itertools.islice(np.ndindex(*want.shape), 0, None, max(1, want.size // 50)):
            s = source(same, at)
            holds = all(_holds(c) for c in s.guard)
            got = x[tuple(index_value(i, {}) for i in s.index)] if holds else s.fill
            assert got == want[at]
        moved += 1
    assume(moved)


def _padding(node: Node) -> tuple[Any, ...]:
    assert isinstance(node.attrs, Padding)
    return node.attrs.low, node.attrs.high, node.attrs.interior, -7


def _holds(c: InRange) -> bool:
    value = index_value(c.value, {})
    return (c.lo is None or value >= index_value(c.lo, {})) and (
        c.hi is None or value < index_value(c.hi, {})
    )
