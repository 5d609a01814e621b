"""A mesh as a device: memory in parts, the whole for the host."""

from __future__ import annotations

import numpy as np
import pytest

from weft.backends import registry
from weft.backends.mesh import MESHES
from weft.backends.mesh.device import MAX_MESHES, MeshBackend, joined, layout_of, parts_of
from weft.backends.storage import Storage, from_numpy
from weft.errors import DeviceError
from weft.ir.dtypes import float32
from weft.ir.placement import Replicate, Shard, boxes

NAMES = ("dummy:0", "dummy:1", "dummy:2", "cpu:0")


def laid(array: np.ndarray, shape: tuple[int, ...], layout: tuple[object, ...]) -> Storage:
    device = MESHES.mesh(NAMES, shape)
    held = boxes(layout, array.shape, device.mesh)
    cut = [array[tuple([slice(lo, hi) for lo, hi in box])] for box in held]
    parts = [from_numpy(x, float32, d) for x, d in zip(cut, device.devices, strict=True)]
    return joined(device, layout, array.shape, parts)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        ((4,), (Shard(0),)),
        ((4,), (Shard(1),)),
        ((4,), (Replicate(),)),
        ((2, 2), (Shard(0), Shard(1))),
        ((2, 2), (Shard(0), Shard(0))),
        ((2, 2), (Replicate(), Shard(1))),
        ((4,), (Shard(0, (0, 5, 5, 5)),)),
    ],
)
def test_the_host_reads_the_whole_of_what_is_in_parts(
    shape: tuple[int, ...], layout: tuple[object, ...]
) -> None:
    array = np.arange(15, dtype=np.float32).reshape(5, 3)
    stored = laid(array, shape, layout)
    assert np.array_equal(stored.numpy(), array)
    assert layout_of(stored) == layout
    assert stored.nbytes == stored.memory.nbytes == 60


def test_what_the_host_writes_is_on_each_device() -> None:
    device = MESHES.mesh(NAMES, (4,))
    stored = from_numpy(np.arange(3, dtype=np.float32), float32, device)
    assert [p.numpy().tolist() for p in parts_of(stored)] == [[0, 1, 2]] * 4
    assert bytes(device.read(stored.memory, 4, 8)) == np.float32(2).tobytes()


def test_parts_are_values_on_their_devices() -> None:
    stored = laid(np.arange(8, dtype=np.float32), (4,), (Shard(0),))
    assert [(p.device.info.name, p.numpy().tolist()) for p in parts_of(stored)] == [
        ("dummy:0", [0, 1]), ("dummy:1", [2, 3]), ("dummy:2", [4, 5]), ("cpu:0", [6, 7]),
    ]  # fmt: skip


def test_memory_in_parts_is_not_written_as_a_whole() -> None:
    stored = laid(np.zeros((4, 4), np.float32), (4,), (Shard(0),))
    with pytest.raises(ValueError, match="written in parts"):
        stored.device.write(stored.memory, memoryview(bytes(64)))


def test_equal_meshes_are_one_device_that_is_found_by_name() -> None:
    device = MESHES.mesh(NAMES, (2, 2), ("a", "b"))
    assert MESHES.mesh(NAMES, [2, 2], ["a", "b"]) is device
    assert registry.open_device(device.info.name) is device
    assert MESHES.mesh(NAMES, (2, 2)) is not device


def test_a_mesh_says_what_its_devices_can_do_together() -> None:
    device = MESHES.mesh(NAMES, (4,))
    infos = [d.info for d in device.devices]
    assert device.info.kind == "mesh"
    assert device.info.memory_bytes == sum(i.memory_bytes for i in infos)
    assert device.info.dtypes == frozenset.intersection(*(i.dtypes for i in infos))
    assert "dummy:0, dummy:1, dummy:2, cpu:0" in device.info.description


def test_a_mesh_runs_nothing_itself() -> None:
    with pytest.raises(DeviceError, match="runs nothing itself, its devices do: dummy:0"):
        MESHES.mesh(NAMES, (4,)).compile([])


def test_there_are_so_many_meshes() -> None:
    backend = MeshBackend()
    for k in range(MAX_MESHES):
        backend.mesh(("dummy:0",), (1,), (f"x{k}",))
    with pytest.raises(DeviceError, match=f"there are {MAX_MESHES} meshes"):
        backend.mesh(("dummy:1",), (1,))
    assert backend.count() == MAX_MESHES


def test_memory_limits_are_those_of_the_devices() -> None:
    device = MESHES.mesh(("dummy:2", "dummy:3"), (2,))
    try:
        registry.set_memory_limit(device.info.name, 0)
        with pytest.raises(MemoryError):
            device.allocate(64)
    finally:
        registry.set_memory_limit(device.info.name, None)
    assert len(device.allocate(64).parts) == 2
