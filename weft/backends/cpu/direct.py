"""Native code that Python calls as it calls its own built-in functions: without ctypes' conversion of arguments.

`weft_direct` (see native.py) has the signature of a METH_FASTCALL function, so CPython can make a built-in function of
its address. It uses functions of the stable ABI only; other Pythons do without. One call of a plan takes 0.2 us this
way, and 0.7 through ctypes.
"""
# Tests: tests/core/execute/test_threads.py

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from typing import Any

AVAILABLE = sys.implementation.name == "cpython"
"""True where this Python has the C functions that are needed."""

NAMES = (
    "PyTuple_GetItem",
    "PyBytes_AsString",
    "PyObject_GetAttr",
    "PyLong_AsVoidPtr",
    "PyErr_Clear",
    "Py_IncRef",
    "Py_DecRef",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
)
"""The functions that `weft_direct` calls."""

_METH_FASTCALL = 0x80
_ADDRESS = sys.intern("address")


class _MethodDef(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def symbols() -> dict[str, int]:
    """The addresses of `NAMES`."""
    return {n: ctypes.cast(getattr(ctypes.pythonapi, n), ctypes.c_void_p).value or 0 for n in NAMES}


class DirectCalls:
    """Makes built-in functions that run plans by `weft_direct` at `function`. Must outlive them, as its owner does."""

    def __init__(self, function: int) -> None:
        self._definition = _MethodDef(b"run", function, _METH_FASTCALL, None)
        self._make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)(
            ("PyCFunction_NewEx", ctypes.pythonapi)
        )

    def function(self, instructions: int, count: int, memories: int, keep: Any) -> Callable[..., bool]:
        """A function of so many memories, each with an `address`, that runs the `count` instructions at that address.
        It keeps `keep` alive. True when it did run; False, and nothing has happened, where it cannot."""
        record = struct.pack("=6q", instructions, count, memories, id(_ADDRESS), id(True), id(False))
        return self._make(ctypes.addressof(self._definition), (record, self, keep), None)
