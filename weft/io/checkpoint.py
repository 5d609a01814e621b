"""PyTorch checkpoints (.pt, .pth, .bin), read without torch and without running what a pickle says.

A checkpoint is a zip archive with `data.pkl`, a pickle of the saved objects, and the bytes of each storage in a file
of its own; files older than torch 1.6 hold several pickles, and then the storages. The pickle is read by a machine that
knows a short list of names: tensors, storages, parameters, sizes, dtypes, ordered dicts, arrays, and what the program
allowed (see weft/io/allowed.py). Anything else is refused with its name, and nothing is imported.

Nothing in a file is believed: members may unpack to so many times the file's size, and a tensor has to lie within its
storage, before memory is asked for. Tensors that share a storage share their elements, as views do.
Format: torch/serialization.py and torch/_utils.py of PyTorch, read as documentation.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from importlib import import_module
from typing import Any, cast

import numpy as np

from weft.backends.deferred import HostBytes
from weft.backends.disk.file import MappedFile
from weft.backends.disk.format import StrPath, too_large
from weft.core.execute import devices
from weft.core.functions import stored
from weft.core.layout import movement
from weft.core.tensor.sizes import Size
from weft.core.tensor.tensor import Tensor
from weft.errors import FileDTypeError, FileFormatError
from weft.io import allowed, numpy_pickles
from weft.io.archive import MAX_EXPANSION, Archive
from weft.io.placing import placing
from weft.io.safetensors import whole_bools
from weft.io.source import Reading, Source, opened
from weft.io.unpickling import Machine, Malformed, shown
from weft.ir import dtypes
from weft.ir.dtypes import DTYPES, DType
from weft.lazy_dataclass import dataclass

STORAGES = {
    "DoubleStorage": dtypes.float64, "FloatStorage": dtypes.float32, "HalfStorage": dtypes.float16,
    "BFloat16Storage": dtypes.bfloat16, "LongStorage": dtypes.int64, "IntStorage": dtypes.int32,
    "ShortStorage": dtypes.int16, "CharStorage": dtypes.int8, "ByteStorage": dtypes.uint8, "BoolStorage": dtypes.bool_,
}  # fmt: skip
"""torch's names for storages of one type; others are "UntypedStorage", in bytes, and the tensor has the type."""

ZIP = b"PK\x03\x04"
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_OVERLAPPING = 1 << 20  # elements that views which show some of them several times may have in any file


@dataclass(frozen=True, slots=True)
class _StorageType:
    """torch.FloatStorage and its like; None: the elements' type is said by the tensor."""

    dtype: DType | None
    name: str


@dataclass(slots=True)
class _Bytes:
    """A storage: `read` gives its bytes, which are at `begin` of the source where they are not packed. They are found
    when the whole file was read, in files of the old form."""

    key: str
    nbytes: int
    read: Callable[[], memoryview]
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class _Storage:
    """A storage, or a part of one, that a pickle refers to: `count` elements of `type` from element `offset` on."""

    type: _StorageType
    bytes: _Bytes
    count: int
    offset: int
    location: str


@dataclass(slots=True)
class Loaded:
    """An object of the checkpoint that is no tensor and of no type that weft knows how to make: its type and state."""

    type: str
    args: tuple[Any, ...] = ()
    state: Any = None


@dataclass(slots=True)
class _Made:
    """A tensor of the file, and what it shows of which storage."""

    storage: _Storage
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    needs_grad: bool
    tensor: Tensor = field(init=False)

    @property
    def geometry(self) -> tuple[Any, ...]:
        return self.offset, self.shape, self.stride


