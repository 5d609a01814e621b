"""Safetensors files: a JSON header with names, dtypes, shapes and places, then the tensors' bytes.

    8 bytes     length of the header, unsigned, little-endian
    header      {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    data        the tensors, row-major, little-endian, one after the other without gaps

Format: https://github.com/huggingface/safetensors, section "Format". The package of that name reads whole tensors into
NumPy or torch; here a tensor is a lazy leaf over the mapped file, so the few checks it makes are made here.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import secrets
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeGuard, cast

from weft.autograd.value import Value
from weft.core.creation import as_tensor
from weft.core.handle import wrap
from weft.core.realization import realize
from weft.core.run import default_device, deferred, device_name
from weft.core.tensor import Tensor
from weft.errors import ArgumentError, DTypeError
from weft.ir import dtypes
from weft.ir.dtypes import DType

StrPath: TypeAlias = str | os.PathLike[str]

DTYPES: dict[str, DType] = {
    "BOOL": dtypes.bool_,
    "U8": dtypes.uint8,
    "U16": dtypes.uint16,
    "U32": dtypes.uint32,
    "U64": dtypes.uint64,
    "I8": dtypes.int8,
    "I16": dtypes.int16,
    "I32": dtypes.int32,
    "I64": dtypes.int64,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
"""The format's names. It has others (8-bit floats and smaller), which weft lacks."""

_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_MAX_HEADER = 100_000_000  # as the reference implementation
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in the header: `begin` and `end` are its bytes within the data."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """What a file holds; `start` is where its data begins."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]
    start: int


def load_safetensors(path: StrPath, device: str | None = None) -> dict[str, Tensor]:
    """The tensors of a file by name. Only the header is read: a tensor's bytes are read when it is first used.

    They go from the mapped file to the device's memory, once. The file must stay as it is until then. FileNotFoundError
    for a path that is not there; ArgumentError for a file that is damaged or something else; DTypeError for element
    types that weft lacks.

    >>> weights = weft.io.load_safetensors("model.safetensors")
    """
    home = default_device() if device is None else device_name(device)
    with open(path, "rb") as file:
        header = _read_header(file, path)
        mapped = _map(file)
    tensors: dict[str, Tensor] = {}
    for e in header.entries:
        source = _Part(mapped, header.start + e.begin, header.start + e.end)
        tensors[e.name] = wrap(Value(deferred(e.shape, e.dtype, home, source)))
    return tensors


def safetensors_metadata(path: StrPath) -> dict[str, str]:
    """The texts that a file holds beside its tensors."""
    with open(path, "rb") as file:
        return _read_header(file, path).metadata


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes of a mapped file, which stays mapped as long as a part of it is wanted."""

    mapped: mmap.mmap
    begin: int
    end: int

    def __call__(self) -> memoryview:
        return memoryview(self.mapped)[self.begin : self.end]


def _map(file: BinaryIO) -> mmap.mmap:
    """The file in memory, private to this process."""
    return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


# --- reading the header


def _read_header(file: BinaryIO, path: StrPath) -> Header:
    def bad(why: str) -> ArgumentError:
        return ArgumentError(f"load_safetensors: {os.fspath(path)} is no valid safetensors file: {why}")

    size = os.fstat(file.fileno()).st_size
    prefix = file.read(8)
    if len(prefix) < 8:
        raise bad(f"it has only {size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER or 8 + length > size:
        raise bad(f"its first 8 bytes announce a header of {length} bytes, the file has {size}")
    try:
        fields = json.loads(file.read(length), object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise bad(f"its header is not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise bad("its header is no JSON object")
    table = cast("dict[str, Any]", fields)
    metadata = table.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(
        isinstance(v, str) for v in cast("dict[str, Any]", metadata).values()
    ):
        raise bad("__metadata__ must map texts to texts")
    try:
        entries = sorted(
            (_entry(name, fields) for name, fields in table.items()), key=lambda e: (e.begin, e.end)
        )
    except ValueError as error:
        raise bad(str(error)) from None
    at = 0
    for e in entries:
        if e.begin != at:
            raise bad(f"the bytes of {e.name!r} begin at {e.begin} instead of {at}")
        at = e.end
    if 8 + length + at != size:
        have = size - 8 - length
        what = "cut short" if have < at else "too long"
        raise bad(f"it is {what}: its tensors take {at} bytes, {have} follow the header")
    order = {name: k for k, name in enumerate(table)}
    return Header(
        tuple(sorted(entries, key=lambda e: order[e.name])), cast("dict[str, str]", metadata), 8 + length
    )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a name occurs twice")
    return table


def _entry(name: str, fields: Any) -> Entry:
    """One entry of the header; ValueError says what is wrong with it."""
    if not isinstance(fields, dict) or set(cast("dict[str, Any]", fields)) != {
        "dtype",
        "shape",
        "data_offsets",
    }:
        raise ValueError(f"the entry of {name!r} must have dtype, shape and data_offsets")
    table = cast("dict[str, Any]", fields)
    kind, shape, offsets = table["dtype"], table["shape"], table["data_offsets"]
    if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
        raise ValueError(f"{name!r} has shape {shape!r} and data_offsets {offsets!r}")
    if kind not in DTYPES:
        raise DTypeError(
            f"load_safetensors: {name!r} has elements of type {kind}; weft has {', '.join(DTYPES)}"
        )
    dtype, (begin, end) = DTYPES[kind], offsets
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name!r} of shape {shape} and type {kind} cannot have {end - begin} bytes")
    return Entry(name, dtype, tuple(shape), begin, end)


def _are_sizes(x: Any) -> TypeGuard[list[int]]:
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in cast("list[Any]", x))


# --- writing


def save_safetensors(
    tensors: Mapping[str, Tensor], path: StrPath, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors by name. The file appears whole or not at all: what was there stays until all is written.

    Computes the tensors, all in one plan. `metadata` are texts to keep beside them.

    >>> weft.io.save_safetensors(model.state_dict(), "model.safetensors")
    """
    if "__metadata__" in tensors:
        raise ArgumentError("save_safetensors: a tensor cannot be called '__metadata__'")
    values = {name: as_tensor(t) for name, t in tensors.items()}
    realize(*values.values())
    # wide elements first, so that each tensor is aligned to its elements
    names = sorted(values, key=lambda name: (-values[name].dtype.itemsize, name))
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in names:
        shape = [n for n in values[name].shape if isinstance(n, int)]
        end = at + math.prod(shape) * values[name].dtype.itemsize
        table[name] = {"dtype": _NAMES[values[name].dtype], "shape": shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with replacing(Path(path)) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            file.write(values[name].numpy().tobytes())


@contextlib.contextmanager
def replacing(path: Path) -> Generator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends well, and vanishes when not."""
    draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a power failure, where the system can be asked to."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
