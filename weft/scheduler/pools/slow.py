"""Slower pools: the host's memory for devices that have their own, a file for the host.

Room for all that goes there in a run is taken before it begins, so that a run that has begun has it.
"""
# Tests: tests/scheduler/pools/test_spilling.py

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from functools import lru_cache
from typing import BinaryIO, cast

from weft.backends import registry
from weft.backends.links import links
from weft.backends.protocol import Device, DeviceInfo
from weft.backends.resting import Cell, RestingStorage, at_rest
from weft.backends.storage import Storage
from weft.errors import DeviceError
from weft.scheduler.pools.schedule import Transfer

HOST = "cpu:0"

TRIAL_BYTES = 4 << 20
"""The file by which the rate of files is measured."""


class _HostCell:
    """Memory of the host, which counts as memory of the CPU."""

    def __init__(self, nbytes: int) -> None:
        self._host = registry.open_device(HOST)
        self._memory = self._host.allocate(nbytes)
        self._nbytes = nbytes

    def put(self, data: memoryview) -> None:
        self._host.write(self._memory, data)

    def get(self) -> memoryview:
        return self._host.read(self._memory, self._nbytes)


class _FileCell:
    """Bytes of a file without a name, which goes with the last cell."""

    def __init__(self, file: BinaryIO, offset: int, nbytes: int) -> None:
        self._file, self._offset, self._nbytes = file, offset, nbytes

    def put(self, data: memoryview) -> None:
        self._file.seek(self._offset)
        if self._file.write(data) != self._nbytes:
            raise DeviceError("the disk has no room left for what does not fit into memory")

    def get(self) -> memoryview:
        self._file.seek(self._offset)
        data = self._file.read(self._nbytes)
        if len(data) != self._nbytes:
            raise DeviceError("a file of values that did not fit into memory is not whole")
        return memoryview(data)


def reserve(info: DeviceInfo, sizes: Sequence[int]) -> list[Cell]:
    """Room for values of these sizes in the pool below a device's. MemoryError where there is none."""
    if not info.host_memory:
        return [_HostCell(n) for n in sizes]
    file = cast("BinaryIO", tempfile.TemporaryFile(buffering=0))  # noqa: SIM115  (it goes with its cells)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, max(sum(sizes), 1))
    except OSError as error:
        raise MemoryError(f"the disk has no room for {sum(sizes):,} bytes: {error}") from error
    cells: list[Cell] = []
    offset = 0
    for n in sizes:
        cells.append(_FileCell(file, offset, n))
        offset += n
    return cells


def laid_to_rest(storages: Sequence[Storage]) -> list[RestingStorage]:
    """The elements in the pool below that of their device, which all have. MemoryError where there is no room."""
    cells = iter(reserve(storages[0].device.info, [s.nbytes for s in storages]) if storages else ())
    return [at_rest(s, lambda _: next(cells)) for s in storages]


def name(info: DeviceInfo) -> str:
    """The name of the pool below a device's."""
    return "disk" if info.host_memory else HOST


def transfer(device: Device, nbytes: int) -> Transfer:
    """The time of a value's way to the slower pool, and back."""
    if device.info.host_memory:
        rate = file_rate()
        return Transfer(1e9 * nbytes / rate, 1e9 * nbytes / rate)
    host = registry.open_device(HOST)
    try:
        out, back = links(device, host), links(host, device)
    except MemoryError:  # no room to measure it in
        ns = device.info.launch_ns + 1e9 * nbytes / device.info.link_bandwidth
        return Transfer(ns, ns)
    return Transfer(1e9 * out.seconds(nbytes), 1e9 * back.seconds(nbytes))


@lru_cache(1)
def file_rate() -> float:
    """Bytes per second that go to a file of this machine and come back, measured once."""
    data = memoryview(bytearray(TRIAL_BYTES))
    with tempfile.TemporaryFile(buffering=0) as file:
        begin = time.perf_counter()
        file.write(data)
        file.seek(0)
        file.read(TRIAL_BYTES)
        return 2 * TRIAL_BYTES / max(time.perf_counter() - begin, 1e-6)
