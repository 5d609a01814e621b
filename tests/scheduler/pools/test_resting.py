"""State that rests in a slower pool between its uses: the same bits, in as much memory as was planned."""
# Tests: weft/backends/resting.py, weft/scheduler/pools/verify.py

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import weft
from weft import nn
from weft.backends import registry
from weft.backends.dummy import device as dummy
from weft.backends.dummy.faults import Faults
from weft.backends.resting import RestingStorage
from weft.ir.errors import IRError
from weft.scheduler.pools import slow, verify, within
from weft.scheduler.pools.schedule import Transfer
from weft.scheduler.pools.spilling import Back, Out, Split

LEAST = re.compile(r"a limit of ([\d,]+) for ([\w:]+)")
WIDTH = 64
"""Tensors above this size are no small blocks, which pools keep."""


@pytest.fixture
def pool() -> Iterator[dummy.DummyDevice]:
    backend = dummy.DummyBackend([dummy.describe(0, "tight")], "tight")
    registry.register(backend)
    yield backend.device(0)
    registry.unregister("tight")


class Training:
    """A perceptron that is trained by a compiled step, with moments."""

    def __init__(
        self, device: str, optimizer: str = "Adam", width: int = WIDTH, depth: int = 3, drops: bool = False
    ) -> None:
        weft.manual_seed(0)
        self.device, self.width = device, width
        with weft.device(device):
            between = nn.Dropout(0.3) if drops else nn.ReLU()
            layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), between)]
            self.model = nn.Sequential(*layers)
            options: dict[str, Any] = {"momentum": 0.9} if optimizer == "SGD" else {}
            self.optimizer = getattr(weft.optim, optimizer)(self.model.parameters(), lr=0.01, **options)
        self.step = weft.compile(self.eager)
        self.losses: list[float] = []

    def eager(self, x: weft.Tensor) -> weft.Tensor:
        self.optimizer.zero_grad()
        loss = self.model(x).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def batch(self, rows: int = WIDTH) -> weft.Tensor:
        rng = np.random.default_rng(len(self.losses))
        return weft.tensor(rng.standard_normal((rows, self.width)).astype("f"), device=self.device).realize()

    def run(self, steps: int, rows: int = WIDTH) -> Training:
        for _ in range(steps):
            self.losses.append(self.step(self.batch(rows)).item())
        return self

    @property
    def state(self) -> list[weft.Tensor]:
        own = [v for p in self.model.parameters() for v in self.optimizer.state[p].values()]
        return [*self.model.parameters(), *[v for v in own if isinstance(v, weft.Tensor)]]

    @property
    def bits(self) -> list[Any]:
        return [self.losses, *[np.asarray(t.numpy()).tobytes() for t in self.state]]

    @property
    def resting(self) -> int:
        storages = [t.value.node.storage for t in self.state]
        return sum([isinstance(s, RestingStorage) and s.rests for s in storages])

    def used(self) -> int:
        gc.collect()
        device: Any = registry.open_device(self.device)
        return device.used_bytes() + (device.idle_bytes() if hasattr(device, "idle_bytes") else 0)

    def lowest(self, rows: int = WIDTH) -> int:
        """The least limit that a refusal names."""
        x = self.batch(rows)
        with pytest.raises(weft.MemoryPlanError) as refused, weft.memory_limit(self.used() + 1, self.device):
            self.step(x)
        found = LEAST.search(str(refused.value))
        assert found is not None
        del refused  # whose traceback holds the batch
        gc.collect()
        return int(found[1].replace(",", ""))


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "RMSprop"])
def test_a_step_within_the_least_limit_has_the_bits_of_one_without(
    pool: dummy.DummyDevice, optimizer: str
) -> None:
    want = Training("tight:0", optimizer).run(9).bits
    found = Training("tight:0", optimizer).run(4)
    least = found.lowest()
    for more in (0, 5000, 20000, 40000, 60000):
        pool.pool.peak_bytes = 0
        x = found.batch()
        with weft.memory_limit(least + more, "tight:0"):
            found.losses.append(found.step(x).item())
        assert pool.pool.peak_bytes <= least + more
    assert found.resting
    assert found.bits == want


