"""NVIDIA's assembler without a GPU: nvJitLink from its wheel, through ctypes."""

from __future__ import annotations

import ctypes
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


def assemble(ptx: str, arch: str) -> bytes:
    """PTX -> machine code for `arch`. ValueError with the assembler's log when it refuses."""
    lib = library()
    assert lib is not None
    handle = ctypes.c_void_p()
    options = (ctypes.c_char_p * 1)(f"-arch={arch}".encode())
    status = _entry(lib, "Create")(ctypes.byref(handle), 1, options)
    if status:
        raise ValueError(f"nvJitLink cannot be used for {arch}: status {status}")
    try:
        text = ptx.encode() + b"\0"
        size = ctypes.c_size_t(len(text))
        status = _entry(lib, "AddData")(handle, 2, text, size, b"weft") or _entry(lib, "Complete")(handle)
        if status:
            raise ValueError(_log(lib, handle))
        _entry(lib, "GetLinkedCubinSize")(handle, ctypes.byref(size))
        cubin = ctypes.create_string_buffer(size.value)
        _entry(lib, "GetLinkedCubin")(handle, cubin)
        return cubin.raw
    finally:
        _entry(lib, "Destroy")(ctypes.byref(handle))


def _log(lib: ctypes.CDLL, handle: ctypes.c_void_p) -> str:
    size = ctypes.c_size_t()
    _entry(lib, "GetErrorLogSize")(handle, ctypes.byref(size))
    log = ctypes.create_string_buffer(max(1, size.value))
    _entry(lib, "GetErrorLog")(handle, log)
    return log.value.decode(errors="replace")
