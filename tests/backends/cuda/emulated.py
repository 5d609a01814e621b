"""NVIDIA's driver without a GPU: memory is the host's, and a kernel's PTX is run, thread by thread, by `ptx.machine`.

Stands in for `cuda.bindings.driver` under the backend's `Driver`: the calls that the backend makes, with the checks
that the real one makes (addresses, sizes, launch limits), and streams that run at once but while they are captured.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

from tests.backends.cuda.ptx.machine import launch
from tests.backends.cuda.ptx.text import Module, parse

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


OK, BAD = Status.CUDA_SUCCESS, Status.CUDA_ERROR_INVALID_VALUE


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel of a loaded module."""

    module: Module
    name: str


@dataclass
class EmulatedDriver:
    """`memory_bytes` is what can be allocated; with `races`, accesses to shared memory are held against barriers."""

    memory_bytes: int = 1 << 30
    races: bool = False
    capability: tuple[int, int] = (9, 0)
    live: dict[int, Any] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    recorded: list[Callable[[], None]] | None = None
    launches: int = 0
    graph_launches: int = 0
    shared_allowed: dict[Function, int] = field(default_factory=dict)

    CUdevice_attribute = SimpleNamespace(
        **{
            f"CU_DEVICE_ATTRIBUTE_{n}": n
            for n in (*ATTRIBUTES, "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR")
        }
    )
    CUjitInputType = SimpleNamespace(CU_JIT_INPUT_PTX="ptx")
    CUfunction_attribute = SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES="shared")
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")

    def cuInit(self, flags: int) -> tuple[Any, ...]:
        return (OK,)

    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return OK, 13000

    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return OK, 1

    def cuDeviceGet(self, index: int) -> tuple[Any, ...]:
        return OK, index

    def cuDeviceGetName(self, length: int, device: int) -> tuple[Any, ...]:
        return OK, b"Emulated GPU" + b"\0" * (length - 12)

    def cuDeviceTotalMem(self, device: int) -> tuple[Any, ...]:
        return OK, self.memory_bytes

    def cuDeviceGetAttribute(self, name: str, device: int) -> tuple[Any, ...]:
        own = {f"COMPUTE_CAPABILITY_{n}": v for n, v in zip(("MAJOR", "MINOR"), self.capability, strict=True)}
        return OK, {**ATTRIBUTES, **own}[name]

    def cuDevicePrimaryCtxRetain(self, device: int) -> tuple[Any, ...]:
        return OK, "context"

    def cuCtxSetCurrent(self, context: str) -> tuple[Any, ...]:
        return (OK,)

    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, "stream"

    def cuStreamSynchronize(self, stream: str) -> tuple[Any, ...]:
        return (OK if self.recorded is None else BAD,)

    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        return OK, "event"

    def cuEventRecord(self, event: str, stream: str) -> tuple[Any, ...]:
        return (OK,)

    def cuEventSynchronize(self, event: str) -> tuple[Any, ...]:
        return (OK if self.recorded is None else BAD,)

    def cuEventQuery(self, event: str) -> tuple[Any, ...]:
        return (OK,)

    def cuStreamWaitEvent(self, stream: str, event: str, flags: int) -> tuple[Any, ...]:
        return (OK,)

    def cuEventElapsedTime(self, a: str, b: str) -> tuple[Any, ...]:
        return OK, 0.001

    def cuEventDestroy(self, event: str) -> tuple[Any, ...]:
        return (OK,)

    def cuMemAlloc(self, size: int) -> tuple[Any, ...]:
        if sum(self.sizes.values()) + size > self.memory_bytes:
            return Status.CUDA_ERROR_OUT_OF_MEMORY, 0
        memory = np.full(size + 256, 0x7F, np.uint8)
        address = -(-memory.ctypes.data // 256) * 256
        self.live[address], self.sizes[address] = memory, size
        return OK, address

    def cuMemFree(self, address: int) -> tuple[Any, ...]:
        if address not in self.live:
            return (BAD,)
        del self.live[address], self.sizes[address]
        return (OK,)

    def cuMemHostAlloc(self, size: int, flags: int) -> tuple[Any, ...]:
        memory = ctypes.create_string_buffer(size)
        self.live[ctypes.addressof(memory)] = memory
        return OK, ctypes.addressof(memory)

    def room(self, address: int) -> int:
        """Bytes from an address to the end of its allocation."""
        return max((a + n - address for a, n in self.sizes.items() if a <= address < a + n), default=0)

    def move(self, target: int, source: int, nbytes: int, *device: int) -> tuple[Any, ...]:
        if any(self.room(a) < nbytes for a in device):
            return (BAD,)
        self.do(lambda: ctypes.memmove(target, source, nbytes))
        return (OK,)

    def cuMemcpyHtoDAsync(self, target: int, source: int, nbytes: int, stream: str) -> tuple[Any, ...]:
        return self.move(target, source, nbytes, target)

    def cuMemcpyDtoHAsync(self, target: int, source: int, nbytes: int, stream: str) -> tuple[Any, ...]:
        return self.move(target, source, nbytes, source)

    def cuMemcpyDtoDAsync(self, target: int, source: int, nbytes: int, stream: str) -> tuple[Any, ...]:
        return self.move(target, source, nbytes, target, source)

    def cuLinkCreate(self, count: int, options: list[Any], values: list[Any]) -> tuple[Any, ...]:
        return OK, []

    def cuLinkAddData(
        self, state: list[Any], kind: str, data: bytes, size: int, *rest: Any
    ) -> tuple[Any, ...]:
        state.append(ctypes.create_string_buffer(data, size))
        return (OK,)

    def cuLinkComplete(self, state: list[Any]) -> tuple[Any, ...]:
        self.live[ctypes.addressof(state[0])] = state[0]
        return OK, ctypes.addressof(state[0]), len(state[0])

    def cuLinkDestroy(self, state: list[Any]) -> tuple[Any, ...]:
        return (OK,)

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, ...]:
        return OK, parse(image.rstrip(b"\0").decode())

    def cuModuleGetFunction(self, module: Module, name: bytes) -> tuple[Any, ...]:
        return OK, Function(module, name.decode())

    def cuFuncSetAttribute(self, function: Function, attribute: str, value: int) -> tuple[Any, ...]:
        self.shared_allowed[function] = value
        return (OK if value <= ATTRIBUTES["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] else BAD,)

    def cuLaunchKernel(self, function: Function, *shape_and_args: Any) -> tuple[Any, ...]:
        gx, gy, gz, bx, by, bz, shared, _, arguments, _ = shape_and_args
        if (
            min(gx, gy, gz, bx, by, bz) < 1
            or (gy, gz, by, bz) != (1, 1, 1, 1)
            or bx > 1024
            or shared > self.shared_allowed.get(function, 48 << 10)
        ):
            return (BAD,)
        # the arguments are read when the call is made, as the driver does
        count = len(function.module.kernels[function.name].params)
        cells = (ctypes.c_void_p * count).from_address(arguments)
        words = [ctypes.c_uint64.from_address(c or 0).value for c in cells]

        def execute() -> None:
            self.launches += 1
            memory = {a: self.bytes_at(a) for a in self.sizes}
            launch(function.module, function.name, gx, bx, shared, words, memory, self.races)

        self.do(execute)
        return (OK,)

    def bytes_at(self, address: int) -> Any:
        """The bytes of the allocation that begins there."""
        memory = self.live[address]
        start = address - memory.ctypes.data
        return memory[start : start + self.sizes[address]]

    def do(self, action: Callable[[], Any]) -> None:
        if self.recorded is None:
            action()
        else:
            self.recorded.append(action)

    def cuStreamBeginCapture(self, stream: str, mode: str) -> tuple[Any, ...]:
        self.recorded = []
        return (OK,)

    def cuStreamEndCapture(self, stream: str) -> tuple[Any, ...]:
        graph, self.recorded = self.recorded, None
        return OK, graph

    def cuGraphInstantiate(self, graph: list[Any], flags: int) -> tuple[Any, ...]:
        return OK, list(graph)

    def cuGraphDestroy(self, graph: list[Any]) -> tuple[Any, ...]:
        return (OK,)

    def cuGraphExecDestroy(self, graph: list[Any]) -> tuple[Any, ...]:
        return (OK,)

    def cuGraphLaunch(self, graph: list[Callable[[], None]], stream: str) -> tuple[Any, ...]:
        self.graph_launches += 1
        for action in graph:
            action()
        return (OK,)
