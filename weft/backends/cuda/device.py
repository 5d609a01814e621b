"""A GPU as a device of the backend protocol.

All work of a device goes through one stream, in order. Host memory is copied by way of two pinned buffers in turn. A
plan's launches find their arguments in one table of pointers; a plan that runs again on the same memory is captured
as a CUDA graph, on a stream of its own, so that what other threads start meanwhile is not captured with it. Threads
start whole plans one after another, because plans share a workspace.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import threading
from array import array
from collections import OrderedDict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

from weft import settings
from weft.backends.cpu.llvm import version
from weft.backends.interrupts import shielded
from weft.backends.launches import Entry, describe, parse
from weft.backends.llvm import scalar
from weft.backends.protocol import (
    Bounds,
    Code,
    Commands,
    CopyBytes,
    Device,
    DeviceInfo,
    Event,
    Launch,
    Memory,
)
from weft.backends.roofline import Limits, described
from weft.backends.synchronous import check_range
from weft.errors import DeviceError
from weft.ir.dtypes import float32
from weft.ir.index import evaluate
from weft.ir.loops import LoopKind, Program
from weft.ir.ops import ELEMENTWISE
from weft.lazy_dataclass import dataclass

from . import trial, warpgroups
from .allocator import Allocator, MemoryBlock
from .compile import compile_programs, target
from .driver import CudaError, Driver, open_driver
from .matrix import units
from .peaks import peaks

STAGING_BYTES = 8 << 20
"""Bytes of each of the two pinned buffers."""

GRAPHS_KEPT = 8
"""Captured runs of one plan on different memory; the least recently used goes first."""

CORE_LANES = 128
"""fp32 units of a multiprocessor (of every architecture since sm_86 but for sm_80, which has half)."""

LAUNCH_NS = 2500.0

OLDEST_DRIVER = 12000
"""The CUDA version (12.0) of the first driver that assembles what is compiled for GPUs before Blackwell."""

PARAMETERS = 480
"""Parameters of a kernel: its arguments take at most 4,352 bytes, scratch buffers and variables among them."""

LOG_BYTES = 8 << 10
"""Bytes of the assembler's complaints."""

_MAGIC = b"weft-cuda-1\n"


@dataclass(frozen=True, slots=True, eq=False)
class CudaCode:
    """One program in this process: its entry, the functions of its launches, and the PTX of its module."""

    entry: Entry
    functions: tuple[Any, ...]
    text: str

    @property
    def source(self) -> str:
        return self.text


