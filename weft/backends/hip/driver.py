"""The HIP runtime, loaded by ctypes, under the names of CUDA's driver: HIP mirrors that interface call by call.

So the device of the cuda backend works on both. Errors are CudaErrors with CUDA's names where the device asks for
them, else with HIP's.
Interface: hip_runtime_api.h of ROCm; attribute numbers are those since ROCm 5.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from ctypes import c_char_p, c_float, c_int, c_size_t, c_uint, c_void_p
from types import SimpleNamespace
from typing import Any, cast

from weft import settings
from weft.backends.cuda.driver import OUT_OF_MEMORY, CudaError
from weft.errors import DeviceError
from weft.lazy_dataclass import dataclass

from .link import Linker

_NOT_READY = 600
_CODES = {
    2: OUT_OF_MEMORY,
    _NOT_READY: "CUDA_ERROR_NOT_READY",
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    719: "CUDA_ERROR_LAUNCH_FAILED",
}
"""Errors that the device tells apart, by HIP's number."""

_PROPERTIES_BYTES = 1 << 14
"""Room for hipDeviceProp_t of any version."""

ATTRIBUTES = {
    "CLOCK_RATE": 5,
    "L2_CACHE_SIZE": 19,
    "MAX_THREADS_PER_BLOCK": 56,
    "GLOBAL_MEMORY_BUS_WIDTH": 59,
    "MEMORY_CLOCK_RATE": 60,
    "MULTIPROCESSOR_COUNT": 63,
    "MAX_SHARED_MEMORY_PER_BLOCK": 74,
    "WARP_SIZE": 87,
}


@dataclass(frozen=True, slots=True)
class _Call:
    """A function of HIP: the types of its arguments, without those by which it returns; and the types of these."""

    name: str
    arguments: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()


_P, _S = c_void_p, c_size_t
CALLS: dict[str, _Call] = {
    "cuInit": _Call("hipInit", (c_uint,)),
    "cuDriverGetVersion": _Call("hipDriverGetVersion", (), (c_int,)),
    "cuDeviceGetCount": _Call("hipGetDeviceCount", (), (c_int,)),
    "cuDeviceTotalMem": _Call("hipDeviceTotalMem", (c_int,), (_S,)),
    "cuCtxSetCurrent": _Call("hipSetDevice", (c_int,)),
    "cuStreamCreate": _Call("hipStreamCreateWithFlags", (c_uint,), (_P,)),
    "cuStreamSynchronize": _Call("hipStreamSynchronize", (_P,)),
    "cuStreamWaitEvent": _Call("hipStreamWaitEvent", (_P, _P, c_uint)),
    "cuStreamBeginCapture": _Call("hipStreamBeginCapture", (_P, c_int)),
    "cuStreamEndCapture": _Call("hipStreamEndCapture", (_P,), (_P,)),
    "cuGraphLaunch": _Call("hipGraphLaunch", (_P, _P)),
    "cuGraphDestroy": _Call("hipGraphDestroy", (_P,)),
    "cuGraphExecDestroy": _Call("hipGraphExecDestroy", (_P,)),
    "cuEventCreate": _Call("hipEventCreateWithFlags", (c_uint,), (_P,)),
    "cuEventRecord": _Call("hipEventRecord", (_P, _P)),
    "cuEventQuery": _Call("hipEventQuery", (_P,)),
    "cuEventSynchronize": _Call("hipEventSynchronize", (_P,)),
    "cuEventElapsedTime": _Call("hipEventElapsedTime", (_P, _P), (c_float,)),
    "cuEventDestroy": _Call("hipEventDestroy", (_P,)),
    "cuMemAlloc": _Call("hipMalloc", (_S,), (_P,)),
    "cuMemFree": _Call("hipFree", (_P,)),
    "cuMemHostAlloc": _Call("hipHostMalloc", (_S, c_uint), (_P,)),
    "cuMemcpyHtoDAsync": _Call("hipMemcpyHtoDAsync", (_P, _P, _S, _P)),
    "cuMemcpyDtoHAsync": _Call("hipMemcpyDtoHAsync", (_P, _P, _S, _P)),
    "cuMemcpyDtoDAsync": _Call("hipMemcpyDtoDAsync", (_P, _P, _S, _P)),
    "cuModuleLoadData": _Call("hipModuleLoadData", (c_char_p,), (_P,)),
    "cuModuleGetFunction": _Call("hipModuleGetFunction", (_P, c_char_p), (_P,)),
    "cuLaunchKernel": _Call("hipModuleLaunchKernel", (_P, *(c_uint,) * 7, _P, _P, _P)),
}
"""CUDA's call -> HIP's, where the arguments are the same. Results come first among them, but for one call."""


