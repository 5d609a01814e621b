"""Plans of parts: the same results as on one device, with as few bytes and as much at once as can be."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from tests.scheduler.parts.programs import program
from weft.backends import registry
from weft.backends.dummy import device as dummy
from weft.backends.dummy.farm import Farm
from weft.backends.dummy.faults import Faults
from weft.backends.links import links
from weft.scheduler import assembly, build
from weft.scheduler.parts import found
from weft.scheduler.parts.order import Way
from weft.scheduler.parts.plan import PartsPlan
from weft.scheduler.signature import signature

OPENCL = pytest.mark.skipif(
    all(s.info is None for s in registry.statuses() if s.name.startswith("opencl")), reason="no OpenCL device"
)
FARMS = [
    ("dummy:0", "dummy:1", "dummy:2"),
    ("cpu:0", "dummy:1"),
    pytest.param(("cpu:0", "opencl:0"), marks=OPENCL),
    pytest.param(("opencl:0", "dummy:2", "cpu:0"), marks=OPENCL),
]


@pytest.fixture
def farm() -> Iterator[list[dummy.DummyDevice]]:
    """Four devices with memories and clocks of their own."""
    backend = dummy.DummyBackend([dummy.describe(k, "farm", flops=1e9) for k in range(4)], "farm")
    registry.register(backend)
    yield backend.devices
    registry.unregister("farm")


def plan_of(*tensors: weft.Tensor) -> PartsPlan:
    return found.parts_plan(signature([t.value.node for t in tensors]))


def ints(*shape: int, seed: int = 0, device: str = "cpu") -> weft.Tensor:
    data = np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)
    return weft.tensor(data, device=device)


@pytest.mark.parametrize("devices", FARMS)
def test_random_programs_give_what_one_device_gives(devices: tuple[str, ...]) -> None:
    for seed in range(int(os.environ.get("WEFT_FUZZ_EXAMPLES", "0")) or 12):
        results, want = program(seed, devices), program(seed, ("dummy:0",))
        weft.realize(*results)
        for got, expected in zip(results, want, strict=True):
            np.testing.assert_array_equal(got.numpy(), expected.numpy(), err_msg=f"seed {seed}")


def test_graphs_alike_have_one_plan_and_run_on_their_own_leaves() -> None:
    def result(seed: int) -> weft.Tensor:
        x = ints(4, 4, seed=seed, device="dummy:0")
        return (x * 2).to("dummy:1") + 1

    a, b = result(0), result(1)
    assert plan_of(a) is plan_of(b)
    np.testing.assert_array_equal(b.numpy(), ints(4, 4, seed=1).numpy() * 2 + 1)
    np.testing.assert_array_equal(a.numpy(), ints(4, 4, seed=0).numpy() * 2 + 1)


def rows_over(devices: Sequence[str], sizes: Sequence[int]) -> list[weft.Tensor]:
    """Each device has rows of x, and reads one of the next device's; as many kinds of parts as there are sizes."""
    w = ints(6, 4, seed=3)
    xs = [ints(n, 6, seed=k, device=d) for k, (d, n) in enumerate(zip(devices, sizes, strict=True))]
    hs = [(x @ w.to(d)).relu() for x, d in zip(xs, devices, strict=True)]
    after = [*hs[1:], hs[0]]
    return [h + n[:1].to(d) for h, n, d in zip(hs, after, devices, strict=True)]


