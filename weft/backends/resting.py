"""Storage that rests in a slower pool between its uses: the device's memory is free until somebody asks for it.

moments after a step      a cell in the host's memory, or in a file
the next step             reads the cell, writes the new values there
moments.numpy()           reads the cell
moments * 2               the device has the elements again, the cell goes
"""
# Tests: tests/scheduler/pools/test_resting.py

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from weft.backends.protocol import Device, Memory
from weft.backends.storage import Storage, room_for
from weft.errors import DeviceError
from weft.ir.dtypes import DType, to_numpy
from weft.lazy_dataclass import dataclass


class Cell(Protocol):
    """Room for one value in a slower pool."""

    def put(self, data: memoryview) -> None:
        """Keep the bytes."""
        ...

    def get(self) -> memoryview:
        """The bytes that were put."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class CellMemory:
    """A cell in the place of a memory of so many bytes: for plans that know of it."""

    cell: Cell
    nbytes: int


class _LostCell:
    """The place of what is lost."""

    def put(self, data: memoryview) -> None:
        self.get()

    def get(self) -> memoryview:
        raise DeviceError("a device failed while it updated this tensor: its elements are lost")


_LOST = _LostCell()


class RestingStorage(Storage):
    """Elements in a cell, which the device gets where their memory is asked for. `place`: the cell, or that memory."""

    __slots__ = ("_lock", "place")

    def __init__(self, device: Device, dtype: DType, shape: tuple[int, ...], place: Memory) -> None:
        put = object.__setattr__  # the memory is none of the fields that are set
        put(self, "device", device)
        put(self, "dtype", dtype)
        put(self, "shape", shape)
        put(self, "place", place)
        put(self, "_lock", threading.Lock())

    place: Memory
    _lock: threading.Lock

    @property
    def rests(self) -> bool:
        """True where the device does not have the elements."""
        return isinstance(self.place, CellMemory)

    @property
    def memory(self) -> Memory:  # pyright: ignore[reportIncompatibleVariableOverride]  (there when asked for)
        if self.rests:
            with self._lock:
                self._return()
        return self.place

    def _return(self) -> None:
        place = self.place
        if isinstance(place, CellMemory):
            memory = room_for(self.device, self.dtype, self.shape, self.nbytes)
            if self.nbytes:
                self.device.write(memory, place.cell.get())
            self.place = memory

    def lose(self) -> None:
        """The elements were being written over where the device failed: nobody is to read them."""
        self.place = CellMemory(_LOST, self.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """The elements as an array, from where they are."""
        place = self.place
        if not isinstance(place, CellMemory):
            return Storage.numpy(self)
        array = np.frombuffer(bytes(place.cell.get()), to_numpy(self.dtype)).reshape(self.shape)
        array.flags.writeable = False
        return array


def anew(storage: Storage) -> Storage:
    """Another storage of the same elements, where they are."""
    if isinstance(storage, RestingStorage):
        return RestingStorage(storage.device, storage.dtype, storage.shape, storage.place)
    return Storage(storage.device, storage.memory, storage.dtype, storage.shape)


def place_of(storage: Storage) -> Memory:
    """The memory of a storage, or the cell that it rests in."""
    return storage.place if isinstance(storage, RestingStorage) else storage.memory


def in_place(storage: Storage, memory: Memory) -> Storage:
    """A storage of elements that are in that memory, or rest in its stead."""
    if not isinstance(memory, CellMemory):
        return storage
    return RestingStorage(storage.device, storage.dtype, storage.shape, memory)


def at_rest(storage: Storage, reserve: Callable[[int], Cell]) -> RestingStorage:
    """The elements in a cell of their own."""
    cell = reserve(storage.nbytes)
    if storage.nbytes:
        cell.put(storage.device.read(storage.memory, storage.nbytes))
    return RestingStorage(storage.device, storage.dtype, storage.shape, CellMemory(cell, storage.nbytes))
