"""The one door to NVIDIA's driver: `cuda.bindings`, which has no types, with errors as exceptions."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import DeviceError

OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


FATAL = frozenset(
    f"CUDA_ERROR_{name}"
    for name in (
        "ILLEGAL_ADDRESS", "MISALIGNED_ADDRESS", "INVALID_ADDRESS_SPACE", "INVALID_PC", "ILLEGAL_INSTRUCTION",
        "HARDWARE_STACK_ERROR", "LAUNCH_FAILED", "LAUNCH_TIMEOUT", "ASSERT", "ECC_UNCORRECTABLE", "CONTAINED",
    )
)  # fmt: skip
"""Errors of a kernel, found by any later call; nothing works on that GPU any more in this process."""


class CudaError(DeviceError):
    """A call of the driver failed; `code` is the driver's name of the reason."""

    def __init__(self, call: str, code: str) -> None:
        self.call, self.code = call, code
        fatal = (
            ": an earlier kernel failed, and the GPU cannot be used any more before this process starts anew"
        )
        super().__init__(f"{call} failed with {code}{fatal if code in FATAL else ''}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.call, self.code)


class Driver:
    """Calls by name; results without the status, which raises CudaError unless it is success."""

    __slots__ = ("module",)

    def __init__(self, module: Any) -> None:
        self.module = module

    def call(self, name: str, *args: Any) -> Any:
        """`name(*args)`: nothing, its one result, or the tuple of them."""
        status, *results = getattr(self.module, name)(*args)
        if int(status) != 0:
            raise CudaError(name, str(getattr(status, "name", status)))
        return None if not results else results[0] if len(results) == 1 else tuple(results)

    def attribute(self, device: Any, name: str) -> int:
        """A device's attribute, by the end of its name."""
        kind = getattr(self.module.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.call("cuDeviceGetAttribute", kind, device))


def open_driver() -> Driver:
    """The driver, initialized. DeviceError with what to install when there is none."""
    try:
        module = import_module("cuda.bindings.driver")
    except ImportError:
        raise DeviceError("CUDA needs NVIDIA's bindings for Python: pip install 'weft[cuda]'") from None
    driver = Driver(module)
    try:
        driver.call("cuInit", 0)
    except CudaError as error:
        raise DeviceError(f"NVIDIA's driver finds no GPU to use ({error.code})") from None
    except RuntimeError:  # the bindings' own error for a missing library
        raise DeviceError("there is no NVIDIA driver on this machine: install the one for its GPU") from None
    return driver
