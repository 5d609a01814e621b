"""Bytes in, out, and between pools."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import weft
from weft.backends.boxes import BoxCopy, Place, Within, box_copy, copy_box
from weft.backends.protocol import Device
from weft.backends.registry import open_backend, open_device
from weft.ir.dtypes import DTYPES, to_numpy
from weft.testing.conformance.harness import Array, Harness


def noise(nbytes: int, seed: int = 0) -> Array:
    """Random bytes."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def test_parts(harness: Harness) -> None:
    """Offsets, odd ones too; the rest stays as it was."""
    device, data = harness.device, noise(10_007)
    memory = harness.put(data)
    patch = noise(777, 1)
    for offset in (0, 1, 64, 5003, 10_007 - 777):
        device.write(memory, patch.data, offset)
        data[offset : offset + 777] = patch
        assert np.array_equal(harness.get(memory, data), data)
    for offset, nbytes in ((0, 1), (3, 5), (4096, 4096), (10_006, 1), (10_007, 0)):
        part = np.frombuffer(bytes(device.read(memory, nbytes, offset)), np.uint8)
        assert np.array_equal(part, data[offset : offset + nbytes])


def test_the_source_may_change_after_a_write(harness: Harness) -> None:
    """`write` has taken the bytes when it returns."""
    data = noise(3 << 20)
    expected = data.copy()
    memory = harness.device.allocate(data.nbytes)
    harness.device.write(memory, data.data)
    data[:] = 0
    assert np.array_equal(harness.get(memory, expected), expected)


def test_read_only_and_typed_sources(harness: Harness) -> None:
    """bytes, and arrays of any item size and rank, as memoryviews."""
    device = harness.device
    memory = device.allocate(32)
    device.write(memory, memoryview(b"0123456789abcdef"))
    device.write(memory, np.arange(4, dtype=np.float32).reshape(2, 2).data, 16)
    got = bytes(device.read(memory, 32))
    assert got == b"0123456789abcdef" + np.arange(4, dtype=np.float32).tobytes()


def test_what_was_read_stays(harness: Harness) -> None:
    """The result of `read` keeps its bytes: also when the memory's object is gone, and others have come."""
    device, data = harness.device, noise(100_000)
    memory = harness.put(data)
    parts = [device.read(memory, 50_000), device.read(memory, 1000, 70_000)]
    del memory
    gc.collect()
    others = [harness.put(np.zeros(100_000, np.uint8)) for _ in range(4)]
    assert np.array_equal(np.frombuffer(parts[0], np.uint8), data[:50_000])
    assert np.array_equal(np.frombuffer(parts[1], np.uint8), data[70_000:71_000])
    assert all(m.nbytes for m in others)


@pytest.mark.parametrize("offset", (-1, 60, 65, 1 << 40))
def test_outside_of_a_memory(device: Device, offset: int) -> None:
    """Bytes that are not all inside: a ValueError, and nothing is touched."""
    memory = device.allocate(64)
    device.write(memory, memoryview(bytes(64)))
    with pytest.raises(ValueError):
        device.write(memory, memoryview(b"12345678"), offset)
    with pytest.raises(ValueError):
        device.read(memory, 8, offset)
    assert bytes(device.read(memory, 64)) == bytes(64)


def test_within_the_device(harness: Harness) -> None:
    """A device copies its own memory without the host."""
    data = noise(100_003)
    source, target = harness.put(data), harness.put(np.zeros_like(data))
    assert harness.device.copy_from(target, harness.device, source, 99_000)
    got = harness.get(target, data)
    assert np.array_equal(got[:99_000], data[:99_000]) and not got[99_000:].any()
    with pytest.raises(ValueError):
        harness.device.copy_from(target, harness.device, source, 100_004)


def test_between_pools(harness: Harness, device_name: str) -> None:
    """To and from every other pool that is always there, and others of this kind: straight, or not at all."""
    kind = device_name.partition(":")[0]
    others = ["cpu:0", "dummy:0", *(f"{kind}:{k}" for k in range(open_backend(kind).count()))]
    for name in dict.fromkeys(n for n in others if n != device_name):
        other = Harness(open_device(name))
        data = noise(50_001)
        for a, b in ((harness, other), (other, harness)):
            source, target = a.put(data), b.put(np.zeros_like(data))
            straight = b.device.copy_from(target, a.device, source, data.nbytes)
            expected = data if straight else np.zeros_like(data)
            assert np.array_equal(b.get(target, data), expected), f"{a.device.info.name} to {name}"


