"""Parts of torch.cuda, torch.amp and torch.accelerator beside weft.cuda: streams, events, switches."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial, wraps
from importlib import import_module
from typing import Any, Self

from weft import amp as _amp
from weft import cuda as _cuda
from weft.core.execute import run
from weft.core.execute.devices import device as _device
from weft.core.functions.random import (
    default_generator,
    get_rng_state,
    initial_seed,
    manual_seed,
    seed,
    set_rng_state,
)
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError

__all__ = [
    "Event", "Stream", "cast", "current_stream", "custom_bwd", "custom_fwd", "default_stream", "empty_cache",
    "get_rng_state", "init", "initial_seed", "ipc_collect", "manual_seed", "manual_seed_all", "seed", "seed_all",
    "set_rng_state", "stream",
]  # fmt: skip

manual_seed_all, seed_all = manual_seed, seed
"""There is one stream of numbers for all devices."""


def get_rng_state_all() -> list[Tensor]:
    """The state of the random numbers, for each GPU: they are the same numbers."""
    return [get_rng_state() for _ in range(_cuda.device_count())]


def set_rng_state_all(new_states: Any) -> None:
    """Set the state of the random numbers, to the first of several."""
    for state in list(new_states)[:1]:
        set_rng_state(state)


def __getattr__(name: str) -> Any:
    """`amp`: torch.cuda.amp; `default_generators`: one for each GPU, which is the same."""
    if name == "amp":
        return import_module("torch.cuda.amp")
    if name == "default_generators":
        return (default_generator,) * _cuda.device_count()
    raise AttributeError(name)


class device(nullcontext[Any]):  # noqa: N801  (torch's name)
    """A context in which new tensors that are made on "cuda" are made on one of the GPUs; there, it is the only one."""

    def __init__(self, device: Any = None) -> None:
        super().__init__()
        self.idx = device


def is_initialized() -> bool:
    """True where a GPU has been used."""
    from weft.backends.registry import opened_devices

    return any(d.info.kind == "cuda" for d in opened_devices())


def init() -> None:
    """Nothing: a device is opened when it is first used."""


def set_device(device: Any) -> None:
    """Nothing for the only GPU; DeviceError where there is none such."""
    _cuda.get_device_properties(device)


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True where there is a GPU: bfloat16 runs on all that weft knows."""
    return _cuda.is_available()


def empty_cache() -> None:
    """Nothing: memory that is not used goes back by itself when it is needed."""


ipc_collect = empty_cache


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """The number of bytes in use."""
    return f"{_cuda.memory_allocated(device):,} bytes in use"


def memory_stats(device: Any = None) -> dict[str, Any]:
    """The numbers of bytes in use, now and at the peak, by torch's keys."""
    now, peak = _cuda.memory_allocated(device), _cuda.max_memory_allocated(device)
    return {"allocated_bytes.all.current": now, "allocated_bytes.all.peak": peak, "reserved_bytes.all.current": now,
            "reserved_bytes.all.peak": peak, "num_alloc_retries": 0, "num_ooms": 0}  # fmt: skip


memory_cached, max_memory_cached = _cuda.memory_reserved, _cuda.max_memory_reserved


def get_arch_list() -> list[str]:
    """No architecture was compiled for ahead."""
    return []


def get_gencode_flags() -> str:
    """No flag."""
    return ""


class Event:
    """A point in time: `record` waits for what was started. With enable_timing, `elapsed_time` gives milliseconds."""

    def __init__(
        self,
        device: Any = None,
        *,
        enable_timing: bool = False,
        blocking: bool = False,
        interprocess: bool = False,
    ) -> None:
        self._timing, self._at = bool(enable_timing or device is True), 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Note the time at which all is done."""
        run.synchronize()
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing: `record` has waited."""

    def wait(self, stream: Stream | None = None) -> None:
        """Nothing: `record` has waited."""

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

    def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
        self.device, self.priority, self.cuda_stream = device, priority, 0

    def synchronize(self) -> None:
        """Wait until all is done."""
        run.synchronize()

    def wait_stream(self, stream: Stream) -> None:
        """Nothing: see the class."""

    def wait_event(self, event: Event) -> None:
        """Nothing: see the class."""

    def query(self) -> bool:
        """True, after waiting."""
        run.synchronize()
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """An event recorded now."""
        event = event or Event()
        event.record()
        return event

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def current_stream(device: Any = None) -> Stream:
    """A stream."""
    return Stream(device)