class SafeReader:
    """Makes what the names in a pickle stand for."""

    def __init__(
        self,
        source: Source,
        place: Callable[[str], str | None],
        storage: Callable[[str, int], _Bytes],
        max_expansion: float,
    ) -> None:
        self.source, self.place, self.storage = source, place, storage
        self.max_expansion = max_expansion
        self.storages: dict[str, _Bytes] = {}
        self.homes: dict[str, str | None] = {}
        self.made: list[_Made] = []
        self.at: dict[int, int] = {}  # which of `made` a tensor is, by identity
        self.known = self._known()
        self.allowed = {id(f): f for f in allowed.allowed().values()}
        self.functions = {id(f): _CALLED.get(f, f) for f in self.known.values() if _is_called(f)}

    def close(self) -> None:
        """Let go of what refers to the reader: with it, files and elements would stay until the next collection."""
        self.known.clear()
        self.functions.clear()
        del self.storage

    def bad(self, why: str) -> FileFormatError:
        return FileFormatError(f"load_torch: {self.source.path} is no checkpoint of torch, or damaged: {why}")

    # --- storages and tensors

    def persistent(self, saved: Any) -> _Storage:
        parts = cast("tuple[Any, ...]", saved) if isinstance(saved, tuple) else ()
        if len(parts) < 5 or parts[0] != "storage" or not isinstance(parts[1], _StorageType):
            raise self.bad(f"it refers to a storage as {shown(cast('Any', saved))}, which is no known form")
        _, kind, key, location, count, *rest = parts
        view = rest[0] if rest else None
        offset = 0
        if not isinstance(key, str | int) or not isinstance(location, str) or not _is_size(count):
            raise self.bad(f"it refers to a storage as {shown(cast('Any', saved))}, which is no known form")
        width = 1 if kind.dtype is None else kind.dtype.itemsize
        if view is not None:
            whole = cast("tuple[Any, ...]", view) if isinstance(view, tuple) else ()
            if len(whole) != 3 or not _is_size(whole[1]) or not _is_size(whole[2]):
                raise self.bad(f"it refers to a part of a storage as {shown(cast('Any', view))}")
            offset, length = whole[1], whole[2]
            if offset + length > count:
                raise self.bad(f"a part of the storage {shown(key)} lies outside of it")
        name = str(key)
        if name not in self.storages:
            if len(name) > 1000:
                raise self.bad("a storage has a name of more than 1,000 letters")
            self.storages[name] = self.storage(name, count * width)
        found = self.storages[name]
        if count * width > found.nbytes:
            raise self.bad(
                f"the storage {shown(name)} has {found.nbytes:,} bytes, not {count * width:,}; it is cut short"
            )
        return _Storage(kind, found, count, offset, location)

    def tensor(self, storage: Any, offset: Any, size: Any, stride: Any, grad: Any = False, *_: Any) -> Tensor:
        return self._tensor(storage, None, offset, size, stride, grad)

    def tensor_v3(
        self, storage: Any, offset: Any, size: Any, stride: Any, grad: Any, hooks: Any, dtype: Any, *_: Any
    ) -> Tensor:
        return self._tensor(storage, dtype, offset, size, stride, grad)

    def _tensor(self, storage: Any, dtype: Any, offset: Any, size: Any, stride: Any, grad: Any) -> Tensor:
        if not isinstance(storage, _Storage):
            raise self.bad(f"a tensor of the storage {shown(storage)}")
        kind = storage.type.dtype if dtype is None else dtype
        if not isinstance(kind, DType):
            raise FileDTypeError(
                f"load_torch: {self.source.path} has a tensor of type {kind or storage.type.name}, which weft lacks"
            )
        if not isinstance(size, tuple) or not isinstance(stride, tuple):
            raise self.bad(f"a tensor of size {shown(cast('Any', size))} and stride {shown(stride)}")
        shape, steps = cast("tuple[Any, ...]", size), cast("tuple[Any, ...]", stride)
        if len(shape) != len(steps) or not all(map(_is_size, (*shape, *steps, offset))):
            raise self.bad(
                f"a tensor of size {shown(shape)}, stride {shown(steps)} and offset {shown(offset)}"
            )
        offset += storage.offset
        count = storage.count // (kind.itemsize if storage.type.dtype is None else 1)
        self._check(kind, count, offset, shape, steps)
        made = _Made(storage, kind, offset, shape, steps, grad is True and kind.is_float)
        made.tensor = self._elements(made)
        self._note(made)
        return made.tensor

    def _check(
        self, dtype: DType, count: int, offset: int, shape: tuple[int, ...], stride: tuple[int, ...]
    ) -> None:
        """FileFormatError unless the elements lie within the storage, and are not many more than it has."""
        what = f"a tensor of size {shape} and stride {stride}"
        if (why := too_large(shape, dtype.itemsize)) is not None:
            raise self.bad(f"{what:.200} {why}")
        if 0 in shape:
            return
        last = offset + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))
        if last >= count:
            raise self.bad(f"{what} lies outside of its storage, which has {count:,} elements")
        shown = math.prod(n for n, s in zip(shape, stride, strict=True) if s)
        if shown > max(count * self.max_expansion, _OVERLAPPING):
            raise self.bad(
                f"{what} shows its {count:,} elements too often; if you trust it, say max_expansion="
            )

    def _elements(self, m: _Made) -> Tensor:
        """The elements as a leaf: without dimensions of step 0, which show them again, and then with these."""
        once = tuple([n if s or n < 2 else 1 for n, s in zip(m.shape, m.stride, strict=True)])
        location = m.storage.location
        if location not in self.homes:
            self.homes[location] = self.place(location)
        home = self.homes[location]
        if home is None:
            elements = self._on_disk(m, once)
        else:
            read = _Elements(m.storage.bytes, m.dtype, m.offset, once, m.stride)
            elements = stored.read_later(once, m.dtype, home, HostBytes(read))
        return elements if once == m.shape else movement.expand(elements, m.shape)

    def _on_disk(self, m: _Made, shape: tuple[int, ...]) -> Tensor:
        begin = m.storage.bytes.begin
        if begin is None or not isinstance(self.source, MappedFile):
            raise FileFormatError(
                f"load_torch: the elements of {self.source.path} cannot stay on disk: they are packed, in memory, or "
                "in torch's older form; save it again with weft.save"
            )
        size = m.dtype.itemsize
        if 0 in shape or _is_row_major(shape, m.stride):
            return stored.in_file(self.source, begin + (0 if 0 in shape else m.offset * size), m.dtype, shape)
        last = sum((n - 1) * s for n, s in zip(shape, m.stride, strict=True))
        flat = stored.in_file(self.source, begin + m.offset * size, m.dtype, (last + 1,))
        return stored.strided(flat, shape, m.stride, 0)

    def _note(self, m: _Made) -> None:
        self.at[id(m.tensor)] = len(self.made)
        self.made.append(m)

    def parameter(self, data: Any, requires_grad: Any = True, *_: Any) -> Any:
        """The tensor as a parameter; itself where there is no such class, as for what is no tensor."""
        at = self.at.get(id(data))
        if at is None:
            raise self.bad(f"a parameter of {shown(data)}")
        m = self.made[at]
        out = stored.of_class(m.tensor, _parameter_class())
        m.tensor, m.needs_grad = out, requires_grad is True and m.dtype.is_float
        self.at[id(out)] = at
        return out

    def from_type(self, make: Any, kind: Any, args: Any, state: Any) -> Any:
        """_rebuild_from_type_v2: a tensor of a class of its own."""
        if make not in (
            self.known["torch._utils._rebuild_tensor_v2"],
            self.known["torch._utils._rebuild_tensor_v3"],
        ):
            if make is not self.known["torch._utils._rebuild_parameter"]:
                raise self.bad(f"a tensor made by {shown(make)}")
        plain = make(*args)
        if not isinstance(kind, type) or not issubclass(kind, Tensor):
            return plain
        m = self.made[self.at[id(plain)]]
        out = stored.of_class(plain, kind)
        if isinstance(state, dict):
            out.__dict__.update(cast("dict[str, Any]", state))
        m.tensor = out
        self.at[id(out)] = self.at[id(plain)]
        return out

    def finish(self) -> None:
        """Once all bytes are there: tensors of one storage share its elements, and leaves ask for gradients."""
        by_storage: dict[tuple[str, DType], list[_Made]] = {}
        for m in self.made:
            if self.homes[m.storage.location] is not None and 0 not in m.shape:
                by_storage.setdefault((m.storage.bytes.key, m.dtype), []).append(m)
        for group in by_storage.values():
            if len(group) > 1:
                self._share(group)
        for m in self.made:
            if m.needs_grad:
                m.tensor.requires_grad_()

    def _share(self, group: Sequence[_Made]) -> None:
        whole = group[0].storage.bytes.nbytes // group[0].dtype.itemsize
        base = next(
            (
                m
                for m in group
                if m.offset == 0 and math.prod(m.shape) == whole and _is_row_major(m.shape, m.stride)
            ),
            None,
        )
        if base is None:
            base = _Made(group[0].storage, group[0].dtype, 0, (whole,), (1,), False)
            base.tensor = self._elements(base)
        for m in group:
            if m is base:
                continue
            same = m.geometry == base.geometry
            stored.share(base.tensor, m.tensor, None if same else (m.shape, m.stride, m.offset))

    # --- names

    def _known(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "torch._utils._rebuild_tensor": self.tensor,
            "torch._utils._rebuild_tensor_v2": self.tensor,
            "torch._utils._rebuild_tensor_v3": self.tensor_v3,
            "torch._utils._rebuild_parameter": self.parameter,
            "torch._utils._rebuild_parameter_with_state": self.parameter,
            "torch._tensor._rebuild_from_type_v2": self.from_type,
            "torch.storage.UntypedStorage": _StorageType(None, "UntypedStorage"),
            "torch.UntypedStorage": _StorageType(None, "UntypedStorage"),
            "torch.nn.parameter.Parameter": self.parameter,
            "torch.Tensor": Tensor,
            "torch.Size": Size, "torch.device": _device, "torch.serialization._get_layout": _text,
            "collections.OrderedDict": OrderedDict, "collections.Counter": Counter,
            "collections.defaultdict": defaultdict, "_codecs.encode": _encode,
            "builtins.set": set, "builtins.frozenset": frozenset, "builtins.dict": dict, "builtins.list": list,
            "builtins.tuple": tuple, "builtins.complex": complex, "builtins.slice": slice, "builtins.range": range,
            "builtins.bytearray": bytearray, "builtins.bytes": bytes,
            "builtins.int": int, "builtins.float": float, "builtins.bool": bool, "builtins.str": str,
        }  # fmt: skip
        found |= {f"torch.{name}": _StorageType(dtype, name) for name, dtype in STORAGES.items()}
        found |= {f"torch.{name}": dtype for name, dtype in DTYPES.items()}
        return found | numpy_pickles.known() | allowed.allowed()

    def find(self, module: str, name: str) -> Any:
        """The object that a name in a pickle stands for. FileFormatError for one that is not known."""
        full = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if full in self.known:
            return self.known[full]
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return _StorageType(None, name)
        if full in _LACKING:
            raise FileDTypeError(f"load_torch: {self.source.path} names {full}, a type that weft lacks")
        raise FileFormatError(
            f"load_torch: {self.source.path} asks for {full}, which is not a tensor or a plain container and may run "
            "code; save a state_dict instead, allow it with weft.io.serialization.add_safe_globals, or, if you trust "
            "the file as a program, use weft.load(..., weights_only=False)"
        )

    def function(self, found: Any) -> Callable[..., Any] | None:
        """The function to call where a pickle calls what a name stood for."""
        return self.functions.get(id(found))

    def is_made(self, kind: type) -> bool:
        """True where the program allowed this class."""
        return id(kind) in self.allowed

    def build(self, x: Any, state: Any) -> None:
        """Give an object its state."""
        if numpy_pickles.build(x, state):
            return
        kind: type[Any] = cast("Any", type(x))
        if kind is OrderedDict and isinstance(state, dict):
            x.__dict__.update(cast("dict[str, Any]", state))  # state_dict's _metadata
        elif self.is_made(kind):
            _set_state(x, state)
        else:
            raise Malformed(f"a state for a {kind.__name__}")


