"""Memory: allocated, freed, limited, and not lost."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import weft
from weft.backends.protocol import Device
from weft.testing.conformance.harness import Harness

SIZES = (0, 1, 3, 64, 65, 1000, 4096, 70_001, 1 << 20, (5 << 20) + 13)


@pytest.mark.parametrize("nbytes", SIZES)
def test_bytes_come_back(harness: Harness, nbytes: int) -> None:
    """The bytes that were written are read."""
    data = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    memory = harness.put(data)
    assert memory.nbytes == nbytes
    assert np.array_equal(harness.get(memory, data), data)


@pytest.mark.parametrize("nbytes", SIZES[1:])
def test_alignment(device: Device, nbytes: int) -> None:
    """Memory begins at a multiple of 64 bytes, also behind some of an odd size: seen where `read` gives views."""
    memories = [device.allocate(nbytes) for _ in range(3)]
    views = [np.frombuffer(device.read(m, nbytes), np.uint8) for m in memories]
    if device.info.host_memory:
        assert [v.ctypes.data % 64 for v in views] == [0, 0, 0]


def test_memories_do_not_overlap(harness: Harness) -> None:
    """Many memories of many sizes keep what each was given, also after others were freed."""
    rng = np.random.default_rng(0)
    kept = {k: rng.integers(0, 256, int(n), np.uint8) for k, n in enumerate(rng.integers(1, 9000, 60))}
    memories = {k: harness.put(a) for k, a in kept.items()}
    for k in list(kept)[::2]:
        del memories[k], kept[k]
    for k in range(100, 130):
        kept[k] = rng.integers(0, 256, int(rng.integers(1, 9000)), np.uint8)
        memories[k] = harness.put(kept[k])
    for k, data in kept.items():
        assert np.array_equal(harness.get(memories[k], data), data)


def test_freed_memory_is_not_used(device: Device) -> None:
    """After `free`, every use is a ValueError, another `free` too; the bytes are back."""
    before = device.used_bytes()
    memory = device.allocate(1 << 16)
    assert device.used_bytes() >= before + (1 << 16)
    device.free(memory)
    assert device.used_bytes() <= before
    for use in (
        lambda: device.free(memory),
        lambda: device.read(memory, 4),
        lambda: device.write(memory, memoryview(b"1234")),
        lambda: device.copy_from(memory, device, device.allocate(4), 4),
    ):
        with pytest.raises(ValueError):
            use()


def test_a_limit_is_kept_and_lifted(device: Device) -> None:
    """Above the limit there is a MemoryError; what was freed may be used again."""
    used = device.used_bytes()
    device.set_memory_limit(used + (8 << 20))
    try:
        memory = device.allocate(6 << 20)
        with pytest.raises(MemoryError):
            device.allocate(6 << 20)
        del memory
        gc.collect()
        memory = device.allocate(6 << 20)
        device.write(memory, memoryview(bytes(6 << 20)))
    finally:
        device.set_memory_limit(None)
    assert device.allocate(16 << 20).nbytes == 16 << 20


def test_a_request_beyond_the_machine(device: Device) -> None:
    """More than any machine has: a MemoryError, and the device goes on."""
    with pytest.raises(MemoryError):
        device.allocate(1 << 60)
    assert device.allocate(64).nbytes == 64


def test_dying_memory_goes_back(device: Device) -> None:
    """A thousand times the limit in all, one after another."""
    device.set_memory_limit(device.used_bytes() + (4 << 20))
    try:
        for _ in range(300):
            memory = device.allocate(3 << 20)
            device.write(memory, memoryview(b"12345678"))
            del memory
    finally:
        device.set_memory_limit(None)


def test_computing_leaks_nothing(device: Device, device_name: str) -> None:
    """The same work again and again leaves as much memory in use as after the first few times."""
    rng = np.random.default_rng(0)
    x = weft.tensor(rng.random((24, 24), np.float32), device=device_name)

    @weft.compile
    def step(t: weft.Tensor) -> weft.Tensor:
        return (t @ t).softmax(-1).sum(0)

    def work() -> None:
        y = x * 2 + 1
        (y @ x).sum(1).realize()
        step(y).numpy()

    for _ in range(3):
        work()
    gc.collect()
    weft.synchronize()
    before = device.used_bytes()
    for _ in range(10):
        work()
    gc.collect()
    weft.synchronize()
    assert device.used_bytes() <= before
