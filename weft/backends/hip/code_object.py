"""An AMDGPU object's account of itself: the instruction set, its symbols, and each kernel's needs.

An ELF64 file for machine 224. A kernel NAME has its code at the symbol NAME and a descriptor of 64 bytes at NAME.kd;
a note holds the metadata as MessagePack. Formats: https://llvm.org/docs/AMDGPUUsage.html, sections "Code Object",
"Kernel Descriptor" and "Code Object V4 Metadata"; https://github.com/msgpack/msgpack/blob/master/spec.md
"""
# Tests: tests/backends/hip/test_objects.py

from __future__ import annotations

import struct
from typing import Any, cast

from weft.lazy_dataclass import dataclass

_MACHINE = 224  # EM_AMDGPU
_METADATA = 32  # NT_AMDGPU_METADATA
_SYMTAB, _NOTE, _DYNSYM = 2, 7, 11
_RELOCATABLE = 1

MACHINES = {0x3F: "gfx90a", 0x4C: "gfx942", 0x41: "gfx1100"}
"""EF_AMDGPU_MACH of the instruction sets that are compiled for in the tests."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: its name, bytes, and whether it is defined here."""

    name: str
    size: int
    defined: bool
    is_global: bool


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a kernel: bytes from the start of the arguments, size, and what it is ("global_buffer" ...)."""

    offset: int
    size: int
    kind: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel, as far as the runtime has to know it. `stack_bytes` are per thread, `local_bytes` per block;
    `spills` are registers that did not fit."""

    name: str
    descriptor: str
    threads: int
    wave: int
    scalar_registers: int
    vector_registers: int
    local_bytes: int
    stack_bytes: int
    spills: int
    arguments: tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class CodeObject:
    """An object: `machine` is EF_AMDGPU_MACH, `target` the metadata's name of the instruction set."""

    machine: int
    relocatable: bool
    target: str
    symbols: tuple[Symbol, ...]
    kernels: tuple[Kernel, ...]


def parse(data: bytes) -> CodeObject:
    """Read the object. ValueError when it is no AMDGPU object."""
    try:
        return _parse(data)
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise ValueError(f"a damaged AMDGPU object: {error!r}") from error


def _parse(data: bytes) -> CodeObject:
    if data[:4] != b"\x7fELF" or data[4] != 2 or data[5] != 1:
        raise ValueError("not a little-endian ELF64 file")
    kind, machine = struct.unpack_from("<HH", data, 16)
    if machine != _MACHINE:
        raise ValueError(f"an ELF file for machine {machine}, not for AMDGPU")
    (sections_at,) = struct.unpack_from("<Q", data, 40)
    (flags,) = struct.unpack_from("<I", data, 48)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, sections_at + k * size) for k in range(count)]
    metadata: dict[str, Any] = {}
    symbols: list[Symbol] = []
    for _, kind_of, _, _, at, length, link, _, _, _ in sections:
        if kind_of == _NOTE:
            metadata.update(_metadata(data[at : at + length]))
        elif kind_of in (_SYMTAB, _DYNSYM):
            names = data[sections[link][4] : sections[link][4] + sections[link][5]]
            symbols += _symbols(data[at : at + length], names)
    kernels = tuple(_kernel(k) for k in cast("list[dict[str, Any]]", metadata.get("amdhsa.kernels", [])))
    target = str(metadata.get("amdhsa.target", ""))
    return CodeObject(flags & 0xFF, kind == _RELOCATABLE, target, tuple(symbols), kernels)


def _symbols(table: bytes, names: bytes) -> list[Symbol]:
    out: list[Symbol] = []
    for name_at, info, _, section, _, size in struct.iter_unpack("<IBBHQQ", table):
        name = names[name_at : names.index(b"\0", name_at)].decode()
        if name:
            out.append(Symbol(name, size, section != 0, info >> 4 != 0))
    return out


def _metadata(notes: bytes) -> dict[str, Any]:
    at = 0
    while at + 12 <= len(notes):
        name_size, size, kind = struct.unpack_from("<III", notes, at)
        name_at = at + 12
        start = name_at + -(-name_size // 4) * 4
        if kind == _METADATA and notes[name_at : name_at + name_size] == b"AMDGPU\0":
            found = unpack(notes[start : start + size])
            return cast("dict[str, Any]", found)
        at = start + -(-size // 4) * 4
    return {}


def _kernel(k: dict[str, Any]) -> Kernel:
    arguments = cast("list[dict[str, Any]]", k.get(".args", []))
    return Kernel(
        name=k[".name"],
        descriptor=k[".symbol"],
        threads=k[".max_flat_workgroup_size"],
        wave=k[".wavefront_size"],
        scalar_registers=k[".sgpr_count"],
        vector_registers=k[".vgpr_count"],
        local_bytes=k[".group_segment_fixed_size"],
        stack_bytes=k[".private_segment_fixed_size"],
        spills=k.get(".sgpr_spill_count", 0) + k.get(".vgpr_spill_count", 0),
        arguments=tuple(Argument(a[".offset"], a[".size"], a[".value_kind"]) for a in arguments),
    )


def unpack(data: bytes) -> Any:
    """MessagePack -> maps, lists, texts, numbers, booleans and None.

    >>> unpack(bytes([0x82, 0xA1, 97, 1, 0xA1, 98, 0x92, 0xC3, 0xC0]))
    {'a': 1, 'b': [True, None]}
    """
    value, end = _value(data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes follow the metadata")
    return value


_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q", 0xD0: ">b", 0xD1: ">h", 0xD2: ">i",
    0xD3: ">q",
}  # fmt: skip
_TEXTS = {0xD9: ">B", 0xDA: ">H", 0xDB: ">I"}
_LISTS = {0xDC: ">H", 0xDD: ">I"}
_MAPS = {0xDE: ">H", 0xDF: ">I"}
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


def _value(data: bytes, at: int) -> tuple[Any, int]:
    tag = data[at]
    at += 1
    if tag < 0x80 or tag >= 0xE0:
        return tag if tag < 0x80 else tag - 256, at
    if tag < 0x90:
        return _map(data, at, tag & 15)
    if tag < 0xA0:
        return _list(data, at, tag & 15)
    if tag < 0xC0:
        return data[at : at + (tag & 31)].decode(), at + (tag & 31)
    if tag in _CONSTANTS:
        return _CONSTANTS[tag], at
    form = _NUMBERS.get(tag) or _TEXTS.get(tag) or _LISTS.get(tag) or _MAPS.get(tag)
    if form is None:
        raise ValueError(f"MessagePack's type {tag:#x} is not used in metadata")
    (n,) = struct.unpack_from(form, data, at)
    at += struct.calcsize(form)
    if tag in _TEXTS:
        return data[at : at + n].decode(), at + n
    if tag in _LISTS:
        return _list(data, at, n)
    return _map(data, at, n) if tag in _MAPS else (n, at)


def _list(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    out: list[Any] = []
    for _ in range(count):
        item, at = _value(data, at)
        out.append(item)
    return out, at


def _map(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    items, at = _list(data, at, 2 * count)
    return dict(zip(items[::2], items[1::2], strict=True)), at
