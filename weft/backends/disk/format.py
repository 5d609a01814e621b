"""Safetensors files: a JSON header with names, dtypes, shapes and places, then the tensors' bytes.

    8 bytes     length of the header, unsigned, little-endian
    header      {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    data        the tensors, row-major, little-endian, one after the other without gaps

Format: https://github.com/huggingface/safetensors, section "Format".
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeGuard, cast

from weft.errors import DTypeError, FileDTypeError, FileFormatError
from weft.ir import dtypes
from weft.ir.dtypes import DType
from weft.lazy_dataclass import dataclass

StrPath: TypeAlias = str | os.PathLike[str]


def located(path: StrPath) -> Path:
    """The path, with "~" as the user's folder. DTypeError for what is no path."""
    try:
        return Path(os.path.expanduser(os.fsdecode(path)))
    except TypeError:
        raise DTypeError(
            f"expected the path of a file, got a {type(path).__name__}: weft's files are mapped, so they need a name"
        ) from None


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
    "F8_E4M3": dtypes.float8_e4m3fn,
    "F8_E5M2": dtypes.float8_e5m2,
    "F16": dtypes.float16,
    "BF16": dtypes.bfloat16,
    "F32": dtypes.float32,
    "F64": dtypes.float64,
}
"""The format's names. It has others (floats of fewer bits, other 8-bit ones), which weft lacks."""

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
    """The contents of a file; `start` is where its data begins."""

    entries: tuple[Entry, ...]
    metadata: dict[str, str]
    start: int


def read_header(file: BinaryIO, path: StrPath) -> Header:
    """The header of a file, checked. FileFormatError for what is damaged or something else, FileDTypeError for element
    types that weft lacks."""
    return header_in(file.read, os.fstat(file.fileno()).st_size, os.fspath(path))


def header_in(read: Callable[[int], bytes], size: int, path: str) -> Header:
    """The header of `size` bytes, of which `read` gives the next; `path` is for messages."""

    def bad(why: str) -> FileFormatError:
        return FileFormatError(f"load_safetensors: {path} is no valid safetensors file: {why}")

    prefix = read(8)
    if len(prefix) < 8:
        raise bad(f"it has only {size} bytes")
    length = int.from_bytes(prefix, "little")
    if length > _MAX_HEADER or 8 + length > size:
        raise bad(f"its first 8 bytes announce a header of {length} bytes, the file has {size}")
    try:
        fields = read_json(read(length))
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
    except FileDTypeError:
        raise
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


def read_json(data: bytes) -> Any:
    """JSON in UTF-8, and nothing else: no mark before it, no other encoding, no name twice, no half characters.
    ValueError says what is wrong, RecursionError that it is nested too deeply."""
    if data[:1] != b"{":
        raise ValueError("it does not begin with '{'")
    return json.loads(data.decode("utf-8"), object_pairs_hook=_no_duplicates)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    for name in table:
        name.encode()  # half of a surrogate pair is no text: UnicodeEncodeError, which is a ValueError
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
    if not isinstance(kind, str):
        raise ValueError(f"{name!r} has dtype {kind!r}, which is no text")
    if kind not in DTYPES:
        raise FileDTypeError(
            f"load_safetensors: {name!r} has elements of type {kind}; weft has {', '.join(DTYPES)}"
        )
    dtype, (begin, end) = DTYPES[kind], offsets
    if (why := too_large(shape, dtype.itemsize)) is not None:
        raise ValueError(f"{name!r} of shape {shape} {why}")
    if end - begin != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name!r} of shape {shape} and type {kind} cannot have {end - begin} bytes")
    return Entry(name, dtype, tuple(shape), begin, end)


MAX_DIMS = 64
"""As many dimensions as NumPy's arrays may have."""


def too_large(shape: Sequence[int], itemsize: int) -> str | None:
    """The reason against an array of this shape, though it may have no elements; None where there is none."""
    if len(shape) > MAX_DIMS:
        return f"has more than {MAX_DIMS} dimensions"
    if math.prod(n for n in shape if n) * itemsize >= 1 << 63:
        return "is larger than any memory"
    return None


def _are_sizes(x: Any) -> TypeGuard[list[int]]:
    return isinstance(x, list) and all(type(n) is int and n >= 0 for n in cast("list[Any]", x))


# --- writing


def header_of(
    tensors: Mapping[str, tuple[DType, tuple[int, ...]]], metadata: Mapping[str, str] | None = None
) -> tuple[bytes, Header]:
    """The bytes before the tensors' own, and where each tensor then goes: in the order of the entries, without gaps.

    Wide elements come first, so that each tensor is aligned to its elements.
    """
    names = sorted(tensors, key=lambda name: (-tensors[name][0].itemsize, name))
    table: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    entries: list[Entry] = []
    at = 0
    for name in names:
        dtype, shape = tensors[name]
        end = at + math.prod(shape) * dtype.itemsize
        table[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [at, end]}
        entries.append(Entry(name, dtype, shape, at, end))
        at = end
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    header = Header(tuple(entries), dict(metadata or {}), 8 + len(text))
    return len(text).to_bytes(8, "little") + text, header