class CudaDevice:
    """One GPU with its memory."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.index = driver, index
        call = driver.call
        version = int(call("cuDriverGetVersion"))
        if version < OLDEST_DRIVER:
            raise DeviceError(
                f"NVIDIA's driver is for CUDA {version // 1000}.{version % 1000 // 10}, and weft needs one for 12.0 "
                "or later: install a driver of version 525 or later"
            )
        self._handle = call("cuDeviceGet", index)
        self.capability = (
            driver.attribute(self._handle, "COMPUTE_CAPABILITY_MAJOR"),
            driver.attribute(self._handle, "COMPUTE_CAPABILITY_MINOR"),
        )
        self._begin()
        self._info = describe_device(driver, self._handle, index, self.capability)
        if self._groups and settings.wgmma() is None and not trial.agrees(self):
            units = tuple(u for u in self._info.matrix_units if not u.row_bytes)
            self._info = replace(self._info, matrix_units=units)

    def _begin(self) -> None:
        """The context, the streams, and what a device has before its first use."""
        self._context = self.driver.call("cuDevicePrimaryCtxRetain", self._handle)
        self._process = os.getpid()
        self.enter()
        self.stream = self.driver.call("cuStreamCreate", 1)  # not ordered with the legacy stream
        self._capturing = self.driver.call("cuStreamCreate", 1)
        self.allocator = Allocator(self.driver)
        self._workspace: MemoryBlock | None = None
        self._staging: list[tuple[int, Any]] = []
        self.lock = threading.RLock()

    def enter(self) -> None:
        """Make this device's context the calling thread's, which driver calls work on: others may have changed it."""
        if os.getpid() != self._process:
            raise DeviceError(
                f"{self._info.name} was opened before this process was forked, and cannot be used here: start "
                "processes with multiprocessing's 'spawn', or open the device in the new process only"
            )
        self.driver.call("cuCtxSetCurrent", self._context)

    @contextlib.contextmanager
    def capture(self) -> Generator[Capture]:
        """Make a graph of what is started on the capture's stream inside. Other threads' captures wait."""
        driver, mode = self.driver, self.driver.module.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        with self.lock:
            driver.call("cuStreamBeginCapture", self._capturing, mode)
            made = Capture(self._capturing)
            try:
                yield made
            except BaseException:
                with contextlib.suppress(CudaError):  # ends it, and says that it is of no use
                    driver.call("cuGraphDestroy", driver.call("cuStreamEndCapture", self._capturing))
                raise
            graph = driver.call("cuStreamEndCapture", self._capturing)
            made.graph = driver.call("cuGraphInstantiate", graph, 0)
            driver.call("cuGraphDestroy", graph)

    @property
    def info(self) -> DeviceInfo:
        return self._info

    def workspace(self, nbytes: int) -> int:
        """The address of at least `nbytes` bytes that plans share, one run at a time."""
        block = self._workspace
        if block is None or block.nbytes < nbytes:
            self._workspace = block = None  # gone before there is another one
            block = self._workspace = self.allocate(nbytes)
        return block.address

    def allocate(self, nbytes: int) -> MemoryBlock:
        self.enter()
        return self.allocator.allocate(nbytes)

    def staging(self) -> list[tuple[int, Any]]:
        """The pinned buffers, each with the event after which it may be used again."""
        if not self._staging:
            for _ in range(2):
                address = int(self.driver.call("cuMemHostAlloc", STAGING_BYTES, 0))
                self._staging.append((address, self.driver.call("cuEventCreate", 2)))  # without timing
        return self._staging

    def free(self, memory: Memory) -> None:
        _block(memory).free()

    def used_bytes(self) -> int:
        return self.allocator.used_bytes

    def set_memory_limit(self, nbytes: int | None) -> None:
        self.allocator.limit_bytes = nbytes

    def write(self, memory: Memory, data: memoryview, offset: int = 0, queue: int = 0) -> None:
        self.queue(queue)
        block, call = _block(memory), self.driver.call
        check_range("write", data.nbytes, offset, block.nbytes)
        flat, start = data.cast("B"), block.address + offset
        with self.lock:
            self.enter()
            for k, at in enumerate(range(0, flat.nbytes, STAGING_BYTES)):
                address, free = self.staging()[k % 2]
                piece = flat[at : at + STAGING_BYTES]
                call("cuEventSynchronize", free)
                _host(address, piece.nbytes)[:] = piece
                call("cuMemcpyHtoDAsync", start + at, address, piece.nbytes, self.stream)
                call("cuEventRecord", free, self.stream)

    def read(self, memory: Memory, nbytes: int, offset: int = 0, queue: int = 0) -> memoryview:
        self.queue(queue)
        block, call = _block(memory), self.driver.call
        check_range("read", nbytes, offset, block.nbytes)
        start = block.address + offset
        out = memoryview(bytearray(nbytes))
        pieces = [(at, min(STAGING_BYTES, nbytes - at)) for at in range(0, nbytes, STAGING_BYTES)]
        with self.lock:
            self.enter()
            for k in range(len(pieces) + 1):
                if k < len(pieces):
                    at, size = pieces[k]
                    address, done = self.staging()[k % 2]
                    call("cuMemcpyDtoHAsync", address, start + at, size, self.stream)
                    call("cuEventRecord", done, self.stream)
                if k:  # while that piece is on its way
                    at, size = pieces[k - 1]
                    address, done = self.staging()[(k - 1) % 2]
                    call("cuEventSynchronize", done)
                    out[at : at + size] = _host(address, size)
            if not pieces:
                self.synchronize()
        return out

    def copy_from(self, memory: Memory, origin: Device, source: Memory, nbytes: int, queue: int = 0) -> bool:
        if origin is not self:
            return False
        self.queue(queue)
        target, start = _block(memory), _block(source)
        check_range("copy", nbytes, 0, min(target.nbytes, start.nbytes))
        if nbytes:
            self.enter()
            self.driver.call("cuMemcpyDtoDAsync", target.address, start.address, nbytes, self.stream)
        return True

    def queue(self, number: int = 0) -> CudaQueue:
        if number:
            raise ValueError(f"{self._info.name} has one queue, number 0: there is no queue {number}")
        return CudaQueue(self)

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[CudaCode], bytes]:
        ptx, entries = compile_programs(
            programs, target(self.capability), self._info.local_bytes, self._groups
        )
        cubin = self._assemble(ptx)
        known = describe(entries)
        image = b"" if known is None else _MAGIC + struct.pack("<I", len(known)) + known.encode() + cubin
        return self._load(cubin, entries, ptx), image

    def _assemble(self, ptx: str) -> bytes:
        """PTX -> machine code, by the driver's own assembler."""
        self.enter()
        module, call = self.driver.module, self.driver.call
        text, log, option = ptx.encode() + b"\0", bytearray(LOG_BYTES), module.CUjit_option
        options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES]
        state = call("cuLinkCreate", len(options), options, [log, len(log)])
        try:
            kind = module.CUjitInputType.CU_JIT_INPUT_PTX
            call("cuLinkAddData", state, kind, text, len(text), b"weft", 0, [], [])
            address, size = call("cuLinkComplete", state)
            return bytes(_host(int(address), int(size)))
        except CudaError as error:
            said = bytes(log).split(b"\0")[0].decode(errors="replace").strip()
            if not said:
                raise
            raise DeviceError(f"{self._info.name} does not take a kernel ({error.code}): {said}") from error
        finally:
            call("cuLinkDestroy", state)

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[CudaCode]:
        if not image.startswith(_MAGIC):
            raise ValueError("not an image of this backend")
        (size,) = struct.unpack_from("<I", image, len(_MAGIC))
        start = len(_MAGIC) + 4
        entries = {e.name: e for e in parse(image[start : start + size].decode())}
        if any(n not in entries for n in names):
            raise ValueError("the image has other programs")
        return self._load(image[start + size :], [entries[n] for n in names], "")

    def _load(self, cubin: bytes, entries: Sequence[Entry], text: str) -> list[CudaCode]:
        self.enter()
        call = self.driver.call
        module = call("cuModuleLoadData", cubin)
        dynamic = self.driver.module.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        out: list[CudaCode] = []
        for e in entries:
            functions: list[Any] = []
            for part in e.parts:
                function = call("cuModuleGetFunction", module, part.name.encode())
                if part.local_bytes > 48 << 10:
                    call("cuFuncSetAttribute", function, dynamic, part.local_bytes)
                functions.append(function)
            out.append(CudaCode(e, tuple(functions), text))
        return out

    @property
    def _groups(self) -> bool:
        """True where groups of warps multiply together."""
        return any(u.row_bytes for u in self._info.matrix_units)

    def fingerprint(self) -> str:
        major, minor = self.capability
        precision = " tf32" if any(u.operand is float32 for u in self._info.matrix_units) else ""
        groups = " wgmma" if self._groups else ""
        return f"cuda sm_{major}{minor}{precision}{groups} driver {self.driver.call('cuDriverGetVersion')} {version()}"

    def listings(self, program: Program) -> Mapping[str, str]:
        ptx, _ = compile_programs([program], target(self.capability), self._info.local_bytes, self._groups)
        return {"ptx": ptx}

    def limits(self) -> Limits:
        return described(self._info, peaks(self.capability, self._info))

    def link(self, codes: Sequence[Code], commands: Commands) -> CudaExecutable:
        return CudaExecutable(self, cast("Sequence[CudaCode]", codes), commands)

    def synchronize(self) -> None:
        self.enter()
        self.driver.call("cuStreamSynchronize", self.stream)


