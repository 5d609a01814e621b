"""torch.cuda: which NVIDIA GPUs there are, and waiting for them, so that programs that ask run with and without one.

>>> device = "cuda" if weft.cuda.is_available() else "cpu"

What manages memory changes nothing: weft plans memory itself, and gives back what it no longer uses.
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from weft.core import run
from weft.core.devices import device
from weft.core.random import manual_seed, seed
from weft.cuda import amp
from weft.errors import ArgumentError, DeviceError

if TYPE_CHECKING:
    from weft.backends.protocol import Device, DeviceInfo

__all__ = [
    "Event", "Stream", "amp", "current_device", "current_stream", "device", "device_count", "empty_cache",
    "get_device_capability", "get_device_name", "get_device_properties", "init", "ipc_collect", "is_available",
    "is_bf16_supported", "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "reset_peak_memory_stats", "seed",
    "seed_all", "set_device", "stream", "synchronize",
]  # fmt: skip

manual_seed_all, seed_all = manual_seed, seed
"""There is one stream of numbers for all devices."""

_peak: dict[str, int] = {}


def device_count() -> int:
    """How many GPUs there are; 0 where the driver or its bindings are missing."""
    from weft.backends.registry import open_backend

    try:
        return open_backend("cuda").count()
    except DeviceError:
        return 0


def is_available() -> bool:
    """Whether there is a GPU."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether a GPU has been used."""
    from weft.backends.registry import opened_devices

    return any(d.info.kind == "cuda" for d in opened_devices())


def init() -> None:
    """Nothing: a device is opened when it is first used."""


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
    kind, _, number = run.default_device().partition(":")
    return int(number or 0) if kind == "cuda" else 0


def set_device(device: Any) -> None:
    """Nothing for the only GPU; else new tensors are made on it once a program asks for "cuda": name it there."""
    _open(device)


def get_device_properties(device: Any = None) -> DeviceInfo:
    """What the GPU can do; see DeviceInfo."""
    return _open(device).info


def get_device_name(device: Any = None) -> str:
    """The GPU's name, with its description."""
    return _open(device).info.description


def get_device_capability(device: Any = None) -> tuple[int, int]:
    """The compute capability, such as (9, 0)."""
    found: Any = _open(device)
    return tuple(found.capability)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether there is a GPU: bfloat16 runs on all that weft knows."""
    return is_available()


def synchronize(device: Any = None) -> None:
    """Wait until what was started is done. DeviceError where there is no GPU."""
    _open(device)
    run.synchronize()


def memory_allocated(device: Any = None) -> int:
    """The bytes in use on a GPU; 0 where there is none, as in torch."""
    if not is_initialized():
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


def empty_cache() -> None:
    """Nothing: memory that is not used goes back by itself when it is needed."""


ipc_collect = empty_cache


class Event:
    """A point in time: `record` waits for what was started. With enable_timing, `elapsed_time` gives milliseconds."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> None:
        self._timing, self._at = enable_timing, 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Note the time at which all is done."""
        run.synchronize()
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing: `record` has waited."""

    wait = synchronize

    def query(self) -> bool:
        """True: `record` has waited."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to the other."""
        if not (self._timing and end_event._timing and self._at and end_event._at):
            raise ArgumentError("elapsed_time: needs two recorded events made with enable_timing=True")
        return (end_event._at - self._at) * 1e3


class Stream:
    """One after the other: weft orders what it computes by what depends on what, whatever the stream."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.device, self.priority = device, priority

    def synchronize(self) -> None:
        """Wait until all is done."""
        run.synchronize()

    def wait_stream(self, stream: Stream) -> None:
        """Nothing: see the class."""

    def wait_event(self, event: Event) -> None:
        """Nothing: see the class."""

    def record_event(self, event: Event | None = None) -> Event:
        """An event recorded now."""
        event = event or Event()
        event.record()
        return event


def current_stream(device: Any = None) -> Stream:
    """A stream."""
    return Stream(device)


def stream(stream: Stream | None) -> nullcontext[Stream | None]:
    """A context that changes nothing: see Stream."""
    return nullcontext(stream)