def test_the_peak_is_as_planned_and_explained(pool: dummy.DummyDevice) -> None:
    found = Training("tight:0").run(4)
    x, least = found.batch(), found.lowest()
    with weft.memory_limit(least + 8000, "tight:0"):
        found.step(x)
        pool.pool.peak_bytes, before = 0, pool.used_bytes()
        found.step(x)
        peak = pool.pool.peak_bytes
        text = str(weft.explain(found.step, x))
    planned = re.search(r"within ([\d,]+) bytes: takes ([\d,]+)", text)
    assert planned is not None
    taken = int(planned[2].replace(",", ""))
    stays = sum([t.nbytes for t in found.state]) - sum([t.nbytes for t in found.state if _rests(t)])
    assert peak - before == taken - stays
    assert re.search(
        r"tensors of state rest in cpu:0 between runs, [\d,]+ bytes in all; [\d,]+ bytes are copied", text
    )


def _rests(t: weft.Tensor) -> bool:
    storage = t.value.node.storage
    return isinstance(storage, RestingStorage) and storage.rests


def test_moments_rest_before_parameters_do(pool: dummy.DummyDevice) -> None:
    found = Training("tight:0").run(4)
    x, whole = found.batch(), sum([t.nbytes for t in found.state])
    pool.pool.peak_bytes = 0
    found.step(x)
    with weft.memory_limit(pool.pool.peak_bytes - whole // 6, "tight:0"):
        found.step(x)
    parameters = list(found.model.parameters())
    assert found.resting
    assert not any(_rests(p) for p in parameters)


def test_state_comes_back_where_it_is_asked_for_and_limits_are_lifted(pool: dummy.DummyDevice) -> None:
    want = Training("tight:0").run(9)
    found = Training("tight:0").run(4)
    x, limit = found.batch(), found.lowest() + 8000
    with weft.memory_limit(limit, "tight:0"):
        found.losses.append(found.step(x).item())
    assert found.resting
    moment = next(t for t in found.state if _rests(t))
    copied = (moment * 1.0).numpy()
    assert not _rests(moment)
    np.testing.assert_array_equal(copied, moment.numpy())
    held = moment.detach()  # who looks at it keeps the old value
    found.losses.append(found.eager(found.batch()).item())
    x = found.batch()
    with weft.memory_limit(limit + 2 * 4 * WIDTH * WIDTH, "tight:0"):
        found.losses.append(found.step(x).item())
    assert found.resting
    found.run(2)
    assert not found.resting
    assert found.bits == want.bits
    assert held.shape == moment.shape


def test_who_refers_to_state_keeps_the_old_value(pool: dummy.DummyDevice) -> None:
    want = Training("tight:0").run(6)
    found = Training("tight:0").run(4)
    x, limit = found.batch(), found.lowest() + 8000
    with weft.memory_limit(limit, "tight:0"):
        found.losses.append(found.step(x).item())
    moment = next(t for t in found.state if _rests(t))
    before, value = np.array(moment.numpy()), moment.value
    x = found.batch()
    with weft.memory_limit(limit + 6 * 4 * WIDTH * WIDTH, "tight:0"):
        found.losses.append(found.step(x).item())
    np.testing.assert_array_equal(value.node.storage.numpy(), before)
    assert found.bits == want.bits


def test_state_rests_beside_other_threads(pool: dummy.DummyDevice) -> None:
    want = Training("tight:0").run(8)
    found = Training("tight:0").run(4)
    limit, over = found.lowest() + 8000, threading.Event()

    def other() -> None:
        while not over.wait(0.0001):
            sum(range(1000))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for _ in range(4):
            x = found.batch()
            with weft.memory_limit(limit, "tight:0"):
                found.losses.append(found.step(x).item())
    finally:
        over.set()
        thread.join()
    assert found.resting
    assert found.bits == want.bits


@pytest.mark.parametrize("what", ["launches", "copies", "allocations"])
def test_a_fault_leaves_state_as_it_was_or_unreadable(pool: dummy.DummyDevice, what: str) -> None:
    number, outcomes = 0, set[str]()
    while True:
        other = Training("tight:0", depth=2).run(4)
        limit, x = other.lowest() + 8000, other.batch()
        with weft.memory_limit(limit, "tight:0"):
            other.step(x)
            before = other.bits
            pool.faults = Faults(**{what: frozenset({number})})
            try:
                other.step(x)
            except (weft.DeviceError, weft.MemoryPlanError):
                pool.faults = Faults()
            else:
                break
            finally:
                pool.faults = Faults()
        try:
            assert other.bits == before
            outcomes.add("as before")
        except (weft.DeviceError, ValueError):
            outcomes.add("lost")
        del other
        number += 1
    assert "as before" in outcomes
    assert number > (0 if what == "allocations" else 5)  # after which less room is tried


def test_a_host_without_room_is_a_refusal_that_changes_nothing(pool: dummy.DummyDevice) -> None:
    found = Training("tight:0", width=160).run(4, rows=160)
    least, x = found.lowest(160), found.batch(160)
    before = found.bits
    with weft.memory_limit(least, "tight:0"):
        with weft.memory_limit(0, "cpu"), pytest.raises(weft.MemoryPlanError, match="slower pool"):
            found.step(x)
        assert found.bits == before
        found.step(x)
    assert found.resting


@pytest.fixture
def another_thread() -> Iterator[None]:
    """A thread that runs Python meanwhile: memory is taken from it, and gradients have no memory to be written over."""
    over = threading.Event()

    def wait() -> None:
        while not over.wait(0.001):
            pass

    thread = threading.Thread(target=wait)
    thread.start()
    yield
    over.set()
    thread.join()


@pytest.mark.parametrize("more", [0, 1 << 19])
@pytest.mark.usefixtures("another_thread")
def test_the_least_limit_does_beside_another_thread(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    """Small blocks of the cpu's, which go to rest, count against its limit for ever."""
    monkeypatch.setattr(slow, "transfer", lambda device, nbytes: Transfer(1.0, 1.0))
    want = Training("cpu:0", width=256).run(7, rows=256).bits
    found = Training("cpu:0", width=256).run(4, rows=256)
    device: Any = registry.open_device("cpu:0")
    device._workspace = None
    least = found.lowest(256)
    for _ in range(3):
        x = found.batch(256)
        with weft.memory_limit(least + more, "cpu:0"):
            found.losses.append(found.step(x).item())
    assert found.resting
    assert found.bits == want


def test_the_state_of_the_cpu_rests_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "transfer", lambda device, nbytes: Transfer(1.0, 1.0))
    want = Training("cpu:0", width=256).run(7, rows=256).bits
    found = Training("cpu:0", width=256).run(4, rows=256)
    device: Any = registry.open_device("cpu:0")
    device._workspace = None
    gc.collect()
    least = found.lowest(256)
    for _ in range(3):
        x = found.batch(256)
        with weft.memory_limit(least + (1 << 19), "cpu:0"):
            found.losses.append(found.step(x).item())
    assert found.resting
    assert found.bits == want


def test_a_limit_changes_no_random_numbers(pool: dummy.DummyDevice) -> None:
    with weft.device("tight:0"):
        want = Training("tight:0", drops=True).run(7).bits
        found = Training("tight:0", drops=True).run(4)
        limit = found.lowest() + 4000
        for _ in range(3):
            x = found.batch()
            with weft.memory_limit(limit, "tight:0"):
                found.losses.append(found.step(x).item())
    assert found.resting
    assert found.bits == want


def test_saved_state_and_copies_need_no_room(pool: dummy.DummyDevice) -> None:
    found = Training("tight:0").run(4)
    x, limit = found.batch(), found.lowest()
    with weft.memory_limit(limit, "tight:0"):
        found.step(x)
        resting = found.resting
        saved = {k: np.asarray(v.numpy()) for k, v in found.model.state_dict().items()}
    assert found.resting == resting
    assert all(np.isfinite(v).all() for v in saved.values())


def test_the_verifier_sees_what_is_missing(pool: dummy.DummyDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Split] = []
    monkeypatch.setattr(within, "verify_split", seen.append)
    found = Training("tight:0").run(4)
    x, limit = found.batch(), found.lowest() + 8000
    with weft.memory_limit(limit, "tight:0"):
        found.step(x)
    whole = seen[-1]
    verify.verify_split(whole)
    copies = [k for k, item in enumerate(whole.items) if isinstance(item, Out | Back)]
    for k in copies:
        items = whole.items
        with pytest.raises(IRError):
            verify.verify_split(replace(whole, items=(*items[:k], *items[k + 1 :])))
    outs = [k for k in copies if isinstance(whole.items[k], Out)]
    first, last = whole.items[outs[0]], whole.items[outs[-1]]
    assert isinstance(first, Out) and isinstance(last, Out)
    swapped = list(whole.items)
    swapped[outs[0]], swapped[outs[-1]] = replace(first, cell=last.cell), replace(last, cell=first.cell)
    with pytest.raises(IRError):
        verify.verify_split(replace(whole, items=tuple(swapped)))
