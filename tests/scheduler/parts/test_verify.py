"""The verifier of plans of parts refuses every plan in which one wait, one record or one place is wrong."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, permutations
from random import Random

import pytest

from tests.scheduler.parts.programs import program
from weft.ir.calls import expand_calls
from weft.ir.errors import IRError
from weft.ir.graph import intern
from weft.scheduler.parts.cut import Compute, Cut, Exchange
from weft.scheduler.parts.found import steps_of
from weft.scheduler.parts.order import Ordered
from weft.scheduler.parts.proof import prove
from weft.scheduler.parts.verify import verify_parts
from weft.scheduler.signature import Snapshot, signature, snapshot

EXAMPLES = int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0"))
FARMS = (("dummy:0", "dummy:1", "dummy:2"), ("cpu:0", "dummy:0", "dummy:1"))


def planned(seed: int, devices: tuple[str, ...]) -> tuple[Ordered, dict[str, str]]:
    nodes = [t.value.node for t in program(seed, devices)]
    order, found = steps_of(signature([n for n in dict.fromkeys(nodes) if n.storage is None]))
    return order, {name: d.info.kind for name, d in found.items()}


def broken(o: Ordered) -> Iterator[tuple[str, Ordered]]:
    """The plan with one thing wrong, in every way."""
    for k, s in enumerate(o.steps):
        for name in ("waits", "host_waits"):
            for n in getattr(s, name):
                left = tuple([w for w in getattr(s, name) if w != n])
                step = replace(s, **{name: left})
                yield (
                    f"step {k} without waiting for {n}",
                    replace(o, steps=(*o.steps[:k], step, *o.steps[k + 1 :])),
                )
        if s.records:
            step = replace(s, records=False)
            yield f"step {k} records nothing", replace(o, steps=(*o.steps[:k], step, *o.steps[k + 1 :]))
        if s.work.reads and k and any(v in p.work.results for p in o.steps[:k] for v in s.work.reads):
            yield f"step {k} first", replace(o, steps=(s, *o.steps[:k], *o.steps[k + 1 :]))
    for n, end in enumerate(o.ends):
        yield f"without the end {end}", replace(o, ends=(*o.ends[:n], *o.ends[n + 1 :]))
    for v, slot in enumerate(o.slot):
        if slot is not None:
            yield f"value {v} without memory", replace(o, slot=(*o.slot[:v], None, *o.slot[v + 1 :]))
            for other, s in enumerate(o.slots):
                if s.device != o.slots[slot].device:
                    wrong = replace(o, slot=(*o.slot[:v], other, *o.slot[v + 1 :]))
                    yield f"value {v} on {s.device}", wrong
                    break


@pytest.mark.parametrize("devices", FARMS)
def test_every_plan_with_a_fault_is_refused(devices: tuple[str, ...]) -> None:
    seen = 0
    for seed in range(25):
        order, kinds = planned(seed, devices)
        verify_parts(order, kinds)
        for what, wrong in broken(order):
            seen += 1
            with pytest.raises(IRError):
                verify_parts(wrong, kinds)
                pytest.fail(f"seed {seed}: {what} is not noticed")
    assert seen > 200


def test_values_that_live_at_once_may_not_share_memory() -> None:
    seen = 0
    for seed in range(25):
        order, kinds = planned(seed, FARMS[0])
        for step in order.steps:
            slots = [
                order.slot[v] for v in (*step.work.reads, *step.work.results) if order.slot[v] is not None
            ]
            for a, b in pairwise(slots):
                if order.slots[a].device == order.slots[b].device:  # type: ignore[index]
                    wrong = replace(order, slot=tuple([a if s == b else s for s in order.slot]))
                    seen += 1
                    with pytest.raises(IRError):
                        verify_parts(wrong, kinds)
    assert seen > 10


def cut_of(seed: int, devices: tuple[str, ...]) -> tuple[Ordered, dict[str, str], Snapshot]:
    """A plan, and the graph that it is of. Its steps read leaves by their number, so any leaves will do."""
    nodes = [t.value.node for t in program(seed, devices)]
    sig = signature([n for n in dict.fromkeys(nodes) if n.storage is None])
    order, found = steps_of(sig)
    own = snapshot(sig)
    graph = Snapshot(tuple(expand_calls(own.outputs)), own.leaves)
    return order, {name: d.info.kind for name, d in found.items()}, graph


def miscut(c: Cut) -> Iterator[tuple[str, Cut]]:
    """The steps with one thing wrong: a box, a term, a value in the place of another one, a step or a result."""

    def with_step(k: int, step: Compute | Exchange) -> Cut:
        return replace(c, steps=(*c.steps[:k], step, *c.steps[k + 1 :]))

    copies = {v for s in c.steps if isinstance(s, Exchange) for v in (s.source, s.target)}
    for k, s in enumerate(c.steps):
        if isinstance(s, Exchange):
            if s.box is not None:
                for axis, (start, n) in enumerate(zip(s.box.start, s.shape, strict=True)):
                    for by in (-1, 1):
                        at = start + by
                        if at >= 0 and at + (s.size[axis] - 1) * s.box.step[axis] < n:  # type: ignore[operator]
                            moved = (*s.box.start[:axis], at, *s.box.start[axis + 1 :])
                            yield (
                                f"box of step {k}",
                                with_step(k, replace(s, box=replace(s.box, start=moved))),
                            )
            for v, value in enumerate(c.values):
                same = (value.shape, value.dtype) == (c.values[s.source].shape, c.values[s.source].dtype)
                if same and v not in copies:
                    yield f"source of step {k}", with_step(k, replace(s, source=v))
            continue
        for (a, x), (b, y) in permutations(s.inputs.items(), 2):
            if a.shape == b.shape:
                yield f"{y} for {x} in step {k}", with_step(k, replace(s, inputs={**s.inputs, a: y}))
        for j, n in enumerate(s.nodes):
            if len(n.inputs) == 2 and n.inputs[0] is not n.inputs[1]:
                a, b = n.inputs
                if a.shape == b.shape and a.device and b.device:
                    twice = intern(n.op, (a, a), n.attrs, n.shape, n.dtype, n.device)
                    nodes = (*s.nodes[:j], twice, *s.nodes[j + 1 :])
                    yield f"a term twice in step {k}", with_step(k, replace(s, nodes=nodes))
        if len(s.results) > 1:
            yield f"results of step {k}", with_step(k, replace(s, results=s.results[::-1]))
    for k in range(len(c.steps)):
        yield f"without step {k}", replace(c, steps=(*c.steps[:k], *c.steps[k + 1 :]))
    for (i, a), (j, b) in permutations(enumerate(c.outputs), 2):
        if a != b:
            yield f"result {j} for {i}", replace(c, outputs=(*c.outputs[:i], b, *c.outputs[i + 1 :]))


@pytest.mark.parametrize("seeds", [range(20), range(20, 250)], ids=["first", "others"])
def test_graphs_are_proved_and_each_with_a_fault_is_refused(seeds: range) -> None:
    """One fault in each plan, drawn from all that there may be, in what is computed or in what waits for what."""
    caught = 0
    for seed in range(EXAMPLES) if EXAMPLES else seeds:
        for devices in FARMS:
            order, kinds, graph = cut_of(seed, devices)
            verify_parts(order, kinds)
            prove(order.cut, graph.outputs, graph.leaves)
            faults = [(what, None, wrong) for what, wrong in miscut(order.cut)]
            faults += [(what, wrong, order.cut) for what, wrong in broken(order)]
            what, plan, steps = Random(seed).choice(faults)
            with pytest.raises(IRError):
                prove(steps, graph.outputs, graph.leaves)
                verify_parts(order if plan is None else plan, kinds)
                pytest.fail(f"seed {seed}: {what} is not noticed")
            caught += 1
    assert EXAMPLES or caught == len(seeds) * len(FARMS)


def test_every_step_that_computes_something_else_is_refused() -> None:
    seen = 0
    for seed in range(12):
        order, _, graph = cut_of(seed, FARMS[0])
        for what, wrong in miscut(order.cut):
            seen += 1
            with pytest.raises(IRError):
                prove(wrong, graph.outputs, graph.leaves)
                pytest.fail(f"seed {seed}: {what} is not noticed")
    assert seen > 200
