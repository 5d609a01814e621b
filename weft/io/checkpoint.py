"""PyTorch checkpoints (.pt, .pth, .bin), read without torch and without running what a pickle says.

A checkpoint is a zip archive with `data.pkl`, a pickle of the saved objects, and the bytes of each storage in a file
of its own; files older than torch 1.6 hold several pickles, and then the storages. The pickle is read by an unpickler
that knows a short list of names: tensors, storages, parameters, sizes, dtypes, ordered dicts. Anything else is refused
with its name, and nothing is imported.
Format: torch/serialization.py and torch/_utils.py of PyTorch, read as documentation.
"""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np

from weft.autograd.value import Value
from weft.backends.disk.format import located
from weft.core.handle import wrap
from weft.core.run import default_device, deferred, device_name
from weft.core.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir import dtypes
from weft.ir.dtypes import DTYPES, DType

StrPath: TypeAlias = str | os.PathLike[str]

_STORAGES = {
    "DoubleStorage": dtypes.float64, "FloatStorage": dtypes.float32, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "BoolStorage": dtypes.bool_,
}  # fmt: skip
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C


@dataclass(frozen=True, slots=True)
class _StorageType:
    """torch.FloatStorage and its like; None: the elements' type is said by the tensor."""

    dtype: DType | None


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage that a pickle refers to; `read` gives its bytes."""

    dtype: DType | None
    read: Callable[[], memoryview]
    offset: int = 0


@dataclass(slots=True)
class Loaded:
    """An object of the checkpoint that is no tensor and of no type that weft knows how to make: its type and state."""

    type: str
    args: tuple[Any, ...] = ()
    state: Any = None


@dataclass(slots=True)
class _Reader:
    """Makes what the names in a pickle stand for."""

    device: str
    storage: Callable[[str], Callable[[], memoryview]]
    storages: dict[str, _Storage] = field(default_factory=dict[str, _Storage])

    def persistent(self, saved: Any) -> _Storage:
        if not isinstance(saved, tuple) or len(cast("tuple[Any, ...]", saved)) < 5:
            raise ArgumentError(
                f"load_torch: the file refers to a storage as {saved!r}, which is no known form"
            )
        parts = cast("tuple[Any, ...]", saved)
        if parts[0] != "storage" or not isinstance(parts[1], _StorageType):
            raise ArgumentError(
                f"load_torch: the file refers to a storage as {parts[:2]!r}, which is no known form"
            )
        key = str(parts[2])
        if key not in self.storages:
            self.storages[key] = _Storage(parts[1].dtype, self.storage(key))
        whole = self.storages[key]
        view = parts[5] if len(parts) > 5 else None
        return whole if view is None else _Storage(whole.dtype, whole.read, int(view[1]))

    def tensor(self, storage: _Storage, offset: int, size: Any, stride: Any, *rest: Any) -> Tensor:
        if storage.dtype is None:
            raise DTypeError("load_torch: the file has a tensor of a type that weft lacks")
        return self._tensor(storage, storage.dtype, offset, size, stride, bool(rest and rest[0]))

    def tensor_v3(
        self,
        storage: _Storage,
        offset: int,
        size: Any,
        stride: Any,
        grad: Any,
        hooks: Any,
        dtype: Any,
        *_: Any,
    ) -> Tensor:
        if not isinstance(dtype, DType):
            raise DTypeError(f"load_torch: the file has a tensor of type {dtype}, which weft lacks")
        return self._tensor(storage, dtype, offset, size, stride, bool(grad))

    def _tensor(
        self, storage: _Storage, dtype: DType, offset: int, size: Any, stride: Any, grad: bool
    ) -> Tensor:
        shape, steps = tuple(int(n) for n in size), tuple(int(n) for n in stride)
        if len(shape) != len(steps) or any(n < 0 for n in (*shape, *steps, offset)):
            raise ArgumentError(f"load_torch: the file has a tensor of size {shape} and stride {steps}")
        source = _Elements(storage, dtype, storage.offset + offset, shape, steps)
        out = wrap(Value(deferred(shape, dtype, self.device, source)))
        return out.requires_grad_() if grad and dtype.is_float else out


@dataclass(frozen=True, slots=True)
class _Elements:
    """The bytes of a tensor in row-major order, read when they are wanted."""

    storage: _Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __call__(self) -> memoryview:
        kind = dtypes.to_numpy(self.dtype)
        if 0 in self.shape:
            return memoryview(b"")
        flat = np.frombuffer(self.storage.read(), kind)
        last = self.offset + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        if last >= flat.size:
            raise ArgumentError(
                f"load_torch: a tensor of size {self.shape} lies outside of its storage; the file is damaged"
            )
        strides = tuple(s * kind.itemsize for s in self.stride)
        view = np.lib.stride_tricks.as_strided(flat[self.offset :], self.shape, strides)
        return np.ascontiguousarray(view).reshape(-1).view(np.uint8).data


def _size(numbers: Any = ()) -> tuple[Any, ...]:
    return tuple(numbers)


def _parameter(data: Tensor, requires_grad: Any = True, *_: Any) -> Tensor:
    return data.requires_grad_() if requires_grad and data.dtype.is_float else data


def _from_type(make: Callable[..., Any], kind: Any, args: Any, state: Any) -> Any:
    return make(*args)


def _device(*parts: Any) -> str:
    return ":".join(map(str, parts))


def _plain_dict(*_: Any) -> dict[Any, Any]:
    return {}


class _Unpickler(pickle.Unpickler):
    """Makes tensors and plain containers; every other name becomes a `Loaded` record or is refused."""

    def __init__(self, file: BinaryIO, reader: _Reader, weights_only: bool) -> None:
        super().__init__(file, encoding="utf-8")
        self._reader = reader
        self._weights_only = weights_only

    def persistent_load(self, pid: Any) -> Any:
        return self._reader.persistent(pid)

    def find_class(self, module: str, name: str) -> Any:
        known: Mapping[str, Any] = {
            "torch._utils._rebuild_tensor": self._reader.tensor,
            "torch._utils._rebuild_tensor_v2": self._reader.tensor,
            "torch._utils._rebuild_tensor_v3": self._reader.tensor_v3,
            "torch._utils._rebuild_parameter": _parameter,
            "torch._utils._rebuild_parameter_with_state": _parameter,
            "torch._tensor._rebuild_from_type_v2": _from_type,
            "torch.storage.UntypedStorage": _StorageType(None),
            "torch.UntypedStorage": _StorageType(None),
            "torch.Size": _size,
            "torch.device": _device,
            "torch.serialization._get_layout": str,
            "collections.OrderedDict": OrderedDict,
            "collections.Counter": dict,
            "collections.defaultdict": _plain_dict,
            "builtins.set": set, "builtins.frozenset": frozenset, "builtins.dict": dict, "builtins.list": list,
            "builtins.tuple": tuple, "builtins.complex": complex, "builtins.slice": slice,
            "builtins.bytearray": bytearray,
            "builtins.int": int, "builtins.float": float, "builtins.bool": bool, "builtins.str": str,
            "__builtin__.set": set, "_codecs.encode": _encode,
        }  # fmt: skip
        full = f"{module}.{name}"
        if full in known:
            return known[full]
        if module == "torch" and name in _STORAGES:
            return _StorageType(_STORAGES[name])
        if module == "torch" and name in DTYPES:
            return DTYPES[name]
        if module == "torch" and name.endswith("Storage"):
            return _StorageType(None)
        if full == "torch.nn.parameter.Parameter":
            return _parameter
        if self._weights_only:
            raise ArgumentError(
                f"load_torch: the file asks for {full}, which is not a tensor or a plain container and may run code; "
                "save a state_dict instead, or pass weights_only=False to get such objects as plain records"
            )
        return _record_type(full)


def _encode(text: str, encoding: str = "utf-8") -> bytes:
    if encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise ArgumentError(f"load_torch: the file encodes bytes as {encoding!r}")
    return text.encode(encoding)


def _record_type(name: str) -> Any:
    """A class whose objects keep what a pickle gives them and do nothing."""

    class Record(Loaded):
        def __new__(cls, *args: Any, **_: Any) -> Any:
            self = object.__new__(cls)
            self.type, self.args, self.state = name, args, None
            return self

        def __init__(self, *args: Any, **_: Any) -> None:
            pass

        def __setstate__(self, state: Any) -> None:
            self.state = state

        def append(self, x: Any) -> None:
            self.args = (*self.args, x)

        def extend(self, xs: Any) -> None:
            self.args = (*self.args, *xs)

        def __setitem__(self, key: Any, value: Any) -> None:
            self.args = (*self.args, (key, value))

    return Record


def load_torch(path: StrPath, device: str | None = None, *, weights_only: bool = True) -> Any:
    """What torch.save wrote: tensors (read when first used) in the dicts and lists that they were saved in.

    No code of the file is run. ArgumentError, with its name, for an object of a class that is no tensor or plain
    container; with weights_only=False such objects become `Loaded` records of their type, arguments and state.

    >>> weights = weft.io.load_torch("model.pt")
    """
    path, home = located(path), default_device() if device is None else device_name(device)
    with open(path, "rb") as file:
        start = file.read(4)
        file.seek(0)
        if start[:4] == b"PK\x03\x04":
            return _from_zip(path, home, weights_only)
        return _from_legacy(file, path, home, weights_only)


def _from_zip(path: StrPath, home: str, weights_only: bool) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            found = [n for n in names if n.endswith("/data.pkl") or n == "data.pkl"]
            if not found:
                if any(n.endswith("constants.pkl") for n in names):
                    raise ArgumentError(
                        f"load_torch: {path} is a TorchScript program; save its state_dict instead"
                    )
                raise ArgumentError(
                    f"load_torch: {path} is a zip archive without data.pkl; it is no checkpoint"
                )
            prefix = found[0].removesuffix("data.pkl")
            if f"{prefix}constants.pkl" in names:
                raise ArgumentError(
                    f"load_torch: {path} is a TorchScript program; save its state_dict instead"
                )
            order = archive.read(f"{prefix}byteorder") if f"{prefix}byteorder" in names else b"little"
            if order != b"little":
                raise ArgumentError(
                    f"load_torch: {path} was written on a big-endian machine, which weft does not read"
                )
            content = archive.read(found[0])
            have = set(names)
    except zipfile.BadZipFile as error:
        raise ArgumentError(f"load_torch: {path} is damaged: {error}") from None

    def storage(key: str) -> Callable[[], memoryview]:
        name = f"{prefix}data/{key}"
        if name not in have:
            raise ArgumentError(f"load_torch: {path} lacks the storage {name}; it is damaged")

        def read() -> memoryview:
            with zipfile.ZipFile(path) as archive:
                return memoryview(archive.read(name))

        return read

    return _unpickled(io.BytesIO(content), _Reader(home, storage), path, weights_only)


def _unpickled(file: BinaryIO, reader: _Reader, path: StrPath, weights_only: bool) -> Any:
    try:
        return _Unpickler(file, reader, weights_only).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        AttributeError,
        IndexError,
        KeyError,
        ValueError,
        UnicodeError,
    ) as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"load_torch: {path} is no checkpoint of torch, or damaged: {error}") from None


def _from_legacy(file: BinaryIO, path: StrPath, home: str, weights_only: bool) -> Any:
    """Pickles of a magic number, a version, the machine, the objects and the storages' names; then the storages."""
    found: dict[str, memoryview] = {}

    def storage(key: str) -> Callable[[], memoryview]:
        def read() -> memoryview:
            if key not in found:
                raise ArgumentError(f"load_torch: {path} lacks a storage; it is damaged")
            return found[key]

        return read

    reader = _Reader(home, storage)
    if _unpickled(file, reader, path, True) != _LEGACY_MAGIC:
        raise ArgumentError(f"load_torch: {path} is no checkpoint of torch")
    _unpickled(file, reader, path, True)
    machine = _unpickled(file, reader, path, True)
    if isinstance(machine, dict) and not cast("dict[str, Any]", machine).get("little_endian", True):
        raise ArgumentError(
            f"load_torch: {path} was written on a big-endian machine, which weft does not read"
        )
    out = _unpickled(file, reader, path, weights_only)
    for key in _unpickled(file, reader, path, True):
        count = int.from_bytes(file.read(8), "little", signed=True)
        known = reader.storages.get(str(key))
        width = known.dtype.itemsize if known is not None and known.dtype is not None else 1
        data = file.read(count * width)
        if count < 0 or len(data) != count * width:
            raise ArgumentError(f"load_torch: {path} ends too early; it is damaged")
        found[str(key)] = memoryview(data)
    return out
