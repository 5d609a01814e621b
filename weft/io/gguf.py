"""GGUF files: metadata and tensors by name, as llama.cpp and its kin write language models.

    magic "GGUF", version, count of tensors, count of entries         24 bytes
    entries    key, type, value                                       texts and arrays have their length in front
    tensors    name, sizes (last axis first), type, offset
    padding up to `general.alignment` bytes (32), then the tensors' bytes

Nothing is believed: each length is compared with what is left of the file before anything is read or made room for.

Source: the specification in ggml's docs/gguf.md, versions 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import numpy as np

from weft.backends.disk.file import MappedFile, open_regular
from weft.backends.disk.format import StrPath, located
from weft.backends.disk.writing import replacing
from weft.core.execute import files
from weft.core.execute.devices import get_default_device
from weft.core.execute.run import device_name
from weft.core.functional.ggml import BlockFormat, BlockTensor
from weft.core.functional.quantization import known
from weft.core.functions.stored import in_file, read_later
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError, FileFormatError
from weft.io.safetensors import bytes_of
from weft.io.source import Source
from weft.io.texts import Texts, ends_of
from weft.ir.dtypes import DType, bfloat16, float16, float32, float64, int8, int16, int32, int64, uint8
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.autograd.value import Value

__all__ = [
    "MAGIC",
    "Metadata",
    "gguf_metadata",
    "gguf_tensors",
    "load_gguf",
    "load_with_metadata",
    "metadata_with_texts",
    "save_gguf",
]

MAGIC = b"GGUF"
Metadata: TypeAlias = Mapping[str, Any]
"""Entries by key: numbers, bools, texts; arrays of numbers as NumPy arrays, of texts and of arrays as tuples."""

_NUMBERS = ("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?")
_TYPES = {k: np.dtype(name) for k, name in enumerate(_NUMBERS)} | {
    10: np.dtype("<u8"), 11: np.dtype("<i8"), 12: np.dtype("<f8"),
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = 32
_PLAIN: dict[int, DType] = {
    0: float32, 1: float16, 24: int8, 25: int16, 26: int32, 27: int64, 28: float64, 30: bfloat16,
}  # fmt: skip
_BLOCKS = {f.number: f for f in BlockFormat}
_UNKNOWN = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    29: "IQ1_M",
}  # fmt: skip
"""Types that files may have, and weft cannot widen."""
_MOST_AXES = 8
_MOST_NESTED = 8


@dataclass(frozen=True, slots=True)
class _Entry:
    """A tensor of a file: `shape` with the last axis last, `begin` and `end` in the file."""

    name: str
    shape: tuple[int, ...]
    kind: DType | BlockFormat
    begin: int
    end: int


def load_gguf(path: StrPath, device: str | None = None) -> dict[str, Tensor | BlockTensor]:
    """The tensors of a GGUF file by name. Only the header is read: a tensor's bytes are read when it is first used.

    Those in a block format of ggml (Q4_0, Q4_K, Q8_0 ...; `weft.quantization.BlockFormat`) are `BlockTensor`s, which
    stay as small as they are in the file: what reads `.dequantize()` widens them as it loads them. The CPU reads them
    in the mapped file, other devices get a copy, once; with device="disk" they stay in the file for good. The file
    must stay as it is meanwhile. FileNotFoundError for a path that is not there; FileError, naming the place, for a
    file that is damaged, of another kind, or has tensors of a type that weft cannot widen (IQ1 to IQ3).

    >>> weights = weft.io.load_gguf("model.gguf")
    >>> y = x @ weights["blk.0.attn_q.weight"].dequantize().T
    """
    stays = device is not None and files.is_disk(device)
    if stays and device != "disk":
        raise ArgumentError(
            f"load_gguf: device={device!r} names a file; pass device='disk' to leave the tensors in {path}"
        )
    home = None if stays else get_default_device().name if device is None else device_name(device)
    return _tensors(_opened(path), home)


def load_with_metadata(
    path: StrPath, device: str | None = None
) -> tuple[Metadata, dict[str, Tensor | BlockTensor]]:
    """The entries and the tensors of a file, whose header is read once. Arrays of texts, which vocabularies are, are
    passed over: () stands for them."""
    header = _opened(path, lambda texts: ())
    return header.metadata, _tensors(
        header, get_default_device().name if device is None else device_name(device)
    )


def _opened(path: StrPath, texts: Callable[[Texts], Any] = tuple) -> _Header:
    with open_regular(located(path)) as file:
        file.seek(0, 2)
        if not file.tell():
            raise FileFormatError(f"load_gguf: {file.name} is empty")
        return _Header(MappedFile(file), texts)


def gguf_tensors(source: Source, home: str | None) -> dict[str, Tensor | BlockTensor]:
    """The tensors of a GGUF file on a device; without one, they stay in the file."""
    return _tensors(_Header(source), home)


def _tensors(header: _Header, home: str | None) -> dict[str, Tensor | BlockTensor]:
    source, found = header.source, dict[str, Tensor | BlockTensor]()
    for e in header.tensors():
        if isinstance(e.kind, DType):
            found[e.name] = _tensor(source, e.kind, e.shape, e.begin, e.end, home)
            continue
        f = e.kind
        blocks = (*e.shape[:-1], e.shape[-1] // f.elements, f.nbytes)
        found[e.name] = BlockTensor(_tensor(source, uint8, blocks, e.begin, e.end, home), f, e.shape)
    return found


def _tensor(
    source: Source, dtype: DType, shape: tuple[int, ...], begin: int, end: int, home: str | None
) -> Tensor:
    if home is not None:
        return read_later(shape, dtype, home, bytes_of(source, begin, end, dtype))
    if not isinstance(source, MappedFile):
        raise ArgumentError(f"load: {source.path} is in memory; device='disk' needs the path of a file")
    return in_file(source, begin, dtype, shape)


def gguf_metadata(path: StrPath) -> Metadata:
    """The entries that a file holds beside its tensors: architecture, sizes, the tokenizer's vocabulary ...

    >>> architecture = weft.io.gguf_metadata("model.gguf")["general.architecture"]
    """
    return _opened(path).metadata


def metadata_with_texts(path: StrPath) -> Metadata:
    """As `gguf_metadata`, with arrays of texts as `Texts`, which is a tenth of the time and of the memory."""
    return _opened(path, _kept).metadata


def _kept(texts: Texts) -> Texts:
    """Texts that need no file."""
    texts.check()
    return Texts(bytes(texts.data), texts.ends)


def save_gguf(
    tensors: Mapping[str, Tensor | BlockTensor], path: StrPath, metadata: Metadata | None = None
) -> None:
    """Write tensors, plain or in blocks (`weft.quantization.to_blocks`), and entries beside them, as GGUF version 3.

    The file appears whole or not at all. Entries are bools, texts, numbers, NumPy arrays and numbers of NumPy (written
    in their own type; Python's as int32, else int64, and float32) and lists of one of these; programs that load models
    want "general.architecture". ArgumentError, by name, for what the format cannot hold; FileError where the file
    cannot be written.

    >>> weft.io.save_gguf({"w": weft.randn(4, 32)}, "w.gguf", {"general.architecture": "llama"})
    """
    entries = dict(metadata or {})
    alignment = _ALIGNMENT
    if "general.alignment" in entries:
        given = entries["general.alignment"]
        alignment = int(cast("np.integer[Any]", given)) if isinstance(given, np.integer) else given
        if not isinstance(alignment, int) or alignment < 8 or alignment % 8:
            raise ArgumentError(f"save_gguf: general.alignment must be a multiple of 8, got {given!r}")
        entries["general.alignment"] = np.uint32(alignment)
    parts = [MAGIC, _u(3, 4), _u(len(tensors), 8), _u(len(entries), 8)]
    for key, value in entries.items():
        parts += [_text(key), _value(key, value)]
    values: list[Value] = []
    offset = 0
    for name, t in tensors.items():
        number, value = (t.format.number, t.data.value) if isinstance(t, BlockTensor) else _plain(name, t)
        sizes = known(t.shape)
        parts += [
            _text(name),
            _u(len(sizes), 4),
            *[_u(n, 8) for n in sizes[::-1]],
            _u(number, 4),
            _u(offset, 8),
        ]
        values.append(value)
        offset += _up(prod(known(value.shape)) * value.dtype.itemsize, alignment)
    head = b"".join(parts)
    with replacing(located(path)) as file:
        file.write(head.ljust(_up(len(head), alignment), b"\0"))
        for value in values:
            files.write_values(file, [value])
            nbytes = prod(known(value.shape)) * value.dtype.itemsize
            file.write(bytes(_up(nbytes, alignment) - nbytes))


def _up(n: int, alignment: int) -> int:
    return -(-n // alignment) * alignment


def _u(n: int, size: int) -> bytes:
    return n.to_bytes(size, "little")


def _text(text: str) -> bytes:
    data = text.encode()
    return _u(len(data), 8) + data


def _plain(name: str, t: Tensor) -> tuple[int, Value]:
    v = t.value
    for number, dtype in _PLAIN.items():
        if dtype is v.dtype:
            return number, v
    names = ", ".join([d.name for d in _PLAIN.values()])
    raise ArgumentError(f"save_gguf: {name!r} is {v.dtype.name}, which GGUF has not; it has {names}")


def _value(key: str, value: Any) -> bytes:
    """An entry's type and value."""
    match value:
        case str():
            return _u(_TEXT, 4) + _text(value)
        case list() | tuple():
            return _array(key, cast("Sequence[Any]", value))
        case np.ndarray() if value.ndim == 1:
            found = cast("np.ndarray[Any, Any]", value)
            return _u(_ARRAY, 4) + _number_type(key, found.dtype) + _u(len(found), 8) + _little(found)
        case bool() | int() | float() | np.generic():
            found = np.asarray(value, _natural(value))
            return _number_type(key, found.dtype) + _little(found)
        case _:
            raise ArgumentError(
                f"save_gguf: the entry {key!r} is a {type(value).__name__}, which GGUF cannot hold"
            )


def _array(key: str, items: Sequence[Any]) -> bytes:
    if all(isinstance(x, str) for x in items) and items:
        return _u(_ARRAY, 4) + _u(_TEXT, 4) + _u(len(items), 8) + b"".join([_text(x) for x in items])
    if any(isinstance(x, list | tuple | np.ndarray) for x in items):
        inner = [_value(key, x) for x in items]
        if any(x[:4] != _u(_ARRAY, 4) for x in inner):
            raise ArgumentError(f"save_gguf: the entry {key!r} has arrays beside what is none")
        return _u(_ARRAY, 4) + _u(_ARRAY, 4) + _u(len(inner), 8) + b"".join([x[4:] for x in inner])
    kinds: set[type[Any]] = {type(x) for x in items}
    if not kinds <= {bool} and not kinds <= {int, float}:
        names = ", ".join(sorted(k.__name__ for k in kinds))
        raise ArgumentError(
            f"save_gguf: the entry {key!r} has {names} in one array; GGUF holds arrays of one type"
        )
    natural = np.result_type(*[_natural(x) for x in items]) if items else np.dtype(np.int32)
    return _value(key, np.array(items, np.float32 if float in kinds else natural))


def _natural(x: Any) -> Any:
    if isinstance(x, bool | np.generic):
        return None
    if isinstance(x, float):
        return np.float32
    return np.int32 if -(1 << 31) <= x < 1 << 31 else np.int64 if x < 1 << 63 else np.uint64


def _number_type(key: str, dtype: np.dtype[Any]) -> bytes:
    for number, found in _TYPES.items():
        if found == dtype.newbyteorder("<"):
            return _u(number, 4)
    raise ArgumentError(f"save_gguf: the entry {key!r} is {dtype}, which GGUF has not")


def _little(x: np.ndarray[Any, Any]) -> bytes:
    return x.astype(x.dtype.newbyteorder("<")).tobytes()


class _Header:
    """The header of a file, read from its beginning; FileFormatError with the place for all that cannot be."""

    def __init__(self, source: Source, texts: Callable[[Texts], Any] = tuple) -> None:
        self.source, self.at, self.texts = source, 0, texts
        if self._bytes(4, "the magic") != MAGIC:
            raise FileFormatError(f"load_gguf: {source.path} is no GGUF file: it does not begin with GGUF")
        self.version = self._integer(4, "the version")
        if self.version not in (2, 3):
            told = "; it is of a big-endian machine" if self.version in (2 << 24, 3 << 24) else ""
            self._refuse(f"version {self.version}, and weft reads 2 and 3{told}")
        self.count = self._counted(24, "tensors")
        entries = self._counted(13, "entries")
        metadata: dict[str, Any] = {}
        for k in range(entries):
            key = self._text(f"the key of entry {k}")
            if key in metadata:
                self._refuse(f"the entry {key!r} twice")
            metadata[key] = self._value(self._integer(4, f"the type of {key!r}"), key)
        self.metadata: Metadata = metadata

    def tensors(self) -> list[_Entry]:
        """The tensors, each within the file."""
        alignment = self.metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment > 1 << 30:
            self._refuse(f"an alignment of {alignment!r}")
        found: dict[str, tuple[tuple[int, ...], DType | BlockFormat, int]] = {}
        for k in range(self.count):
            name = self._text(f"the name of tensor {k}")
            if name in found:
                self._refuse(f"the tensor {name!r} twice")
            rank = self._integer(4, f"the rank of {name!r}")
            if rank > _MOST_AXES:
                self._refuse(f"{rank} axes for {name!r}")
            shape = tuple([self._integer(8, f"the sizes of {name!r}") for _ in range(rank)])[::-1]
            kind = self._kind(self._integer(4, f"the type of {name!r}"), name)
            found[name] = shape, kind, self._integer(8, f"the offset of {name!r}")
        start = -(-self.at // alignment) * alignment
        return [self._placed(name, *t, start, alignment) for name, t in found.items()]

    def _placed(
        self,
        name: str,
        shape: tuple[int, ...],
        kind: DType | BlockFormat,
        offset: int,
        start: int,
        alignment: int,
    ) -> _Entry:
        if isinstance(kind, DType):
            nbytes = prod(shape) * kind.itemsize
        elif not shape or shape[-1] % kind.elements:
            self._refuse(f"{name!r} of shape {shape}, whose rows are no whole blocks of {kind.name}")
        else:
            nbytes = prod(shape) // kind.elements * kind.nbytes
        if offset % alignment:
            self._refuse(f"{name!r} at byte {offset}, which is not aligned to {alignment}")
        if nbytes > self.source.size or start + offset + nbytes > self.source.size:
            self._refuse(f"{name!r} of {nbytes:,} bytes at byte {start + offset:,}, beyond its end")
        return _Entry(name, shape, kind, start + offset, start + offset + nbytes)

    def _kind(self, number: int, name: str) -> DType | BlockFormat:
        kind = _PLAIN.get(number) or _BLOCKS.get(number)
        if kind is None:
            known = ", ".join([f.name for f in BlockFormat])
            told = f"{_UNKNOWN.get(number, 'unknown')} ({number})"
            self._refuse(
                f"{name!r} of type {told}, which weft cannot widen; it widens {known}, and plain numbers"
            )
        return kind

    def _value(self, kind: int, key: str, depth: int = 0) -> Any:
        if kind == _TEXT:
            return self._text(f"the text of {key!r}")
        if kind != _ARRAY:
            dtype = self._number(kind, key)
            value = np.frombuffer(self._bytes(dtype.itemsize, f"the value of {key!r}"), dtype)[0]
            return bool(value) if dtype.kind == "b" else value.item()
        if depth == _MOST_NESTED:
            self._refuse(f"{key!r} nested deeper than {_MOST_NESTED}")
        inner = self._integer(4, f"the type of the elements of {key!r}")
        if inner == _TEXT:
            count = self._counted(8, f"texts of {key!r}")
            return self._texts(count, key)
        if inner == _ARRAY:
            count = self._counted(12, f"arrays of {key!r}")
            return tuple([self._value(_ARRAY, key, depth + 1) for _ in range(count)])
        dtype = self._number(inner, key)
        count = self._counted(dtype.itemsize, f"numbers of {key!r}")
        data = self._bytes(count * dtype.itemsize, f"the numbers of {key!r}")
        return np.frombuffer(data, np.uint8 if dtype.kind == "b" else dtype).astype(dtype)

    def _texts(self, count: int, key: str) -> Any:
        """Texts in a row, as they are wanted."""
        data = self.source.view(self.at, self.source.size)
        ends = ends_of(data, count)
        if ends is None:
            self._refuse(f"its end within a text of {key!r}")
        size = int(ends[-1]) if count else 0
        self.at += size
        try:
            return self.texts(Texts(data[:size], ends))
        except UnicodeDecodeError:
            self._refuse(f"a text of {key!r} before byte {self.at:,} that is no UTF-8")

    def _number(self, kind: int, key: str) -> np.dtype[Any]:
        dtype = _TYPES.get(kind)
        if dtype is None:
            self._refuse(f"a value of unknown type {kind} at {key!r}")
        return dtype

    def _text(self, what: str) -> str:
        at = self.at
        data = self._bytes(self._counted(1, f"bytes of {what}"), what)
        try:
            return data.decode()
        except UnicodeDecodeError:
            self._refuse(f"{what} at byte {at} that is no UTF-8")

    def _counted(self, each: int, what: str) -> int:
        """A count, of things that take at least `each` bytes."""
        count = self._integer(8, f"the number of {what}")
        if count * each > self.source.size - self.at:
            self._refuse(f"{count:,} {what}, more than there is room for")
        return count

    def _integer(self, size: int, what: str) -> int:
        return int.from_bytes(self._bytes(size, what), "little")

    def _bytes(self, count: int, what: str) -> bytes:
        if count > self.source.size - self.at:
            self._refuse(f"its end within {what}")
        self.at += count
        return bytes(self.source.view(self.at - count, self.at))

    def _refuse(self, what: str) -> NoReturn:
        raise FileFormatError(
            f"load_gguf: {self.source.path} is damaged or foreign: it has {what} (byte {self.at:,})"
        )
