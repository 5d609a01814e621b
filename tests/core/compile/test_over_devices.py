"""Functions compiled over several devices: as on one, without annotations."""

from __future__ import annotations

import copy
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

import weft
from weft import nn
from weft.core.compile import over_devices
from weft.core.compile.mesh_replay import MeshReplay
from weft.core.compile.over_devices import OverDevices
from weft.core.execute import run as run_nodes
from weft.core.execute.meshes import layout_of, mesh_called
from weft.core.sharding.tensors import laid_out
from weft.errors import ArgumentError, MemoryPlanError
from weft.ir.graph import toposort
from weft.ir.ops import Op
from weft.ir.placement import Shard
from weft.testing import farm


@pytest.fixture
def devices() -> Iterator[list[str]]:
    with farm(3) as made:
        yield made.names


@pytest.fixture(params=[2, 3])
def some(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    with farm(request.param) as made:
        yield made.names


def trained(
    devices: list[str] | None, optimizer: str = "Adam", numerics: Literal["same"] | None = None
) -> tuple[list[float], nn.Module]:
    weft.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 3))
    found = getattr(weft.optim, optimizer)(model.parameters(), lr=0.05)

    def step(x: weft.Tensor, y: weft.Tensor) -> weft.Tensor:
        found.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        found.step()
        return loss.detach()

    run = weft.compile(step, numerics=numerics, devices=devices)
    rng = np.random.default_rng(0)
    batches = [rng.standard_normal((2, 12, 9)).astype(np.float32) for _ in range(6)]
    losses = [run(weft.tensor(a[0, :, :6]), weft.tensor(a[1, :, :3])).item() for a in batches]
    return losses, model


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_training_step_is_spread_without_annotations(some: list[str], optimizer: str) -> None:
    losses, model = trained(None, optimizer)
    spread, other = trained(some, optimizer)
    np.testing.assert_allclose(spread, losses, rtol=1e-5)
    for (name, p), (_, q) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        np.testing.assert_allclose(q.numpy(), p.numpy(), rtol=1e-4, atol=1e-6, err_msg=name)
        assert str(q.device).startswith("mesh")
        assert q.is_leaf and q.grad is not None


def test_bits_are_those_of_one_device(some: list[str]) -> None:
    with weft.device("farm:0"):
        losses, model = trained(None, "Adam", "same")
        spread, other = trained(some, "Adam", "same")
    assert spread == losses
    for p, q in zip(model.parameters(), other.parameters(), strict=True):
        np.testing.assert_array_equal(q.numpy(), p.numpy())


def test_large_batches_are_parted_where_computing_takes_longer_than_exchanging() -> None:
    with farm(4, flops=1e9, bandwidth=1e12):
        w = weft.tensor(np.ones((256, 256), np.float32))
        f = weft.compile(lambda x: (x @ w).relu().sum(), devices="farm:*")
        assert isinstance(f, OverDevices)
        x = weft.tensor(np.ones((512, 256), np.float32))
        assert [f(x).item() for _ in range(3)] == [512 * 256 * 256.0] * 3
        assert f.chosen is not None
        assert any(isinstance(p, Shard) for layout in f.chosen.layouts.values() for p in layout)
        assert f(x).device.type == "cpu"


@pytest.mark.parametrize("rows", [9, 512])
def test_what_is_explained_is_what_runs(rows: int) -> None:
    with farm(4, flops=1e9, bandwidth=1e12) as made, weft.device("farm:0"):
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 32))
        optimizer = weft.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(x: weft.Tensor) -> weft.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        f, x = weft.compile(step, devices="farm:*"), weft.ones(rows, 32).realize()
        while f.chosen is None:
            f(x)
        f(x)
        explained = weft.explain(f, x)
        made.clear()
        f(x)
        ran = Counter(
            s.resource for s in made.timeline().spans if "host" not in s.resource and "->" in s.resource
        )
        said = Counter(f"{e.source[-1]}->{e.target[-1]}" for e in explained.exchanges)
        assert ran == said and sum(ran.values()) > 12
        assert any("searched, as it takes the least time; " in str(of) for of in explained.layouts)


