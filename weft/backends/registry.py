"""Finding and opening devices by name: "cpu", "cpu:0", "opencl:1"."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from enum import Enum
from typing import cast

from weft.backends.protocol import Backend, Device, DeviceInfo
from weft.errors import DeviceError
from weft.ir import graph
from weft.ir.forks import forkable
from weft.ir.placement import is_mesh
from weft.lazy_dataclass import dataclass

GROUP = "weft.backends"

_BUILT_IN: dict[str, str] = {
    "cpu": "weft.backends.cpu:open_backend",
    "cuda": "weft.backends.cuda:open_backend",
    "dummy": "weft.backends.dummy:open_backend",
    "hip": "weft.backends.hip:open_backend",
    "mesh": "weft.backends.mesh:open_backend",
    "opencl": "weft.backends.opencl:open_backend",
    "wgpu": "weft.backends.wgpu:open_backend",
}
"""The backends in this package. Found here first: scanning the environment for entry points takes tens of ms."""

META = "meta:0"
"""The device of tensors that have a shape and a dtype, but no values."""

NAMES = frozenset((
    *_BUILT_IN, "meta", "mps", "xpu", "ipu", "hpu", "xla", "mtia", "maia", "vulkan", "privateuseone", "lazy", "ve",
    "fpga", "mkldnn", "opengl", "ideep",
))  # fmt: skip
"""Kinds of devices that can be named without being there: the built-in backends', and torch's."""

_lock = forkable(threading.RLock())
_backends: dict[str, Backend] = {}
_devices: dict[str, Device] = {}
_limits: dict[str, int | None] = {}
_opened: tuple[Device, ...] = ()
"""The values of `_devices`, each once: kept, since every `synchronize` asks for them."""


class State(Enum):
    """The state of a device: whether it can be used."""

    OPEN = "open"  # this process has used it
    AVAILABLE = "available"
    MISSING = "not available"


@dataclass(frozen=True, slots=True)
class DeviceStatus:
    """A device that can be used (`info`), or a backend that cannot, and what to do about it (`why`)."""

    name: str
    info: DeviceInfo | None
    why: str = ""
    state: State = State.MISSING

    def __str__(self) -> str:
        if self.info is None:
            return f"{self.name}: {self.state.value}: {self.why}"
        return f"{self.name}: {self.info.description}" + (" (open)" if self.state is State.OPEN else "")


def canonical(name: str) -> str:
    """The full name of a device: "cpu" is "cpu:0". DeviceError when it is malformed."""
    kind, _, index = name.partition(":")
    if kind == "disk":
        from weft.backends.disk.pool import ADVICE

        raise DeviceError(ADVICE)
    if not kind or (index and not index.isdecimal()) or name.endswith(":"):
        raise DeviceError(
            f"{name!r} is no device name: use a backend and a number, such as 'cpu' or 'dummy:1'"
        )
    return f"{kind}:{int(index or 0)}"


def open_device(name: str) -> Device:
    """The device called `name`, opened if need be. DeviceError with the remedy when it cannot be."""
    device = _devices.get(name)
    if device is not None:
        return device
    full = canonical(name)
    if full == META:
        raise DeviceError(
            "a tensor on the device 'meta' has a shape and a dtype, but no values; make one elsewhere, as a module's "
            ".to_empty(device='cpu') or load_state_dict(..., assign=True) do"
        )
    with _lock:
        if full not in _devices:
            kind, _, number = full.partition(":")
            backend = open_backend(kind)
            index, count = int(number), backend.count()
            if index >= count:
                have = (
                    f"only {kind}:0 to {kind}:{count - 1}"
                    if count > 1
                    else f"only {kind}:0"
                    if count
                    else "none"
                )
                raise DeviceError(f"there is no device {full}: this machine has {have}")
            _devices[full] = backend.device(index)
            _note_opened()
        _devices[name] = _devices[full]
        return _devices[full]


def opened_devices() -> tuple[Device, ...]:
    """The devices that this process has opened, each once."""
    return _opened


def _note_opened() -> None:
    """Called with the lock held, where a device has come or gone."""
    global _opened
    _opened = tuple({id(d): d for d in _devices.values()}.values())


def set_memory_limit(name: str, nbytes: int | None) -> None:
    """Set the number of bytes that may be in use on a device; None for what it has."""
    device = open_device(name)
    device.set_memory_limit(nbytes)
    _limits[_pool(device)] = nbytes


def memory_limit(device: Device) -> int:
    """The number of bytes that may be in use in a device's pool."""
    limit = limit_set(device)
    return device.info.memory_bytes if limit is None else limit


