"""Kernels under the empty schedule, that of the rules, and random legal ones: all compute the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from weft.ir.kernel.lower import lower
from weft.ir.kernel.schedule import Kernel, initial
from weft.scheduler.optimize.rules import schedule
from weft.testing.conformance.harness import Harness
from weft.testing.kernels import CASES, Case
from weft.testing.schedules import picked_by, random_schedule

AT_ONCE = 4


def check(harness: Harness, kernels: Sequence[Kernel], case: Case, seed: int) -> None:
    """Compile the kernels together, and compare each with what NumPy says."""
    inputs = case.inputs(seed)
    want = case.reference(inputs)
    flat = {name: a.reshape(-1) for name, a in inputs.items()}
    outs = {name: np.full(a.size, np.nan, np.float32) for name, a in want.items()}
    for run, kernel in zip(harness.compile([lower(k) for k in kernels]), kernels, strict=True):
        got = run.run({**flat, **outs})
        for name, expected in want.items():
            np.testing.assert_allclose(
                got[name].reshape(expected.shape), expected, rtol=2e-5, atol=2e-5, err_msg=str(kernel.history)
            )


@pytest.mark.parametrize("name", CASES)
def test_empty_schedule(harness: Harness, name: str) -> None:
    """Every value by itself, in order."""
    case = CASES[name]
    check(harness, [initial(case.algorithm)], case, 0)


@pytest.mark.parametrize("name", CASES)
def test_schedule_of_the_rules(harness: Harness, name: str) -> None:
    """The schedule that the rules make of the device's description."""
    case = CASES[name]
    check(harness, [schedule(case.algorithm, harness.device.info)], case, 1)


@pytest.mark.parametrize("name", CASES)
def test_random_schedules(harness: Harness, examples: Callable[[int], Any], name: str) -> None:
    """Any transforms that are legal, in any order."""
    case = CASES[name]

    @examples(5)
    @given(st.data())
    def compare(data: st.DataObject) -> None:
        kernels = [random_schedule(picked_by(data.draw), initial(case.algorithm), 16) for _ in range(AT_ONCE)]
        for k in kernels:
            note(str(k.history))
        check(harness, kernels, case, 2)

    compare()
