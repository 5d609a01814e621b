"""NVIDIA's driver without a GPU: memory is the host's, and a kernel's PTX is run, thread by thread, by `ptx.machine`.

Stands in for `cuda.bindings.driver` under the backend's `Driver`, and is as strict as the real one: it refuses what is
called without a context, on handles that were destroyed, or during a capture; images and sizes that do not fit; and
arguments of wrong types. Work waits in its stream until somebody waits for it, so what uses memory too early is found.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import wraps
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.backends.cuda.ptx.machine import launch
from tests.backends.cuda.ptx.text import Module, PtxError, parse

ATTRIBUTES = {
    "MULTIPROCESSOR_COUNT": 4,
    "CLOCK_RATE": 1_000_000,
    "MEMORY_CLOCK_RATE": 1_000_000,
    "GLOBAL_MEMORY_BUS_WIDTH": 1024,
    "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 228 << 10,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "L2_CACHE_SIZE": 50 << 20,
    "WARP_SIZE": 32,
    "MAX_THREADS_PER_BLOCK": 1024,
}


class Status(IntEnum):
    """The driver's result codes that can occur."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NOT_INITIALIZED = 3
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_INVALID_PTX = 218
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_STATE = 401
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901
    CUDA_ERROR_CAPTURED_EVENT = 907


OK, BAD = Status.CUDA_SUCCESS, Status.CUDA_ERROR_INVALID_VALUE

ELF = b"\x7fELF emulated\0\0"
"""What machine code begins with; the PTX follows."""

KERNEL_BYTES = 4352
"""Of a kernel's arguments."""


class Refused(Exception):
    """A call that the driver answers with this status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.name)
        self.status = status


@dataclass(eq=False)
class Handle:
    """What the driver gives out."""

    alive: bool = True


class Context(Handle):
    pass


@dataclass(eq=False)
class Stream(Handle):
    """Work that waits, or, while it is captured, becomes a graph."""

    waiting: deque[Callable[[], None]] = field(default_factory=deque)
    captured: list[Callable[[], None]] | None = None
    invalidated: bool = False
    done: int = 0
    """How much work has been done."""

    def push(self, action: Callable[[], None]) -> None:
        if self.captured is None:
            self.waiting.append(action)
        else:
            self.captured.append(action)

    def drain(self, until: int | None = None) -> None:
        """Do what waits, or as much as was there after `until` pieces of work."""
        while self.waiting and (until is None or self.done < until):
            self.done += 1
            self.waiting.popleft()()


@dataclass(eq=False)
class Event(Handle):
    """A point in a stream: after `at` pieces of work."""

    timed: bool = True
    stream: Stream | None = None
    at: int = 0
    captured: bool = False

    @property
    def reached(self) -> bool:
        return self.stream is None or self.stream.done >= self.at


@dataclass(eq=False)
class Graph(Handle):
    actions: list[Callable[[], None]] = field(default_factory=list)


class Executable(Graph):
    pass


@dataclass(eq=False)
class Linking(Handle):
    inputs: list[bytes] = field(default_factory=list)
    log: Any = None
    image: Any = None


@dataclass(eq=False)
class Loaded(Handle):
    module: Module | None = None


@dataclass(eq=False)
class Function(Handle):
    """A kernel of a loaded module."""

    module: Module | None = None
    name: str = ""
    shared_allowed: int = 48 << 10

    @property
    def static(self) -> int:
        """Bytes of shared memory that it declares."""
        assert self.module is not None
        variables = (*self.module.shared, *self.module.kernels[self.name].shared)
        return sum(v.size or 0 for v in variables if v.name.startswith(f"{self.name}_local"))


def live(handle: Any, kind: type[Handle]) -> Any:
    """`handle`, which must be of that kind and not destroyed."""
    if not isinstance(handle, kind):
        raise TypeError(f"{handle!r} is no {kind.__name__}")
    if not handle.alive:
        raise Refused(Status.CUDA_ERROR_INVALID_HANDLE)
    return handle


def number(value: Any, bits: int = 32) -> int:
    """An unsigned integer of so many bits, as C takes it."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no integer")
    if not 0 <= value < 1 << bits:
        raise OverflowError(f"{value} does not fit in {bits} bits")
    return value