def test_eight_devices_give_the_bits_of_one() -> None:
    with farm(8) as made, weft.device("farm:0"):
        losses, model = trained(None, "SGD", "same")
        spread, other = trained(made.names, "SGD", "same")
        assert spread == losses
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            np.testing.assert_array_equal(q.numpy(), p.numpy())


def test_one_device_is_used_as_several_are(devices: list[str]) -> None:
    w = weft.ones(2)
    f = weft.compile(lambda x: x + w, devices=["farm:1"])
    assert [f(weft.ones(2)).tolist() for _ in range(3)] == [[2.0, 2.0]] * 3
    assert w.device_mesh.devices == ("farm:1",)
    assert any("farm:1" in str(k) for k in weft.explain(f, weft.ones(2)))


def test_what_is_asked_of_devices_is_checked(devices: list[str]) -> None:
    with pytest.raises(ArgumentError, match="devices is a list of names"):
        weft.compile(lambda x: x, devices="farm:0")
    with pytest.raises(ArgumentError, match="a device may be in a mesh once"):
        weft.compile(lambda x: x, devices=["farm:0", "farm:0"])


def test_without_reassociation_no_sum_is_split(devices: list[str]) -> None:
    x = weft.tensor(np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32))
    one = weft.compile(lambda x: x.softmax(1).sum(1), numerics="same")
    many = weft.compile(lambda x: x.softmax(1).sum(1), devices=devices, numerics="same")
    for _ in range(3):
        np.testing.assert_array_equal(many(x).numpy(), one(x).numpy())
    assert many.chosen is not None and not many.chosen.splits


# ------------------------------------------------------------------------------------------ as on one device

W = np.arange(12, dtype=np.float32).reshape(4, 3) / 7


def spread(
    make: Callable[[], Callable[..., Any]],
    call: Callable[[Any, int], list[Any]],
    devices: list[str],
    **wishes: Any,
) -> Any:
    """Make calls of what `make` gives compiled on one device and over several: all is equal. The latter, afterwards."""
    found: list[list[Any]] = []
    for where in (None, devices):
        weft.manual_seed(0)
        f = weft.compile(make(), devices=where, **wishes)
        found.append([[np.array(x.numpy()) for x in call(f, k)] for k in range(5)])
    for k, (one, many) in enumerate(zip(*found, strict=True)):
        for a, b in zip(one, many, strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=1e-6, err_msg=f"call {k}")
    assert isinstance(f, OverDevices) and f.chosen is not None
    return f


def test_arguments_are_written_to_and_returned_themselves(devices: list[str]) -> None:
    def make() -> Callable[..., Any]:
        w = weft.tensor(W)

        def step(x: weft.Tensor, counter: weft.Tensor) -> Any:
            counter += 1
            x.mul_(2)
            return (x @ w.T).sum(), {"counter": counter}, x

        return step

    def call(f: Any, k: int) -> list[Any]:
        x, counter = weft.ones(5, 3), weft.tensor(np.zeros(2, np.int32))
        total, held, same = f(x, counter)
        assert same is x and held["counter"] is counter
        assert x.device.type == counter.device.type == "cpu"
        return [total, x, counter]

    spread(make, call, devices)


def test_gradients_of_arguments_are_theirs(devices: list[str]) -> None:
    def make() -> Callable[..., Any]:
        w = weft.tensor(W)

        def step(x: weft.Tensor) -> weft.Tensor:
            (x @ w.T).square().sum().backward()
            before = x.grad.clone()
            x.grad.mul_(0.5)
            return before

        return step

    kept: dict[int, weft.Tensor] = {}

    def call(f: Any, k: int) -> list[Any]:
        x = kept.setdefault(id(f), weft.ones(5, 3).requires_grad_())
        found = f(x)
        assert x.is_leaf and x.grad.device.type == "cpu"
        return [found, x.grad]

    spread(make, call, devices)


