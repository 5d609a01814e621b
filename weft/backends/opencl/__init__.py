"""Any device with an OpenCL driver, through pyopencl: OpenCL C from the loops."""
# Tests: tests/backends/opencl/test_device.py

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.backends.found import FoundDevices

    from .device import OpenCLDevice


def open_backend() -> FoundDevices[OpenCLDevice]:
    """The entry point of the backend."""
    from weft.backends.found import FoundDevices

    from .device import OpenCLDevice
    from .driver import all_devices

    return FoundDevices("opencl", all_devices, OpenCLDevice)