_LACKING = frozenset(
    f"torch.{name}"
    for name in (
        "complex32", "complex64", "complex128", "qint8", "quint8", "qint32", "quint4x2", "float8_e4m3fnuz",
        "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2", "bits8", "uint1", "uint2", "uint3", "uint4",
    )
)  # fmt: skip


def _set_state(x: Any, state: Any) -> None:
    """As Python's pickle gives an object of a class that was allowed its state."""
    if hasattr(x, "__setstate__"):
        x.__setstate__(state)
        return
    slots: dict[str, Any] | None = None
    if isinstance(state, tuple) and len(cast("tuple[Any, ...]", state)) == 2:
        state, slots = cast("tuple[Any, dict[str, Any] | None]", state)
    if state is not None:
        x.__dict__.update(state)
    for name, value in (slots or {}).items():
        setattr(x, name, value)


def _is_size(n: Any) -> bool:
    return type(n) is int and 0 <= n < 1 << 63


def _is_row_major(shape: Sequence[int], stride: Sequence[int]) -> bool:
    step = 1
    for n, s in zip(reversed(shape), reversed(stride), strict=True):
        if n != 1 and s != step:
            return False
        step *= n
    return True


@dataclass(frozen=True, slots=True)
class _Elements:
    """The bytes of a tensor in row-major order, read when they are wanted."""

    bytes: _Bytes
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def __call__(self) -> memoryview:
        if 0 in self.shape:
            return memoryview(b"")
        kind = np.dtype(f"u{self.dtype.itemsize}")
        data = self.bytes.read()
        # the first to the last element, so that what lies around them need not be a whole number of such elements
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        part = np.frombuffer(data, kind, last + 1, self.offset * kind.itemsize)
        strides = tuple(s * kind.itemsize for s in self.stride)
        view = np.lib.stride_tricks.as_strided(part, self.shape, strides)
        return whole_bools(np.ascontiguousarray(view).reshape(-1).view(np.uint8).data, self.dtype)


