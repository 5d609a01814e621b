"""Gradients of random programs on the whole path against the reference: the graphs that backward passes are made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, note, settings

from weft.autograd.ops import full
from weft.autograd.reverse import gradients
from weft.autograd.value import Value, apply
from weft.core.execute import run
from weft.ir import dtypes
from weft.ir.graph import Node
from weft.ir.ops import Op
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import programs
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))


def gradient_nodes(p: GraphProgram, leaf: Callable[[Any], Node]) -> list[Node]:
    """The gradients, for every float leaf, of the sum of the last value."""
    values: list[Value] = []
    for a in p.leaves:
        node = leaf(a)
        values.append(Value(node, node.dtype.is_float))
    leaves = [v for v in values if v.needs_grad]
    for s in p.steps:
        if s.op in (Op.CONST, Op.RANGE):
            values.append(Value(s.apply([])))
        else:
            shape = s.shape
            values.append(apply(s.op, tuple(values[i] for i in s.inputs), s.attrs, shape, s.dtype))
    out = values[p.outputs[0]]
    if not out.needs_grad:
        return []
    found = gradients([out], [full(1, out.shape, out.dtype)], leaves, False)
    return [found[v].node for v in leaves if v in found]


@pytest.mark.parametrize("device", ["cpu:0"])
def test_gradients_compute_what_the_reference_does(device: str) -> None:
    @settings(
        max_examples=EXAMPLES or 60,
        derandomize=not EXAMPLES,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(programs(max_steps=7, allowed=(dtypes.float32, dtypes.float64, dtypes.int32, dtypes.bool_)))
    def compare(p: GraphProgram) -> None:
        assume(not any(s.op is Op.COPY for s in p.steps))
        note(repr(p))
        plain = gradient_nodes(p, numpy_leaf)
        assume(plain)
        want, bounds = evaluate(plain), allowed(plain)
        nodes = gradient_nodes(p, lambda a: run.from_numpy(a, device))
        run.realize(nodes)
        for node, w, bound in zip(nodes, want, bounds, strict=True):
            with np.errstate(all="ignore"):
                wrong = difference(run.to_numpy(node), w, bound)
            assert wrong is None, wrong

    compare()
