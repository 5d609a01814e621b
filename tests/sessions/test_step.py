"""Graphs of steps: boxes of sizes that are numbers, at starts that are runtime variables."""

from __future__ import annotations

import numpy as np

import weft
from weft.sessions.session import session

rng = np.random.default_rng(0)


def test_a_step_updates_what_is_kept_in_place_and_reads_boxes_only() -> None:
    w = weft.tensor(rng.standard_normal((16, 16)).astype(np.float32))
    x = weft.tensor(rng.standard_normal((64, 16)).astype(np.float32))
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
    from weft.scheduler import realize

    w = weft.tensor(rng.standard_normal((16, 16)).astype(np.float32))
    x = rng.standard_normal((64, 16)).astype(np.float32)
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
