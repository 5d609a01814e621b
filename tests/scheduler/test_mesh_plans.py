"""Plans for graphs on meshes are kept: a call that comes again lays out, lowers and plans nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.distributed.models import perceptron
from weft import nn
from weft.backends import registry
from weft.backends.dummy import device as dummy
from weft.backends.dummy.faults import Faults
from weft.distributed import DeviceMesh, init_device_mesh
from weft.distributed.fsdp import fully_shard
from weft.distributed.tensor import Replicate, Shard, distribute_module, distribute_tensor
from weft.scheduler import mesh_plans, meshes
from weft.scheduler.parts import found


@pytest.fixture
def farm() -> Iterator[dummy.DummyBackend]:
    backend = dummy.DummyBackend([dummy.describe(k, "farm") for k in range(4)], "farm")
    registry.register(backend)
    yield backend
    registry.unregister("farm")


def whole(seed: int, *shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


def adam_step(model: nn.Module) -> Any:
    optimizer = weft.optim.Adam(model.parameters(), lr=0.01)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def ten_steps(mesh: DeviceMesh | None, compiled: bool) -> tuple[list[float], list[np.ndarray[Any, Any]]]:
    weft.manual_seed(0)
    model = perceptron()
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    step = weft.compile(adam_step(model)) if compiled else adam_step(model)
    losses: list[float] = []
    for k in range(10):
        batch = [weft.tensor(whole(k, 7, n)) for n in (6, 3)]
        if mesh is not None:
            batch = [distribute_tensor(t, mesh, [Shard(0)]) for t in batch]
        losses.append(step(*batch).item())
    if mesh is not None:
        assert all(p.placements == (Shard(0),) for p in model.parameters())
    return losses, [p.numpy() for p in model.parameters()]


def test_ten_compiled_steps_are_those_of_one_device() -> None:
    losses, weights = ten_steps(None, compiled=False)
    for n in (2, 3, 4):
        got, have = ten_steps(init_device_mesh("dummy", (n,)), compiled=True)
        np.testing.assert_allclose(got, losses, rtol=1e-5)
        for a, b in zip(have, weights, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compiled", [True, False])
def test_what_comes_again_is_not_lowered_or_planned(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    mesh = init_device_mesh("dummy", (3,))
    model = perceptron()
    distribute_module(model, mesh)
    step = weft.compile(adam_step(model)) if compiled else adam_step(model)
    batches = [
        [distribute_tensor(weft.tensor(whole(k, 7, n)), mesh, [Shard(0)]).realize() for n in (6, 3)]
        for k in range(6)
    ]
    for batch in batches[:5]:
        step(*batch).realize()
    names = [(meshes, "lower"), (meshes, "propagate"), (meshes, "rebuilt"), (found, "steps_of")]
    if compiled:
        names += [(meshes, "template"), (mesh_plans, "signature"), (mesh_plans, "template")]
    for module, name in names:
        monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(f"{name} is called"))
    step(*batches[5]).realize()


def test_each_way_in_which_tensors_lie_has_its_plan() -> None:
    mesh = init_device_mesh("dummy", (2, 2))
    total = distribute_tensor(weft.zeros(4, 6), mesh, [Replicate(), Shard(1)]).realize()

    @weft.compile
    def f(x: weft.Tensor) -> weft.Tensor:
        total.add_(x * 2)
        return x.T @ x

    want = np.zeros((4, 6), np.float32)
    ways = [[Shard(0), Replicate()], [Replicate(), Replicate()], [Shard(1), Shard(0)], [Shard(0), Shard(0)]]
    for k in range(12):
        data = whole(k, 4, 6)
        got = f(distribute_tensor(weft.tensor(data), mesh, ways[k % 4]))
        want += data * 2
        np.testing.assert_array_equal(got.numpy(), data.T @ data)
        np.testing.assert_array_equal(total.numpy(), want)
        assert total.placements == (Replicate(), Shard(1))
    total.rebind(distribute_tensor(weft.tensor(want), mesh, [Shard(0), Replicate()]).realize().value)
    np.testing.assert_array_equal(
        f(distribute_tensor(weft.tensor(want), mesh, ways[0])).numpy(), want.T @ want
    )
    np.testing.assert_array_equal(total.numpy(), want * 3)
    assert total.placements == (Shard(0), Replicate())


class Random:
    """A random function of x that updates state, whose results are whole numbers."""

    def __init__(self, seed: int, mesh: DeviceMesh | None) -> None:
        self.seed, self.mesh = seed, mesh
        rng = np.random.default_rng(seed)
        self.state = [self.laid(whole(seed + k, 4, 6), rng) for k in range(2)]

    def laid(self, data: np.ndarray[Any, Any], rng: np.random.Generator) -> weft.Tensor:
        ways = [
            [Replicate(), Shard(0), Shard(1), Shard(0, (1, 3))][k] for k in rng.integers(0, 4, 1)
        ]  # drawn here, too
        t = weft.tensor(data)
        return t if self.mesh is None else distribute_tensor(t, self.mesh, ways).realize()

    def __call__(self, x: weft.Tensor) -> list[weft.Tensor]:
        rng = np.random.default_rng(self.seed)
        tensors, made = [x, *self.state], list[weft.Tensor]()
        for _ in range(6):
            a, b = (tensors[k] for k in rng.integers(0, len(tensors), 2))
            match int(rng.integers(0, 6)):
                case 0:
                    made.append((a * 2 - b) % 7)
                case 1:
                    made.append((a @ b.T)[:, :1] + b)
                case 2:
                    made.append(weft.cat([a[1:], b[:1]], 0) % 5)
                case 3:
                    made.append(a.sum(0, keepdim=True).expand(4, 6) % 9)
                case 4:
                    self.state[0].copy_(b + 1)
                    made.append(self.state[0])
                case _:
                    self.state[1].add_(a % 3)
                    made.append(self.state[1].flip(0))
            tensors.append(made[-1])
        return [*made[-2:], self.state[0], x]


def test_random_compiled_functions_with_state_are_those_of_one_device() -> None:
    for seed in range(int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0")) or 8):
        mesh = init_device_mesh("dummy", (2,))
        there, here = Random(seed, mesh), Random(seed, None)
        f = weft.compile(there)
        rng = np.random.default_rng(seed + 99)
        for k in range(4):
            data = whole(seed + 50 + k, 4, 6)
            got, want = f(there.laid(data, rng)), here(weft.tensor(data))
            for a, b in zip([*got, *there.state], [*want, *here.state], strict=True):
                np.testing.assert_array_equal(a.numpy(), b.numpy(), err_msg=f"seed {seed}, call {k}")


def test_random_numbers_are_those_of_one_device() -> None:
    mesh = init_device_mesh("dummy", (3,))
    x = weft.ones(6, 5)
    there = distribute_tensor(x, mesh, [Shard(0)])
    drop = nn.Dropout(0.5)
    weft.manual_seed(3)
    want = [drop(x).numpy() for _ in range(4)]
    f = weft.compile(drop)
    weft.manual_seed(3)
    for w in want:
        np.testing.assert_array_equal(f(there).numpy(), w)


def test_a_call_in_which_a_device_fails_changes_nothing(farm: dummy.DummyBackend) -> None:
    mesh = init_device_mesh("farm", (3,))
    total = distribute_tensor(weft.zeros(6), mesh, [Shard(0)]).realize()

    @weft.compile
    def f(x: weft.Tensor) -> weft.Tensor:
        total.add_(x.sum())
        return total * 2

    x = distribute_tensor(weft.ones(6), mesh, [Shard(0)]).realize()
    for _ in range(3):
        f(x).realize()
    kept = total.numpy()
    for k in range(3):
        farm.devices[k].faults = Faults(launches=frozenset({1}))
        with pytest.raises(weft.DeviceError, match=f"farm:{k}"):
            f(x)
        farm.devices[k].faults = Faults()
        np.testing.assert_array_equal(total.numpy(), kept)
    np.testing.assert_array_equal(f(x).numpy(), (kept + 6) * 2)


def test_a_farm_registered_anew_gets_plans_of_its_own(farm: dummy.DummyBackend) -> None:
    def result() -> np.ndarray[Any, Any]:
        mesh = init_device_mesh("farm", (2,))
        return (distribute_tensor(weft.tensor(whole(0, 6)), mesh, [Shard(0)]) + 1).numpy()

    first = result()
    registry.register(dummy.DummyBackend([dummy.describe(k, "farm") for k in range(4)], "farm"))
    np.testing.assert_array_equal(result(), first)


def test_files_and_results_that_are_inputs_are_served(tmp_path: Path) -> None:
    mesh = init_device_mesh("dummy", (2,))
    data = whole(0, 4, 6)
    weft.save({"x": weft.tensor(data)}, tmp_path / "x.safetensors")
    x = weft.load(tmp_path / "x.safetensors", device="disk")["x"]
    np.testing.assert_array_equal((distribute_tensor(x, mesh, [Shard(0)]) + 1).numpy(), data + 1)
    g = weft.compile(lambda t: distribute_tensor(t, mesh, [Shard(1)]) * 2)
    for _ in range(2):
        np.testing.assert_array_equal(g(x).numpy(), data * 2)
    y = distribute_tensor(weft.tensor(data), mesh, [Shard(0)]).realize()
    f = weft.compile(lambda a: (a, a.redistribute(mesh, [Shard(0)]), a.full_tensor(), weft.ones(3)))
    for _ in range(3):
        a, b, c, ones = f(y)
        for t in (a, b, c):
            np.testing.assert_array_equal(t.numpy(), data)
        assert a is y and b.placements == (Shard(0),) and c.device == "cpu:0" and ones.sum().item() == 3


def test_a_mesh_of_one_device_is_a_mesh() -> None:
    mesh = init_device_mesh("dummy", (1,))
    x = distribute_tensor(weft.tensor(whole(0, 4, 6)), mesh, [Shard(0)])
    f = weft.compile(lambda a: (a @ a.T).relu())
    for _ in range(2):
        np.testing.assert_array_equal(f(x).numpy(), np.maximum(whole(0, 4, 6) @ whole(0, 4, 6).T, 0))


def test_what_a_compiled_function_on_a_mesh_does_is_explained_for_its_layouts() -> None:
    mesh = init_device_mesh("dummy", (2,))
    x = distribute_tensor(weft.tensor(whole(0, 8, 8)), mesh, [Shard(1)])
    f = weft.compile(lambda a: a.sum(1))
    f(x)
    found = f.explain(x)
    assert found.exchanges and "Shard(1)" not in str(f.explain(x.redistribute(mesh, [Replicate()])))
    assert not f.explain(x.redistribute(mesh, [Replicate()])).exchanges
