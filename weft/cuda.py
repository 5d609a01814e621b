"""NVIDIA GPUs: which there are, their properties, memory in use, and waiting for them; without one, too.

>>> device = "cuda" if weft.cuda.is_available() else "cpu"
"""
# Tests: tests/test_torch_paths.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from weft.autograd.context import default_device
from weft.core.execute import run
from weft.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from weft.backends.protocol import Device, DeviceInfo

__all__ = [
    "current_device", "device_count", "get_device_capability", "get_device_name", "get_device_properties",
    "is_available", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
    "memory_reserved", "reset_peak_memory_stats", "synchronize",
]  # fmt: skip


_peak: dict[str, int] = {}


def device_count() -> int:
    """The number of GPUs; 0 where the driver or its bindings are missing."""
    from weft.backends.registry import open_backend

    try:
        return open_backend("cuda").count()
    except DeviceError:
        return 0


def is_available() -> bool:
    """True where there is a GPU."""
    return device_count() > 0


def _is_used() -> bool:
    from weft.backends.registry import opened_devices

    return any(d.info.kind == "cuda" for d in opened_devices())


def _open(which: Any = None) -> Device:
    from weft.backends.registry import open_device

    if isinstance(which, int):
        which = f"cuda:{which}"
    name = f"cuda:{current_device()}" if which is None else run.device_name(which)
    if not name.startswith("cuda"):
        raise ArgumentError(f"cuda: expected a GPU such as 0 or 'cuda:0', got {name!r}")
    return open_device(name)


def current_device() -> int:
    """The number of the default device where that is a GPU, else 0."""
    kind, _, number = default_device().partition(":")
    return int(number or 0) if kind == "cuda" else 0


def get_device_properties(device: Any = None) -> DeviceInfo:
    """The capabilities of the GPU; see DeviceInfo."""
    return _open(device).info


def get_device_name(device: Any = None) -> str:
    """The GPU's name, with its description."""
    return _open(device).info.description


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability, such as (9, 0)."""
    found: Any = _open(device)
    return tuple(found.capability)


def synchronize(device: Any = None) -> None:
    """Wait until what was started is done. DeviceError where there is no GPU."""
    _open(device)
    run.synchronize()


def memory_allocated(device: Any = None) -> int:
    """The bytes in use on a GPU; 0 where there is none, as in torch."""
    if not _is_used():
        return 0
    found = _open(device)
    used = found.used_bytes()
    _peak[found.info.name] = max(used, _peak.get(found.info.name, 0))
    return used


memory_reserved = memory_allocated


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes that were in use at one of the calls of these functions; weft keeps no record of its own."""
    now = memory_allocated(device)
    return max(now, _peak.get(_open(device).info.name, 0)) if now else 0


max_memory_reserved = max_memory_allocated


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The bytes that are free, and all, of a GPU."""
    found = _open(device)
    return found.info.memory_bytes - found.used_bytes(), found.info.memory_bytes


def reset_peak_memory_stats(device: Any = None) -> None:
    """Forget what `max_memory_allocated` has seen."""
    _peak.clear()
