"""Random programs by their basic plans, against the reference."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings

import weft
from weft.backends.registry import open_device
from weft.backends.storage import Storage
from weft.core.execute import run
from weft.ir.graph import Node
from weft.scheduler.assembly import Job
from weft.scheduler.basic.plan import basic
from weft.scheduler.realize import memory_on
from weft.scheduler.signature import signature, snapshot
from weft.testing.programs import GraphProgram, numpy_leaf
from weft.testing.reference import evaluate
from weft.testing.strategies import elementwise_programs, programs, reduction_programs, view_programs
from weft.testing.tolerance import allowed, difference

from .test_loops import random_step

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
KINDS = {
    "any": programs(),
    "elementwise": elementwise_programs(),
    "views": view_programs(),
    "reductions": reduction_programs(),
}
DEVICES = {"cpu:0": 25, "dummy:0": 10}


def computed(nodes: list[Node], device: str) -> list[Storage] | None:
    """The values by a basic plan; None where there is none."""
    sig, on = signature(nodes), open_device(device)
    own = snapshot(sig)
    made = basic(Job(own.outputs, own.leaves, sig.variables, {}), on)
    if made is None:
        return None
    plan = made.plan(on)[0].plan({})
    return plan.run([memory_on(n, s, on) for n, s in zip(sig.leaves, sig.storages, strict=True)])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_basic_plans_compute_what_the_reference_does(kind: str, device: str) -> None:
    @settings(
        max_examples=EXAMPLES or DEVICES[device], derandomize=not EXAMPLES, deadline=None,
        suppress_health_check=list(HealthCheck), print_blob=True,
    )  # fmt: skip
    @given(KINDS[kind])
    def compare(p: GraphProgram) -> None:
        note(repr(p))
        plain = p.build(numpy_leaf)
        want, bounds = evaluate(plain), allowed(plain)
        nodes = p.build(lambda a: run.from_numpy(a, device), {"home": device, "away": device})
        todo = [n for n in dict.fromkeys(nodes) if n.storage is None]
        if not todo or (found := computed(todo, device)) is None:
            return
        values = dict(zip(todo, found, strict=True))  # not in the nodes: constants are all graphs'
        for k, (node, w, bound) in enumerate(zip(nodes, want, bounds, strict=True)):
            storage = values.get(node, node.storage)
            assert storage is not None
            wrong = difference(storage.numpy(), w, bound)
            assert wrong is None, f"output {k}: {wrong}"

    compare()


def test_basic_plans_of_random_loops_compute_what_final_ones_do() -> None:
    rng = np.random.default_rng(EXAMPLES or 5)
    for _ in range(EXAMPLES or 20):
        weights = [weft.from_numpy(rng.uniform(-1, 1, s).astype(np.float32)) for s in ((4, 4), (4,))]
        start = [weft.from_numpy(rng.uniform(-1, 1, s).astype(np.float32)) for s in ((3, 4), (4,))]
        xs = weft.from_numpy(rng.uniform(-1, 1, (int(rng.integers(1, 6)), 3, 4)).astype(np.float32))
        given = [*weights, *start, xs]
        for t in given:
            t.requires_grad_()
        (a, b), ys = weft.scan(random_step(rng, weights), tuple(start), xs, reverse=bool(rng.integers(2)))
        loss = sum((t.square().sum() for t in (a, b, *ys)), weft.zeros(()))
        grads = [g for g in weft.autograd.grad(loss, given, allow_unused=True) if g is not None]
        todo = [t for t in (a, b, *ys, *grads) if t.value.node.storage is None]
        found = computed([t.value.node for t in todo], "cpu:0")
        assert found is not None
        for t, mine in zip(todo, found, strict=True):
            np.testing.assert_allclose(mine.numpy(), t.numpy(), rtol=2e-4, atol=2e-4)
