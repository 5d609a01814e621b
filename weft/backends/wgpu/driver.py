"""Finding WebGPU adapters through wgpu-py."""

from __future__ import annotations

import importlib
from contextlib import suppress
from functools import cache
from typing import Any

from weft import settings
from weft.errors import DeviceError

INT64 = "shader-int64"

SUBGROUPS = "subgroup"

FEATURES = frozenset({INT64, SUBGROUPS})
"""Features that are used where an adapter offers them."""


APIS = ("Vulkan", "Metal", "DX12")
"""The APIs that adapters are looked for under. OpenGL lacks storage buffers of several kinds, shows the same
hardware again, and takes most of the time."""


@cache
def wgpu() -> Any:
    """The bindings. DeviceError with what to install when they are missing."""
    try:
        module = importlib.import_module("wgpu")
        extras = importlib.import_module("wgpu.backends.wgpu_native.extras")
    except (ImportError, OSError, RuntimeError) as error:
        raise DeviceError(f"install wgpu: pip install 'weft[wgpu]' ({error})") from error
    with suppress(RuntimeError):  # the application has used WebGPU before, in its own way
        extras.set_instance_extras(backends=APIS)
    return module


def all_adapters() -> list[Any]:
    """The adapters that compute, those of hardware first. DeviceError with what to install when there is none."""
    with settings.runtime_folder():  # Mesa's device selection looks for a display there
        adapters = wgpu().gpu.enumerate_adapters_sync()
    found = [a for a in adapters if a.info["backend_type"] != "OpenGL"]
    if not found:
        raise DeviceError(
            "there is no driver for WebGPU: install the Vulkan one of your device's maker, or Mesa's for the processor "
            "(apt-get install mesa-vulkan-drivers)"
        )
    return sorted(found, key=lambda a: a.info["adapter_type"] == "CPU")