def test_equal_parts_of_equal_devices_are_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans and programs that are built do not grow with the number of devices."""
    built, compiled = list[str](), list[int]()
    prepared, compile_ = build.prepared, dummy.DummyDevice.compile

    def counted(job: assembly.Job, device: Any) -> assembly.Prepared:
        built.append(device.info.name)
        return prepared(job, device)

    def compiling(device: dummy.DummyDevice, programs: Any) -> Any:
        compiled.append(len(programs))
        return compile_(device, programs)

    monkeypatch.setattr(build, "prepared", counted)
    monkeypatch.setattr(dummy.DummyDevice, "compile", compiling)
    counts: list[tuple[int, int]] = []
    for n in (3, 50):
        backend = dummy.DummyBackend([dummy.describe(k, "farm", l2_bytes=n << 10) for k in range(n)], "farm")
        registry.register(backend)
        results = rows_over(backend.names, [5] * n)
        built.clear()
        compiled.clear()
        plan_of(*results)
        counts.append((len(built), sum(compiled)))
        weft.realize(*results)
        hs = [np.maximum(ints(5, 6, seed=k).numpy() @ ints(6, 4, seed=3).numpy(), 0) for k in range(n)]
        for k, r in enumerate(results):
            np.testing.assert_array_equal(r.numpy(), hs[k] + hs[(k + 1) % n][:1])
    registry.unregister("farm")
    assert counts[0] == counts[1] and counts[0][0] <= 2


def test_parts_are_bound_to_devices_of_their_own_class_only() -> None:
    """Unequal blocks and unequal devices have plans of their own; each runs on its own device."""
    speeds = (1, 2, 1, 2, 1)
    backend = dummy.DummyBackend(Farm.of(5, speeds=speeds))
    registry.register(backend)
    sizes = (4, 4, 4, 4, 3)
    results = rows_over(backend.names, sizes)
    parts = [s for s in plan_of(*results).steps if not hasattr(s, "origin")]
    assert all(p.plan.device is p.device is p.plan.executable.device for p in parts)  # type: ignore[union-attr]
    codes = {p.device.index: p.plan.codes for p in parts if len(p.step.work.results) == 1}  # type: ignore[union-attr]
    assert codes[0] == codes[2] and codes[1] == codes[3] != codes[0] != codes[4]
    weft.realize(*results)
    hs = [np.maximum(ints(n, 6, seed=k).numpy() @ ints(6, 4, seed=3).numpy(), 0) for k, n in enumerate(sizes)]
    for k, r in enumerate(results):
        np.testing.assert_array_equal(r.numpy(), hs[k] + hs[(k + 1) % 5][:1])
    registry.unregister("farm")


def test_a_farm_registered_anew_gets_plans_of_its_own(farm: list[dummy.DummyDevice]) -> None:
    y = (ints(3, device="farm:0") + 1).to("farm:1") * 2
    old = plan_of(y)
    del y
    registry.register(dummy.DummyBackend([dummy.describe(k, "farm") for k in range(4)], "farm"))
    z = (ints(3, device="farm:0") + 1).to("farm:1") * 2
    assert plan_of(z) is not old
    np.testing.assert_array_equal(z.numpy(), (ints(3).numpy() + 1) * 2)


def test_a_copied_box_of_a_leaf_moves_just_the_box(farm: list[dummy.DummyDevice]) -> None:
    x = ints(8, 4, 6, device="farm:0")
    boxes = [x[2:5], x[:, 1:3, ::2], x.reshape(32, 6)[3:9].reshape(6, 2, 3), x[1, 2, 3]]
    moved = [b.to("farm:1") for b in boxes]
    assert [s.copy.nbytes for s in plan_of(*moved).order.steps if s.copy] == [
        4 * b.numel() for b in boxes
    ]  # fmt: skip
    weft.realize(*moved)
    assert sum(d.clock.launches for d in farm) == 0
    for b, m in zip(boxes, moved, strict=True):
        np.testing.assert_array_equal(m.numpy(), b.to("cpu").numpy())


def test_a_box_of_what_is_read_otherwise_too_is_cut_from_it(farm: list[dummy.DummyDevice]) -> None:
    x = ints(8, 4, device="farm:0")
    y = x * 3
    low, high = y[:2].to("farm:1"), y[6:].to("farm:2")
    z = y.sum()
    weft.realize(low, high, z)
    assert farm[0].clock.launches <= 2  # y, and its sum; not the boxes
    np.testing.assert_array_equal(low.numpy(), x.numpy()[:2] * 3)
    np.testing.assert_array_equal(high.numpy(), x.numpy()[6:] * 3)


def test_a_box_alone_is_computed_alone(farm: list[dummy.DummyDevice]) -> None:
    x = ints(8, 4, device="farm:0")
    part = (x * 3)[2:4].to("farm:1")
    assert [s.copy.nbytes for s in plan_of(part).order.steps if s.copy] == [32]
    np.testing.assert_array_equal(part.numpy(), x.numpy()[2:4] * 3)


def test_what_is_computed_for_another_device_is_not_computed_again(farm: list[dummy.DummyDevice]) -> None:
    """Forward on one device, loss on another, backward on the first: activations are stored between the parts."""
    x, w = ints(16, 16, device="farm:0"), ints(16, 16, seed=1, device="farm:0").requires_grad_()
    h = (x @ w).relu()
    ((h.to("farm:1") - 1) ** 2).sum().backward()
    assert w.grad is not None
    w.grad.realize()
    assert farm[0].clock.launches == 2  # h, and the gradient: no product a second time
    a, b = ints(16, 16), ints(16, 16, seed=1).requires_grad_()
    (((a @ b).relu() - 1) ** 2).sum().backward()
    assert b.grad is not None
    np.testing.assert_array_equal(w.grad.numpy(), b.grad.numpy())


def test_microbatches_travel_while_the_next_ones_are_computed(farm: list[dummy.DummyDevice]) -> None:
    """Four through two stages take five times one stage and a copy, not eight times and four copies."""
    ws = [ints(64, 64, seed=k, device=f"farm:{k}") for k in range(2)]
    xs = [ints(64, 64, seed=9 + k, device="farm:0") for k in range(4)]
    for d in farm:
        d.synchronize()
    begin = farm[0].host.ns
    results = [(x @ ws[0]).to("farm:1") @ ws[1] for x in xs]
    weft.realize(*results)
    end = max(q.ns for d in farm for q in d.queues())
    one, two = ints(64, 64, device="farm:3"), ints(64, 64, seed=1, device="farm:3")
    farm[3].synchronize()
    begin_one = farm[3].host.ns
    (one @ two).realize()
    product = farm[3].queue(0).ns - begin_one
    copy = 1e9 * links(farm[0], farm[1]).seconds(64 * 64 * 4)
    assert 5 * product <= end - begin <= 1.05 * (5 * product + copy)
    for x, r in zip(xs, results, strict=True):
        want = x.numpy() @ ints(64, 64, seed=0).numpy() @ ints(64, 64, seed=1).numpy()
        np.testing.assert_array_equal(r.numpy(), want)


def test_memory_is_used_again_and_given_back(farm: list[dummy.DummyDevice]) -> None:
    x = ints(64, 64, device="farm:0")
    used = [d.used_bytes() for d in farm]
    for d in farm:
        d.pool.peak_bytes = d.used_bytes()
    y = x
    for _ in range(6):
        y = ((y + 1).to("farm:1") * 2).to("farm:0") % 7
    y.realize()
    size = 4 * 64 * 64
    assert farm[1].pool.peak_bytes <= 2 * size and farm[0].pool.peak_bytes <= used[0] + 3 * size
    del y
    assert [d.used_bytes() for d in farm] == used


def test_a_pool_that_is_too_small_is_named(farm: list[dummy.DummyDevice]) -> None:
    x = ints(64, 64, device="farm:0")
    y = (x + 1).to("farm:1") * 2
    with (
        weft.memory_limit(1000, "farm:1"),
        pytest.raises(weft.MemoryPlanError, match=r"32,768 bytes on farm:1"),
    ):
        y.realize()
    np.testing.assert_array_equal(y.numpy(), (x.numpy() + 1) * 2)


@pytest.mark.parametrize("broken", range(3))
def test_a_device_that_fails_is_named_and_nothing_stands_for_a_result(
    farm: list[dummy.DummyDevice], broken: int
) -> None:
    def results() -> list[weft.Tensor]:
        x = ints(4, 4, device="farm:0")
        a = x + 1
        b = a.to("farm:1") * 2
        return [a, b, b.to("farm:2") - 3]

    found = results()
    farm[broken].faults = Faults(launches=frozenset({0}))
    with pytest.raises(weft.DeviceError, match=rf"step \d of \d on farm:{broken} \(\w+\): .* told to"):
        weft.realize(*found)
    assert all(t.value.node.storage is None for t in found)
    farm[broken].faults = Faults()
    np.testing.assert_array_equal(found[2].numpy(), (ints(4, 4).numpy() + 1) * 2 - 3)


def test_runtime_variables_have_values_on_all_devices() -> None:
    n = weft.Variable("n", 1, 6)
    x = ints(6, 3, device="dummy:0")
    y = (x[:n] * 2).to("dummy:1").sum(0)
    z = x[:n].to("cpu")
    for k in (1, 4, 6):
        np.testing.assert_array_equal(weft.bind(y, n=k).numpy(), x.numpy()[:k].sum(0) * 2)
        np.testing.assert_array_equal(weft.bind(z, n=k).numpy(), x.numpy()[:k])
    with pytest.raises(weft.ArgumentError, match="between 1 and 6"):
        weft.bind(y, n=7).numpy()


def test_a_cpu_reads_what_it_can_where_it_is() -> None:
    plans = [plan_of(*results) for results in lendings()]
    ways = [[s.way for s in p.order.exchanges] for p in plans]
    assert ways == [[Way.LENT], [Way.HOST], [Way.HOST]]  # an own value; a result; a box of several runs
    for result, want in zip(lendings(), (6 * 4 * 2, 6 * 4, 6 * 2), strict=True):
        assert float(result[0].sum()) == want


def lendings() -> list[list[weft.Tensor]]:
    x = weft.ones(6, 4, device="opencl").realize()
    return [[x.to("cpu") * 2], [x.to("cpu")], [x[:, :2].to("cpu") * 1]]


test_a_cpu_reads_what_it_can_where_it_is = OPENCL(test_a_cpu_reads_what_it_can_where_it_is)


def test_threads_run_one_plan_at_once() -> None:
    import threading

    wrong: list[Any] = []

    def work(seed: int) -> None:
        for k in range(5):
            x = ints(16, 16, seed=seed * 10 + k, device="dummy:0")
            y = ((x @ x).to("cpu") + 1) % 7
            if not np.array_equal(y.numpy(), (x.numpy() @ x.numpy() + 1) % 7):
                wrong.append((seed, k))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_files_are_computed_part_by_part(tmp_path: Any) -> None:
    data = np.arange(24, dtype=np.float32).reshape(6, 4)
    weft.save({"x": weft.tensor(data)}, tmp_path / "x.safetensors")
    x = weft.load(tmp_path / "x.safetensors", device="disk")["x"]
    w = ints(4, 4, device="dummy:0")
    y = (x + w[:1]).to("dummy:1") * 2
    z = x.to("dummy:2")
    weft.realize(y, z)
    np.testing.assert_array_equal(y.numpy(), (data + w.numpy()[:1]) * 2)
    np.testing.assert_array_equal(z.numpy(), data)