# --- what plain names stand for


def _parameter_class() -> type[Tensor]:
    """weft.nn's; by its name, since that package stands beside this one."""
    return import_module("weft.nn.module").Parameter


def _device(kind: Any, index: Any = None) -> devices.device:
    if not isinstance(kind, str) or not (index is None or _is_size(index)):
        raise Malformed(f"a device {shown(kind)} {shown(index)}")
    name = kind if index is None else f"{kind}:{index}"
    return devices.device.known(name if ":" in name else f"{name}:0")


def _default_dict(factory: Any = None, *_: Any) -> Any:
    plain: tuple[Any, ...] = (None, list, dict, set, tuple, int, float, str, bool)
    if not any(factory is kind for kind in plain):
        raise Malformed(f"a defaultdict of {shown(factory)}")
    made: defaultdict[Any, Any] = defaultdict(factory)  # of no generic alias, which would be saved with it
    return made


def _number(kind: Callable[[Any], Any]) -> Callable[..., Any]:
    def convert(x: Any = 0) -> Any:
        if type(x) not in (bool, int, float, str, bytes):
            raise Malformed(f"a number made of a {type(x).__name__}")
        return kind(x)

    return convert


def _text(x: Any = "") -> str:
    if type(x) is not str:
        raise Malformed(f"a text made of a {type(x).__name__}")
    return x


