"""The verifier of plans of parts refuses every plan in which one wait, one record or one place is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.scheduler.parts.programs import program
from weft.ir.errors import IRError
from weft.scheduler.parts.found import steps_of
from weft.scheduler.parts.order import Ordered
from weft.scheduler.parts.verify import verify_parts
from weft.scheduler.signature import signature

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
