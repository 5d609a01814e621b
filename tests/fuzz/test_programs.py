"""Random programs on the whole path - graph, kernels, plan, device - against the reference.

`make test` tries a few of each kind, `make fuzz` as many as WEFT_FUZZ_EXAMPLES says. A failure prints the program.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from weft.core.execute import run
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import elementwise_programs, programs, reduction_programs, view_programs
from weft.testing.tolerance import allowed, difference

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
LONG = EXAMPLES > 0

KINDS = {
    "any": programs(),
    "elementwise": elementwise_programs(),
    "views": view_programs(),
    "reductions": reduction_programs(),
}

DEVICES = {"cpu:0": 60, "dummy:0": 25}
"""Device -> examples of each kind in the short profile."""


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_programs_compute_what_the_reference_does(kind: str, device: str) -> None:
    away = "dummy:1" if device == "dummy:0" else "dummy:0"

    @settings(
        max_examples=EXAMPLES or DEVICES[device],
        derandomize=not LONG,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        print_blob=True,
    )
    @given(KINDS[kind])
    def compare(p: GraphProgram) -> None:
        note(repr(p))
        plain = p.build(numpy_leaf)
        want, bounds = evaluate(plain), allowed(plain)
        nodes = p.build(lambda a: run.from_numpy(a, device), {"home": device, "away": away})
        run.realize(nodes)
        for k, (node, w, bound) in enumerate(zip(nodes, want, bounds, strict=True)):
            wrong = difference(run.to_numpy(node), w, bound)
            assert wrong is None, f"output {k}: {wrong}"

    compare()


@pytest.mark.parametrize("device", DEVICES)
def test_plans_serve_other_values_of_the_same_structure(device: str) -> None:
    """A second program that differs in its leaves' values only runs the first one's plan."""

    @settings(
        max_examples=EXAMPLES or DEVICES[device],
        derandomize=not LONG,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(programs(max_steps=6), st.integers(0, 2**16))
    def compare(p: GraphProgram, seed: int) -> None:
        import numpy as np

        rng = np.random.default_rng(seed)
        shuffled = tuple(rng.permuted(a.ravel()).reshape(a.shape) if a.size else a for a in p.leaves)
        for leaves in (p.leaves, shuffled):
            q = GraphProgram(leaves, p.steps, p.outputs)
            note(repr(q))
            plain = q.build(numpy_leaf)
            nodes = q.build(lambda a: run.from_numpy(a, device), {"home": device, "away": device})
            run.realize(nodes)
            for node, w, bound in zip(nodes, evaluate(plain), allowed(plain), strict=True):
                assert difference(run.to_numpy(node), w, bound) is None

    compare()
