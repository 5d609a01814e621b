"""A relocatable AMDGPU object -> the executable one that the runtime loads, by COMGR.

COMGR (libamd_comgr) is the compiler library that the HIP runtime itself uses, so it is there wherever that is.
Interface: amd_comgr.h of ROCm; number 3 of it renumbered the actions.
"""

from __future__ import annotations

import ctypes
from typing import Any

from weft.errors import DeviceError

_RELOCATABLE, _EXECUTABLE = 7, 8  # AMD_COMGR_DATA_KIND_...
_LINK = {2: 9, 3: 7}  # AMD_COMGR_ACTION_LINK_RELOCATABLE_TO_EXECUTABLE, by major version


class _Handle(ctypes.Structure):
    """All of COMGR's objects are one number."""

    _fields_ = (("handle", ctypes.c_uint64),)


_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "create_data": (ctypes.c_int, ctypes.POINTER(_Handle)),
    "release_data": (_Handle,),
    "set_data": (_Handle, ctypes.c_size_t, ctypes.c_char_p),
    "set_data_name": (_Handle, ctypes.c_char_p),
    "get_data": (_Handle, ctypes.POINTER(ctypes.c_size_t), ctypes.c_char_p),
    "create_data_set": (ctypes.POINTER(_Handle),),
    "destroy_data_set": (_Handle,),
    "data_set_add": (_Handle, _Handle),
    "create_action_info": (ctypes.POINTER(_Handle),),
    "destroy_action_info": (_Handle,),
    "action_info_set_isa_name": (_Handle, ctypes.c_char_p),
    "do_action": (ctypes.c_int, _Handle, _Handle, _Handle),
    "action_data_get_data": (_Handle, ctypes.c_int, ctypes.c_size_t, ctypes.POINTER(_Handle)),
}


class Linker:
    """COMGR, loaded."""

    def __init__(self, library: Any) -> None:
        """DeviceError for a version that is not known."""
        self._library = library
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, f"amd_comgr_{name}")
            function.argtypes, function.restype = arguments, ctypes.c_int
        major, minor = ctypes.c_size_t(), ctypes.c_size_t()
        library.amd_comgr_get_version(ctypes.byref(major), ctypes.byref(minor))
        if major.value not in _LINK:
            known = " and ".join(map(str, _LINK))
            raise DeviceError(
                f"libamd_comgr is version {major.value}; weft knows {known}: install ROCm 5 to 7"
            )
        self._action = _LINK[major.value]

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._library, f"amd_comgr_{name}")(*args)
        if status:
            raise DeviceError(
                f"linking a kernel for an AMD GPU failed: amd_comgr_{name} gave status {status}"
            )

    def _made(self, name: str, *args: Any) -> _Handle:
        handle = _Handle()
        self._call(name, *args, ctypes.byref(handle))
        return handle

    def link(self, code: bytes, isa: str) -> bytes:
        """The executable object for an instruction set such as "gfx90a:sramecc+:xnack-". DeviceError on failure."""
        data = self._made("create_data", _RELOCATABLE)
        inputs, outputs = self._made("create_data_set"), self._made("create_data_set")
        info = self._made("create_action_info")
        try:
            self._call("set_data", data, len(code), code)
            self._call("set_data_name", data, b"weft.o")
            self._call("data_set_add", inputs, data)
            self._call("action_info_set_isa_name", info, f"amdgcn-amd-amdhsa--{isa}".encode())
            self._call("do_action", self._action, info, inputs, outputs)
            return self._bytes(self._made("action_data_get_data", outputs, _EXECUTABLE, 0))
        finally:
            self._call("destroy_action_info", info)
            self._call("destroy_data_set", outputs)
            self._call("destroy_data_set", inputs)
            self._call("release_data", data)

    def _bytes(self, data: _Handle) -> bytes:
        try:
            size = ctypes.c_size_t()
            self._call("get_data", data, ctypes.byref(size), None)
            out = ctypes.create_string_buffer(size.value)
            self._call("get_data", data, ctypes.byref(size), out)
            return out.raw[: size.value]
        finally:
            self._call("release_data", data)
