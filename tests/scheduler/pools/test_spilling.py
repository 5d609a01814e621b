"""Values that go to a slower pool and come back: the same bits, in as much memory as was planned."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends import registry
from weft.backends.dummy import device as dummy
from weft.backends.dummy.faults import Faults
from weft.backends.links import Link
from weft.scheduler.pools import slow, within
from weft.scheduler.pools.schedule import Transfer
from weft.scheduler.pools.spilling import Spilling

LEAST = re.compile(r"a limit of ([\d,]+) for ([\w:]+)")


@pytest.fixture
def pool() -> Iterator[dummy.DummyDevice]:
    """A device that computes slowly beside its link to the host, so that copies are cheaper than computing again."""
    info = dummy.describe(0, "tight", flops=1e6, bandwidth=1e9)
    backend = dummy.DummyBackend([info], "tight")
    registry.register(backend)
    yield backend.device(0)
    registry.unregister("tight")


def data(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(x: weft.Tensor) -> bytes:
    return x.detach().numpy().tobytes()


def there_and_back(leaf: weft.Tensor, depth: int = 6) -> weft.Tensor:
    """Products, each of which is read again in turn."""
    values = [leaf]
    for _ in range(depth):
        values.append((values[-1] @ leaf * 0.1).contiguous())
    y = values[-1]
    for v in reversed(values):
        y = (y @ v * 0.1 + v).contiguous()
    return y


def lowest(run: Any, device: str = "tight:0") -> int:
    """The least limit that a refusal names."""
    used = registry.open_device(device).used_bytes()
    with pytest.raises(weft.MemoryPlanError) as refused, weft.memory_limit(used + 1, device):
        run()
    found = LEAST.search(str(refused.value))
    assert found is not None
    return int(found[1].replace(",", ""))


def test_what_is_dear_to_compute_goes_to_the_host_and_comes_back(pool: dummy.DummyDevice) -> None:
    leaf = weft.tensor(data(32, 32), device="tight:0").realize()
    want, used = bits(there_and_back(leaf)), pool.used_bytes()
    with weft.memory_limit(used + 6 * 4096, "tight:0"):
        y = there_and_back(leaf)
        text = str(weft.explain(y))
        pool.pool.peak_bytes = used
        y.realize()
    assert "spilled to cpu:0" in text
    assert "us to recompute it" in text
    planned = re.search(r"within [\d,]+ bytes: takes ([\d,]+)", text)
    assert planned is not None
    assert pool.pool.peak_bytes - used == int(planned[1].replace(",", "")) <= 6 * 4096
    assert bits(y) == want


def test_the_least_limit_does_and_nothing_is_left_behind(pool: dummy.DummyDevice) -> None:
    leaf = weft.tensor(data(32, 32), device="tight:0").realize()
    want, used = bits(there_and_back(leaf)), pool.used_bytes()
    host = registry.open_device("cpu").used_bytes()
    limit = lowest(lambda: there_and_back(leaf).realize())
    for room in (limit, limit + 4096, limit + 3 * 4096):
        pool.pool.peak_bytes = used
        with weft.memory_limit(room, "tight:0"):
            assert bits(there_and_back(leaf)) == want
        assert pool.pool.peak_bytes <= room
    gc.collect()
    assert pool.used_bytes() == used
    assert registry.open_device("cpu").used_bytes() <= host + 4096 * 8


def test_a_host_without_room_is_a_refusal_that_changes_nothing(pool: dummy.DummyDevice) -> None:
    # values larger than the small blocks that earlier tests may have left idle
    w = weft.tensor(data(160, 160), device="tight:0").realize()

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        nonlocal w
        y = there_and_back(x @ w)
        w -= 0.01 * y
        return y.sum()

    x = weft.tensor(data(160, 160, seed=1), device="tight:0").realize()
    step(x)
    before, used = bits(w), pool.used_bytes()
    with weft.memory_limit(used + 6 * 4 * 160 * 160, "tight:0"):
        with weft.memory_limit(0, "cpu"), pytest.raises(weft.MemoryPlanError):
            step(x)
        assert bits(w) == before
        step(x)
    assert bits(w) != before


@pytest.mark.parametrize("limited", [True, False])
def test_state_is_updated_in_place_by_stretches(pool: dummy.DummyDevice, limited: bool) -> None:
    def trained(limit: int | None) -> list[bytes]:
        w = weft.tensor(data(32, 32), device="tight:0").realize()
        m = weft.zeros(32, 32, device="tight:0").realize()

        @weft.compile
        def step(x: weft.Tensor) -> weft.Tensor:
            y = there_and_back(x @ w)
            m.mul_(0.9).add_(y * 0.1)
            w.sub_(0.01 * m)
            return (y * y).sum()

        x = weft.tensor(data(32, 32, seed=1), device="tight:0").realize()
        out = [step(x)]
        used = pool.used_bytes()
        with weft.memory_limit(None if limit is None else used + limit, "tight:0"):
            out += [step(x) for _ in range(3)]
        return [*map(bits, out), bits(w), bits(m)]

    want = trained(None)
    if limited:
        assert trained(7 * 4096) == want
        kept = [f for plans in within._fitted.values() for f in plans]
        assert any(isinstance(f.plan.executable, Spilling) for f in kept)


def test_a_launch_that_fails_leaves_state_as_it_was(pool: dummy.DummyDevice) -> None:
    w = weft.tensor(data(32, 32), device="tight:0").realize()

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        y = there_and_back(x @ w)
        w.sub_(0.01 * y)
        return (y * y).sum()

    x = weft.tensor(data(32, 32, seed=1), device="tight:0").realize()
    step(x)
    before, launches = bits(w), 0
    with weft.memory_limit(pool.used_bytes() + 6 * 4096, "tight:0"):
        while True:
            pool.faults = Faults(launches=frozenset({launches}))
            try:
                step(x)
            except weft.DeviceError:
                launches += 1
            else:
                break
            finally:
                pool.faults = Faults()
            assert bits(w) == before
    assert bits(w) != before
    assert launches > 14
    assert any(isinstance(f.plan.executable, Spilling) for plans in within._fitted.values() for f in plans)


def test_the_cpu_spills_to_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "transfer", lambda device, nbytes: Transfer(1.0, 1.0))
    leaf = weft.tensor(data(256, 256)).realize()
    want, place = bits(there_and_back(leaf)), registry.open_device("cpu")
    size = 1 << 18
    place._workspace = None  # pyright: ignore[reportAttributeAccessIssue]
    with weft.memory_limit(place.used_bytes() + place.idle_bytes() + 6 * size):  # pyright: ignore[reportAttributeAccessIssue]
        y = there_and_back(leaf)
        assert "spilled to disk" in str(weft.explain(y))
        assert bits(y) == want


def test_cells_give_back_what_was_put() -> None:
    for info in (registry.open_device("cpu").info, dummy.describe(0, "tight")):
        cells = slow.reserve(info, [8, 3, 5])
        for k, cell in enumerate(cells):
            cell.put(memoryview(bytes([k]) * (8, 3, 5)[k]))
        assert [bytes(c.get())[: (8, 3, 5)[k]] for k, c in enumerate(cells)] == [
            bytes(8), bytes([1] * 3), bytes([2] * 5)
        ]  # fmt: skip


def test_transfers_take_what_links_and_files_take(pool: dummy.DummyDevice) -> None:
    link = pool.link_to(registry.open_device("cpu"))
    assert isinstance(link, Link)
    assert slow.transfer(pool, 1 << 20).out_ns == pytest.approx(1e9 * link.seconds(1 << 20))
    on_file = slow.transfer(registry.open_device("cpu"), 1 << 20)
    assert on_file.out_ns == pytest.approx(1e9 * (1 << 20) / slow.file_rate())