def limit_set(device: Device) -> int | None:
    """The number of bytes that somebody has said may be in use in a device's pool, if anybody has."""
    return _limits.get(_pool(device))


def available_bytes(device: Device) -> int:
    """The bytes that may still be allocated on a device."""
    return max(0, memory_limit(device) - device.used_bytes())


def _pool(device: Device) -> str:
    """The key of the limit of a pool, which devices of a backend may share."""
    return f"{device.info.name.partition(':')[0]} {device.info.memory_pool}"


def register(backend: Backend) -> None:
    """Make a backend known by its name in this process, in place of one that is: simulated devices, for instance.
    Devices that are open stay what they are."""
    with _lock:
        _forget(backend.name)
        _backends[backend.name] = backend


def unregister(kind: str) -> None:
    """Forget a registered backend and its devices. What is installed under that name is found again."""
    with _lock:
        _forget(kind)


def _forget(kind: str) -> None:
    """Forget a backend, its devices, and all that is kept by their names: others may get these. Meshes, which may have
    such devices, are opened anew."""
    _backends.pop(kind, None)
    gone = [n for n in _devices if n.partition(":")[0] == kind]
    if not gone:
        return
    for name in gone:
        _limits.pop(_pool(_devices.pop(name)), None)
    for name in [n for n in _devices if is_mesh(n)]:
        del _devices[name]
    _note_opened()
    graph.forget(lambda name: name.partition(":")[0] == kind or is_mesh(name))


def open_backend(kind: str) -> Backend:
    """The backend called `kind`."""
    with _lock:
        if kind not in _backends:
            opener = _find(kind)
            _backends[kind] = opener()
        return _backends[kind]


def _find(kind: str) -> Callable[[], Backend]:
    where = _BUILT_IN.get(kind) or _entry_points().get(kind)
    if where is None:
        known = ", ".join(sorted({*_BUILT_IN, *_entry_points()}))
        why = "; torch has such devices, weft has not" if kind in NAMES else ""
        raise DeviceError(f"there is no backend {kind!r}: installed are {known}{why}")
    module, _, attribute = where.partition(":")
    try:
        return cast("Callable[[], Backend]", getattr(importlib.import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise DeviceError(f"the backend {kind!r} cannot be loaded from {where}: {error}") from error


def _entry_points() -> dict[str, str]:
    from importlib.metadata import entry_points

    return {e.name: e.value for e in entry_points(group=GROUP)}


def statuses() -> list[DeviceStatus]:
    """Every device of every installed or registered backend, and why those that are not there are not.

    A backend that fails in another way than by a DeviceError is listed with what it raised: no third party's mistake
    hides the other devices.
    """
    out: list[DeviceStatus] = []
    for kind in sorted({*_BUILT_IN, *_entry_points(), *_backends} - {"mesh"}):  # made of the others
        try:
            backend = open_backend(kind)
            for i in range(backend.count()):
                name = f"{kind}:{i}"
                state = State.OPEN if name in _devices else State.AVAILABLE
                out.append(DeviceStatus(name, backend.device(i).info, "", state))
        except DeviceError as error:
            out.append(DeviceStatus(kind, None, error.message))
        except Exception as error:  # noqa: BLE001  (a third party's code)
            out.append(DeviceStatus(kind, None, f"its backend failed: {type(error).__name__}: {error}"))
    return out
