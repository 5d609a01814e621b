"""Finding OpenCL devices through pyopencl."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from weft.errors import DeviceError


@cache
def pyopencl() -> Any:
    """The bindings. DeviceError with what to install when they are missing."""
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise DeviceError(f"install pyopencl: pip install 'weft[opencl]' ({error})") from error


def all_devices() -> list[Any]:
    """The devices of all platforms, processors last. DeviceError with what to install when there is no driver."""
    cl = pyopencl()
    try:
        found = [d for p in cl.get_platforms() for d in p.get_devices()]
    except cl.Error as error:
        found, why = [], f" ({error})"
    else:
        why = ""
    if not found:
        raise DeviceError(
            "there is no OpenCL driver: install the one of your device's maker, or PoCL for the processor "
            f"(apt-get install pocl-opencl-icd){why}"
        )
    return sorted(found, key=lambda d: bool(d.type & cl.device_type.CPU))


def is_cpu(device: Any) -> bool:
    """True where the device is a processor that shares the host's memory."""
    return bool(device.type & pyopencl().device_type.CPU) and bool(device.host_unified_memory)


def keeps_text(device: Any) -> bool:
    """True where images hold text, not binaries. PoCL compiles every kernel once more for its binaries, and yet
    again when one of them is launched (27 kernels: 4.1 s of 7.9); its own cache on disk knows text."""
    return device.platform.name.strip() == "Portable Computing Language"


def failed(what: str, error: Exception) -> DeviceError:
    """An error of the driver as weft's."""
    return DeviceError(f"OpenCL could not {what}: {error}")
