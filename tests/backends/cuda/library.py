"""The emulated driver as a C library, for NVIDIA's own bindings: what they make of the backend's arguments is what the
real driver would get. Run by `test_bindings` in a process of its own: python -m tests.backends.cuda.library FOLDER
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np

from tests.backends.cuda.emulated import EmulatedDriver, Handle

SOURCE = """
#include <string.h>
static void *(*find)(const char *);
void weft_set(void *(*f)(const char *)) { find = f; }
int cuGetProcAddress_v2(const char *name, void **found, int version, unsigned long long flags, int *status) {
  *found = strcmp(name, "cuGetProcAddress") ? find(name) : (void *)cuGetProcAddress_v2;
  if (status) *status = *found ? 0 : 1;
  return *found ? 0 : 500;
}
"""

P, S, U, I = c_void_p, c_size_t, c_uint, c_int
OUT = {"int": c_int, "size": c_size_t, "handle": c_void_p, "address": c_uint64, "float": c_float}

# the results (written through pointers that come first), then the arguments, as cuda.h has them
SIGNATURES: dict[str, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "cuInit": ((), (U,)),
    "cuDriverGetVersion": (("int",), ()),
    "cuDeviceGetCount": (("int",), ()),
    "cuDeviceGet": (("int",), (I,)),
    "cuDeviceTotalMem": (("size",), (I,)),
    "cuDeviceGetAttribute": (("int",), (I, I)),
    "cuDevicePrimaryCtxRetain": (("handle",), (I,)),
    "cuCtxSetCurrent": ((), (P,)),
    "cuStreamCreate": (("handle",), (U,)),
    "cuStreamSynchronize": ((), (P,)),
    "cuStreamWaitEvent": ((), (P, P, U)),
    "cuEventCreate": (("handle",), (U,)),
    "cuEventRecord": ((), (P, P)),
    "cuEventSynchronize": ((), (P,)),
    "cuEventQuery": ((), (P,)),
    "cuEventElapsedTime": (("float",), (P, P)),
    "cuEventDestroy": ((), (P,)),
    "cuMemAlloc": (("address",), (S,)),
    "cuMemFree": ((), (c_uint64,)),
    "cuMemHostAlloc": (("handle",), (S, U)),
    "cuMemcpyHtoDAsync": ((), (c_uint64, P, S, P)),
    "cuMemcpyDtoHAsync": ((), (P, c_uint64, S, P)),
    "cuMemcpyDtoDAsync": ((), (c_uint64, c_uint64, S, P)),
    "cuLinkDestroy": ((), (P,)),
    "cuModuleGetFunction": (("handle",), (P, c_char_p)),
    "cuFuncSetAttribute": ((), (P, I, I)),
    "cuLaunchKernel": ((), (P, U, U, U, U, U, U, U, P, P, P)),
    "cuStreamBeginCapture": ((), (P, I)),
    "cuGraphInstantiate": (("handle",), (P, c_uint64)),
    "cuGraphDestroy": ((), (P,)),
    "cuGraphExecDestroy": ((), (P,)),
    "cuGraphLaunch": ((), (P, P)),
}  # fmt: skip

C_NAMES = {"cuGraphInstantiate": "cuGraphInstantiateWithFlags"}
"""Where a function is called otherwise in C than in the bindings."""


class Library:
    """C functions that call the emulated driver's."""

    def __init__(self, driver: EmulatedDriver, enums: Any) -> None:
        self.driver, self.enums = driver, enums
        self.handles: dict[int, Handle] = {}
        self.kept: list[Any] = []
        self.called: set[str] = set()
        self.functions: dict[str, int] = {}
        for name, (results, arguments) in SIGNATURES.items():
            self.add(
                name, results, arguments, getattr(self, name, None) or self.plain(name, results, arguments)
            )
        self.add("cuDeviceGetName", (), (P, I, I), self.name)
        self.add("cuStreamEndCapture", (), (P, POINTER(P)), self.end_capture)
        self.add("cuLinkCreate", (), (U, POINTER(I), POINTER(P), POINTER(P)), self.link_create)
        self.add("cuLinkAddData", (), (P, I, P, S, c_char_p, U, P, P), self.link_add)
        self.add("cuLinkComplete", (), (P, POINTER(P), POINTER(S)), self.link_complete)
        self.add("cuModuleLoadData", (), (POINTER(P), P), self.load)

    def add(
        self, name: str, results: tuple[str, ...], arguments: tuple[Any, ...], f: Callable[..., Any]
    ) -> None:
        def run(*args: Any) -> int:
            self.called.add(C_NAMES.get(name, name))
            return int(f(*args))

        made = ctypes.CFUNCTYPE(c_int, *(POINTER(OUT[r]) for r in results), *arguments)(run)
        self.kept.append(made)
        self.functions[C_NAMES.get(name, name)] = ctypes.cast(made, P).value or 0

    def number(self, value: Any) -> int:
        """A result as C has it: handles are numbers."""
        if isinstance(value, Handle):
            self.handles[id(value)] = value
            return id(value)
        return value

    def object(self, value: Any, kind: Any) -> Any:
        """An argument as the emulated driver has it."""
        if kind is P:
            return self.handles.get(value or 0, value or 0)
        return value

    def plain(self, name: str, results: tuple[str, ...], arguments: tuple[Any, ...]) -> Callable[..., int]:
        def run(*args: Any) -> int:
            given = [self.object(a, k) for a, k in zip(args[len(results) :], arguments, strict=True)]
            if name in self.enums:
                at, names = self.enums[name]
                given[at] = names[given[at]]
            status, *found = getattr(self.driver, name)(*given)
            if status == 0:
                for place, value in zip(args, found, strict=False):
                    place[0] = self.number(value)
            return status

        return run

    def name(self, text: int, length: int, device: int) -> int:
        status, name = self.driver.cuDeviceGetName(length, device)
        ctypes.memmove(text, name, length)
        return status

    def end_capture(self, stream: int, graph: Any) -> int:
        status, made = self.driver.cuStreamEndCapture(self.handles[stream])
        graph[0] = self.number(made) if made is not None else None
        return status

    def link_create(self, count: int, options: Any, values: Any, state: Any) -> int:
        names = [self.enums["options"][options[k]] for k in range(count)]
        given = dict(zip(names, (values[k] for k in range(count)), strict=True))
        if given:
            size = given["ERROR_LOG_BUFFER_SIZE_BYTES"]
            given["ERROR_LOG_BUFFER"] = (ctypes.c_ubyte * size).from_address(given["ERROR_LOG_BUFFER"])
        status, made = self.driver.cuLinkCreate(count, names, [given[n] for n in names])
        state[0] = self.number(made)
        return status

    def link_add(
        self, state: int, kind: int, data: int, size: int, name: bytes, count: int, options: Any, values: Any
    ) -> int:
        text = ctypes.string_at(data, size)
        kinds = self.enums["inputs"]
        return self.driver.cuLinkAddData(self.handles[state], kinds[kind], text, size, name, count, [], [])[0]

    def link_complete(self, state: int, image: Any, size: Any) -> int:
        status, *found = self.driver.cuLinkComplete(self.handles[state])
        if status == 0:
            image[0], size[0] = found
        return status

    def load(self, module: Any, image: int) -> int:
        # machine code says how long it is; the emulated driver's ends with a zero
        status, made = self.driver.cuModuleLoadData(ctypes.string_at(image + 0, _length(image)))
        if status == 0:
            module[0] = self.number(made)
        return status


