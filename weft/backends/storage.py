"""Storage: the memory that holds a tensor's elements, contiguous in row-major order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.backends.protocol import Device, Memory
from weft.errors import MemoryPlanError
from weft.ir.dtypes import DType, to_numpy


@dataclass(
    slots=True, eq=False
)  # not frozen: that would double the time that making one takes, at every result
class Storage:
    """Elements of `dtype` and `shape` at the start of `memory`. Not to be changed."""

    device: Device
    memory: Memory
    dtype: DType
    shape: tuple[int, ...]

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
    """A copy of `array` (its dtype is `dtype`'s) in the memory of `device`. MemoryPlanError when it has too little."""
    data = np.ascontiguousarray(array)
    try:
        memory = device.allocate(data.nbytes)
    except MemoryError as error:
        raise MemoryPlanError(
            f"a {dtype.name} tensor of shape {tuple(array.shape)} does not fit: {error}"
        ) from error
    if data.nbytes:
        device.write(memory, data.reshape(-1).view(np.uint8).data)
    return Storage(device, memory, dtype, tuple(array.shape))
