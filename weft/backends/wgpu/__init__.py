"""Any device with WebGPU, through wgpu-py: WGSL from the loops."""
# Tests: tests/backends/wgpu/test_device.py

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.backends.found import FoundDevices

    from .device import WgpuDevice


def open_backend() -> FoundDevices[WgpuDevice]:
    """The entry point of the backend."""
    from weft.backends.found import FoundDevices

    from .device import WgpuDevice
    from .driver import all_adapters

    return FoundDevices("wgpu", all_adapters, WgpuDevice)