def _length(image: int) -> int:
    head = len(b"\x7fELF emulated\0\0")
    return head + len(ctypes.string_at(image + head))


def install(folder: Path, driver: EmulatedDriver) -> Library:
    """The library as the process's libcuda, under the bindings."""
    source, built = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(built), str(source)]
    subprocess.run(command, check=True)
    loaded = ctypes.CDLL(str(built), mode=ctypes.RTLD_GLOBAL)
    import cuda.bindings.driver as bindings

    def named(kind: Any, prefix: str) -> dict[int, str]:
        return {int(e): e.name.removeprefix(prefix) for e in kind}

    enums: dict[str, Any] = {
        "cuDeviceGetAttribute": (0, named(bindings.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_")),
        "cuFuncSetAttribute": (1, named(bindings.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_")),
        "cuStreamBeginCapture": (1, named(bindings.CUstreamCaptureMode, "CU_STREAM_CAPTURE_MODE_")),
        "inputs": named(bindings.CUjitInputType, "CU_JIT_INPUT_"),
        "options": named(bindings.CUjit_option, "CU_JIT_"),
    }
    library = Library(driver, enums)
    finder = ctypes.CFUNCTYPE(P, c_char_p)(lambda name: library.functions.get(name.decode()))
    library.kept += [loaded, finder]
    loaded.weft_set(finder)
    return library


def main(folder: Path) -> None:
    """Tensors, gradients, graphs, large blocks' memory, copies, timing, images and a kernel that is not taken."""
    driver = EmulatedDriver()
    library = install(folder, driver)
    import pytest

    import weft
    from weft.backends.cuda import device as devices
    from weft.backends.cuda.device import STAGING_BYTES, CudaDevice, CudaEvent
    from weft.backends.registry import open_device

    a = np.random.default_rng(0).standard_normal((6, 37)).astype(np.float32)
    x = weft.tensor(a, device="cuda")
    e = np.exp(a - a.max(-1, keepdims=True))
    np.testing.assert_allclose(x.softmax(-1).numpy(), e / e.sum(-1, keepdims=True), rtol=2e-6)

    @weft.compile
    def step(x: weft.Tensor) -> weft.Tensor:
        y = x / x.sum(0)
        return (y * y).sum(1)

    for _ in range(4):
        np.testing.assert_allclose(step(x).numpy(), ((a / a.sum(0)) ** 2).sum(1), rtol=1e-3)
    assert driver.graph_launches >= 1
    b = weft.tensor(np.ones((256, 256), np.float32), device="cuda").to(weft.bfloat16)
    assert (b @ b).to(weft.float32).numpy().max() == 256
    data = np.arange(STAGING_BYTES + 17, dtype=np.uint8)
    assert np.array_equal(weft.tensor(data, device="cuda").numpy(), data)
    device = open_device("cuda")
    assert isinstance(device, CudaDevice)
    event = device.queue().record()
    assert isinstance(event, CudaEvent)
    device.queue().wait(event)
    event.done()
    event.wait()
    assert event.done()
    del event
    assert weft.explain((x + 1).sum()).kernels
    memory = device.allocate(64)
    with pytest.raises(ValueError, match="after it was freed"):
        device.free(memory)
        device.read(memory, 4)
    with pytest.raises(weft.errors.DeviceError, match=r"INVALID_PTX.*ptxas error"):
        device._assemble("strange")
    assert device.copy_from(device.allocate(64), device, device.allocate(64), 64)
    device.synchronize()
    devices.GRAPHS_KEPT = 1
    step(weft.tensor(a, device="cuda")).numpy()
    assert driver.graphs == 0
    unknown = sorted(
        set(library.functions) - library.called - {"cuEventElapsedTime", "cuMemFree", "cuFuncSetAttribute"}
    )
    assert not unknown, unknown
    print("done")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
