"""NVIDIA GPUs: PTX from the LLVM renderer, run through the driver alone (no CUDA toolkit is needed)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .device import CudaBackend


def open_backend() -> CudaBackend:
    """The entry point of the backend."""
    from .device import CudaBackend

    return CudaBackend()