def call(context: bool = True) -> Callable[[Callable[..., Any]], Callable[..., tuple[Any, ...]]]:
    """A call of the driver: its results after a status. Most need a context that is the calling thread's."""

    def made(f: Callable[..., Any]) -> Callable[..., tuple[Any, ...]]:
        @wraps(f)
        def run(self: EmulatedDriver, *args: Any) -> tuple[Any, ...]:
            try:
                with self.turns:  # any thread may call, as it may the driver
                    if not self.initialized and f.__name__ not in ("cuInit", "cuDriverGetVersion"):
                        raise Refused(Status.CUDA_ERROR_NOT_INITIALIZED)
                    if context and getattr(self.current, "context", None) is None:
                        raise Refused(Status.CUDA_ERROR_INVALID_CONTEXT)
                    if context and self.lost is not None:
                        raise Refused(self.lost)
                    result = f(self, *args)
            except Refused as error:
                return (error.status, None)
            except PtxError:
                self.lost = Status.CUDA_ERROR_ILLEGAL_ADDRESS
                if self.faults_are_codes:
                    return (self.lost, None)
                raise
            return (OK, *result) if isinstance(result, tuple) else (OK,) if result is None else (OK, result)

        return run

    return made


def _namespace(prefix: str, *names: str) -> SimpleNamespace:
    return SimpleNamespace(**{f"{prefix}_{n}": n for n in names})


