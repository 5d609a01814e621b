"""Storage: the memory that holds a tensor's elements, contiguous in row-major order."""
# Tests: tests/backends/dummy/test_device.py, tests/scheduler/test_realize.py

from __future__ import annotations

from typing import Any

import numpy as np

from weft.backends.protocol import Borrower, Device, DeviceInfo, Memory
from weft.errors import DTypeError, MemoryPlanError
from weft.ir.dtypes import DType, to_numpy
from weft.lazy_dataclass import dataclass


@dataclass(
    slots=True, eq=False, weakref_slot=True
)  # not frozen: that would double the time that making one takes, at every result
class Storage:
    """Elements of `dtype` and `shape` at the start of `memory`. Not to be changed."""

    device: Device
    memory: Memory
    dtype: DType
    shape: tuple[int, ...]

    @property
    def home(self) -> str | None:
        """The device that leaves over this storage live on; None for the disk, which computes nothing."""
        info = self.device.info
        return None if info.kind == "disk" else info.name

    @property
    def nbytes(self) -> int:
        n = self.dtype.itemsize
        for s in self.shape:
            n *= s
        return n

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as an array: a read-only view where the device's memory is the host's, else a copy."""
        data = self.device.read(self.memory, self.nbytes)
        array = np.frombuffer(data, to_numpy(self.dtype)).reshape(self.shape)
        array.flags.writeable = False
        return array


def from_numpy(array: np.ndarray[Any, Any], dtype: DType, device: Device) -> Storage:
    """A copy of `array` (its dtype is `dtype`'s) in the memory of `device`. MemoryPlanError when it has too little,
    DTypeError when it lacks the dtype."""
    data = np.ascontiguousarray(array)
    memory = room_for(device, dtype, tuple(array.shape), data.nbytes)
    if data.nbytes:
        device.write(memory, data.reshape(-1).view(np.uint8).data)
    return Storage(device, memory, dtype, tuple(array.shape))


def moved_to(storage: Storage, device: Device) -> Storage:
    """The same elements in the memory of `device`: straight from where they are if it can, else through the host."""
    memory = room_for(device, storage.dtype, storage.shape, storage.nbytes)
    nbytes = storage.nbytes
    if nbytes and not device.copy_from(memory, storage.device, storage.memory, nbytes):
        device.write(memory, storage.device.read(storage.memory, nbytes))
    return Storage(device, memory, storage.dtype, storage.shape)


def lent_to(storage: Storage, device: Device) -> Memory | None:
    """The elements as memory that `device` may read, without a copy; None where there is no such way.

    They must be in the host's memory, aligned to their size, and the device one that reads the host's memory itself.
    """
    if not (storage.device.info.host_memory and isinstance(device, Borrower)):
        return None
    if storage.dtype not in device.info.dtypes:
        raise unsupported(device.info, storage.dtype)
    data = np.frombuffer(storage.device.read(storage.memory, storage.nbytes), np.uint8)
    return None if data.ctypes.data % storage.dtype.itemsize else device.borrow(data)


def room_for(device: Device, dtype: DType, shape: tuple[int, ...], nbytes: int) -> Memory:
    """Memory for a tensor. MemoryPlanError when there is none, DTypeError when the device lacks the dtype."""
    if dtype not in device.info.dtypes:
        raise unsupported(device.info, dtype)
    try:
        return device.allocate(nbytes)
    except MemoryError as error:
        raise MemoryPlanError(f"a {dtype.name} tensor of shape {shape} does not fit: {error}") from error


def unsupported(info: DeviceInfo, dtype: DType) -> DTypeError:
    """The error that a device lacks a dtype, with what it has instead."""
    have = sorted((d for d in info.dtypes if d.kind is dtype.kind), key=lambda d: d.bits)
    instead = " or ".join(d.name for d in have) or "another dtype"
    return DTypeError(f"{info.name} has no {dtype.name}: use {instead}, or a device that has it, such as cpu")