def _block(memory: Memory) -> MemoryBlock:
    """`memory` as this backend's. ValueError when it is another's, or freed."""
    if not isinstance(memory, MemoryBlock):
        raise ValueError(f"not memory of a GPU: {memory!r}")
    if not hasattr(memory, "address"):
        raise ValueError(f"memory of a GPU is used after it was freed: {memory.nbytes} bytes")
    return memory


class CudaEvent:
    """A point in a device's stream."""

    __slots__ = ("_device", "handle")

    def __init__(self, device: CudaDevice) -> None:
        self._device = device
        self.handle: Any = None
        device.enter()
        self.handle = device.driver.call("cuEventCreate", 2)  # without timing
        device.driver.call("cuEventRecord", self.handle, device.stream)

    def done(self) -> bool:
        self._device.enter()
        try:
            self._device.driver.call("cuEventQuery", self.handle)
        except CudaError as error:
            if error.code == "CUDA_ERROR_NOT_READY":
                return False
            raise
        return True

    def wait(self) -> None:
        self._device.enter()
        self._device.driver.call("cuEventSynchronize", self.handle)

    def __del__(self) -> None:
        _release(self._device, "cuEventDestroy", [self.handle])


class CudaQueue:
    """The stream of a device."""

    __slots__ = ("_device",)

    def __init__(self, device: CudaDevice) -> None:
        self._device = device

    def record(self) -> CudaEvent:
        return CudaEvent(self._device)

    def wait(self, event: Event) -> None:
        if not isinstance(event, CudaEvent):
            raise ValueError(f"not an event of a GPU: {event!r}")
        self._device.enter()
        self._device.driver.call("cuStreamWaitEvent", self._device.stream, event.handle, 0)

    def synchronize(self) -> None:
        self._device.synchronize()


