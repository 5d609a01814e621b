"""The HIP runtime and COMGR without a GPU: functions that take what ctypes passes to the real ones.

Memory is the host's. A launch runs the grid that the kernel was made from in the interpreter of loops, on the
arguments that it finds behind the pointers it was given, as the hardware would.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from weft.backends.dummy.interpreter import interpret
from weft.backends.hip.code_object import parse
from weft.ir.dtypes import to_numpy
from weft.ir.index import high
from weft.ir.loops import Program

ATTRIBUTES = {5: 1_700_000, 19: 8 << 20, 56: 1024, 59: 4096, 60: 1_600_000, 63: 4, 74: 64 << 10, 87: 64}
ISA = b"gfx90a:sramecc+:xnack-"
OUT_OF_MEMORY, NOT_FOUND = 2, 500


def put(pointer: Any, value: Any) -> None:
    """Return `value` by a pointer."""
    pointer._obj.value = value


class FakeHip:
    """libamdhip64; `grids` are the programs that kernels were compiled from, by name."""

    def __init__(self, grids: Mapping[str, Program]) -> None:
        self.grids = grids
        self.memory: dict[int, Any] = {}
        self.sizes: dict[int, int] = {}
        self.limit = 1 << 28
        self.kernels: list[str] = []
        self.launches: list[tuple[str, int, int]] = []
        self.recorded: list[Any] | None = None
        self.graphs: list[list[Any]] = []
        self.graph_launches = 0

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("hip"):
            raise AttributeError(name)
        if name in ("hipInit", "hipSetDevice", "hipStreamSynchronize", "hipEventRecord", "hipEventQuery"):
            return lambda *args: 0
        if name in ("hipEventSynchronize", "hipEventDestroy", "hipStreamWaitEvent", "hipGraphDestroy"):
            return lambda *args: 0
        raise AttributeError(name)

    def hipDriverGetVersion(self, out: Any) -> int:
        put(out, 60_300_000)
        return 0

    def hipGetDeviceCount(self, out: Any) -> int:
        put(out, 1)
        return 0

    def hipDeviceTotalMem(self, out: Any, device: Any) -> int:
        put(out, self.limit)
        return 0

    def hipDeviceGetAttribute(self, out: Any, number: Any, device: Any) -> int:
        put(out, ATTRIBUTES[number.value])
        return 0

    def hipDeviceGetName(self, text: Any, length: Any, device: Any) -> int:
        text.value = b"Fake Instinct"
        return 0

    def hipGetDevicePropertiesR0600(self, out: Any, device: Any) -> int:
        ctypes.memmove(out, b"Fake Instinct\0" + b"\x07" * 500 + ISA + b"\0", 514 + len(ISA) + 1)
        return 0

    def hipStreamCreateWithFlags(self, out: Any, flags: Any) -> int:
        put(out, 77)
        return 0

    def hipEventCreateWithFlags(self, out: Any, flags: Any) -> int:
        put(out, 78)
        return 0

    def hipEventElapsedTime(self, out: Any, a: Any, b: Any) -> int:
        put(out, 0.001)
        return 0

    def hipMalloc(self, out: Any, size: Any) -> int:
        if sum(self.sizes.values()) + size.value > self.limit:
            return OUT_OF_MEMORY
        return self._allocate(out, size.value)

    def _allocate(self, out: Any, size: int) -> int:
        array = np.full(size + 256, 0x7F, np.uint8)
        address = -(-array.ctypes.data // 256) * 256
        self.memory[address], self.sizes[address] = array, size
        put(out, address)
        return 0

    def hipHostMalloc(self, out: Any, size: Any, flags: Any) -> int:
        return self._allocate(out, size.value)

    def hipFree(self, address: Any) -> int:
        del self.memory[address.value], self.sizes[address.value]
        return 0

    def _copy(self, to: Any, start: Any, size: Any, stream: Any) -> int:
        assert stream.value == 77
        if self.recorded is not None:
            self.recorded.append(lambda: ctypes.memmove(to.value, start.value, size.value))
        else:
            ctypes.memmove(to.value, start.value, size.value)
        return 0

    hipMemcpyHtoDAsync = hipMemcpyDtoHAsync = hipMemcpyDtoDAsync = _copy

    def hipModuleLoadData(self, out: Any, image: Any) -> int:
        assert image.value is not None
        put(out, 5)
        return 0

    def hipModuleGetFunction(self, out: Any, module: Any, name: Any) -> int:
        text = name.value.decode()
        if text not in self.grids:
            return NOT_FOUND
        self.kernels.append(text)
        put(out, len(self.kernels))
        return 0

    def hipModuleLaunchKernel(self, function: Any, *rest: Any) -> int:
        blocks, by, bz, threads, ty, tz, shared, stream, arguments, extra = (x.value for x in rest)
        assert (by, bz, ty, tz, shared, stream, extra) == (1, 1, 1, 1, 0, 77, None)
        name = self.kernels[function.value - 1]
        if self.recorded is not None:
            self.recorded.append(lambda: self._run(name, blocks, threads, arguments))
        else:
            self._run(name, blocks, threads, arguments)
        return 0

    def _run(self, name: str, blocks: int, threads: int, arguments: int) -> None:
        self.launches.append((name, blocks, threads))
        grid = self.grids[name]
        count = len(grid.params) + len(grid.variables)
        pointers = (ctypes.c_uint64 * count).from_address(arguments)
        values = [ctypes.c_uint64.from_address(p).value for p in pointers]
        variables = dict(zip((v.name for v in grid.variables), values[len(grid.params) :], strict=True))
        buffers: dict[str, Any] = {}
        for b, address in zip(grid.params, values, strict=False):
            nbytes = high(b.size) * b.dtype.itemsize
            raw = (ctypes.c_uint8 * nbytes).from_address(address)
            buffers[b.name] = np.frombuffer(raw, to_numpy(b.dtype))
        interpret(grid, buffers, variables)

    def hipStreamBeginCapture(self, stream: Any, mode: Any) -> int:
        assert mode.value == 2
        self.recorded = []
        return 0

    def hipStreamEndCapture(self, stream: Any, out: Any) -> int:
        assert self.recorded is not None
        self.graphs.append(self.recorded)
        self.recorded = None
        put(out, len(self.graphs))
        return 0

    def hipGraphInstantiateWithFlags(self, out: Any, graph: Any, flags: Any) -> int:
        put(out, graph.value)
        return 0

    def hipGraphLaunch(self, executable: Any, stream: Any) -> int:
        self.graph_launches += 1
        for step in self.graphs[executable.value - 1]:
            step()
        return 0

    def hipGraphExecDestroy(self, executable: Any) -> int:
        return 0


class FakeComgr:
    """libamd_comgr of a version: it checks what it is given, and its executable is the object it got."""

    def __init__(self, major: int) -> None:
        self.major = major
        self.objects: dict[int, Any] = {}
        self.isa = b""

    def __getattr__(self, name: str) -> Any:
        def function(*args: Any) -> int:
            return getattr(self, f"_{name.removeprefix('amd_comgr_')}", self._nothing)(*args)

        if not name.startswith("amd_comgr_"):
            raise AttributeError(name)
        return self.__dict__.setdefault(name, function)

    def _nothing(self, *args: Any) -> int:
        return 0

    def _get_version(self, major: Any, minor: Any) -> None:
        put(major, self.major)

    def _new(self, out: Any, thing: Any) -> int:
        out._obj.handle = len(self.objects) + 1
        self.objects[len(self.objects) + 1] = thing
        return 0

    def _create_data(self, kind: int, out: Any) -> int:
        assert kind == 7
        return self._new(out, b"")

    def _set_data(self, data: Any, size: int, content: bytes) -> int:
        assert size == len(content)
        self.objects[data.handle] = content
        return 0

    def _create_data_set(self, out: Any) -> int:
        return self._new(out, [])

    def _create_action_info(self, out: Any) -> int:
        return self._new(out, "info")

    def _data_set_add(self, group: Any, data: Any) -> int:
        self.objects[group.handle].append(data.handle)
        return 0

    def _action_info_set_isa_name(self, info: Any, name: bytes) -> int:
        self.isa = name
        return 0

    def _do_action(self, kind: int, info: Any, inputs: Any, outputs: Any) -> int:
        if kind != {2: 9, 3: 7}[self.major]:
            return 1
        self.objects[outputs.handle].extend(self.objects[inputs.handle])
        return 0

    def _action_data_get_data(self, group: Any, kind: int, index: int, out: Any) -> int:
        assert (kind, index) == (8, 0)
        code = self.objects[self.objects[group.handle][0]]
        assert parse(code).relocatable
        return self._new(out, code)

    def _get_data(self, data: Any, size: Any, out: Any) -> int:
        content = self.objects[data.handle]
        put(size, len(content))
        if out is not None:
            ctypes.memmove(out, content, len(content))
        return 0