default_stream = current_stream


def set_stream(stream: Stream) -> None:
    """Nothing: see Stream."""


def stream(stream: Stream | None) -> nullcontext[Stream | None]:
    """A context that changes nothing: see Stream."""
    return nullcontext(stream)


def cuda_autocast(enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> _amp.autocast:
    """weft.autocast("cuda", ...)."""
    return _amp.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def cpu_autocast(enabled: bool = True, dtype: Any = None, cache_enabled: bool = True) -> _amp.autocast:
    """weft.autocast("cpu", ...)."""
    return _amp.autocast("cpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


def is_autocast_available(device_type: str) -> bool:
    """True where autocast knows the kind of device."""
    return device_type in ("cpu", "cuda")


def cast(value: Any, device_type: Any = None, dtype: Any = None) -> Any:
    """The value with its tensors of float32 in a dtype; in dicts, lists and tuples, too."""
    dtype = device_type if dtype is None else dtype
    if isinstance(value, Tensor):
        return value.to(dtype) if value.is_floating_point() and value.dtype.name != "float64" else value
    if isinstance(value, dict):
        return {k: cast(v, dtype) for k, v in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list | tuple):
        return type(value)(cast(v, dtype) for v in value)  # pyright: ignore[reportUnknownVariableType,reportUnknownArgumentType]
    return value


def custom_fwd(fwd: Any = None, *, device_type: str = "cuda", cast_inputs: Any = None) -> Any:
    """A decorator for `forward` of a Function: with `cast_inputs`, its tensors so, and no autocast."""
    if fwd is None:
        return partial(custom_fwd, device_type=device_type, cast_inputs=cast_inputs)

    @wraps(fwd)
    def forward(*args: Any, **kwargs: Any) -> Any:
        from weft.core.composed.autocast import is_autocast_enabled

        if cast_inputs is None or not is_autocast_enabled(device_type):
            return fwd(*args, **kwargs)
        with _amp.autocast(device_type, enabled=False):
            return fwd(*cast(args, cast_inputs), **cast(kwargs, cast_inputs))

    return forward


def custom_bwd(bwd: Any = None, *, device_type: str = "cuda") -> Any:
    """A decorator for `backward` of a Function, which is as it is: gradients have their values' dtypes."""
    unchanged: Callable[[Any], Any] = lambda f: f  # noqa: E731
    return unchanged if bwd is None else bwd


class _Precision:
    """A switch of a library that weft does not use."""

    fp32_precision = "none"


precision = _Precision()


def cpu_capability() -> str:
    """The kind of CPU that the kernels are made for, as torch names it."""
    return "DEFAULT"


def accelerator_current_accelerator(check_available: bool = False) -> _device | None:
    """The GPU, or None."""
    return _device("cuda") if _cuda.is_available() else None


def accelerator_synchronize(device: Any = None) -> None:
    """Wait until what was started is done."""
    run.synchronize()


accelerator_is_available, accelerator_device_count = _cuda.is_available, _cuda.device_count
accelerator_current_device_index = _cuda.current_device
accelerator_set_device_index = set_device
accelerator_memory_allocated, accelerator_max_memory_allocated = (
    _cuda.memory_allocated,
    _cuda.max_memory_allocated,
)
accelerator_memory_reserved, accelerator_max_memory_reserved = (
    _cuda.memory_reserved,
    _cuda.max_memory_reserved,
)
accelerator_get_memory_info = _cuda.mem_get_info
