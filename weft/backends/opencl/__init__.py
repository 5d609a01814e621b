"""Any device with an OpenCL driver, through pyopencl: OpenCL C from the loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import OpenCLBackend


def open_backend() -> OpenCLBackend:
    """The entry point of the backend."""
    from .device import OpenCLBackend

    return OpenCLBackend()
