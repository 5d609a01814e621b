"""Native code that Python calls as it calls its own built-in functions: without ctypes' conversion of arguments.

`weft_direct` (see native_direct.py) has the signature of a METH_FASTCALL function, so CPython can make a built-in
function of its address. It uses functions of the stable ABI, and slots where `backends/direct.py` found them; other
Pythons do without. One call of a plan takes 0.2 us this way, and 0.7 through ctypes.
"""
# Tests: tests/core/execute/test_threads.py

from __future__ import annotations

import ctypes
import sys
from array import array
from collections.abc import Callable, Sequence

from weft.backends.direct import DirectRun, Route, Source

AVAILABLE = sys.implementation.name == "cpython"
"""True where this Python has the C functions that are needed."""

NAMES = (
    "PyTuple_GetItem",
    "PyObject_GetAttr",
    "PyObject_CallObject",
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

    def function(
        self,
        instructions: tuple[int, int],
        sources: Sequence[Source],
        arguments: int,
        tail: tuple[int, int] = (0, 0),
        holds: bool = False,
        stamp: Callable[[], int] | None = None,
        route: Route | None = None,
        keep: object = None,
    ) -> DirectRun:
        """A function that runs instructions, given by address and count, on the memories that the sources come to, and
        after those on the pointers of the `tail`, which are read at each run.

        `holds`: it holds the interpreter's lock meanwhile. `stamp`: the first argument is what this gave when the rest
        was looked at; it is asked again. It keeps `keep` alive.
        """
        rows = array("q")
        for s in sources:
            rows.extend((0 if s.object is None else id(s.object), s.index, int(s.access), s.named))
        ways = array("q")
        if route is not None:
            ways.extend((*route.offsets, *map(id, route.classes), *route.weak, route.held))
        record = array("q", instructions)
        record.extend((arguments, len(sources), _at(rows), *tail, id(_ADDRESS), id(True), id(False)))
        record.extend(
            (int(holds), 0, 0 if stamp is None else id(stamp), _at(ways) if route is not None else 0)
        )
        owned = (_at(record), record, rows, ways, route, stamp, tuple(s.object for s in sources), self, keep)
        made = self._make(ctypes.addressof(self._definition), owned, None)
        return DirectRun(made, memoryview(record)[_RUNS : _RUNS + 1])


_RUNS = 11
"""The place of the number of runs in the record."""


def _at(data: array[int]) -> int:
    return data.buffer_info()[0]
