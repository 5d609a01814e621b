"""A WebGPU device of the backend protocol. It has one queue, in order."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, cast

from weft._version import __version__
from weft.backends.clike.parts import split
from weft.backends.clike.scalar import NATIVE
from weft.backends.launches import Entry, parse
from weft.backends.launches import describe as describe_entries
from weft.backends.protocol import HOST_PROCESSOR, Bounds, Code, Commands, Device, DeviceInfo, Event, Memory
from weft.backends.roofline import Limits, described
from weft.backends.synchronous import check_range
from weft.errors import DeviceError
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.ir.index import high
from weft.ir.loops import LoopKind, Program
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

from . import subgroups
from .driver import FEATURES, INT64, SUBGROUPS, wgpu
from .executable import WgpuExecutable
from .language import DTYPES
from .loop_limit import LIMITED_DRIVERS, iterations, shortened, too_long
from .memory import MemoryBlock, Pool
from .render import WIDE, render

_MAGIC = b"weft-wgpu-1\n"
MOST_TOGETHER = 32
"""Threads that combine registers, where subgroups have as many."""

RESERVE = 2
"""Storage buffers of a stage that are left for a program's scratch buffers."""


@dataclass(frozen=True, slots=True, eq=False)
class WgpuCode:
    """One program in this process: its entry, the pipelines of its launches, and their texts."""

    entry: Entry
    pipelines: tuple[Any, ...]
    text: str

    @property
    def source(self) -> str:
        return self.text


