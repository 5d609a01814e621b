"""Plans that all devices share, run on simulated ones: values, waits, memory and faults."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends import registry
from weft.backends.dummy import device as dummy
from weft.backends.dummy.faults import Faults
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.fsdp import fully_shard
from weft.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from weft.scheduler import meshes
from weft.scheduler.mesh_plans import SharedPlan
from weft.scheduler.parts.cut import Compute
from weft.scheduler.parts.plan import PartsPlan
from weft.scheduler.spmd.order import START, Wait
from weft.scheduler.spmd.plan import AlikePlan

R, S0, S1 = Replicate(), Shard(0), Shard(1)


@pytest.fixture
def farm(monkeypatch: pytest.MonkeyPatch) -> Iterator[dummy.DummyBackend]:
    monkeypatch.setattr(meshes, "SHARED_FROM", 2)
    backend = dummy.DummyBackend([dummy.describe(k, "farm") for k in range(8)], "farm")
    registry.register(backend)
    yield backend
    registry.unregister("farm")


def whole(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def last_plan() -> SharedPlan:
    plan = list(meshes._templates.values())[-1].plan
    assert isinstance(plan, SharedPlan)
    return plan


@pytest.mark.parametrize("ways", [[S0, S1], [S0, S0], [R, S0], [S1, R]])
def test_values_are_those_of_one_device(farm: dummy.DummyBackend, ways: list[Any]) -> None:
    mesh, a = init_device_mesh("farm", (2, 4)), whole(0, 16, 8)
    x = distribute_tensor(weft.tensor(a), mesh, ways).realize()
    for got, want in (
        (x.T @ x, a.T @ a),
        (x @ x.T, a @ a.T),
        ((x @ x.T)[1:5].sum(0), (a @ a.T)[1:5].sum(0)),
        (x.flip(0) + x.reshape(8, 16).T, a[::-1] + a.reshape(8, 16).T),
        (x.sum(), a.sum()),
    ):
        np.testing.assert_array_equal(got.numpy(), want)
    assert isinstance(last_plan(), SharedPlan)


def trained(mesh: DeviceMesh | None, sharded: bool) -> list[np.ndarray[Any, Any]]:
    weft.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
    if mesh is not None:
        fully_shard(model, mesh=mesh) if sharded else distribute_module(model, mesh)
    optimizer = weft.optim.Adam(model.parameters(), lr=0.01)

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    found: list[np.ndarray[Any, Any]] = []
    for k in range(4):
        batch = weft.tensor(np.random.default_rng(k).integers(0, 16, (16,)))
        if mesh is not None:
            batch = distribute_tensor(batch, mesh, [S0])
        found.append(step(batch).numpy())
    return [*found, *(p.numpy() for p in model.parameters())]


@pytest.mark.parametrize("sharded", [False, True])
def test_training_is_that_of_one_device(farm: dummy.DummyBackend, sharded: bool) -> None:
    want = trained(None, sharded)
    for n in (2, 8):
        for a, b in zip(trained(init_device_mesh("farm", (n,)), sharded), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        assert last_plan().plan.order.steps


def test_bits_are_those_of_one_device_in_the_mode_same(farm: dummy.DummyBackend) -> None:
    with weft.numerics("same"):
        want = trained(None, True)
        for n in (2, 4, 8):
            for a, b in zip(trained(init_device_mesh("farm", (n,)), True), want, strict=True):
                np.testing.assert_array_equal(a, b)


def test_equal_parts_have_one_plan_and_moves_wait_for_their_group(farm: dummy.DummyBackend) -> None:
    mesh = init_device_mesh("farm", (2, 4))
    x = distribute_tensor(weft.tensor(whole(0, 16, 64)), mesh, [S0, S1]).realize()
    y = x.sum(1)
    (y * y.sum()).realize()
    order = last_plan().plan.order
    part, move = order.steps[:2]
    assert isinstance(part.work, Compute) and part.waits == ()
    assert move.queue == 1 and set(move.waits) == {Wait(0, frozenset({1}))}
    assert set(order.ends) == {
        Wait(5, frozenset({0})),
        Wait(3, frozenset({1})),
    }  # who reads this device's memory
    x.redistribute(placements=[R, S1]).realize()
    (move,) = last_plan().plan.order.steps
    assert move.waits == (Wait(START, frozenset({0})),)


def test_memory_is_shared_by_what_comes_one_after_the_other(farm: dummy.DummyBackend) -> None:
    mesh = init_device_mesh("farm", (4,))
    x = distribute_tensor(weft.tensor(whole(0, 64, 64)), mesh, [S0]).realize()
    for _ in range(6):
        x = x.redistribute(placements=[S1]) * 2
        x = x.redistribute(placements=[S0]) + 1
    np.testing.assert_array_equal(x.numpy(), whole(0, 64, 64) * 64 + 63)
    order = last_plan().plan.order
    assert len(order.steps) == 23 and len(order.slots) < 8
    assert order.peak == sum(order.slots)


def test_a_device_that_fails_is_named_with_its_step(farm: dummy.DummyBackend) -> None:
    mesh = init_device_mesh("farm", (4,))
    x = distribute_tensor(weft.tensor(whole(0, 8, 8)), mesh, [S0]).realize()
    farm.devices[2].faults = Faults(launches=frozenset({0}))
    with pytest.raises(weft.DeviceError, match=r"step 2 of 2 on farm:2 \(add\).* step 4"):
        (x.exp().redistribute(placements=[R]) + 1).realize()
    farm.devices[2].faults = Faults()
    np.testing.assert_array_equal((x + 1).numpy(), whole(0, 8, 8) + 1)


def test_memory_that_is_not_there_is_refused_by_name(farm: dummy.DummyBackend) -> None:
    mesh = init_device_mesh("farm", (2,))
    x = distribute_tensor(weft.tensor(whole(0, 64, 64)), mesh, [S0]).realize()
    farm.devices[1].set_memory_limit(1 << 14)
    with pytest.raises(weft.MemoryPlanError, match=r"takes .* bytes on farm:1, .*Largest: 16,384"):
        (x.redistribute(placements=[R]) @ x.T).realize()


def test_parts_keep_within_the_limit_of_a_device(farm: dummy.DummyBackend) -> None:
    mesh = init_device_mesh("farm", (4,))
    leaf = distribute_tensor(weft.tensor(whole(0, 128, 32)), mesh, [S0]).realize()
    w = distribute_tensor(weft.tensor(whole(1, 32, 32)), mesh, [R]).realize()

    def run() -> weft.Tensor:
        a = b = (leaf @ w).contiguous()
        for _ in range(5):
            b = (b @ w).contiguous()
        return (a + b.tanh()) * 2.0

    pool = farm.devices[1].pool
    want, used = run().numpy(), farm.devices[1].used_bytes()
    assert pool.peak_bytes > used + 3 * 4096
    before, pool.peak_bytes = last_plan(), used
    with weft.memory_limit(used + 3 * 4096, "farm:1"):
        np.testing.assert_array_equal(run().numpy(), want)
    assert last_plan() is before and pool.peak_bytes <= used + 3 * 4096


def test_farms_registered_anew_get_plans_of_their_own(farm: dummy.DummyBackend) -> None:
    def result() -> np.ndarray[Any, Any]:
        mesh = init_device_mesh("farm", (2,))
        return (distribute_tensor(weft.tensor(whole(0, 6)), mesh, [S0]).sum() + 1).numpy()

    first = result()
    registry.register(dummy.DummyBackend([dummy.describe(k, "farm") for k in range(8)], "farm"))
    np.testing.assert_array_equal(result(), first)


def test_what_is_explained_is_what_is_copied(
    farm: dummy.DummyBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh = init_device_mesh("farm", (2, 2))
    x = distribute_tensor(weft.tensor(whole(0, 8, 8)), mesh, [S0, S1]).realize()
    found = weft.explain(x @ x)
    assert found.exchanges and "all 4 devices" not in str(found.exchanges)
    assert "each of the 4 devices of mesh:" in str(found)
    ran: list[tuple[str, str, int]] = []
    plain = dummy.DummyDevice.copy_box

    def noted(self: Any, memory: Any, origin: Any, source: Any, copy: Any, queue: int = 0) -> bool:
        if origin is not self:
            ran.append((origin.info.name, self.info.name, copy.nbytes))
        return plain(self, memory, origin, source, copy, queue)

    monkeypatch.setattr(dummy.DummyDevice, "copy_box", noted)
    np.testing.assert_array_equal((x @ x).numpy(), whole(0, 8, 8) @ whole(0, 8, 8))
    assert sorted(ran) == sorted((e.source, e.target, e.bytes) for e in found.exchanges)


def test_unlike_devices_have_graphs_of_their_own(farm: dummy.DummyBackend) -> None:
    x = distribute_tensor(weft.tensor(whole(0, 8, 8)), init_device_mesh(["farm:0", "cpu:0"], (2,)), [S0])
    np.testing.assert_array_equal(x.sum(0).numpy(), whole(0, 8, 8).sum(0))
    assert not isinstance(list(meshes._templates.values())[-1].plan, SharedPlan)


@pytest.mark.parametrize("shared", [True, False])
def test_runs_of_many_steps_are_not_searched_for_garbage(
    farm: dummy.DummyBackend, shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They start work, and make objects that die by themselves: a full collection takes longer than the run."""
    monkeypatch.setattr(meshes, "SHARED_FROM", 2 if shared else 100)
    mesh = init_device_mesh("farm", (8,))
    x = distribute_tensor(weft.tensor(whole(0, 16, 8)), mesh, [S0]).realize()
    seen: list[bool] = []
    for plan in (AlikePlan, PartsPlan):
        run = plan._run

        def noted(self: Any, *args: Any, run: Any = run) -> Any:
            seen.append(gc.isenabled())
            return run(self, *args)

        monkeypatch.setattr(plan, "_run", noted)
    (x * 2).realize()
    assert seen == [True] and gc.isenabled()
    weft.realize(*[x.T @ (x + k) for k in range(8)])
    assert seen[1:] == [False] and gc.isenabled()
