"""NVIDIA's driver without a GPU: memory is the host's, and a kernel is its grid, run by the interpreter.

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

from weft.backends.dummy.interpreter import interpret
from weft.ir.dtypes import to_numpy
from weft.ir.index import evaluate
from weft.ir.loops import Program
from weft.ir.passes.grid import grid_parts

ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
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


@dataclass
class EmulatedDriver:
    """`grids` finds the grid of a kernel's name; `memory_bytes` is what can be allocated."""

    grids: dict[str, Program] = field(default_factory=dict)
    memory_bytes: int = 1 << 30
    races: bool = True
    live: dict[int, Any] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    recorded: list[Callable[[], None]] | None = None
    launches: int = 0
    graph_launches: int = 0
    shared_allowed: dict[str, int] = field(default_factory=dict)

    CUdevice_attribute = SimpleNamespace(**{f"CU_DEVICE_ATTRIBUTE_{n}": n for n in ATTRIBUTES})
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
        return OK, ATTRIBUTES[name]

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
        return OK, image

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[Any, ...]:
        assert b".entry " + name + b"(" in module, name
        return OK, name.decode()

    def cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> tuple[Any, ...]:
        self.shared_allowed[function] = value
        return (OK if value <= ATTRIBUTES["MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"] else BAD,)

    def cuLaunchKernel(self, function: str, *shape_and_args: Any) -> tuple[Any, ...]:
        gx, gy, gz, bx, by, bz, shared, _, arguments, _ = shape_and_args
        if (
            min(gx, gy, gz, bx, by, bz) < 1
            or bx > 1024
            or shared > self.shared_allowed.get(function, 48 << 10)
        ):
            return (BAD,)
        grid = self.grids[function]
        block, _, thread = grid_parts(grid)
        assert thread.extent == bx
        # the arguments are read when the call is made, as the driver does
        count = len(grid.params) + len(grid.variables)
        cells = (ctypes.c_void_p * count).from_address(arguments)
        words = [ctypes.c_uint64.from_address(c or 0).value for c in cells]
        addresses = words[: len(grid.params)]
        values = {
            v.name: ctypes.c_int64(w).value
            for v, w in zip(grid.variables, words[len(grid.params) :], strict=True)
        }
        assert int(evaluate(block.extent, values)) == gx

        def execute() -> None:
            self.launches += 1
            buffers = {}
            for b, address in zip(grid.params, addresses, strict=True):
                nbytes = int(evaluate(b.size, values)) * b.dtype.itemsize
                assert address % 64 == 0 and self.room(address) >= nbytes, (grid.name, b.name, nbytes)
                raw = (ctypes.c_char * nbytes).from_address(address)
                buffers[b.name] = np.frombuffer(raw, np.uint8).view(to_numpy(b.dtype))
            interpret(grid, buffers, values, races=self.races)

        self.do(execute)
        return (OK,)

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
