"""NVIDIA GPUs: PTX from the LLVM renderer, run through the driver alone (no CUDA toolkit is needed)."""
# Tests: tests/backends/cuda/test_device.py

from __future__ import annotations

from typing import TYPE_CHECKING

from weft import settings

if TYPE_CHECKING:
    from .device import CudaBackend


class _Products:
    """torch.backends.cuda.matmul: `allow_tf32` says whether factors of float32 products may be rounded."""

    @property
    def allow_tf32(self) -> bool:
        return settings.tf32()

    @allow_tf32.setter
    def allow_tf32(self, allow: bool) -> None:
        settings.allow_tf32(allow)


matmul = _Products()


def open_backend() -> CudaBackend:
    """The entry point of the backend."""
    from .device import CudaBackend

    return CudaBackend()