@dataclass
class EmulatedDriver:
    """`memory_bytes` is what can be allocated; with `races`, accesses to shared memory are held against barriers. With
    `faults_are_codes`, what a kernel does wrong is the driver's error for it; else the executor's, which says more."""

    memory_bytes: int = 1 << 30
    races: bool = False
    capability: tuple[int, int] = (9, 0)
    version: int = 13000
    faults_are_codes: bool = False
    initialized: bool = False
    lost: Status | None = None
    memories: dict[int, Any] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    pinned: dict[int, Any] = field(default_factory=dict)
    streams: list[Stream] = field(default_factory=list)
    launches: int = 0
    graph_launches: int = 0
    events: int = 0
    """How many there are."""
    graphs: int = 0
    """How many executable ones there are."""
    current: threading.local = field(default_factory=threading.local)
    turns: Any = field(default_factory=threading.RLock)
    context: Context = field(default_factory=Context)

    CUdevice_attribute = _namespace(
        "CU_DEVICE_ATTRIBUTE", *ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"
    )
    CUjitInputType = _namespace("CU_JIT_INPUT", "PTX")
    CUjit_option = _namespace("CU_JIT", "ERROR_LOG_BUFFER", "ERROR_LOG_BUFFER_SIZE_BYTES")
    CUfunction_attribute = _namespace("CU_FUNC_ATTRIBUTE", "MAX_DYNAMIC_SHARED_SIZE_BYTES")
    CUstreamCaptureMode = _namespace("CU_STREAM_CAPTURE_MODE", "RELAXED")

    @call(context=False)
    def cuInit(self, flags: int) -> None:
        if number(flags):
            raise Refused(BAD)
        self.initialized = True

    @call(context=False)
    def cuDriverGetVersion(self) -> int:
        return self.version

    @call(context=False)
    def cuDeviceGetCount(self) -> int:
        return 1

    @call(context=False)
    def cuDeviceGet(self, index: int) -> int:
        if number(index):
            raise Refused(BAD)
        return index

    @call(context=False)
    def cuDeviceGetName(self, length: int, device: int) -> bytes:
        return b"Emulated GPU" + b"\0" * (length - 12)

    @call(context=False)
    def cuDeviceTotalMem(self, device: int) -> int:
        return self.memory_bytes

    @call(context=False)
    def cuDeviceGetAttribute(self, name: str, device: int) -> int:
        own = {f"COMPUTE_CAPABILITY_{n}": v for n, v in zip(("MAJOR", "MINOR"), self.capability, strict=True)}
        return {**ATTRIBUTES, **own}[name]

    @call(context=False)
    def cuDevicePrimaryCtxRetain(self, device: int) -> Context:
        return self.context

    @call(context=False)
    def cuCtxSetCurrent(self, context: Context) -> None:
        self.current.context = live(context, Context)

    # streams and events

    @call()
    def cuStreamCreate(self, flags: int) -> Stream:
        if number(flags) > 1:
            raise Refused(BAD)
        self.streams.append(Stream())
        return self.streams[-1]

    @call()
    def cuStreamSynchronize(self, stream: Stream) -> None:
        if live(stream, Stream).captured is not None:
            stream.invalidated = True
            raise Refused(Status.CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
        stream.drain()

    @call()
    def cuStreamWaitEvent(self, stream: Stream, event: Event, flags: int) -> None:
        found = live(event, Event)
        if number(flags) or (found.captured and live(stream, Stream).captured is None):
            raise Refused(BAD)
        awaited, at = found.stream, found.at
        live(stream, Stream).push(lambda: awaited.drain(at) if awaited not in (None, stream) else None)

    @call()
    def cuEventCreate(self, flags: int) -> Event:
        if number(flags) not in (0, 1, 2, 3):
            raise Refused(BAD)
        self.events += 1
        return Event(timed=not flags & 2)

    @call()
    def cuEventRecord(self, event: Event, stream: Stream) -> None:
        live(event, Event).stream = live(stream, Stream)
        event.captured = stream.captured is not None
        event.at = stream.done + len(stream.waiting)

    def awaited(self, event: Event) -> Event:
        if live(event, Event).captured:
            assert event.stream is not None
            event.stream.invalidated = True
            raise Refused(Status.CUDA_ERROR_CAPTURED_EVENT)
        return event

    @call()
    def cuEventSynchronize(self, event: Event) -> None:
        if (stream := self.awaited(event).stream) is not None:
            stream.drain(event.at)

    @call()
    def cuEventQuery(self, event: Event) -> None:
        if not self.awaited(event).reached:
            assert event.stream is not None
            event.stream.drain(event.stream.done + 1)  # it gets on with its work
            raise Refused(Status.CUDA_ERROR_NOT_READY)

    @call()
    def cuEventElapsedTime(self, a: Event, b: Event) -> float:
        for e in (live(a, Event), live(b, Event)):
            if not e.timed or e.stream is None:
                raise Refused(Status.CUDA_ERROR_INVALID_HANDLE)
            if not e.reached:
                raise Refused(Status.CUDA_ERROR_NOT_READY)
        return 0.001

    @call()
    def cuEventDestroy(self, event: Event) -> None:
        live(event, Event).alive = False
        self.events -= 1

    # memory

    @call()
    def cuMemAlloc(self, size: int) -> int:
        if not number(size, 64):
            raise Refused(BAD)
        if sum(self.sizes.values()) + size > self.memory_bytes:
            raise Refused(Status.CUDA_ERROR_OUT_OF_MEMORY)
        memory = np.full(size + 256, 0x7F, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.memories[address], self.sizes[address] = memory, size
        return address

    @call()
    def cuMemFree(self, address: int) -> None:
        for stream in self.streams:
            stream.drain()
        if address not in self.memories:
            raise Refused(BAD)
        del self.memories[address], self.sizes[address]

    @call()
    def cuMemHostAlloc(self, size: int, flags: int) -> int:
        if not number(size, 64) or number(flags) > 15:
            raise Refused(BAD)
        memory = ctypes.create_string_buffer(size)
        self.pinned[ctypes.addressof(memory)] = memory
        return ctypes.addressof(memory)

    def room(self, address: int) -> int:
        """Bytes from an address to the end of its allocation."""
        return max((a + n - address for a, n in self.sizes.items() if a <= address < a + n), default=0)

    def pinned_room(self, address: int) -> int:
        """Bytes from an address to the end of its pinned host memory."""
        ends = (a + len(m) - address for a, m in self.pinned.items() if a <= address < a + len(m))
        return max(ends, default=0)

    def move(self, target: int, source: int, nbytes: int, stream: Stream, *device: int) -> None:
        host = [a for a in (number(target, 64), number(source, 64)) if a not in device]
        if number(nbytes, 64) and any(self.room(a) < nbytes for a in device):
            raise Refused(BAD)
        assert all(self.pinned_room(a) >= nbytes for a in host), (
            "an asynchronous copy of memory that is not pinned"
        )
        live(stream, Stream).push(lambda: ctypes.memmove(target, source, nbytes) and None)

    @call()
    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self.move(target, source, nbytes, stream, target)

    @call()
    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self.move(target, source, nbytes, stream, source)

    @call()
    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: Stream) -> None:
        self.move(target, source, nbytes, stream, target, source)

    # programs

    @call()
    def cuLinkCreate(self, count: int, options: list[str], values: list[Any]) -> Linking:
        if number(count) != len(options) or count != len(values):
            raise Refused(BAD)
        given = dict(zip(options, values, strict=True))
        log = given.get("ERROR_LOG_BUFFER")
        if log is not None and given["ERROR_LOG_BUFFER_SIZE_BYTES"] > len(log):
            raise Refused(BAD)
        return Linking(log=log)

    @call()
    def cuLinkAddData(
        self, state: Linking, kind: str, data: bytes, size: int, name: bytes, count: int, *rest: list[Any]
    ) -> None:
        if (
            kind != "PTX"
            or count
            or any(rest)
            or not isinstance(name, bytes)
            or data[size - 1 : size] != b"\0"
        ):
            raise Refused(BAD)
        text = data[: size - 1].decode()
        version = re.search(r"^\.version (\d+)\.(\d+)", text, re.M)
        target = re.search(r"^\.target sm_(\d+)(a?)", text, re.M)
        if version is None or target is None:
            raise self.complained(state, "no .version, or no .target")
        newest = (self.version // 1000 - 4, self.version % 1000 // 10)  # CUDA 12.0 has PTX 8.0
        if (int(version[1]), int(version[2])) > newest:
            raise Refused(Status.CUDA_ERROR_UNSUPPORTED_PTX_VERSION)
        chip, own = int(target[1]), 10 * self.capability[0] + self.capability[1]
        if chip > own or (target[2] and chip != own):
            raise Refused(Status.CUDA_ERROR_NO_BINARY_FOR_GPU)
        try:
            parse(text)
        except PtxError as error:
            raise self.complained(state, str(error)) from None
        live(state, Linking).inputs.append(data[: size - 1])

    def complained(self, state: Linking, about: str) -> Refused:
        if live(state, Linking).log is not None:
            said = f"ptxas error: {about}".encode()[: len(state.log) - 1]
            state.log[: len(said)] = said
        return Refused(Status.CUDA_ERROR_INVALID_PTX)

    @call()
    def cuLinkComplete(self, state: Linking) -> tuple[int, int]:
        (text,) = live(state, Linking).inputs
        state.image = ctypes.create_string_buffer(ELF + text)
        return ctypes.addressof(state.image), len(ELF + text)

    @call()
    def cuLinkDestroy(self, state: Linking) -> None:
        live(state, Linking).alive = False
        if state.image is not None:
            ctypes.memset(state.image, 0xCC, len(state.image))

    @call()
    def cuModuleLoadData(self, image: bytes) -> Loaded:
        if not image.startswith(ELF):
            raise Refused(Status.CUDA_ERROR_INVALID_IMAGE)
        return Loaded(module=parse(image[len(ELF) :].decode()))

    @call()
    def cuModuleGetFunction(self, module: Loaded, name: bytes) -> Function:
        found = live(module, Loaded).module
        if name.decode() not in found.kernels:
            raise Refused(Status.CUDA_ERROR_NOT_FOUND)
        return Function(module=found, name=name.decode())

    @call()
    def cuFuncSetAttribute(self, function: Function, attribute: str, value: int) -> None:
        most = ATTRIBUTES["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"]
        if attribute != "MAX_DYNAMIC_SHARED_SIZE_BYTES" or live(function, Function).static + value > most:
            raise Refused(BAD)
        function.shared_allowed = value

    @call()
    def cuLaunchKernel(self, function: Function, *shape_and_args: Any) -> None:
        *shape, shared, stream, arguments, extra = shape_and_args
        gx, gy, gz, bx, by, bz = (number(n) for n in shape)
        found = live(function, Function).module
        assert found is not None
        kernel = found.kernels[function.name]
        if (
            min(gx, gy, gz, bx, by, bz) < 1
            or gx > 2**31 - 1
            or (gy, gz, by, bz) != (1, 1, 1, 1)
            or bx > min(1024, kernel.threads)
            or number(shared) > function.shared_allowed
            or 8 * len(kernel.params) > KERNEL_BYTES
            or extra
        ):
            raise Refused(BAD)
        # the arguments are read when the call is made, as the driver does
        cells = (ctypes.c_void_p * len(kernel.params)).from_address(number(arguments, 64))
        words = [ctypes.c_uint64.from_address(c or 0).value for c in cells]

        def execute() -> None:
            self.launches += 1
            memory = {a: self.bytes_at(a) for a in self.sizes}
            launch(found, function.name, gx, bx, shared, words, memory, self.races)

        live(stream, Stream).push(execute)

    def bytes_at(self, address: int) -> Any:
        """The bytes of the allocation that begins there."""
        memory = self.memories[address]
        start = address - memory.ctypes.data
        return memory[start : start + self.sizes[address]]

    # graphs

    @call()
    def cuStreamBeginCapture(self, stream: Stream, mode: str) -> None:
        if mode != "RELAXED":
            raise Refused(BAD)
        if live(stream, Stream).captured is not None:
            raise Refused(Status.CUDA_ERROR_ILLEGAL_STATE)
        stream.captured, stream.invalidated = [], False

    @call()
    def cuStreamEndCapture(self, stream: Stream) -> Graph:
        if live(stream, Stream).captured is None:
            raise Refused(Status.CUDA_ERROR_ILLEGAL_STATE)
        actions, stream.captured = stream.captured, None
        if stream.invalidated:
            raise Refused(Status.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
        return Graph(actions=actions)

    @call()
    def cuGraphInstantiate(self, graph: Graph, flags: int) -> Executable:
        if number(flags, 64):
            raise Refused(BAD)
        self.graphs += 1
        return Executable(actions=list(live(graph, Graph).actions))

    @call()
    def cuGraphDestroy(self, graph: Graph) -> None:
        live(graph, Graph).alive = False

    @call()
    def cuGraphExecDestroy(self, graph: Executable) -> None:
        live(graph, Executable).alive = False
        self.graphs -= 1

    @call()
    def cuGraphLaunch(self, graph: Executable, stream: Stream) -> None:
        self.graph_launches += 1
        for action in live(graph, Executable).actions:
            live(stream, Stream).push(action)