def _complex(real: Any = 0.0, imag: Any = 0.0) -> complex:
    return complex(_number(float)(real), _number(float)(imag))


def _bytearray(data: Any = b"", encoding: Any = None) -> bytearray:
    return bytearray(_bytes(data, encoding))


def _bytes(data: Any = b"", encoding: Any = None) -> bytes:
    """Bytes, or a text that stands for them; a number, which would make so many, is refused."""
    if isinstance(data, str):
        return _encode(data, encoding or "utf-8")
    if not isinstance(data, bytes | bytearray | list):
        raise Malformed(f"bytes of a {type(data).__name__}")
    return bytes(cast("bytes", data))


def _encode(text: Any, encoding: Any = "utf-8") -> bytes:
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise Malformed(f"bytes of a {type(text).__name__} in encoding {shown(encoding)}")
    return text.encode(encoding)


_CALLED: dict[Any, Callable[..., Any]] = {
    int: _number(int), float: _number(float), bool: _number(bool), str: _text, complex: _complex, bytes: _bytes,
    bytearray: _bytearray, defaultdict: _default_dict,
}  # fmt: skip
"""Replacements of calls of types that would do more than is needed, such as make room for so many bytes."""


def _is_called(found: Any) -> bool:
    """True where a name that a pickle may use is a function, or a class that is called as one."""
    return callable(found) and not isinstance(found, _StorageType | DType) and found is not Tensor


