"""Random legal schedules as machine code: whatever transforms apply, in any order, a backend has to be right."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from weft.backends.protocol import DeviceInfo
from weft.backends.registry import open_device
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.schedule import Kernel, initial
from weft.testing.kernelized import Launch, execute, on_device
from weft.testing.kernels import CASES
from weft.testing.programs import Program, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.schedules import Draw, picked_by, random_schedule
from weft.testing.strategies import programs, reduction_programs
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
KINDS = {"any": programs(max_steps=6), "reductions": reduction_programs()}


def few(count: int) -> settings:
    return settings(
        max_examples=EXAMPLES or count, derandomize=not EXAMPLES, deadline=None, print_blob=True,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip


def randomly(draw: Draw, steps: int) -> Launch:
    """Kernels with random schedules, on the CPU."""

    def scheduler(algorithm: Algorithm, info: DeviceInfo) -> Kernel:
        kernel = random_schedule(picked_by(draw), initial(algorithm), steps)
        note(f"{algorithm.name}: {', '.join(map(str, kernel.history))}")
        return kernel

    return on_device(open_device("cpu:0"), scheduler)


@pytest.mark.parametrize("name", CASES)
def test_kernels(name: str) -> None:
    @few(12)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        case = CASES[name]
        inputs = case.inputs(1)
        buffers: dict[str, Any] = {n: a.ravel() for n, a in inputs.items()}
        written = [p for p in case.algorithm.params if p.written]
        for p in written:
            buffers[p.name] = np.full(int(np.prod([int(n) for n in p.shape])), np.nan, np.float32)
        randomly(data.draw, 16)(case.algorithm, buffers, {})
        want = case.reference(inputs)
        for p in written:
            np.testing.assert_allclose(buffers[p.name], want[p.name].ravel(), rtol=2e-5, atol=2e-5)

    compare()


@pytest.mark.parametrize("kind", KINDS)
def test_programs(kind: str) -> None:
    @few(30)
    @given(KINDS[kind], st.data())
    def compare(p: Program, data: st.DataObject) -> None:
        note(repr(p))
        nodes = p.build(numpy_leaf)
        want, bounds = evaluate(nodes), allowed(nodes)
        for got, value, bound in zip(execute(nodes, None, randomly(data.draw, 8)), want, bounds, strict=True):
            assert difference(got, value, bound) is None

    compare()