class HipDriver:
    """Calls by CUDA's names; results without the status, which raises CudaError unless it is success."""

    module = SimpleNamespace(CUstreamCaptureMode=SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED=2))

    def __init__(self, library: Any, linker: Callable[[], Linker]) -> None:
        self._library, self._linker = library, linker
        self._special: dict[str, Callable[..., Any]] = {
            "cuDeviceGet": int,
            "cuDevicePrimaryCtxRetain": int,  # HIP's context is the device itself
            "cuDeviceGetName": self._name,
            "cuGraphInstantiate": self._instantiate,
        }

    def call(self, name: str, *args: Any) -> Any:
        """`name(*args)`: nothing, or its one result."""
        special = self._special.get(name)
        if special is not None:
            return special(*args)
        found = CALLS[name]
        results = [kind() for kind in found.results]
        given = [kind(a) for kind, a in zip(found.arguments, args, strict=True)]
        places = [ctypes.byref(r) for r in results]
        ordered = [*given, *places] if name == "cuStreamEndCapture" else [*places, *given]
        self._hip(found.name, *ordered)
        return results[0].value if results else None

    def _hip(self, name: str, *args: Any) -> None:
        status = int(getattr(self._library, name)(*args))
        if status:
            raise CudaError(name, _CODES.get(status, f"HIP error {status}"))

    def attribute(self, device: int, name: str) -> int:
        """A device's attribute, by the end of its name in CUDA."""
        value = c_int()
        self._hip("hipDeviceGetAttribute", ctypes.byref(value), c_int(ATTRIBUTES[name]), c_int(device))
        return value.value

    def _name(self, length: int, device: int) -> bytes:
        text = ctypes.create_string_buffer(length)
        self._hip("hipDeviceGetName", text, c_int(length), c_int(device))
        return text.raw

    def _instantiate(self, graph: int, flags: int) -> int:
        executable = c_void_p()
        self._hip(
            "hipGraphInstantiateWithFlags",
            ctypes.byref(executable),
            c_void_p(graph),
            ctypes.c_ulonglong(flags),
        )
        return cast(int, executable.value)

    def instruction_set(self, device: int) -> str:
        """The device's instruction set, such as "gfx90a:sramecc+:xnack-": the one text of that form in its properties,
        whose layout differs between versions."""
        name = "hipGetDevicePropertiesR0600"
        if not hasattr(self._library, name):
            name = "hipGetDeviceProperties"
        properties = ctypes.create_string_buffer(_PROPERTIES_BYTES)
        self._hip(name, properties, c_int(device))
        found = re.search(rb"gfx[0-9a-f]{3,5}(:[a-z0-9]+[+-])*(?=\0)", properties.raw)
        if found is None:
            raise DeviceError(f"the HIP runtime does not say which instruction set device {device} has")
        return found[0].decode()

    def link(self, code: bytes, isa: str) -> bytes:
        """The executable object of a relocatable one."""
        return self._linker().link(code, isa)


def _load(name: str) -> Any:
    """A library of ROCm, from where the system looks and ROCm is installed. OSError when there is none."""
    if sys.platform == "win32":
        return ctypes.WinDLL(f"{name}.dll")
    root = settings.rocm_path()
    last: OSError | None = None
    for path in (f"lib{name}.so", f"{root}/lib/lib{name}.so"):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            last = error
    assert last is not None
    raise last


def _open_linker() -> Linker:
    try:
        return Linker(_load("amd_comgr"))
    except OSError:
        raise DeviceError("the HIP runtime lacks libamd_comgr: install ROCm's package comgr") from None


def open_driver() -> HipDriver:
    """The runtime, initialized. DeviceError with what to install when there is none."""
    try:
        library = _load("amdhip64")
    except OSError:
        why = "there is no HIP runtime (libamdhip64) here: install ROCm for this machine's AMD GPU"
        raise DeviceError(why) from None
    driver = HipDriver(library, _open_linker)
    try:
        driver.call("cuInit", 0)
    except CudaError as error:
        raise DeviceError(f"the HIP runtime finds no AMD GPU to use ({error.code})") from None
    return driver
