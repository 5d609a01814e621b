"""No legal schedule changes what a kernel computes.

`make test` tries a few of each kind, `make fuzz` as many as WEFT_FUZZ_EXAMPLES says."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import weft
from weft.backends.dummy.interpreter import interpret
from weft.ir.errors import IRError
from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Bind
from weft.ir.kernel.transforms.split import Split
from weft.ir.loops_verify import verify
from weft.scheduler.kernelize.kernels import kernelize
from weft.testing.kernels import CASES, Case
from weft.testing.schedules import picked_by, random_schedule, starts

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
STARTS = starts()


def outcome(kernel: Kernel, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What the interpreter computes for the lowered kernel."""
    program = lower(kernel)
    verify(program)
    buffers = {n: a.reshape(-1).copy() for n, a in inputs.items()}
    shapes = {}
    for p in kernel.algorithm.params:
        if p.written:
            shapes[p.name] = tuple(int(s) for s in p.shape)
            buffers[p.name] = np.full(int(np.prod(shapes[p.name])), np.nan, np.float32)
    interpret(program, buffers, {})
    return {n: buffers[n].reshape(s) for n, s in shapes.items()}


def check(kernel: Kernel, case: Case, seed: int) -> None:
    inputs = case.inputs(seed)
    for name, value in outcome(kernel, inputs).items():
        np.testing.assert_allclose(
            value, case.reference(inputs)[name], rtol=2e-5, atol=2e-5, err_msg=str(kernel.history)
        )


@pytest.mark.parametrize("name", CASES)
def test_initial_schedule(name: str) -> None:
    check(initial(CASES[name].algorithm), CASES[name], 0)


@pytest.mark.parametrize("name", STARTS)
@settings(max_examples=EXAMPLES or 60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_random_schedules(name: str, data: st.DataObject) -> None:
    case, start = STARTS[name]
    check(random_schedule(picked_by(data.draw), start, 16), case, 1)


def test_a_refusal_names_the_transform_the_kernel_and_the_reason() -> None:
    kernel = initial(CASES["matmul"].algorithm)
    with pytest.raises(
        IRError, match=r"split\(y, 2\) on kernel matmul: 2 does not divide the extent 7 of y: pad first"
    ):
        run(kernel, Split("y", 2))


def test_a_scatter_into_one_element_is_not_spread() -> None:
    """The place of its stores is 0 whatever the data says; only their guard tells that it comes from there."""
    total = weft.zeros(1).index_add(0, weft.tensor([0, 0, 0]), weft.tensor([1.0, 2.0, 3.0]))
    (spec,) = kernelize([total.value.node])
    kernel = initial(spec.algorithm)
    (loop,) = kernel.nests[spec.algorithm.items[-1].name].loops
    with pytest.raises(IRError, match="may store to the same element"):
        run(kernel, Bind(loop.var.name))
