"""A mesh as a device, so that a tensor on it is like any other: its memory is in parts, one on each device.

It runs nothing: graphs on a mesh become graphs on its devices before they are planned (scheduler/meshes.py). What comes
from the host, or goes there, is the whole: `allocate` gives replicas, `read` puts parts together.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import numpy as np

from weft.backends import registry
from weft.backends.protocol import Code, Commands, Device, DeviceInfo, Executable, Memory, Queue
from weft.backends.roofline import Limits
from weft.backends.storage import Storage
from weft.errors import DeviceError
from weft.ir.forks import forkable
from weft.ir.index import high
from weft.ir.loops import Program
from weft.ir.placement import Layout, Mesh, Replicate, boxes
from weft.ir.regions.boxes import IndexBox
from weft.lazy_dataclass import dataclass

KIND = "mesh"

MAX_MESHES = 256
"""Meshes of a process. Equal ones are one; a program has a few."""


@dataclass(frozen=True, slots=True, eq=False)
class MeshMemory:
    """The memory of a tensor of that shape, with elements of that size, laid out on a mesh."""

    parts: tuple[Memory, ...]
    layout: Layout
    shape: tuple[int, ...]
    itemsize: int

    @property
    def nbytes(self) -> int:
        """The bytes of the whole, each counted once."""
        return math.prod(self.shape) * self.itemsize


class MeshDevice:
    """The devices of a mesh as one."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._opened = tuple(self.devices)
        self._info = _described(mesh, [d.info for d in self._opened])

    @property
    def devices(self) -> list[Device]:
        """The devices, in row-major order."""
        return [registry.open_device(name) for name in self.mesh.devices]

    @property
    def is_outdated(self) -> bool:
        """True where other devices have the names of those that it was made for."""
        try:
            return any(a is not b for a, b in zip(self.devices, self._opened, strict=True))
        except DeviceError:
            return False  # which nobody has

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def replicated(self) -> Layout:
        """The layout of what each device holds all of."""
        return (Replicate(),) * len(self.mesh.shape)

    def allocate(self, nbytes: int) -> MeshMemory:
        """Memory for a replica on each device."""
        parts = tuple([d.allocate(nbytes) for d in self.devices])
        return MeshMemory(parts, self.replicated, (nbytes,), 1)

    def free(self, memory: Memory) -> None:
        for device, part in zip(self.devices, _laid_out(memory).parts, strict=True):
            device.free(part)

    def used_bytes(self) -> int:
        return sum(d.used_bytes() for d in self.devices)

    def set_memory_limit(self, nbytes: int | None) -> None:
        """The limit of each device."""
        for name in self.mesh.devices:
            registry.set_memory_limit(name, nbytes)

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        """Write to each replica."""
        found = _laid_out(memory)
        if found.layout != self.replicated:
            raise ValueError(
                f"memory of {self.mesh.name} that is laid out as {found.layout} is written in parts"
            )
        for device, part in zip(self.devices, found.parts, strict=True):
            device.write(part, data, offset)

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        found = _laid_out(memory)
        if all(isinstance(p, Replicate) for p in found.layout):
            return self.devices[0].read(found.parts[0], nbytes, offset)
        whole = np.empty(found.shape, f"V{found.itemsize}")
        for k, box in distinct(boxes(found.layout, found.shape, self.mesh)).items():
            sizes = sizes_of(box)
            data = self.devices[k].read(found.parts[k], math.prod(sizes) * found.itemsize)
            place = tuple([slice(int(high(lo)), int(high(hi))) for lo, hi in box])
            whole[place] = np.frombuffer(data, whole.dtype).reshape(sizes)
        return memoryview(whole.reshape(-1).view(np.uint8).data)[offset : offset + nbytes]

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        """False: what comes from elsewhere goes through the host."""
        return False

    def synchronize(self) -> None:
        """Wait for the devices that are open: one that is gone, as of a farm, has nothing left to do."""
        names = set(self.mesh.devices)
        for device in registry.opened_devices():
            if device.info.name in names:
                device.synchronize()

    def fingerprint(self) -> str:
        return f"{self.mesh}: {[d.fingerprint() for d in self.devices]}"

    def queue(self, number: int = 0) -> Queue:
        self._refuse()

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[Code], bytes]:
        self._refuse()

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[Code]:
        self._refuse()

    def listings(self, program: Program) -> Mapping[str, str]:
        self._refuse()

    def limits(self) -> Limits:
        self._refuse()

    def link(self, codes: Sequence[Code], commands: Commands) -> Executable:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DeviceError(
            f"{self.mesh.name} runs nothing itself, its devices do: {', '.join(self.mesh.devices)}"
        )