def _record_type(name: str) -> Any:
    """A class whose objects keep what a pickle gives them and do nothing."""

    class Record(Loaded):
        loads_items = True

        def __new__(cls, *args: Any, **_: Any) -> Any:
            self = object.__new__(cls)
            self.type, self.args, self.state = name, args, None
            return self

        def __init__(self, *args: Any, **_: Any) -> None:
            pass

        def __setstate__(self, state: Any) -> None:
            self.state = state

        def extend(self, xs: Any) -> None:
            self.args = (*self.args, *xs)

        def __setitem__(self, key: Any, value: Any) -> None:
            self.args = (*self.args, (key, value))

    return Record


class _Recording(SafeReader):
    """Makes records of what is not known, instead of refusing it."""

    def find(self, module: str, name: str) -> Any:
        try:
            return super().find(module, name)
        except FileDTypeError:
            raise
        except FileFormatError:
            full = f"{module}.{name}"
            self.known[full] = kind = _record_type(full)
            self.allowed[id(kind)] = self.functions[id(kind)] = kind
            return kind


# --- files


def load_torch(
    path: StrPath,
    device: str | None = None,
    *,
    weights_only: bool = True,
    max_expansion: float = MAX_EXPANSION,
) -> Any:
    """Load what torch.save wrote: tensors (read when first used) in the dicts and lists they were saved in.

    No code of the file is run. FileError, with its name, for an object of a class that is no tensor or plain container;
    with weights_only=False such objects become `Loaded` records of their type, arguments and state. FileError, too, for
    a file that is damaged, or whose members unpack to more than `max_expansion` times its size.

    >>> weights = weft.io.load_torch("model.pt")
    """
    source = opened("load_torch", path)
    return loaded(
        source, placing("load_torch", device), SafeReader if weights_only else _Recording, max_expansion
    )


def load_running(
    source: Source,
    place: Callable[[str], str | None],
    pickle_module: Any,
    options: Mapping[str, Any],
    max_expansion: float,
) -> Any:
    """As `loaded`, by Python's pickle: it imports and calls what the file says."""
    return loaded(
        source, place, SafeReader, max_expansion, functools.partial(_run, pickle_module or pickle, options)
    )


_Read = Callable[["Reading", SafeReader], Any]


def loaded(
    source: Source,
    place: Callable[[str], str | None],
    reader: type[SafeReader],
    max_expansion: float,
    read: _Read | None = None,
) -> Any:
    """The object in a checkpoint; `read` reads the pickle of the objects, in other ways than safely."""
    if bytes(source.view(0, min(4, source.size))) == ZIP:
        return _from_zip(source, place, reader, max_expansion, read or _unpickled)
    return _from_legacy(source, place, reader, max_expansion, read or _unpickled)


def _unpickled(file: Reading, reader: SafeReader) -> Any:
    try:
        return Machine(file, reader, reader.max_expansion * file.source.size).load()
    except Malformed as error:
        raise reader.bad(str(error)) from error.__cause__


def _run(module: Any, options: Mapping[str, Any], file: Reading, reader: SafeReader) -> Any:
    class Unpickler(module.Unpickler):
        def persistent_load(self, pid: Any) -> Any:
            return reader.persistent(pid)

        def find_class(self, mod_name: str, name: str) -> Any:
            full = f"{mod_name}.{name}"
            if full in reader.known and mod_name.startswith("torch"):
                return reader.known[full]
            if mod_name in ("torch", "torch.storage") and name.endswith("Storage"):
                return _StorageType(None, name)
            base: Any = super()
            found: Any = base.find_class(mod_name, name)
            if str(getattr(found, "__module__", "")).partition(".")[0] == "torch":
                raise FileFormatError(
                    f"load: {reader.source.path} asks for {full}, a part of torch that weft has none of; save a "
                    "state_dict instead"
                )
            return found

    try:
        return Unpickler(file, **{"encoding": "utf-8", **options}).load()
    except (
        pickle.UnpicklingError,
        EOFError,
        ImportError,
        AttributeError,
        IndexError,
        KeyError,
        UnicodeError,
    ) as error:
        raise reader.bad(f"{type(error).__name__}: {error}") from error