def test_gradients_flow_through_results(devices: list[str]) -> None:
    def call(f: Any, k: int) -> list[Any]:
        x = weft.ones(5, 3).requires_grad_()
        f(x * 2).backward()
        return [x.grad]

    def make() -> Callable[..., Any]:
        w = weft.tensor(W)
        return lambda x: (x @ w.T).square().sum()

    spread(make, call, devices)


def test_views_of_arguments_stay_views(devices: list[str]) -> None:
    def make() -> Callable[..., Any]:
        w = weft.tensor(W)

        def step(x: weft.Tensor, row: weft.Tensor) -> Any:
            row.zero_()
            return x @ w.T, x[1], x.T

        return step

    def call(f: Any, k: int) -> list[Any]:
        x = weft.tensor(np.ones((5, 3), np.float32))
        row = x[2]
        product, view, turned = f(x, row)
        view += 5
        assert x[1].tolist() == [6.0] * 3 and x[2].tolist() == [0.0] * 3
        return [product, x, row, turned]

    spread(make, call, devices)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden = nn.Embedding(11, 8), nn.Linear(8, 15)
        self.norm, self.out = nn.BatchNorm1d(15), nn.Linear(15, 5)
        self.register_buffer("steps", weft.tensor(np.zeros((), np.int64)))

    def forward(self, ids: weft.Tensor) -> weft.Tensor:
        self.steps += 1
        h = self.norm(self.hidden(self.table(ids)).relu())
        return self.out(nn.functional.dropout(h, 0.3, self.training))


@pytest.mark.parametrize("numerics", [None, "same"])
def test_dropout_tables_norms_counters_and_constants_are_those_of_one_device(
    devices: list[str], numerics: Literal["same"] | None
) -> None:
    devices = devices[: 2 if numerics is None else 3]
    models: list[Net] = []

    def make() -> Callable[..., Any]:
        model, noise = Net(), weft.tensor(np.linspace(0, 1, 5, dtype=np.float32))
        optimizer = weft.optim.Adam(model.parameters(), lr=0.05)
        models.append(model)

        def step(ids: weft.Tensor, target: weft.Tensor) -> weft.Tensor:
            optimizer.zero_grad()
            extra = weft.tensor([0.0, 0.1, 0.2, 0.3, 0.4]) + weft.arange(5) * 0.1
            loss = nn.functional.cross_entropy(model(ids) + noise + extra, target)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    def call(f: Any, k: int) -> list[Any]:
        rng, n = np.random.default_rng(k), 4 if k == 3 else 7
        loss = f(weft.tensor(rng.integers(0, 11, n)), weft.tensor(rng.integers(0, 5, n)))
        return [loss, models[-1].steps, models[-1].norm.running_mean]

    spread(make, call, devices, numerics=numerics)


def test_arguments_of_other_sizes_have_layouts_of_their_own(devices: list[str]) -> None:
    def make() -> Callable[..., Any]:
        w = weft.tensor(W)
        return lambda x, y=None: (x @ w.T).exp() if y is None else (x @ w.T).exp() + y

    def call(f: Any, k: int) -> list[Any]:
        shape = [(12, 3), (12, 3), (3,), (1, 3), (2, 5, 3)][k]
        x = weft.tensor(np.linspace(0, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape))
        return [f(x), f(x, weft.ones(4))]

    spread(make, call, devices)


def test_state_that_calls_read_later_comes_along(devices: list[str]) -> None:
    def make() -> Callable[..., Any]:
        body, head = nn.Linear(4, 4), nn.Linear(4, 2)
        return lambda x, last: head(body(x).relu()) if last else body(x)

    spread(make, lambda f, k: [f(weft.ones(3, 4), k >= 3).detach()], devices)


