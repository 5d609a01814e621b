"""Graphs of steps: random nodes kept, random changes, wherever these begin."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import weft
from weft.ir import graph as g
from weft.ir.graph import toposort
from weft.scheduler import realize
from weft.sessions.session import session
from weft.sessions.step import Change, step_graph
from weft.testing.dependence import covered, leaf, moving, places, sizes, some_node, some_shape
from weft.testing.reference import evaluate

RNG = np.random.default_rng(0)

QUIET: dict[str, Any] = {"suppress_health_check": list(HealthCheck), "deadline": None}


@settings(max_examples=40, phases=(Phase.explicit, Phase.reuse, Phase.generate), **QUIET)
@given(st.randoms(use_true_random=False))
def test_a_step_reads_nothing_that_it_computes_and_writes_nothing_else(random: Random) -> None:
    """What a step computes is NaN before, the rest is from before the change: after it, all that is needed of it is as
    computed anew, and the rest as it was."""
    x = leaf(*some_shape(random))
    chain = [x]
    for _ in range(random.randint(2, 5)):
        chain.append(some_node(random, chain[-1]))
    order = toposort([chain[-1]], stop_at_storage=False)
    if x not in order:
        return
    kept = [n for n in order if n in chain[1:] and (n is chain[-1] or random.random() < 0.6)]
    old = {n: g.buffer(n.shape, n.dtype, "cpu:0", np.zeros(sizes(n))) for n in kept}
    changed, variables = moving(random, sizes(x))
    made = step_graph(Change.of(order, chain[-1:], kept, {x: changed}, {}), kept, old)
    for at in places(random, variables):
        env = made.starts.values(at)
        before = evaluate(kept)
        for n, value in zip(kept, before, strict=True):
            old[n].storage = np.where(covered(made.parts[n].computed.boxes, sizes(n), env), np.nan, value)
        x.storage = np.where(
            covered(changed.boxes, sizes(x), at), x.storage + random.randint(1, 9), x.storage
        )
        now = evaluate([made.new.get(n, old[n]) for n in kept], env)
        for n, value, was, wanted in zip(kept, now, before, evaluate(kept), strict=True):
            needed, done = (
                covered(r.boxes, sizes(n), env) for r in (made.parts[n].needed, made.parts[n].computed)
            )
            np.testing.assert_array_equal(value[needed], wanted[needed], err_msg=f"{n} {changed} {at}")
            np.testing.assert_array_equal(value[~done], was[~done], err_msg=f"{n} {changed} {at}")


def test_a_step_updates_what_is_kept_in_place_and_reads_boxes_only() -> None:
    w = weft.tensor(RNG.standard_normal((16, 16)).astype(np.float32))
    x = weft.tensor(RNG.standard_normal((64, 16)).astype(np.float32))
    s = session(lambda x: ((x @ w).relu() @ w).softmax(-1))
    s(x)
    for t in (3, 40):
        x[t] = 1.0
        s(x)
    (form,) = s._forms.values()
    (step,) = form.steps.values()
    plan = step.run.plan
    assert [v.name for v in plan.variables] == ["at0"]
    assert all(o.replaces is not None for o in plan.outputs)
    assert all(
        done.computed.boxes[0][0].hi - done.computed.boxes[0][0].lo == 1 for done in step.graph.parts.values()
    )


def test_a_step_makes_no_node_and_no_plan_when_it_comes_again() -> None:
    w = weft.tensor(RNG.standard_normal((16, 16)).astype(np.float32))
    x = RNG.standard_normal((64, 16)).astype(np.float32)
    s = session(lambda x: (x @ w).tanh())
    s(x)
    for t in range(4):
        x[t] = t
        s(x)
    (form,) = s._forms.values()
    plans, steps = len(realize._plans), len(form.steps)
    for t in range(4, 20):
        x[t] = t
        s(x)
    assert len(realize._plans) == plans and len(form.steps) == steps == 1


def test_values_of_one_graph_that_become_one_node_keep_memories_of_their_own() -> None:
    s, x = session(lambda x: (x * 1, x + 0, -x, -x)), weft.tensor([1.0, 2.0, 3.0])
    s(x)
    for k in range(3):
        x[:] = float(k)
        found = s(x)
        x[1] = 7.0
        again = s(x)
        assert [y.tolist() for y in found] == [[k] * 3, [k] * 3, [-k] * 3, [-k] * 3]
        assert [y.tolist() for y in again] == [[k, 7, k], [k, 7, k], [-k, -7, -k], [-k, -7, -k]]
