"""No pass changes what a program computes: random programs, interpreted before and after.

`make test` tries a few of each kind, `make fuzz` as many as WEFT_FUZZ_EXAMPLES says.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from weft.backends.dummy.interpreter import interpret
from weft.ir.loops import Program
from weft.ir.loops_text import show_program
from weft.ir.loops_verify import verify
from weft.ir.passes.barriers import place_barriers
from weft.ir.passes.fma import contract
from weft.ir.passes.pipeline import DEFAULT, Pass, run
from weft.testing.loop_programs import loop_inputs, loop_programs

PASSES = [step for step in dict.fromkeys(DEFAULT) if step is not contract]  # which changes roundings
NOTHING_TO_DO = {place_barriers}
"""Passes on loops of threads, of which random programs have none: `test_barriers.py`."""
# a failing program is small enough as it is, and shrinking it takes minutes
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
FEW = settings(
    max_examples=EXAMPLES or 80,
    derandomize=not EXAMPLES,
    deadline=None,
    phases=PHASES,
    suppress_health_check=list(HealthCheck),
)


def outcome(p: Program, arrays: dict[str, Any], variables: dict[str, int]) -> dict[str, Any]:
    own = {name: a.copy() for name, a in arrays.items()}
    interpret(p, own, variables)
    return own


def bits(a: Any) -> Any:
    """The bits of an array, all NaNs made one."""
    if a.dtype.kind == "f":
        a = np.where(np.isnan(a), np.array(np.nan, a.dtype), a)
    return a.view(np.uint8)


def check(p: Program, steps: list[Pass], arrays: dict[str, Any], variables: dict[str, int]) -> None:
    verify(p)
    after = run(p, steps, verify=True)
    expected, got = outcome(p, arrays, variables), outcome(after, arrays, variables)
    for name in arrays:
        same = np.array_equal(bits(expected[name]), bits(got[name]))
        assert same, (
            f"{name}: {expected[name]} became {got[name]}\n{show_program(p)}\n\n{show_program(after)}"
        )


@pytest.mark.parametrize("step", PASSES, ids=lambda f: f.__name__)
@FEW
@given(data=st.data())
def test_a_pass_keeps_the_meaning(step: Pass, data: st.DataObject) -> None:
    p = data.draw(loop_programs())
    check(p, [step], *data.draw(loop_inputs(p)))


@FEW
@given(data=st.data())
def test_the_pipeline_keeps_the_meaning(data: st.DataObject) -> None:
    p = data.draw(loop_programs())
    check(p, [f for f in DEFAULT if f is not contract], *data.draw(loop_inputs(p)))


@pytest.mark.parametrize("steps", [[contract], list(DEFAULT)], ids=["contract", "pipeline"])
@FEW
@given(data=st.data())
def test_contraction_keeps_exact_results(steps: list[Pass], data: st.DataObject) -> None:
    p = data.draw(loop_programs(exact=True))
    check(p, steps, *data.draw(loop_inputs(p, exact=True)))


def test_random_programs_have_what_each_pass_rewrites() -> None:
    """The tests above say nothing of one that leaves them all alone: let `weft.testing.loop_programs` draw its form."""
    rewritten: set[Pass] = set()

    @settings(FEW, max_examples=200, derandomize=True, database=None)
    @given(p=loop_programs())
    def look(p: Program) -> None:
        rewritten.update(step for step in DEFAULT if step not in rewritten and step(p) is not p)

    look()
    assert rewritten == {*DEFAULT} - NOTHING_TO_DO
