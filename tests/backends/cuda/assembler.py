"""NVIDIA's assembler without a GPU: nvJitLink from its wheel, through ctypes."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, files


@cache
def library() -> ctypes.CDLL | None:
    """The library, or None where the wheel is not installed."""
    try:
        found = files("nvidia-nvjitlink") or []
    except PackageNotFoundError:
        return None
    for file in found:
        if file.name.startswith("libnvJitLink.so"):
            return ctypes.CDLL(str(file.locate()))
    return None


def _entry(lib: ctypes.CDLL, name: str) -> ctypes._NamedFuncPointer:
    return getattr(lib, f"__nvJitLink{name}_13_0")


@dataclass(frozen=True, slots=True)
class Resources:
    """What the assembler gave a kernel: registers of a thread, bytes of its stack and spilled, bytes of declared shared
    memory."""

    registers: int
    stack: int
    spilled: int
    shared: int


def resources(ptx: str, arch: str) -> dict[str, Resources]:
    """Every kernel's, by name."""
    log = _linked(ptx, arch)[1]
    out: dict[str, Resources] = {}
    spills = dict(re.findall(r"Function properties for (\w+)\n.*?frame, (\d+) bytes spill stores", log))
    for m in re.finditer(
        r"properties for '(\w+)':\n.*used (\d+) registers.*?(\d+) stack(?:, (\d+) bytes smem)?", log
    ):
        name, registers, stack, shared = m.groups()
        out[name] = Resources(int(registers), int(stack), int(spills[name]), int(shared or 0))
    return out


def assemble(ptx: str, arch: str) -> bytes:
    """PTX -> machine code for `arch`. ValueError with the assembler's log when it refuses."""
    return _linked(ptx, arch)[0]


def _linked(ptx: str, arch: str) -> tuple[bytes, str]:
    """Machine code, and what the assembler tells of it."""
    lib = library()
    assert lib is not None
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 2)(f"-arch={arch}".encode(), b"-verbose")
    status = _entry(lib, "Create")(ctypes.byref(handle), 2, options)
    if status:
        raise ValueError(f"nvJitLink cannot be used for {arch}: status {status}")
    try:
        text = ptx.encode() + b"\0"
        size = ctypes.c_size_t(len(text))
        status = _entry(lib, "AddData")(handle, 2, text, size, b"weft") or _entry(lib, "Complete")(handle)
        if status:
            raise ValueError(_log(lib, handle, "Error"))
        _entry(lib, "GetLinkedCubinSize")(handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        _entry(lib, "GetLinkedCubin")(handle, cubin)
        return cubin.raw, _log(lib, handle, "Info")
    finally:
        _entry(lib, "Destroy")(ctypes.byref(handle))


def _log(lib: ctypes.CDLL, handle: ctypes.c_void_p, kind: str) -> str:
    size = ctypes.c_size_t()
    _entry(lib, f"Get{kind}LogSize")(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    _entry(lib, f"Get{kind}Log")(handle, log)
    return log.value.decode(errors="replace")
