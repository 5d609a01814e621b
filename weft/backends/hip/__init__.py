"""AMD GPUs: code objects from the LLVM renderer, run through the HIP runtime (no ROCm compiler is needed).

No AMD device has run this yet: kernels are compiled and checked without one. See `manuals/backends.md`.

    render.py        grids -> LLVM IR for AMDGPU
    compile.py       programs -> a relocatable object, and what is known of its launches
    code_object.py   what an object says of its kernels: symbols, registers, memory, arguments
    link.py          relocatable -> executable object, by the linker that comes with the driver (COMGR)
    driver.py        the HIP runtime under the names that the CUDA device calls
    device.py        the device: CUDA's, with another compiler
"""
# Tests: tests/backends/hip/test_device.py

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import HipBackend


def open_backend() -> HipBackend:
    """The entry point of the backend."""
    from .device import HipBackend

    return HipBackend()