class WgpuDevice:
    """One adapter, with those of the features that weft knows which it has and `wanted` names. It is opened on first
    use, or, to try its subgroups out, at once."""

    def __init__(self, adapter: Any, index: int, wanted: Set[str] = FEATURES) -> None:
        self.adapter = adapter
        self.features = frozenset(f for f in wanted if f in adapter.features)
        self._info = describe(adapter, index, self.features)
        self._handle: Any = None
        self._pool: Pool | None = None
        self._workspace: MemoryBlock | None = None
        self._mark: Any = None
        self.lock = threading.RLock()
        """Held while the driver is called."""
        least, most = subgroups.sizes(adapter.info)
        if SUBGROUPS in self.features and self._info.scratchpad and 1 < least == most:
            self.combine_in(subgroups.tried(self.handle))

    def combine_in(self, size: int) -> None:
        """Have schedules in which `size` neighbouring threads combine what they have in registers; 1 for none."""
        if size > 1:
            self._info = replace(self._info, warp=size, shuffles=True)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    @property
    def handle(self) -> Any:
        """The driver's device, with all that the adapter offers."""
        with self.lock:
            if self._handle is None:
                wanted = (
                    "max-storage-buffers-per-shader-stage", "max-storage-buffer-binding-size", "max-buffer-size",
                    "max-compute-workgroup-storage-size", "max-compute-invocations-per-workgroup",
                    "max-compute-workgroup-size-x", "max-compute-workgroups-per-dimension",
                )  # fmt: skip
                limits = {k: self.adapter.limits[k] for k in wanted}
                try:
                    self._handle = self.adapter.request_device_sync(
                        required_features=sorted(self.features), required_limits=limits
                    )
                except (RuntimeError, ValueError) as error:
                    raise DeviceError(f"{self._info.name} could not be opened: {error}") from error
            return self._handle

    @property
    def pool(self) -> Pool:
        """The memory pool, made on first use."""
        with self.lock:
            if self._pool is None:
                bounds = self._info.bounds
                self._pool = Pool(self.handle, self._info.memory_bytes, bounds.buffer_bytes)
            return self._pool

    # memory

    def allocate(self, nbytes: int) -> MemoryBlock:
        with self.lock:
            return self.pool.allocate(nbytes)

    def free(self, memory: Memory) -> None:
        self.block(memory).free()

    def used_bytes(self) -> int:
        return self.pool.used

    def set_memory_limit(self, nbytes: int | None) -> None:
        self.pool.limit = nbytes

    def workspace(self, nbytes: int) -> MemoryBlock:
        """Memory of at least `nbytes` bytes that plans share."""
        if self._workspace is None or self._workspace.nbytes < nbytes:
            self._workspace = None
            self._workspace = self.allocate(nbytes)
        return self._workspace

    def block(self, memory: Memory) -> MemoryBlock:
        """`memory` as this device's. ValueError when it is another's, or freed."""
        if not isinstance(memory, MemoryBlock):
            raise ValueError(f"not memory of {self._info.name}: {memory!r}")
        if not hasattr(memory, "buffer"):
            raise ValueError(f"memory of {self._info.name} is used after it was freed: {memory!r}")
        return memory

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        block = self.block(memory)
        self.queue(queue)
        check_range("write", data.nbytes, offset, block.nbytes)
        if not data.nbytes:
            return
        start, end = offset // 4 * 4, -(-(offset + data.nbytes) // 4) * 4
        with self.lock:
            whole = bytearray(end - start)
            if start != offset or end != offset + data.nbytes:  # words that are only written in part
                whole[:] = self.handle.queue.read_buffer(block.buffer, start, end - start)
            whole[offset - start : offset - start + data.nbytes] = data.cast("B")
            self.handle.queue.write_buffer(block.buffer, start, whole)

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        block = self.block(memory)
        self.queue(queue)
        check_range("read", nbytes, offset, block.nbytes)
        start, end = offset // 4 * 4, -(-(offset + nbytes) // 4) * 4
        if not nbytes:
            self.synchronize()
            return memoryview(b"")
        with self.lock:
            data = bytes(self.handle.queue.read_buffer(block.buffer, start, end - start))
        return memoryview(data)[offset - start : offset - start + nbytes]

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        if origin is not self:
            return False
        target, start = self.block(memory), self.block(source)
        self.queue(queue)
        check_range("copy", nbytes, 0, min(target.nbytes, start.nbytes))
        whole = nbytes // 4 * 4
        if target is not start and whole:
            with self.lock:
                encoder = self.handle.create_command_encoder()
                encoder.copy_buffer_to_buffer(start.buffer, 0, target.buffer, 0, whole)
                self.handle.queue.submit([encoder.finish()])
        if target is not start and nbytes > whole:
            self.write(target, self.read(start, nbytes - whole, whole), whole)
        return True

    # queues

    def queue(self, number: int = 0) -> WgpuQueue:
        if number:
            raise ValueError(f"{self._info.name} has one queue, number 0: there is no queue {number}")
        return WgpuQueue(self)

    def synchronize(self) -> None:
        if self._handle is not None:
            with self.lock:
                if self._mark is None:
                    usage = wgpu().BufferUsage
                    self._mark = self.handle.create_buffer(size=4, usage=usage.COPY_SRC | usage.COPY_DST)
                self.handle.queue.read_buffer(self._mark, 0, 4)  # comes after all that was submitted

    # programs

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[WgpuCode], bytes]:
        grids, entries = self._split(programs)
        texts = {g.name: self._render(g) for g in grids}
        known = describe_entries(entries)
        image = b"" if known is None else _MAGIC + json.dumps([known, texts]).encode()
        return self._codes(entries, texts), image

    def _split(self, programs: Sequence[Program]) -> tuple[list[Program], list[Entry]]:
        info = self._info
        for p in programs:
            for b in p.params:
                if high(b.size) * b.dtype.itemsize > info.bounds.buffer_bytes:
                    raise DeviceError(
                        f"{info.name} binds at most {info.bounds.buffer_bytes:,} bytes; {p.name} needs "
                        f"{high(b.size) * b.dtype.itemsize:,} for one tensor"
                    )
        for p in programs:
            for v in p.variables:
                if max(-v.lo, v.hi) >= 1 << 31:
                    raise DeviceError(f"{info.name} has indices of 32 bits, and {v.name} is up to {v.hi:,}")
        warp = min(info.warp, MOST_TOGETHER) if info.shuffles else 1
        most = info.bounds.parameters + RESERVE
        grids, entries = split(programs, info.local_bytes, info.bounds.threads, most, warp)
        if self.adapter.info["vendor"] in LIMITED_DRIVERS:
            grids = [shortened(g) for g in grids]
            for g in grids:
                if too_long(g):
                    raise DeviceError(
                        f"{info.name}: its driver {self.adapter.info['vendor']} ends a kernel's loops after 65,535 "
                        f"iterations, and {g.name} may run {iterations(g.body):,}; use another device"
                    )
        for g in grids:
            if len(g.params) > most:
                raise DeviceError(
                    f"{info.name} binds at most {most} buffers to a kernel; {g.name} has "
                    f"{len(g.params)}: realize some of its operands before"
                )
        return grids, entries

    def _codes(self, entries: Sequence[Entry], texts: Mapping[str, str]) -> list[WgpuCode]:
        out: list[WgpuCode] = []
        with self.lock:
            for e in entries:
                pipelines = [self._pipeline(p.name, texts[p.name], len(p.args)) for p in e.parts]
                text = "\n".join(texts[p.name] for p in e.parts)
                out.append(WgpuCode(e, tuple(pipelines), text))
        return out

    def _pipeline(self, name: str, text: str, buffers: int) -> Any:
        errors = wgpu().GPUError
        try:
            module = self.handle.create_shader_module(code=text, label=name)
            # not "auto", which leaves out what the text does not use
            kinds = ["storage"] * buffers + ["uniform"]
            bindings = self.handle.create_bind_group_layout(
                entries=[
                    {"binding": k, "visibility": wgpu().ShaderStage.COMPUTE, "buffer": {"type": kind}}
                    for k, kind in enumerate(kinds)
                ]
            )
            layout = self.handle.create_pipeline_layout(bind_group_layouts=[bindings])
            return self.handle.create_compute_pipeline(
                layout=layout, compute={"module": module, "entry_point": "main"}, label=name
            )
        except errors as error:
            raise DeviceError(f"{self._info.name} could not compile {name}: {error}") from error

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[WgpuCode]:
        if not image.startswith(_MAGIC):
            raise ValueError("not an image of this backend")
        try:
            known, texts = json.loads(image[len(_MAGIC) :])
            entries = {e.name: e for e in parse(known)}
            return self._codes([entries[n] for n in names], texts)
        except (KeyError, TypeError, UnicodeDecodeError, DeviceError) as error:
            raise ValueError(f"not an image of these programs: {error}") from error

    def fingerprint(self) -> str:
        i = self.adapter.info
        device = f"{i['vendor']} {i['device']} {i['description']} {sorted(self.features)}"
        if self._info.shuffles:
            device += f" subgroups of {self._info.warp}"
        return f"wgpu {__version__} {wgpu().__version__} {device}"

    def listings(self, program: Program) -> Mapping[str, str]:
        grids, _ = self._split([program])
        return {"wgsl": "\n".join(map(self._render, grids))}

    def _render(self, grid: Program) -> str:
        return render(grid, INT64 not in self.features)

    def limits(self) -> Limits:
        return described(self._info)

    def link(self, codes: Sequence[Code], commands: Commands) -> WgpuExecutable:
        return WgpuExecutable(self, cast("Sequence[WgpuCode]", codes), commands)