@pytest.mark.parametrize("way", ["accumulated", "made anew", "set to zero", "used inside"])
def test_gradients_are_used_inside_and_outside_wherever_they_lie(way: str) -> None:
    def trained(**options: Any) -> tuple[list[list[bytes]], nn.Module]:
        weft.manual_seed(0)
        model = nn.Sequential(*[m for _ in range(2) for m in (nn.Linear(32, 32), nn.ReLU())])
        optimizer = weft.optim.Adam(model.parameters(), lr=0.01)

        def backward(x: weft.Tensor) -> None:
            model(x).square().mean().backward()
            if way == "used inside":
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

        run = weft.compile(backward, numerics="same", **options)
        seen: list[list[bytes]] = []
        for k in range(4):
            if way in ("made anew", "set to zero"):
                optimizer.zero_grad(set_to_none=way == "made anew")
            weft.manual_seed(k)
            run(weft.randn(160, 32))
            seen.append([g.numpy().tobytes() for p in model.parameters() if (g := p.grad) is not None])
            if way in ("made anew", "set to zero"):
                optimizer.step()  # its moments are where the parameters were
            seen.append([p.detach().numpy().tobytes() for p in model.parameters()])
        return seen, model

    alone, _ = trained()
    with farm(4, speeds=(1, 2, 3, 4), flops=1e8, link_bandwidth=1e12, launch_ns=0.0) as made:
        found, model = trained(devices=made.names)
        weight = next(model.parameters())
        assert weight.device.type == "mesh"
        assert weight.grad is not None and weight.grad.device == weight.device
    assert found == alone


