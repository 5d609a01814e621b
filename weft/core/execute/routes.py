"""The route from a tensor to its memory, for native code that reads it; see backends/direct.py."""
# Tests: tests/core/compile/test_direct_call.py, tests/backends/test_direct.py

from __future__ import annotations

from functools import cache
from sys import getrefcount
from typing import Any

from weft.autograd.value import Value
from weft.backends.direct import Access as Access
from weft.backends.direct import Route, route
from weft.backends.direct import Source as Source
from weft.backends.direct import is_free_threaded as is_free_threaded
from weft.backends.storage import Storage
from weft.core.args.handle import Handle
from weft.ir import graph
from weft.ir.dtypes import uint32
from weft.ir.graph import Node


class _Probe:
    nbytes = 0


def _fresh() -> Any:
    """A tensor that nobody shares."""
    t = Handle.__new__(Handle)
    device: Any = None
    probe: Any = _Probe()
    storage = Storage(device, probe, uint32, ())
    del probe
    t.value = Value(graph.buffer((), uint32, "", storage))
    return t


def _held(t: Any) -> int:
    """The references to a storage that a variable of a function has, which it gives to a built-in one: the
    interpreter's own differ by version."""
    s = t.value.node.storage
    return getrefcount(s)


@cache
def tensor_route() -> Route | None:
    """The route; None where this interpreter has none."""
    slots: list[Any] = [
        Handle.__dict__["value"],
        Value.__dict__["node"],
        Node.__dict__["storage"],
        Storage.__dict__["memory"],
    ]
    return route(_fresh(), slots, _held(_fresh()))
