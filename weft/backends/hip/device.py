"""An AMD GPU as a device of the backend protocol: the cuda backend's device over the HIP runtime.

Memory, staging, streams, events, launches and captured graphs are the same calls; the compiler, the linker and the
description differ.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, cast

from weft.backends.cpu.llvm import assembly_of, version
from weft.backends.cuda.device import CudaCode, CudaDevice
from weft.backends.cuda.driver import Driver
from weft.backends.launches import Entry, describe
from weft.backends.launches import parse as parse_entries
from weft.backends.llvm import scalar
from weft.backends.protocol import Bounds, DeviceInfo
from weft.ir.loops import LoopKind, Program
from weft.ir.ops import ELEMENTWISE

from .code_object import Kernel, parse
from .compile import OPTIMIZATION, compile_programs, target
from .driver import HipDriver, open_driver

_MAGIC = b"weft-hip-1\n"

CORE_LANES = 64
"""fp32 units of a compute unit."""

LAUNCH_NS = 5000.0


class HipDevice(CudaDevice):
    """One AMD GPU with its memory."""

    def __init__(self, driver: HipDriver, index: int) -> None:
        # All that the base class does with its driver is in the table of HipDriver.
        self.driver, self.index = cast(Driver, driver), index
        self._hip = driver
        self._handle = driver.call("cuDeviceGet", index)
        self._begin()
        self.isa = driver.instruction_set(index)
        self._info = describe_device(driver, index, self.isa)

    def compile(self, programs: Sequence[Program]) -> tuple[Sequence[CudaCode], bytes]:
        made = compile_programs(programs, target(self.isa), self._info.local_bytes)
        code = self._hip.link(made.code, self.isa)
        known = describe(made.entries)
        image = b"" if known is None else _MAGIC + struct.pack("<I", len(known)) + known.encode() + code
        return self._load(code, made.entries, made.llvm), image

    def load(self, image: bytes, names: Sequence[str]) -> Sequence[CudaCode]:
        if not image.startswith(_MAGIC):
            raise ValueError("not an image of this backend")
        (size,) = struct.unpack_from("<I", image, len(_MAGIC))
        start = len(_MAGIC) + 4
        entries = {e.name: e for e in parse_entries(image[start : start + size].decode())}
        if any(n not in entries for n in names):
            raise ValueError("the image has other programs")
        return self._load(image[start + size :], [entries[n] for n in names], "")

    def _load(self, cubin: bytes, entries: Sequence[Entry], text: str) -> list[CudaCode]:
        self.enter()
        module = self._hip.call("cuModuleLoadData", cubin)

        def functions(e: Entry) -> tuple[Any, ...]:
            return tuple([self._hip.call("cuModuleGetFunction", module, p.name.encode()) for p in e.parts])

        return [CudaCode(e, functions(e), text) for e in entries]

    def fingerprint(self) -> str:
        return f"hip {self.isa} runtime {self._hip.call('cuDriverGetVersion')} {version()}"

    def listings(self, program: Program) -> Mapping[str, str]:
        chip = target(self.isa)
        made = compile_programs([program], chip, self._info.local_bytes)
        return {
            "llvm": made.llvm,
            "assembly": assembly_of(made.llvm, chip, OPTIMIZATION),
            "resources": "\n".join(map(resources, parse(made.code).kernels)),
        }


def resources(k: Kernel) -> str:
    """The resources of a kernel, in a line."""
    return (
        f"{k.name}: {k.vector_registers} vector and {k.scalar_registers} scalar registers, {k.spills} spilled; "
        f"{k.local_bytes} bytes of LDS, {k.stack_bytes} of stack; {k.threads} threads in waves of {k.wave}"
    )


def describe_device(driver: HipDriver, index: int, isa: str) -> DeviceInfo:
    """The GPU as the scheduler sees it."""

    def get(name: str) -> int:
        return driver.attribute(index, name)

    name = cast(bytes, driver.call("cuDeviceGetName", 128, index)).split(b"\0")[0].decode()
    cores, threads = get("MULTIPROCESSOR_COUNT"), get("MAX_THREADS_PER_BLOCK")
    memory_bytes = int(driver.call("cuDeviceTotalMem", index))
    local_bytes = get("MAX_SHARED_MEMORY_PER_BLOCK")
    bandwidth = 2.0 * get("MEMORY_CLOCK_RATE") * 1e3 * get("GLOBAL_MEMORY_BUS_WIDTH") / 8
    return DeviceInfo(
        name=f"hip:{index}",
        kind="hip",
        description=f"{name}, {isa}, {cores} compute units, {memory_bytes / 2**30:.1f} GiB",
        cores=cores,
        vector_bytes=16,
        vector_registers=255,
        l1_bytes=16 << 10,
        l2_bytes=get("L2_CACHE_SIZE"),
        l3_bytes=0,
        memory_bytes=memory_bytes,
        local_bytes=local_bytes,
        bandwidth=bandwidth or 5e11,
        flops=2.0 * cores * CORE_LANES * get("CLOCK_RATE") * 1e3,
        launch_ns=LAUNCH_NS,
        task_kind=LoopKind.BLOCK,
        native=ELEMENTWISE & scalar.NATIVE,
        warp=get("WARP_SIZE"),
        shuffles=True,
        # A grid's threads are counted in 32 bits; arguments take 4 KiB, scratch buffers and variables among them.
        bounds=Bounds(threads=threads, blocks=(2**32 - 1) // threads, parameters=384),
    )


class HipBackend:
    """All AMD GPUs that the HIP runtime shows to this process."""

    name = "hip"

    def __init__(self) -> None:
        self._driver: HipDriver | None = None
        self._devices: dict[int, HipDevice] = {}

    def _open(self) -> HipDriver:
        if self._driver is None:
            self._driver = open_driver()
        return self._driver

    def count(self) -> int:
        return int(self._open().call("cuDeviceGetCount"))

    def device(self, index: int) -> HipDevice:
        if index not in self._devices:
            self._devices[index] = HipDevice(self._open(), index)
        return self._devices[index]