class WgpuEvent:
    """A point in the queue's work."""

    __slots__ = ("_device", "_done")

    def __init__(self, device: WgpuDevice) -> None:
        self._device, self._done = device, False

    def done(self) -> bool:
        """True where all the work before it is done; WebGPU only tells by waiting."""
        self.wait()
        return True

    def wait(self) -> None:
        """On the host."""
        if not self._done:
            self._device.synchronize()
            self._done = True


class WgpuQueue:
    """The one queue of a device."""

    __slots__ = ("_device",)

    def __init__(self, device: WgpuDevice) -> None:
        self._device = device

    def record(self) -> WgpuEvent:
        """The point after all that was started so far."""
        return WgpuEvent(self._device)

    def wait(self, event: Event) -> None:
        """Wait on the host for what another device of this backend still has to do."""
        if not isinstance(event, WgpuEvent):
            raise ValueError(f"not an event of WebGPU: {event!r}")
        event.wait()

    def synchronize(self) -> None:
        """Wait for all that was started."""
        self._device.synchronize()


def describe(adapter: Any, index: int, features: Set[str]) -> DeviceInfo:
    """An adapter as the scheduler sees it, with these features: WebGPU tells limits, and nothing of speed."""
    info, limits = adapter.info, adapter.limits
    local_bytes = limits["max-compute-workgroup-storage-size"]
    largest = min(limits["max-storage-buffer-binding-size"], limits["max-buffer-size"])
    on_cpu = info["adapter_type"] == "CPU"
    return DeviceInfo(
        name=f"wgpu:{index}",
        kind="wgpu",
        description=f"{info['device']} ({info['backend_type']}, {info['description']})",
        cores=(os.cpu_count() or 1) if on_cpu else 16,
        processor=HOST_PROCESSOR if on_cpu else "",
        vector_bytes=4,
        vector_registers=128,
        l1_bytes=local_bytes,
        l2_bytes=4 << 20,
        l3_bytes=0,
        memory_bytes=limits["max-buffer-size"] * 4,
        local_bytes=local_bytes,
        bandwidth=1e11,
        flops=1e12,
        launch_ns=30_000.0,
        task_kind=LoopKind.BLOCK,
        native=NATIVE - {Op.FMA},  # WGSL's fma may round twice, and llvmpipe's does
        dtypes=DTYPES,
        emulated=frozenset[DType]() if INT64 in features else frozenset({dtypes.int64, dtypes.uint64}),
        warp=8 if on_cpu else 32,
        scratchpad=not on_cpu,
        bounds=Bounds(
            threads=min(
                limits["max-compute-invocations-per-workgroup"], limits["max-compute-workgroup-size-x"]
            ),
            blocks=WIDE * limits["max-compute-workgroups-per-dimension"],
            parameters=limits["max-storage-buffers-per-shader-stage"] - RESERVE,
            buffer_bytes=largest,
            index_bits=32,
        ),
    )
