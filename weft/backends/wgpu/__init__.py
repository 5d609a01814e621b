"""Any device with WebGPU, through wgpu-py: WGSL from the loops."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import WgpuBackend


def open_backend() -> WgpuBackend:
    """The entry point of the backend."""
    from .device import WgpuBackend

    return WgpuBackend()
