"""Stretches: what travels does so beside what is computed, and the simulator takes as long as was predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from heapq import heappop
from itertools import count
from random import Random
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends import registry
from weft.backends.dummy.device import DummyBackend
from weft.backends.dummy.farm import Farm
from weft.backends.links import Link
from weft.distributed import init_device_mesh
from weft.distributed.fsdp import fully_shard
from weft.distributed.tensor import Shard, distribute_module, distribute_tensor
from weft.scheduler.meshes import Search, searching
from weft.scheduler.parts import found, timing
from weft.scheduler.parts.cut import Compute
from weft.scheduler.parts.plan import PartsPlan
from weft.scheduler.parts.timing import Timed, begins, bound_ns, delayed
from weft.scheduler.signature import signature
from weft.testing import all_to_all

_NAMES = count()


@pytest.fixture
def made() -> Iterator[Callable[..., DummyBackend]]:
    """A function that registers a farm, links of so many bytes per second between any two devices."""
    names: list[str] = []

    def make(devices: int, rate: float, timing_only: bool = True) -> DummyBackend:
        names.append(f"stretch{next(_NAMES)}")
        topology = all_to_all(Link(2e-6, rate))
        backend = DummyBackend(
            Farm.of(devices, names[-1], topology=topology, timing_only=timing_only), names[-1]
        )
        registry.register(backend)
        return backend

    yield make
    for name in names:
        registry.unregister(name)


def on(device: str, *shape: int) -> weft.Tensor:
    return weft.zeros(*shape, device=device).contiguous().realize()


def plan_of(tensors: Sequence[weft.Tensor]) -> PartsPlan:
    return found.parts_plan(signature([t.value.node for t in tensors]))


def simulated(farm: DummyBackend, results: Callable[[], Sequence[weft.Tensor]]) -> tuple[float, PartsPlan]:
    """The time of computing the results, and their plan."""
    plan = plan_of(results())
    farm.clear()
    before = {d.info.name: d.used_bytes() for d in farm.devices}
    weft.realize(*results())
    for name, nbytes in farm.peak_bytes().items():
        assert nbytes - before[name] == plan.peak(name)
    return farm.makespan_ns, plan


def hidden(compute: float, moved: float, both: float, layers: int) -> float:
    """The part of what can be hidden that is: the first, or last, piece of the shorter one has nothing beside it."""
    least = max(compute, moved) + min(compute, moved) / layers
    return (compute + moved - both) / (compute + moved - least)


LAYERS, SIZE = 12, 128


def chain(x: weft.Tensor, ws: Sequence[weft.Tensor]) -> list[weft.Tensor]:
    for w in ws:
        x = (x @ w).relu()
    return [x]


def gradients(x: weft.Tensor, ws: Sequence[weft.Tensor], device: str) -> list[weft.Tensor]:
    params = [w.detach().requires_grad_() for w in ws]
    chain(x, params)[0].sum().backward()
    return [p.grad.to(device) for p in params if p.grad is not None]


def test_weights_arrive_beside_the_layers_before(made: Callable[..., DummyBackend]) -> None:
    """Communication takes as long as computation: at least 90 % of what can be hidden is."""
    farm = made(2, 1e15)
    here, there = farm.names
    x, ws = on(here, SIZE, SIZE), [on(here, SIZE, SIZE) for _ in range(LAYERS)]
    compute, _ = simulated(farm, lambda: chain(x, ws))
    farm = made(2, 4 * SIZE * SIZE * LAYERS / (compute / 1e9))
    here, there = farm.names
    x, ws = on(here, SIZE, SIZE), [on(there, SIZE, SIZE) for _ in range(LAYERS)]
    both, plan = simulated(farm, lambda: chain(x, [w.to(here) for w in ws]))
    assert hidden(compute, compute + 2000 * LAYERS, both, LAYERS) >= 0.9
    matrix = 4 * SIZE * SIZE
    # not all weights at once: some in advance, and what a layer gives
    assert plan.order.peak(here) <= 7 * matrix
    assert plan.order.ns == pytest.approx(both, rel=0.02)


def test_gradients_leave_beside_the_layers_below(made: Callable[..., DummyBackend]) -> None:
    farm = made(2, 1e15)
    here, there = farm.names
    x, ws = on(here, SIZE, SIZE), [on(here, SIZE, SIZE) for _ in range(LAYERS)]
    compute, _ = simulated(farm, lambda: gradients(x, ws, here))
    backward = compute * 2 / 3
    farm = made(2, 4 * SIZE * SIZE * LAYERS / (backward / 1e9))
    here, there = farm.names
    x, ws = on(here, SIZE, SIZE), [on(here, SIZE, SIZE) for _ in range(LAYERS)]
    both, plan = simulated(farm, lambda: gradients(x, ws, there))
    assert hidden(backward, backward + 2000 * LAYERS, both - compute / 3, LAYERS) >= 0.9
    assert plan.order.ns == pytest.approx(both, rel=0.02)


@pytest.mark.parametrize("kind", ["copies", "shards"])
@pytest.mark.parametrize("devices", [2, 4])
def test_a_training_step_takes_what_was_predicted_and_little_more_than_its_work(
    made: Callable[..., DummyBackend], kind: str, devices: int
) -> None:
    farm = made(devices, 1e9)
    mesh = init_device_mesh(farm.names, (devices,))
    layers = [layer for _ in range(6) for layer in (nn.Linear(128, 128, bias=False), nn.ReLU())]
    model = nn.Sequential(*layers)
    if kind == "shards":
        fully_shard(model, mesh=mesh)
    else:
        distribute_module(model, mesh)
    optimizer = weft.optim.SGD(model.parameters(), lr=0.01)
    x = distribute_tensor(weft.zeros(256 * devices, 128), mesh, [Shard(0)]).realize()

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        weft.realize(*model.parameters())

    step()
    farm.clear()
    step()
    busy = {span.resource: 0.0 for span in farm.timeline().spans}
    for span in farm.timeline().spans:
        busy[span.resource] += span.end_ns - span.begin_ns
    compute = max(ns for name, ns in busy.items() if name in farm.names)
    moved = max(ns for name, ns in busy.items() if "->" in name)
    last = 2 * 2 * 4 * 128 * 128 / devices  # ns: the last gradient has nothing to go beside, there and back
    assert farm.makespan_ns <= compute + last + 0.1 * moved + 60_000
    plan = next(p for p in reversed(found._found.values()) if set(p.devices) == set(farm.names))  # pyright: ignore[reportPrivateUsage]
    assert plan.order.ns == pytest.approx(farm.makespan_ns, rel=0.02)


def test_what_is_computed_in_stretches_is_what_one_device_computes(
    made: Callable[..., DummyBackend],
) -> None:
    """Slow links: every part is cut wherever it may be."""
    farm = made(3, 2e6, timing_only=False)
    a, b, c = farm.names
    rng = np.random.default_rng(0)
    data = [rng.integers(-2, 3, (16, 16)).astype(np.float32) for _ in range(5)]

    def results(first: str, second: str, third: str) -> list[weft.Tensor]:
        x, *ws = (weft.tensor(d, device=first) for d in data)
        moved = [w.to(second).to(first) * 2 for w in ws]
        params = [w.detach().requires_grad_() for w in moved]
        h = x
        for p in params:
            h = ((h @ p) % 5).relu() + p.sum(0)
        (h * h).sum().backward()
        grads = [p.grad for p in params if p.grad is not None]
        return [
            *(g.to(third) + 1 for g in grads),
            h.to(second).softmax(0),
            weft.cat([g.to(b) for g in grads]),
        ]

    got = results(a, b, c)
    stretches = [s for s in plan_of(got).order.steps if isinstance(s.work, Compute)]
    assert len(stretches) > 6
    weft.realize(*got)
    for g, want in zip(got, results("dummy:0", "dummy:0", "dummy:0"), strict=True):
        np.testing.assert_array_equal(g.numpy(), want.to("cpu").numpy())


def test_kernels_that_wait_for_what_arrives_later_come_later(made: Callable[..., DummyBackend]) -> None:
    """Of a sum over blocks, each device begins with its own."""
    farm = made(3, 1e8)
    xs = [on(d, 64, 64) for d in farm.names]
    w = on(farm.names[2], 64, 64)

    def result() -> list[weft.Tensor]:
        return [weft.cat([(x.to(farm.names[2]) @ w).exp() for x in xs]).relu()]

    plan = plan_of(result())
    first = next(s.work for s in plan.order.steps if isinstance(s.work, Compute))
    assert not any(v in first.reads for v in (s.work.results[0] for s in plan.order.exchanges))


def test_small_parts_are_left_whole() -> None:
    x, w = weft.ones(8, 8, device="dummy:0"), weft.ones(8, 8, device="dummy:1")
    y = ((x @ w.to("dummy:0")).exp() @ (w + 1).to("dummy:0")).to("dummy:1")
    assert sum(isinstance(s.work, Compute) for s in plan_of([y]).order.steps) == 2


@pytest.mark.parametrize("seed", range(20))
def test_no_order_beats_the_bound_and_resources_are_used_by_one_step_at_a_time(seed: int) -> None:
    rng = Random(seed)
    steps: list[Timed] = []
    for k in range(rng.randrange(1, 40)):
        after = tuple(sorted({rng.randrange(k) for _ in range(rng.randrange(3))})) if k else ()
        resources = tuple({rng.randrange(4) for _ in range(rng.randrange(1, 3))})
        steps.append(Timed(float(rng.randrange(10)), after, resources))
    soon = begins(steps)
    end = max(b + s.ns for b, s in zip(soon, steps, strict=True))
    late = delayed(steps, soon, [rng.random() < 0.5 for _ in steps])
    assert end >= bound_ns(steps) and all(a <= b for a, b in zip(soon, late, strict=True))
    assert max(b + s.ns for b, s in zip(late, steps, strict=True)) == end
    for at in (soon, late):
        for k, s in enumerate(steps):
            assert all(at[k] >= at[j] + steps[j].ns for j in s.after)
            for j in range(k):
                if set(s.resources) & set(steps[j].resources) and s.ns and steps[j].ns:
                    assert at[k] >= at[j] + steps[j].ns or at[j] >= at[k] + s.ns


def naive_order(steps: Sequence[Timed], priority: Sequence[float]) -> list[float]:
    """The rule in its plain form: of all steps whose inputs are there, the one that can start first, then by priority,
    then the one that waited longest."""
    found: dict[int, float] = {}
    free: dict[Hashable, float] = {}

    def key(k: int) -> tuple[float, float, float, int]:
        since = max([found[j] + steps[j].ns for j in steps[k].after], default=0.0)
        return max([since, *[free.get(r, 0.0) for r in steps[k].resources]]), priority[k], since, k

    while len(found) < len(steps):
        ready = [k for k, s in enumerate(steps) if k not in found and all(j in found for j in s.after)]
        start, _, _, k = min(map(key, ready))
        found[k] = start
        free.update(dict.fromkeys(steps[k].resources, start + steps[k].ns))
    return [found[k] for k in range(len(steps))]


@pytest.mark.parametrize("seed", range(200))
def test_steps_start_by_the_plain_rule_whatever_queues_they_wait_in(seed: int) -> None:
    rng = Random(seed)
    steps: list[Timed] = []
    for k in range(rng.randint(1, 25)):
        after = tuple(sorted(rng.sample(range(k), min(k, rng.choice((0, 0, 1, 2))))))
        resources = tuple(rng.sample(range(4), rng.randint(0, 3)))
        steps.append(Timed(float(rng.choice((0, 1, 1, 2, 5))), after, resources))
    priority = [rng.choice((0.0, 1.0, rng.random())) for _ in steps]
    assert timing._Shop(steps).build(priority) == naive_order(steps, priority)


def test_steps_that_wait_for_one_wire_are_not_looked_at_whenever_it_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pops = 0

    def counted(heap: list[Any]) -> Any:
        nonlocal pops
        pops += 1
        return heappop(heap)

    monkeypatch.setattr(timing, "heappop", counted)
    steps = [Timed(1.0, (), ("wire", k % 7)) for k in range(500)]
    timing._Shop(steps).build([0.0] * len(steps))
    assert pops <= 4 * len(steps)


def test_a_short_step_that_much_waits_for_goes_first() -> None:
    """By chains alone the long step would be first; then the wire would begin when all else is done."""
    steps = [Timed(10, (), ("d",)), Timed(10, (0,), ("d",)), Timed(1, (), ("d",)), Timed(15, (2,), ("wire",))]
    assert max(b + s.ns for b, s in zip(begins(steps), steps, strict=True)) == 21


def test_keys_and_values_go_around_a_ring_beside_the_blocks_before(made: Callable[..., DummyBackend]) -> None:
    """Nobody asks for it: attention along a sequence in blocks, which no device ever has whole."""
    devices, length, width = 8, 8192, 64
    farm = made(devices, 1e9)
    mesh = init_device_mesh(farm.names, (devices,))
    q, k, v = (
        distribute_tensor(weft.zeros(1, 1, length, width), mesh, [Shard(2)]).realize() for _ in range(3)
    )
    before = max(d.used_bytes() for d in farm.devices)
    with searching(Search(None)):
        farm.clear()
        nn.functional.scaled_dot_product_attention(q, k, v).realize()
    busy: Counter[str] = Counter()
    for span in farm.timeline().spans:
        busy[span.resource] += round(span.end_ns - span.begin_ns)
    moved = 2 * (devices - 1) / devices * length * width * 4 / 1e9 * 1e9
    assert sum(ns for name, ns in busy.items() if name.endswith(farm.names[0])) >= moved
    assert farm.makespan_ns <= 1.02 * max(busy[name] for name in farm.names)
    gathered = 2 * (devices - 1) * length // devices * width * 4
    assert max(farm.peak_bytes().values()) - before < 0.75 * gathered