@dataclass(slots=True)
class Capture:
    """The result of `CudaDevice.capture`: the captured stream and, afterwards, the graph, ready to launch."""

    stream: Any
    graph: Any = None


def _release(device: CudaDevice, call: str, handles: Sequence[Any]) -> None:
    """Give handles back; at the end of the process, or in a forked one, they are gone already."""
    with contextlib.suppress(DeviceError):
        device.enter()
        for handle in handles:
            if handle is not None:
                device.driver.call(call, handle)


def _host(address: int, nbytes: int) -> memoryview:
    """Host memory at an address."""
    return memoryview((ctypes.c_char * nbytes).from_address(address)).cast("B")


@dataclass(frozen=True, slots=True)
class _Call:
    """One launch: the function, its blocks, threads and shared bytes, the addresses of its arguments, and which of the
    plan's variables its own are."""

    function: Any
    blocks: Any
    threads: int
    local_bytes: int
    arguments: array[int]
    names: tuple[tuple[str, int], ...]


class CudaExecutable:
    """Commands whose launches read their arguments from one table: externals, workspace, scratch, variables."""

    def __init__(self, device: CudaDevice, codes: Sequence[CudaCode], commands: Commands) -> None:
        self._graphs: OrderedDict[tuple[int, ...], Any] = OrderedDict()
        self._device, self._commands, self._codes = device, commands, tuple(codes)
        self.started = self.finished = 0
        self._scratch_at = -(-commands.workspace_bytes // 512) * 512
        sizes = [codes[s.program].entry.scratch for s in commands.steps if isinstance(s, Launch)]
        offsets = {own: _offsets(own) for own in set(sizes)}
        most = max((end for _, end in offsets.values()), default=0)
        self._bytes = self._scratch_at + most
        count = max((len(own) for own in sizes), default=0)
        self._fixed = len(commands.offsets)
        self._scratch = {own: starts for own, (starts, _) in offsets.items()}
        # scratch differs from step to step in where it lies: every distinct layout has its own cells
        layouts = list(self._scratch)
        first = commands.externals + self._fixed
        self._cells = {own: first + k * count for k, own in enumerate(layouts)}
        self._variables_at = first + count * len(layouts)
        self._table = array("Q", bytes(8 * max(1, self._variables_at + commands.variables)))
        self._base = 0
        self._steps: list[_Call | CopyBytes] = []
        for s in commands.steps:
            self._steps += [s] if isinstance(s, CopyBytes) else self._calls(s)

    def __del__(self) -> None:
        _release(self._device, "cuGraphExecDestroy", list(self._graphs.values()))

    def _calls(self, step: Launch) -> list[_Call]:
        code = self._codes[step.program]
        table = self._table.buffer_info()[0]
        out: list[_Call] = []
        for part, function in zip(code.entry.parts, code.functions, strict=True):
            cells: list[int] = []
            for a in part.args:
                own = a - code.entry.parameters
                cells.append(step.slots[a] if own < 0 else self._cells[code.entry.scratch] + own)
            cells += [self._variables_at + v for v in step.variables]
            names = tuple(zip(code.entry.variables, step.variables, strict=True))
            arguments = array("Q", [table + 8 * c for c in cells] or [0])
            out.append(_Call(function, part.blocks, part.threads, part.local_bytes, arguments, names))
        return out

    def _prepare(self, memories: Sequence[Memory], variables: Sequence[int]) -> tuple[int, ...]:
        """Fill in the table; all that a run depends on."""
        if self._bytes:
            base = self._device.workspace(self._bytes)
            if base != self._base:
                self._base = base
                at = self._commands.externals
                for k, offset in enumerate(self._commands.offsets):
                    self._table[at + k] = base + offset
                for own, starts in self._scratch.items():
                    for k, start in enumerate(starts):
                        self._table[self._cells[own] + k] = base + self._scratch_at + start
        if len(memories) != self._commands.externals or len(variables) != self._commands.variables:
            raise ValueError(
                f"the plan takes {self._commands.externals} memories and {self._commands.variables} variables, "
                f"not {len(memories)} and {len(variables)}"
            )
        externals = [_block(m).address for m in memories]
        for k, address in enumerate(externals):
            self._table[k] = address
        for k, value in enumerate(variables):
            self._table[self._variables_at + k] = value & ((1 << 64) - 1)
        return (self._base, *externals, *variables)

    def _issue(self, step: _Call | CopyBytes, variables: Sequence[int], stream: Any) -> None:
        call = self._device.driver.call
        if isinstance(step, CopyBytes):
            if step.nbytes:
                target, source = self._table[step.target], self._table[step.source]
                call("cuMemcpyDtoDAsync", target, source, step.nbytes, stream)
            return
        blocks = step.blocks
        if not isinstance(blocks, int):
            blocks = int(evaluate(blocks, {n: variables[k] for n, k in step.names}))
        if blocks:
            arguments = step.arguments.buffer_info()[0]
            call(
                "cuLaunchKernel",
                step.function,
                blocks,
                1,
                1,
                step.threads,
                1,
                1,
                step.local_bytes,
                stream,
                arguments,
                0,
            )

    def run(self, memories: Sequence[Memory], variables: Sequence[int] = (), queue: int = 0) -> None:
        device = self._device
        if queue:
            device.queue(queue)
        with device.lock:
            device.enter()
            self.started = self.finished
            key = self._prepare(memories, variables)
            graph = self._graphs.get(key)
            if graph is None and len(self._steps) > 1 and key in self._graphs:
                graph = self._graphs[key] = self._captured(variables)
            if graph is not None:
                self._graphs.move_to_end(key)
                with shielded(memories):
                    self.started = self.finished + 1
                    device.driver.call("cuGraphLaunch", graph, device.stream)
                    self.finished = self.started
                return
            self._note(key)
            with shielded(memories):
                self.started = self.finished + 1
                for step in self._steps:
                    self._issue(step, variables, device.stream)
                self.finished = self.started

    def _note(self, key: tuple[int, ...]) -> None:
        """Remember a run, which is captured when it comes again."""
        self._graphs[key] = None
        if len(self._graphs) > GRAPHS_KEPT:
            _, oldest = self._graphs.popitem(last=False)
            if oldest is not None:
                self._device.driver.call("cuGraphExecDestroy", oldest)

    def _captured(self, variables: Sequence[int]) -> Any:
        with self._device.capture() as made:
            for step in self._steps:
                self._issue(step, variables, made.stream)
        return made.graph

    def run_timed(self, memories: Sequence[Memory], variables: Sequence[int] = ()) -> list[int]:
        device, call = self._device, self._device.driver.call
        with device.lock:
            device.enter()
            self._prepare(memories, variables)
            marks = [call("cuEventCreate", 0) for _ in range(len(self._commands.steps) + 1)]
            call("cuEventRecord", marks[0], device.stream)
            self.started = self.finished + 1
            at = iter(self._steps)
            for step, mark in zip(self._commands.steps, marks[1:], strict=True):
                parts = len(self._codes[step.program].entry.parts) if isinstance(step, Launch) else 1
                for _ in range(parts):
                    self._issue(next(at), variables, device.stream)
                call("cuEventRecord", mark, device.stream)
            self.finished = self.started
            device.synchronize()
            times = [call("cuEventElapsedTime", a, b) for a, b in pairwise(marks)]
            for mark in marks:
                call("cuEventDestroy", mark)
        return [round(ms * 1e6) for ms in times]


def _offsets(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """The offsets of buffers of these sizes one after another, and their end."""
    starts: list[int] = []
    at = 0
    for n in sizes:
        starts.append(at)
        at += -(-n // 256) * 256
    return tuple(starts), at


def describe_device(driver: Driver, handle: Any, index: int, capability: tuple[int, int]) -> DeviceInfo:
    """The GPU as the scheduler sees it."""

    def get(name: str) -> int:
        return driver.attribute(handle, name)

    name = cast(bytes, driver.call("cuDeviceGetName", 128, handle)).split(b"\0")[0].decode()
    cores = get("MULTIPROCESSOR_COUNT")
    memory_bytes = int(driver.call("cuDeviceTotalMem", handle))
    clock = get("CLOCK_RATE") * 1e3
    bandwidth = 2.0 * get("MEMORY_CLOCK_RATE") * 1e3 * get("GLOBAL_MEMORY_BUS_WIDTH") / 8
    major, minor = capability
    lanes = CORE_LANES // 2 if capability == (8, 0) else CORE_LANES
    return DeviceInfo(
        name=f"cuda:{index}",
        kind="cuda",
        description=f"{name}, sm_{major}{minor}, {cores} multiprocessors, {memory_bytes / 2**30:.1f} GiB",
        cores=cores,
        vector_bytes=16,
        vector_registers=255,
        l1_bytes=get("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        l2_bytes=get("L2_CACHE_SIZE"),
        l3_bytes=0,
        memory_bytes=memory_bytes,
        local_bytes=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        bandwidth=bandwidth or 1e12,
        flops=2.0 * cores * lanes * clock,
        launch_ns=LAUNCH_NS,
        task_kind=LoopKind.BLOCK,
        native=ELEMENTWISE & scalar.NATIVE,
        warp=get("WARP_SIZE"),
        shuffles=True,
        matrix_units=(
            *(warpgroups.units(capability) if settings.wgmma() is not False else ()),
            *units(capability, settings.tf32()),
        ),
        bounds=Bounds(threads=get("MAX_THREADS_PER_BLOCK"), parameters=PARAMETERS),
    )


class CudaBackend:
    """All NVIDIA GPUs that the driver shows to this process."""

    name = "cuda"

    def __init__(self) -> None:
        self._driver: Driver | None = None
        self._devices: dict[int, CudaDevice] = {}

    def _open(self) -> Driver:
        if self._driver is None:
            self._driver = open_driver()
        return self._driver

    def count(self) -> int:
        return int(self._open().call("cuDeviceGetCount"))

    def device(self, index: int) -> CudaDevice:
        if index not in self._devices:
            capability = self._capability(index)
            if capability < (7, 0):
                raise DeviceError(
                    f"the GPU cuda:{index} is too old: it needs compute capability 7.0 or later"
                )
            self._devices[index] = CudaDevice(self._open(), index)
        return self._devices[index]

    def _capability(self, index: int) -> tuple[int, int]:
        driver = self._open()
        handle = driver.call("cuDeviceGet", index)
        return driver.attribute(handle, "COMPUTE_CAPABILITY_MAJOR"), driver.attribute(
            handle, "COMPUTE_CAPABILITY_MINOR"
        )
