"""Tensors to and from other libraries in this process: NumPy's interfaces, DLPack, torch.

What weft gives out without a copy is read-only, since its memory may stand for several tensors; it stays valid as long
as somebody holds it. What it takes in is copied.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.args.handle import describe
from weft.core.execute import run
from weft.core.layout.creation import tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir.dtypes import to_numpy

if TYPE_CHECKING:
    from weft.backends.storage import Storage
    from weft.core.tensor.tensor import Tensor

    Array = np.ndarray[Any, Any]

_CPU = 1  # DLPack's kDLCPU

_BITS = {"bfloat16": "int16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8"}
"""Dtypes that other libraries lack: passed on as integers of their bits, and read there as what they are."""


class _Export:
    """Holds a storage for as long as an array shows its memory."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        array = storage.numpy()
        bits = _BITS.get(storage.dtype.name)
        plain = array if bits is None else array.view(bits)
        self.__array_interface__ = plain.__array_interface__


def shared_array(t: Tensor) -> Array:
    """The values as a read-only array over the tensor's own memory, where the host can read it; else a copy."""
    node = t.realize().value.node
    storage = node.storage
    if storage is None or not storage.device.info.host_memory or not t.numel():
        array = run.to_numpy(node)
        array.flags.writeable = False
        return array
    array = np.asarray(_Export(storage))
    array.flags.writeable = False
    return array.view(to_numpy(storage.dtype))


def to_dlpack(
    t: Tensor, max_version: tuple[int, int] | None, dl_device: tuple[int, int] | None, copy: bool | None
) -> Any:
    """A DLPack capsule of the values in the CPU's memory. Consumers that do not know read-only memory get a copy."""
    if dl_device is not None and tuple(dl_device) != (_CPU, 0):
        raise BufferError(f"__dlpack__: weft exports to the CPU (1, 0), not to device {tuple(dl_device)}")
    if t.dtype.name in _BITS:
        raise BufferError(
            f"__dlpack__: NumPy cannot export {t.dtype.name}; convert it with .float(), or export its bits, "
            f".view(weft.{_BITS[t.dtype.name]})"
        )
    versioned = max_version is not None and max_version[0] >= 1
    array = shared_array(t)
    if copy or not versioned:
        if copy is False:
            raise BufferError(
                "__dlpack__: without DLPack 1.0, which knows read-only memory, a copy is needed"
            )
        array = array.copy()
        return array.__dlpack__() if not versioned else array.__dlpack__(max_version=max_version)
    return array.__dlpack__(max_version=max_version)


def from_dlpack(ext_tensor: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:
    """A tensor with a copy of an array of another library that supports DLPack and lies in the CPU's memory."""
    if copy is False:
        raise ArgumentError("from_dlpack: copy=False is not possible; weft's memory is its own")
    if not hasattr(ext_tensor, "__dlpack__"):
        raise DTypeError(f"from_dlpack: expected an object with __dlpack__, got {describe(ext_tensor)}")
    if _is_torch(ext_tensor):
        return from_torch(ext_tensor, device=device)
    kind = ext_tensor.__dlpack_device__()[0]
    if int(kind) != _CPU:
        raise ArgumentError("from_dlpack: the array is not in the CPU's memory; copy it there first")
    try:
        array = np.from_dlpack(ext_tensor)
    except (BufferError, RuntimeError) as error:
        raise DTypeError(f"from_dlpack: {error}") from None
    return tensor(array, device=device)


def _is_torch(x: object) -> bool:
    return any(c.__module__ == "torch" and c.__name__ == "Tensor" for c in type(x).__mro__)


def from_torch(t: Any, *, device: str | None = None, requires_grad: bool | None = None) -> Tensor:
    """A tensor with a copy of a torch tensor's values; it requires grad if the torch tensor is a leaf that does."""
    if not _is_torch(t):
        raise DTypeError(f"from_torch: expected a torch.Tensor, got {describe(t)}")
    if requires_grad is None:
        requires_grad = bool(t.requires_grad and t.is_leaf)
    name = str(t.dtype).removeprefix("torch.")
    plain = t.detach().cpu()
    if str(plain.layout) != "torch.strided":
        plain = plain.to_dense()
    plain = plain.contiguous()
    from weft.ir.dtypes import DTYPES

    if name in _BITS:
        array = (
            plain.view(getattr(importlib.import_module("torch"), _BITS[name]))
            .numpy()
            .view(to_numpy(DTYPES[name]))
        )
    else:
        if name not in DTYPES:
            raise DTypeError(f"from_torch: weft has no {name}; convert the torch tensor first")
        array = plain.numpy()
    return tensor(array, device=device, requires_grad=requires_grad)


def dlpack_device(t: Tensor) -> tuple[int, int]:
    """(1, 0), the CPU: tensors of other devices are copied there when exported."""
    return _CPU, 0


ARRAY_API_VERSION = "2024.12"


def array_namespace(api_version: str | None) -> Any:
    """weft.array_api, if it has the version asked for."""
    if api_version is not None and api_version not in ("2021.12", "2022.12", "2023.12", ARRAY_API_VERSION):
        raise ArgumentError(f"__array_namespace__: weft has version {ARRAY_API_VERSION}, not {api_version!r}")
    return importlib.import_module("weft.array_api")