def test_functions_share_state_that_one_of_them_has_moved(devices: list[str]) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer, runs = weft.optim.SGD(model.parameters(), lr=0.1), weft.zeros(())

    def step(x: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def evaluate(x: weft.Tensor) -> weft.Tensor:
        runs.add_(1)
        return model(x).detach()

    step, evaluate = weft.compile(step, devices=devices), weft.compile(evaluate, devices=devices)
    x = weft.tensor(W)
    for _ in range(3):
        step(x)
    model.eval()
    expected = model(x.to(model[0].weight.device)).numpy()
    for _ in range(2):
        np.testing.assert_allclose(evaluate(x).numpy(), expected, rtol=1e-6)
    assert runs.item() == 2 and str(model[0].weight.device).startswith("mesh")
    model.train()
    assert step(x).item() < 10


def test_a_call_may_ask_for_values_on_the_mesh(devices: list[str]) -> None:
    def make() -> Callable[..., Any]:
        layer = nn.Linear(4, 4)

        def step(x: weft.Tensor, says: bool) -> weft.Tensor:
            h = layer(x)
            x += 1
            return h * 2 if not says or h.sum().item() > 1e9 else h

        return step

    def call(f: Any, k: int) -> list[Any]:
        x = weft.tensor(np.ones((3, 4), np.float32))
        return [f(x, k >= 3).detach(), x]

    spread(make, call, devices)


def test_modules_keep_their_form_over_devices(devices: list[str]) -> None:
    model = nn.Linear(3, 4)
    x = weft.tensor(W)
    expected = model(x).numpy()
    spread_model: Any = weft.compile(model, devices=devices)
    for _ in range(3):
        np.testing.assert_allclose(spread_model(x).numpy(), expected, rtol=1e-6)
    assert isinstance(spread_model, nn.Module) and spread_model._orig_mod is model
    for again in (copy.deepcopy(spread_model), pickle.loads(pickle.dumps(spread_model))):
        assert again._compiled.mesh == spread_model._compiled.mesh


# -------------------------------------------------------------------------------------------------- deciding


def test_functions_may_be_reset_while_their_state_is_on_the_mesh(devices: list[str]) -> None:
    w = weft.tensor(W)
    f = weft.compile(lambda x: x @ w.T, devices=devices)
    x = weft.ones(5, 3)
    found = [f(x).numpy() for _ in range(3)]
    weft.compiler.reset()
    found += [f(x).numpy() for _ in range(2)]
    assert str(w.device).startswith("mesh")
    for y in found:
        np.testing.assert_allclose(y, np.ones((5, 3)) @ W.T, rtol=1e-6)


def test_functions_that_always_ask_for_values_stay_and_say_so_once(devices: list[str]) -> None:
    w = weft.tensor(W)

    def step(x: weft.Tensor) -> weft.Tensor:
        return x @ w.T if x.sum().item() > 0 else x

    f = weft.compile(step, devices=devices)
    with pytest.warns(
        UserWarning, match=r"step is not spread over farm:0, farm:1.*item at .*test_over_devices"
    ) as told:
        for _ in range(5):
            f(weft.ones(5, 3))
    assert len(told) == 1 and w.device.type == "cpu"


def test_threads_decide_once(devices: list[str]) -> None:
    weft.manual_seed(0)
    layer = nn.Linear(3, 4)
    expected = layer(weft.tensor(W)).numpy()
    f = weft.compile(lambda x: layer(x).detach(), devices=devices, numerics="same")
    chosen: list[Any] = []
    wrong: list[object] = []

    def work() -> None:
        try:
            for _ in range(4):
                np.testing.assert_allclose(f(weft.tensor(W)).numpy(), expected, rtol=1e-5)
                chosen.append(f.chosen)
        except BaseException as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len({id(c) for c in chosen if c is not None}) == 1


def test_where_moving_fails_all_state_is_as_before(
    devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(3, 4)
    optimizer = weft.optim.Adam(model.parameters(), lr=0.1)

    def step(x: weft.Tensor) -> weft.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f, x = weft.compile(step, devices=devices), weft.tensor(W)
    losses: list[float] = []
    while f._here.recorded((x,), {}) is None and len(losses) < 4:
        losses.append(f(x).item())
    before = {name: p.numpy().copy() for name, p in model.named_parameters()}

    def refuses(value: Any) -> Any:
        raise RuntimeError("no")

    with monkeypatch.context() as patch:
        patch.setattr(over_devices, "wrap", refuses)  # gradients, after all values
        with pytest.raises(RuntimeError, match="no"):
            f(x)
    for name, p in model.named_parameters():
        assert p.device.type == p.grad.device.type == "cpu" and p.is_leaf, name
        np.testing.assert_array_equal(p.numpy(), before[name])
    assert f(x).item() < losses[-1] and f.chosen is not None
    assert all(str(p.grad.device).startswith("mesh") for p in model.parameters())


def test_state_stays_where_it_is_while_a_call_reads_it_there(
    devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, inside = nn.Linear(3, 4), threading.Event()
    f = weft.compile(lambda x: layer(x).detach(), devices=devices, dynamic=False)
    x = weft.tensor(W)
    f(x)
    assert f._here.recorded((x,), {}) is not None  # the next such call decides
    called = f._here.called

    def waits(*of: Any) -> Any:
        inside.set()
        until = time.monotonic() + 1  # for which another thread has all it needs to move the state
        while f.chosen is None and time.monotonic() < until:
            time.sleep(0.01)
        return called(*of)

    monkeypatch.setattr(f._here, "called", waits)
    found: list[Any] = []
    slow = threading.Thread(target=lambda: found.append(f(weft.tensor(W[:2])).numpy()))
    slow.start()
    assert inside.wait(60)
    y = f(x).numpy()
    slow.join()
    np.testing.assert_allclose(found[0], y[:2], rtol=1e-5)


def test_a_limit_that_cannot_be_met_refuses_each_call_before_it_is_made(devices: list[str]) -> None:
    w, counter = weft.tensor(np.ones((8, 8), np.float32)), weft.zeros(())

    def step(x: weft.Tensor) -> weft.Tensor:
        counter.add_(1)
        return x @ w

    f, x = weft.compile(step, devices=devices, memory=8192), weft.ones(4096, 8)
    f(x)
    for _ in range(2):
        with pytest.raises(MemoryPlanError, match=r"limit 8,192 bytes, at least .* are needed"):
            f(x)
    assert counter.item() == 1 and w.device.type == "cpu"


def test_numbers_that_are_drawn_are_laid_out_with_the_rest(devices: list[str]) -> None:
    w, bias = weft.ones(64, 8), weft.tensor(np.ones(8, np.float32))
    f = weft.compile(lambda x: nn.functional.dropout(x @ w) + weft.tensor([1.0] * 8) * bias, devices=devices)
    for _ in range(3):
        f(weft.ones(96, 64))
    assert f.chosen is not None
    order = toposort(list(f.chosen.layouts))
    assert {n.device for n in order} <= {None, f.mesh.name} and any(n.op is Op.THREEFRY for n in order)


def test_limits_and_devices_name_each_other(devices: list[str]) -> None:
    with pytest.raises(
        ArgumentError, match=r"a limit for 'farm:7', which is none of devices=: farm:0, farm:1"
    ):
        weft.compile(lambda x: x, devices=devices, memory={"farm:7": 1})
    with pytest.raises(ArgumentError, match="a number of bytes for 'farm', got -1"):
        weft.compile(lambda x: x, devices=devices, memory={"farm": -1})
    f = weft.compile(
        lambda x: x, devices=[SimpleNamespace(name=name) for name in devices], memory={"farm": 1 << 20}
    )
    assert f.mesh.devices == tuple(devices) and f.limit == 1 << 20
    with pytest.raises(weft.errors.DTypeError, match="expected names of devices"):
        weft.compile(lambda x: x, devices=[0, 1])


def test_without_numerics_the_callers_mode_holds(devices: list[str]) -> None:
    x = weft.tensor(np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32))
    with weft.numerics("same"):
        expected = x.softmax(1).sum(1).numpy()
        f = weft.compile(lambda x: x.softmax(1).sum(1), devices=devices)
        for _ in range(3):
            np.testing.assert_array_equal(f(x).numpy(), expected)
    assert f.numerics is None and f.chosen is not None and not f.chosen.splits


def test_a_function_that_is_compiled_already_takes_no_other_wishes(devices: list[str]) -> None:
    f = weft.compile(lambda x: x)
    assert weft.compile(f) is f
    for wishes in ({"devices": devices}, {"numerics": "same"}, {"memory": 1}):
        with pytest.raises(ArgumentError, match=f"compiled already, with {next(iter(wishes))}=None"):
            weft.compile(f, **wishes)
    g = weft.compile(lambda x: x, devices=devices, numerics="same")
    assert weft.compile(g, devices=devices, numerics="same") is g
    with pytest.raises(ArgumentError, match=r"numerics='same', and cannot be with numerics='free'"):
        weft.compile(g, numerics="free")
    with pytest.raises(ArgumentError, match="compiled already"):
        weft.compile(weft.compile(nn.Linear(2, 2)), devices=devices)


def test_a_tensor_that_another_thread_lays_out_anew_is_read_as_it_lies(
    devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weft.arange(36.0).reshape(6, 6).realize()
    run = weft.compile(lambda x: x @ weight, devices=devices)
    x = weft.ones(6, 6)
    wanted = [run(x).numpy() for _ in range(4)][-1]
    mesh = mesh_called(str(weight.device))
    plans, found = MeshReplay._laid, list[Any]()

    def meanwhile(self: MeshReplay, objects: list[Any]) -> Any:
        found.append(plans(self, objects))
        if len(found) == 1:
            other = Shard(1) if layout_of(weight.value.node) == (Shard(0),) else Shard(0)
            value = laid_out(weight.value, mesh, (other,))
            run_nodes.realize([value.node])
            weight.rebind(value)
        return found[-1]

    monkeypatch.setattr(MeshReplay, "_laid", meanwhile)
    np.testing.assert_array_equal(run(x).numpy(), wanted)
    assert len(found) == 2
