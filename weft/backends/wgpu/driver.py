"""Finding WebGPU adapters through wgpu-py."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from weft.errors import DeviceError

INT64 = "shader-int64"

FEATURES = frozenset({INT64})
"""What is used where an adapter offers it."""


@cache
def wgpu() -> Any:
    """The bindings. DeviceError with what to install when they are missing."""
    try:
        return importlib.import_module("wgpu")
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"install wgpu: pip install 'weft[wgpu]' ({error})") from error


def all_adapters() -> list[Any]:
    """The adapters that compute, those of hardware first. DeviceError with what to install when there is none."""
    adapters = wgpu().gpu.enumerate_adapters_sync()
    # OpenGL lacks storage buffers of several kinds, and shows the same hardware again
    found = [a for a in adapters if a.info["backend_type"] != "OpenGL"]
    if not found:
        raise DeviceError(
            "there is no driver for WebGPU: install the Vulkan one of your device's maker, or Mesa's for the processor "
            "(apt-get install mesa-vulkan-drivers)"
        )
    return sorted(found, key=lambda a: a.info["adapter_type"] == "CPU")
