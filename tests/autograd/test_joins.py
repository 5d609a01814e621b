"""Sums of many gradients, of which some fill places of their own, and concatenations of many parts."""

from __future__ import annotations

import numpy as np
import pytest

from weft.autograd.joins import AT_ONCE, joined, total
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply
from weft.ir import graph
from weft.ir.dtypes import float64
from weft.ir.graph import Padding
from weft.ir.ops import Op
from weft.testing.programs import numpy_leaf
from weft.testing.reference import evaluate

SHAPE = (60, 3)


def leaf(shape: tuple[int, ...], rng: np.random.Generator, needs_grad: bool = False) -> Value:
    return Value(numpy_leaf(rng.integers(-9, 9, shape).astype(np.float64)), needs_grad)


def parts_of(rng: np.random.Generator, count: int) -> list[Value]:
    """Wholes, zeros, and what is padded to SHAPE: along one axis or two, with overlaps, gaps, other values, holes."""
    out: list[Value] = []
    for k in range(count):
        kind = int(rng.integers(0, 12)) if k else 0
        if kind < 2:
            out.append(leaf(SHAPE, rng) if kind else Value(graph.const(0, float64, SHAPE)))
            continue
        axis = int(kind == 2)
        size = int(rng.integers(1, (6, 3)[axis]))
        low = int(rng.integers(0, SHAPE[axis] - size + 1))
        inner = [*SHAPE]
        inner[axis] = size
        lows, highs = [0, 0], [0, 0]
        lows[axis], highs[axis] = low, SHAPE[axis] - size - low
        if kind == 3:
            inner[1], lows[1] = 2, 1
        interior = [0, 0]
        if kind == 4 and highs[0] >= size - 1:
            interior[0], highs[0] = 1, highs[0] - (size - 1)
        pad = Padding(tuple(lows), tuple(highs), tuple(interior), 1.0 if kind == 5 else 0.0)
        out.append(apply(Op.PAD, (leaf(tuple(inner), rng, bool(rng.integers(0, 2))),), pad))
    return out


@pytest.mark.parametrize("count", (1, 2, AT_ONCE - 1, AT_ONCE, 3 * AT_ONCE))
def test_totals(count: int) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        parts = parts_of(rng, count)
        whole = total(parts)
        weights = leaf(SHAPE, rng)
        inner = [p.inputs[0] for p in parts if p.needs_grad]
        slopes = gradients([whole], [weights], inner, False, False) if whole.needs_grad else {}
        found = [slopes[v].node for v in inner] if slopes else []
        plain = [
            gradients([p], [weights], [p.inputs[0]], False, False)[p.inputs[0]].node
            for p in parts
            if p.needs_grad
        ]
        got, *got_slopes = evaluate([whole.node, *found])
        np.testing.assert_array_equal(got, sum(evaluate([p.node for p in parts])), f"seed {seed}")
        assert len(found) == len(plain)
        for a, b in zip(got_slopes, evaluate(plain), strict=True):
            np.testing.assert_array_equal(a, b, f"seed {seed}")


@pytest.mark.parametrize("count", (1, 2, 2 * AT_ONCE, 2 * AT_ONCE + 1, 5 * AT_ONCE + 3))
def test_joins(count: int) -> None:
    rng = np.random.default_rng(count)
    for k in range(2):
        parts = [leaf((1 + n % 2, 2) if k == 0 else (2, 1 + n % 3), rng) for n in range(count)]
        (got,) = evaluate([joined(parts, k).node])
        np.testing.assert_array_equal(got, np.concatenate(evaluate([p.node for p in parts]), k))