def _from_zip(
    source: Source,
    place: Callable[[str], str | None],
    kind: type[SafeReader],
    max_expansion: float,
    read: _Read,
) -> Any:
    archive = Archive(source, "load_torch", max_expansion)
    names = archive.members
    found = [n for n in names if n.endswith("/data.pkl") or n == "data.pkl"]
    prefix = found[0].removesuffix("data.pkl") if found else ""
    if f"{prefix}constants.pkl" in names or (not found and any(n.endswith("constants.pkl") for n in names)):
        raise FileFormatError(
            f"load_torch: {source.path} is a TorchScript program; save its state_dict instead"
        )
    if not found:
        raise FileFormatError(
            f"load_torch: {source.path} is a zip archive without data.pkl; it is no checkpoint"
        )
    order = bytes(archive.read(f"{prefix}byteorder")) if f"{prefix}byteorder" in names else b"little"
    if order != b"little":
        raise _big_endian(source)

    def storage(key: str, nbytes: int) -> _Bytes:
        name = f"{prefix}data/{key}"
        member = names.get(name)
        if member is None:
            raise FileFormatError(f"load_torch: {source.path} lacks the storage {name}; it is damaged")
        begin = None if member.deflated else member.begin
        return _Bytes(key, member.size, functools.partial(archive.read, name), begin)

    from weft.io.source import InMemory

    with closing(kind(source, place, storage, max_expansion)) as reader:
        out = read(Reading(InMemory(bytes(archive.read(found[0])), source.path)), reader)
        reader.finish()
        return out


def _from_legacy(
    source: Source,
    place: Callable[[str], str | None],
    kind: type[SafeReader],
    max_expansion: float,
    read: _Read,
) -> Any:
    """Pickles of a magic number, a version, the machine, the objects and the storages' names; then the storages."""
    file = Reading(source)

    def storage(key: str, nbytes: int) -> _Bytes:
        if nbytes > source.size:
            raise reader.bad(f"the storage {shown(key)} has {nbytes:,} bytes, and the file {source.size:,}")

        def unknown() -> memoryview:
            raise reader.bad(f"it lacks the storage {shown(key)}")

        return _Bytes(key, nbytes, unknown)

    with closing(kind(source, place, storage, max_expansion)) as reader:
        if _unpickled(file, reader) != LEGACY_MAGIC:
            raise reader.bad("it has another number at its begin")
        _unpickled(file, reader)  # the version
        machine = _unpickled(file, reader)
        if isinstance(machine, dict) and cast("dict[str, Any]", machine).get("little_endian", True) is False:
            raise _big_endian(source)
        out = read(file, reader)
        keys = _unpickled(file, reader)
        if not isinstance(keys, list) or not all(isinstance(k, str | int) for k in cast("list[Any]", keys)):
            raise reader.bad("it has no list of storages")
        widths = {m.storage.bytes.key: _width(m.storage) for m in reader.made}
        for key in cast("list[Any]", keys):
            name = str(key)
            count = int.from_bytes(file.read(8), "little", signed=True)
            nbytes = count * widths.get(name, 1)
            begin = file.at
            if count < 0 or begin + nbytes > source.size:
                raise reader.bad("it is cut short")
            file.at += nbytes
            stored = reader.storages.get(name)
            if stored is not None:
                if nbytes < stored.nbytes:
                    raise reader.bad(f"the storage {shown(name)} has {nbytes:,} bytes, not {stored.nbytes:,}")
                stored.nbytes, stored.read = nbytes, functools.partial(_read, source, begin, begin + nbytes)
        missing = set(reader.storages) - {str(k) for k in cast("list[Any]", keys)}
        if missing:
            raise reader.bad(f"it lacks the storage {min(missing)!r}")
        reader.finish()
        return out


def _width(storage: _Storage) -> int:
    return 1 if storage.type.dtype is None else storage.type.dtype.itemsize


def _read(source: Source, begin: int, end: int) -> memoryview:
    source.check()
    return source.view(begin, end)


def _big_endian(source: Source) -> FileFormatError:
    return FileFormatError(
        f"load_torch: {source.path} was written on a big-endian machine, which weft does not read"
    )
