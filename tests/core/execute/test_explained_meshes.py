"""Explanations of work over devices: each exchange with its reason, its price, the alternative, and the line."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

import weft
from weft import nn
from weft.core.execute.explained_meshes import ExplainedPool, in_units, pool_lines, pools
from weft.core.execute.explanation import Explanation
from weft.distributed.tensor import Shard, distribute_tensor
from weft.testing import farm


def trained(rows: int = 256) -> tuple[Explanation, list[str]]:
    """The explanation of a compiled training step over all devices of a farm, and its lines that compute."""
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
    optimizer = weft.optim.SGD(model.parameters(), lr=0.1)

    def step(x: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f, x = weft.compile(step, devices="farm:*"), weft.ones(rows, 32).realize()
    while f.chosen is None:
        f(x)
    first = step.__code__.co_firstlineno
    return weft.explain(f, x), [f"{__file__}:{first + k}" for k in range(2, 5)]


@pytest.mark.parametrize("count", [4, 16])
def test_each_exchange_has_its_reason_price_alternative_and_line(count: int) -> None:
    with farm(count, flops=1e9, bandwidth=1e12), weft.device("farm:0"):
        found, lines = trained()
    assert found.collectives
    for c in found.collectives:
        assert c.copies > 0 and c.bytes > 0 and c.ns > 0 and "->" in c.link and c.pattern
        assert c.others and all(o.ns is not None for o in c.others), str(c)
        assert [o.ns for o in c.others] == sorted(o.ns or 0 for o in c.others)
        assert c.line is not None and c.line.startswith(__file__), str(c)
    assert {c.line for c in found.collectives} & set(lines)
    assert sum(c.bytes for c in found.collectives) == sum(e.bytes for e in found.exchanges)
    assert sum(c.copies for c in found.collectives) == len(found.exchanges)
    searched = [of for of in found.layouts if of.why.startswith("searched")]
    assert len(searched) > 5 and all(of.line in {*lines, searched[0].line} for of in searched)
    text = str(found)
    assert all(str(c) in text for c in found.collectives)
    patterns = {c.pattern for c in found.collectives}
    assert patterns & {"all-reduce", "reduce-scatter", "all-gather"}


@pytest.mark.parametrize("count", [4, 16])
def test_memory_is_that_of_a_run(count: int) -> None:
    with farm(count, flops=1e9, bandwidth=1e12), weft.device("farm:0"):
        found, _ = trained()
    assert [p.devices for p in found.pools] == [(f"farm:{k}",) for k in range(count)]
    assert all(p.has_scratch and p.bytes > 4 * 256 * 64 / count for p in found.pools)


@pytest.mark.parametrize("count", [4, 16])
def test_memory_is_what_the_devices_allocate(count: int) -> None:
    with farm(count, flops=1e9, bandwidth=1e12) as made, weft.device("farm:0"):
        mesh = weft.distributed.init_device_mesh(made.names, (count,))
        x = distribute_tensor(weft.arange(64.0 * count).reshape(8 * count, 8), mesh, [Shard(0)]).realize()

        def computed() -> weft.Tensor:
            return (x.T @ x).exp() @ x.T

        computed().realize()
        made.clear()
        before = {d.info.name: d.used_bytes() for d in made.devices}
        y = computed()
        found = weft.explain(y).pools
        y.realize()
        taken = {name: nbytes - before[name] for name, nbytes in made.peak_bytes().items()}
    assert {p.name: p.bytes for p in found} == taken


@pytest.mark.parametrize("count", [4, 16])
def test_the_predicted_timeline_has_each_lane_in_order(count: int) -> None:
    with farm(count, flops=1e9, bandwidth=1e12), weft.device("farm:0"):
        found, _ = trained()
    made = found.timeline
    assert made is not None and made.makespan_ns > 0
    for name in made.resources:
        spans = sorted((s.begin_ns, s.end_ns) for s in made.spans if s.resource == name)
        assert all(a[1] <= b[0] + 1e-6 for a, b in pairwise(spans)), name
    assert ET.fromstring(made.svg()).tag.endswith("svg")
    assert f"{made.makespan_ns / 1e3:,.1f} us predicted" in str(found)


@pytest.mark.parametrize("count", [4, 16])
def test_predicted_times_are_those_of_the_clock(count: int) -> None:
    with farm(count, flops=1e9, bandwidth=1e12) as made, weft.device("farm:0"):
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        f, x = weft.compile(lambda x: model(x), devices="farm:*"), weft.ones(512, 32).realize()
        ahead = weft.explain(model, x, devices="farm:*").timeline
        while f.chosen is None:
            f(x)
        f(x)
        found = weft.explain(f, x)
        made.clear()
        f(x)
        ran = made.timeline().makespan_ns
    assert found.timeline is not None and ahead is not None
    assert 0.5 < found.timeline.makespan_ns / ran < 1.1
    assert 0.3 < ahead.makespan_ns / ran < 1.1


def test_small_parts_take_their_start_at_least() -> None:
    x = weft.arange(16.0).reshape(4, 4).realize()
    found = weft.explain(lambda: x + 1, devices="dummy:*")
    assert found.timeline is not None and found.timeline.makespan_ns >= 1000


def test_lines_without_a_mesh_nobody_asked_for() -> None:
    found = weft.explain(weft.ones(4, 4) @ weft.ones(4, 4))
    assert found.collectives == () and found.pools == () and found.timeline is None


def test_pools_of_two_backends_with_one_name_are_two() -> None:
    with farm(2, "one", pools=["same"] * 2), farm(2, "two", pools=["same"] * 2):
        found = pools(["one:0", "two:0", "one:1"], lambda _: 100, True)
    assert [(p.devices, p.bytes) for p in found] == [(("one:0", "one:1"), 200), (("two:0",), 100)]


def test_memories_that_take_as_much_share_a_line() -> None:
    alike = [ExplainedPool(f"farm:{k}", (f"farm:{k}",), 1000, True) for k in range(5)]
    other = ExplainedPool("host", ("cpu:0", "opencl:0"), 2000, False)
    assert list(pool_lines([*alike, other])) == [
        "memories farm:0 ... farm:4, 5 of one device each: at most 1.0 kB at once",
        "memory host of cpu:0, opencl:0: at most 2.0 kB at once, and kernels' scratch",
    ]
    assert in_units(999, "B") == "999 B" and in_units(12_345_678, "B") == "12.3 MB"
