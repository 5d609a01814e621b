"""Every op of the graph on every dtype, and random graphs: through the kernelizer, the rules and the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note

import weft
from weft.core.execute import run
from weft.ir import dtypes, graph
from weft.ir.dtypes import DTYPES, DType, Kind, to_numpy
from weft.ir.graph import Along, Axes, Box, Node, Padding, ScatterCombine, Window
from weft.ir.loop_body import LoopNode, Part, normal
from weft.ir.ops import ELEMENTWISE, LEAVES, MOVEMENT, REDUCE, Op
from weft.testing.conformance.harness import Array, Harness
from weft.testing.programs import GraphProgram, LeafMaker, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import elementwise_programs, programs, reduction_programs, view_programs
from weft.testing.tolerance import allowed, difference

TESTED = (
    MOVEMENT
    | REDUCE
    | {Op.GATHER, Op.SCATTER, Op.CONCAT, Op.UPDATE, Op.CONTIGUOUS, Op.RANGE, Op.CONST, Op.LOOP}
)
"""Elementwise ops are in test_ops."""

assert set(Op) == {*TESTED, *ELEMENTWISE, *LEAVES, Op.COPY, Op.CALL}


def every_op(leaf: LeafMaker, d: DType, x: Array, y: Array, at: Array) -> list[Node]:
    """One node of each op (several where it has variants), on x: [5, 7], y: [2, 3] and indices at: [4, 7]."""
    a, b, i = leaf(x), leaf(y), leaf(at)

    def op(op: Op, inputs: Sequence[Node], attrs: Any = None, shape: Any = None) -> Node:
        return graph.apply(op, tuple(inputs), attrs, shape)

    fill = True if d.kind is Kind.BOOL else 1
    out = [
        op(Op.RESHAPE, [a], None, (7, 5)),
        op(Op.PERMUTE, [a], Axes((1, 0))),
        op(Op.EXPAND, [op(Op.RESHAPE, [a], None, (5, 1, 7))], None, (5, 3, 7)),
        op(Op.PAD, [a], Padding((1, 0), (0, 2), (0, 1), fill)),
        op(Op.SHRINK, [a], Box((1, 0), (2, 3)), (2, 2)),
        op(Op.FLIP, [a], Axes((0, 1))),
        op(Op.SHEAR, [op(Op.EXPAND, [op(Op.RESHAPE, [a], None, (35, 1))], None, (35, 3))], Window(0, 1, 2, 2), (16, 3)),
        op(Op.UNSHEAR, [a], Window(0, 1, 2, 1), (16, 7)),
        op(Op.GATHER, [a, i], Along(0)),
        op(Op.SCATTER, [a, i, op(Op.GATHER, [a, i], Along(0))], ScatterCombine(0, None)),
        op(Op.CONCAT, [a, op(Op.FLIP, [a], Axes((1,)))], Along(0)),
        op(Op.UPDATE, [a, b], Box((0, 1), (3, 2))),
        op(Op.CONTIGUOUS, [op(Op.PERMUTE, [a], Axes((1, 0)))]),
        graph.const(fill, d, (3, 2)),
    ]  # fmt: skip
    out += loops(a, b)
    axes = ((0,), (1,), (0, 1))
    out += [op(r, [a], Axes(k)) for r in (Op.REDUCE_MAX, Op.REDUCE_MIN) for k in axes]
    if d.kind is not Kind.BOOL:
        out += [op(r, [a], Axes(k)) for r in (Op.SUM, Op.PROD) for k in axes]
        moved = op(Op.GATHER, [a, i], Along(0))
        out += [op(Op.SCATTER, [a, i, moved], ScatterCombine(0, c)) for c in (Op.ADD, Op.MUL, Op.MAX, Op.MIN)]
        out.append(graph.arange(9, d))
    return out


def loops(a: Node, b: Node) -> list[Node]:
    """Running maxima of the rows of a: [5, 7], from one of them on, with the smallest of each row and b: [2, 3]."""
    row = graph.apply(Op.RESHAPE, (graph.apply(Op.SHRINK, (a,), Box((2, 0), (1, 1)), (1, 7)),), shape=(7,))
    out: list[Node] = []
    for reverse in (False, True):
        carry, part = (graph.buffer((7,), a.dtype, a.device, None) for _ in range(2))
        after = graph.apply(Op.FLIP, (graph.apply(Op.MAX, (carry, part)),), Axes((0,)))
        low = graph.apply(Op.MIN, (part, carry))
        least = graph.apply(Op.REDUCE_MIN, (low,), Axes((0,)))
        body, inputs = normal([carry], [part], [after], [least, b, after], [row, a], 5, reverse)
        wanted = ((Part.FINAL, 0), (Part.HISTORY, 0), (Part.STACK, 0), (Part.STACK, 1), (Part.STACK, 2))
        some = wanted if reverse else ((Part.FINAL, 0), (Part.STACK, 0))
        out += [graph.apply(Op.LOOP, inputs, LoopNode(body, part, k)) for part, k in some]
    return out


@pytest.mark.parametrize("name", DTYPES)
def test_every_op(harness: Harness, name: str) -> None:
    """One plan with all of them; dtypes that the device lacks are refused, which test_copies looks at."""
    d, info = DTYPES[name], harness.device.info
    if d not in info.dtypes:
        return
    rng = np.random.default_rng(7)
    low = -3 if d.kind in (Kind.INT, Kind.FLOAT) else 0
    x, y = (rng.integers(low, 4, s).astype(to_numpy(d)) for s in ((5, 7), (2, 3)))
    at = rng.integers(-1, 6, (4, 7)).astype(np.int32)
    compare(lambda leaf: every_op(leaf, d, x, y, at), info.name)


def compare(build: Callable[[LeafMaker], list[Node]], device: str) -> None:
    """Compare what the device computes with the reference."""
    plain = build(numpy_leaf)
    want, bounds = evaluate(plain), allowed(plain)
    nodes = build(lambda a: run.from_numpy(a, device))
    with_device(nodes, device)
    for k, (node, w, bound) in enumerate(zip(nodes, want, bounds, strict=True)):
        wrong = difference(run.to_numpy(node), w, bound)
        assert wrong is None, f"output {k}, {plain[k].op.symbol}: {wrong}"


def with_device(nodes: Sequence[Node], device: str) -> None:
    """Realize; what has no device of its own is computed on this one."""
    with weft.device(device):
        run.realize(nodes)


KINDS = {
    "any": (programs, 12),
    "elementwise": (elementwise_programs, 8),
    "views": (view_programs, 8),
    "reductions": (reduction_programs, 8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_graphs(harness: Harness, examples: Callable[[int], Any], kind: str) -> None:
    """Random programs of all ops over the dtypes that the device has."""
    strategy, count = KINDS[kind]
    info = harness.device.info
    usable = [d for d in DTYPES.values() if d in info.dtypes]
    away = "dummy:0" if info.kind != "dummy" else "cpu:0"

    @examples(count)
    @given(strategy(allowed=usable))
    def check(p: GraphProgram) -> None:
        note(repr(p))
        compare(lambda leaf: p.build(leaf, {"home": info.name, "away": away}), info.name)

    check()


def test_a_sum_of_many(harness: Harness) -> None:
    """A million terms: no worse than pairwise summation, within a factor."""
    x = np.random.default_rng(0).random(1_000_003, np.float32)
    node = graph.apply(Op.SUM, (run.from_numpy(x, harness.device.info.name),), Axes((0,)))
    run.realize([node])
    exact = float(x.astype(np.float64).sum())
    assert abs(float(run.to_numpy(node)) - exact) <= 2e-6 * exact


def test_a_constant_is_computed_here(harness: Harness) -> None:
    """A node without inputs has no device: it is at home on this one, too."""
    node = graph.apply(Op.ADD, (graph.arange(5, dtypes.int32), graph.const(2, dtypes.int32, (5,))))
    with_device([node], harness.device.info.name)
    assert run.to_numpy(node).tolist() == [2, 3, 4, 5, 6]
