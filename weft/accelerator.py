"""torch.accelerator: the device that is faster than the CPU, if there is one. That is an NVIDIA GPU."""

from __future__ import annotations

from weft import cuda
from weft.core import run
from weft.core.devices import device

__all__ = [
    "current_accelerator", "current_device_index", "device_count", "empty_cache", "is_available", "synchronize",
]  # fmt: skip

is_available, device_count, empty_cache = cuda.is_available, cuda.device_count, cuda.empty_cache
current_device_index = cuda.current_device


def current_accelerator(check_available: bool = False) -> device | None:
    """The GPU, or None."""
    return device("cuda") if is_available() else None


def synchronize() -> None:
    """Wait until what was started is done."""
    run.synchronize()