def parts_of(storage: Storage) -> list[Storage]:
    """The parts of a value on a mesh, as values of their own."""
    assert isinstance(storage.device, MeshDevice)
    memory = _laid_out(storage.memory)
    held = boxes(memory.layout, storage.shape, storage.device.mesh)
    return [
        Storage(device, part, storage.dtype, sizes_of(box))
        for device, part, box in zip(storage.device.devices, memory.parts, held, strict=True)
    ]


def joined(device: MeshDevice, layout: Layout, shape: tuple[int, ...], parts: Sequence[Storage]) -> Storage:
    """A value on a mesh from what each of its devices holds."""
    dtype = parts[0].dtype
    return Storage(
        device, MeshMemory(tuple([p.memory for p in parts]), layout, shape, dtype.itemsize), dtype, shape
    )


def layout_of(storage: Storage) -> Layout | None:
    """The layout of a value on a mesh; None for one that is elsewhere."""
    return storage.memory.layout if isinstance(storage.memory, MeshMemory) else None


def sizes_of(box: IndexBox) -> tuple[int, ...]:
    """The sizes of a box of known ends."""
    return tuple([int(high(hi)) - int(high(lo)) for lo, hi in box])


def distinct(held: Sequence[IndexBox]) -> dict[int, IndexBox]:
    """The boxes that are not empty, each once, by the first device that holds it."""
    found: dict[IndexBox, int] = {}
    for k, box in enumerate(held):
        if math.prod(sizes_of(box)):
            found.setdefault(box, k)
    return {k: box for box, k in found.items()}


def _laid_out(memory: Memory) -> MeshMemory:
    if not isinstance(memory, MeshMemory):
        raise ValueError(f"{memory!r} is no memory of a mesh")
    return memory


def _described(mesh: Mesh, infos: Sequence[DeviceInfo]) -> DeviceInfo:
    """The abilities that all devices have; their memory and rates together."""
    return replace(
        infos[0],
        name=mesh.name,
        kind=KIND,
        description=f"a mesh of {len(infos)} devices, {' x '.join(map(str, mesh.shape))}: {', '.join(mesh.devices)}",
        cores=sum(i.cores for i in infos),
        memory_bytes=sum(i.memory_bytes for i in infos),
        bandwidth=sum(i.bandwidth for i in infos),
        flops=sum(i.flops for i in infos),
        dtypes=frozenset([d for d in infos[0].dtypes if all(d in i.dtypes for i in infos)]),
        native=frozenset([op for op in infos[0].native if all(op in i.native for i in infos)]),
        host_memory=False,
    )


class MeshBackend:
    """The meshes of this process, by number."""

    name = KIND

    def __init__(self) -> None:
        self._lock = forkable(threading.Lock())
        self._meshes: list[MeshDevice] = []

    def count(self) -> int:
        return len(self._meshes)

    def device(self, index: int) -> MeshDevice:
        known = self._meshes[index]
        if known.is_outdated:
            known = self._meshes[index] = MeshDevice(known.mesh)
        return known

    def mesh(
        self, devices: Sequence[str], shape: Sequence[int], dim_names: Sequence[str] | None = None
    ) -> MeshDevice:
        """The mesh of these devices, in row-major order; each exists once. DeviceError for devices that do not."""
        names = tuple([registry.open_device(name).info.name for name in devices])
        axes = None if dim_names is None else tuple(dim_names)
        with self._lock:
            for k, known in enumerate(self._meshes):
                if (known.mesh.devices, known.mesh.shape, known.mesh.dim_names) == (
                    names,
                    tuple(shape),
                    axes,
                ):
                    return self.device(k)
            if len(self._meshes) == MAX_MESHES:
                raise DeviceError(f"there are {MAX_MESHES} meshes already: make each once, and keep it")
            made = MeshDevice(Mesh(f"{KIND}:{len(self._meshes)}", names, tuple(shape), axes))
            self._meshes.append(made)
            return made


MESHES = MeshBackend()
"""The one of this process: at most MAX_MESHES, as tensors name theirs by its number."""