def boxes(seed: int, count: int = 24) -> Iterator[tuple[tuple[int, ...], Within, Within, np.dtype[Any]]]:
    """Random boxes: their size, where they are, where they go, and the dtype."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        rank = int(rng.integers(1, 5))
        size = tuple(int(n) for n in rng.integers(1, 6, rank))
        dtype = np.dtype(("u1", "u2", "u4", "u8")[int(rng.integers(4))])
        sides: list[Within] = []
        for stepped in (bool(rng.integers(2)), False):
            step = tuple(int(n) for n in rng.integers(1, 3, rank)) if stepped else (1,) * rank
            whole = bool(rng.integers(2))
            start = tuple(0 if whole else int(n) for n in rng.integers(0, 3, rank))
            rest = [0 if whole else int(n) for n in rng.integers(0, 3, rank)]
            ends = [f + (n - 1) * s + 1 for f, n, s in zip(start, size, step, strict=True)]
            sides.append(Within(tuple(e + r for e, r in zip(ends, rest, strict=True)), start, step))
        yield size, sides[0], sides[1], dtype


def picked(size: Sequence[int], box: Within) -> tuple[slice, ...]:
    """The box as NumPy takes it."""
    return tuple(slice(f, f + (n - 1) * s + 1, s) for f, n, s in zip(box.start, size, box.step, strict=True))


def test_boxes(harness: Harness, device_name: str) -> None:
    """Boxes of tensors go into boxes of others, within the device, to and from every other pool: what is around them
    stays as it was."""
    kind = device_name.partition(":")[0]
    others = ["cpu:0", "dummy:0", *(f"{kind}:{k}" for k in range(open_backend(kind).count()))]
    pools = [harness, *(Harness(open_device(name)) for name in dict.fromkeys(others))]
    for k, other in enumerate(pools):
        for a, b in ((harness, other), (other, harness)):
            for size, source, target, dtype in boxes(k):
                data = noise(math.prod(source.shape) * dtype.itemsize).view(dtype).reshape(source.shape)
                want = noise(math.prod(target.shape) * dtype.itemsize, 1).view(dtype).reshape(target.shape)
                start, room = a.put(data), b.put(want)
                copy = box_copy(size, dtype.itemsize, source, target)
                a.device.synchronize()
                b.device.synchronize()
                copy_box(b.device, room, a.device, start, copy)
                want[picked(size, target)] = data[picked(size, source)]
                got = b.get(room, want)
                assert np.array_equal(got, want), f"{a.device.info.name} to {b.device.info.name}: {copy}"


def test_a_box_outside_of_a_memory(harness: Harness) -> None:
    """Is refused, and nothing is touched, on either side."""
    device, data = harness.device, noise(64)
    small, large = harness.put(data), harness.put(np.zeros(256, np.uint8))
    for source, target in ((small, large), (large, small)):
        for copy in (
            BoxCopy((), 80, Place(0), Place(0)),
            BoxCopy((5,), 4, Place(0, (16,)), Place(0, (16,))),
            BoxCopy((), 8, Place(60), Place(60)),
        ):
            with pytest.raises(ValueError):
                copy_box(device, target, device, source, copy)
    assert np.array_equal(harness.get(small, data), data)


def test_copies_of_boxes_take_turns_with_runs_by_events(harness: Harness) -> None:
    """On the last queue, after an event of the first, which then waits for the copy: a pipeline, no host in it."""
    device, last = harness.device, harness.device.info.queues - 1
    data = noise(1 << 20)
    memories = [harness.put(data), *(harness.put(np.zeros_like(data)) for _ in range(4))]
    whole = BoxCopy((), data.nbytes, Place(0), Place(0))
    for k in range(4):
        queue, other = (last, 0) if k % 2 == 0 else (0, last)
        device.queue(queue).wait(device.queue(other).record())
        copy_box(device, memories[k + 1], device, memories[k], whole, queue)
    device.queue(0).synchronize()
    device.synchronize()
    assert np.array_equal(harness.get(memories[4], data), data)


def test_tensors_of_every_dtype_travel(device: Device, device_name: str) -> None:
    """Through `Tensor.to`, there and back, with all bits."""
    for d in device.info.dtypes:
        bits = noise(33 * d.itemsize) if d.name != "bool" else noise(33) & 1
        array = bits.view(to_numpy(d)).reshape(3, 11)
        there = weft.tensor(array, device="cpu").to(device_name)
        back = there.to("cpu").numpy()
        assert there.device == device_name and back.tobytes() == array.tobytes(), d.name


def test_what_the_device_lacks_is_refused(device: Device, device_name: str) -> None:
    """A tensor of a dtype that the device lacks cannot be made there, nor brought there, nor computed there."""
    for d in set(DTYPES.values()) - device.info.dtypes:
        array = np.zeros(3, to_numpy(d))
        here = weft.tensor(array, device="cpu")
        for act in (
            lambda: weft.tensor(array, device=device_name),
            lambda: here.to(device_name).realize(),
            lambda: weft.tensor([True], device=device_name).to(here.dtype).realize(),
        ):
            with pytest.raises(weft.DTypeError, match=f"{device_name} has no {d.name}"):
                act()
