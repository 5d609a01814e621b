"""Graphs of steps: random nodes kept, random changes, wherever these begin."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from weft.ir import graph as g
from weft.ir.graph import toposort
from weft.sessions.step import Change, step_graph
from weft.testing.dependence import covered, leaf, moving, places, sizes, some_node, some_shape
from weft.testing.reference import evaluate

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
