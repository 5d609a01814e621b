"""Runs that find their memory themselves: what a native entry is told of the Python objects that lead to it.

    t.value.node.storage.memory      a route: four slots, each of one class

A slot of a class with `__slots__` lies at a fixed place in its objects, so native code that holds the interpreter's
lock reads a route without a call, and sees all objects of one moment. That objects lie as CPython has them is tried
before it is relied on; other interpreters, and those without a lock, have no routes.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any
from weakref import ref

from weft.lazy_dataclass import dataclass


class Access(IntEnum):
    """The kind of a source, and what is done with its memory."""

    MEMORY = 0
    """A memory itself."""
    STORAGE = 1
    """The last object of a route, whose memory is read."""
    READ = 2
    """The first object of a route, whose memory is read."""
    WRITE = 3
    """The same, whose memory may be written over: only where each object of the route has the one reference of the
    object before it, and nobody refers weakly to the last two."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of the address of an external memory: an `object` that is the same at each run, or argument number
    `index`. `named`: the argument that is to be the storage of what is written, where the caller refers to it."""

    access: Access
    object: Any = None
    index: int = 0
    named: int = -1


@dataclass(frozen=True, slots=True)
class Route:
    """The slots from an object to its memory, by offset; the classes of what is in them but for the memory. `weak`:
    where the last two keep their weak references. `held`: the references to a storage that a caller's variable has."""

    offsets: tuple[int, int, int, int]
    classes: tuple[type, type, type]
    weak: tuple[int, int]
    held: int


@dataclass(frozen=True, slots=True)
class DirectRun:
    """A run of a plan by one call, `run(*arguments)`: True where it did run, False where nothing has happened."""

    run: Callable[..., bool]
    runs: Sequence[int]
    """One number: of the runs that did run."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The memory that runs share, one at a time: within the lock, after `prepare()`, which raises MemoryError."""

    lock: Any
    prepare: Callable[[], None]


def has_layout() -> bool:
    """True where objects may be as CPython lays them out: with a lock, and without what debugging adds."""
    if sys.implementation.name != "cpython" or sys.byteorder != "little" or hasattr(sys, "getobjects"):
        return False
    return "t" not in sys.abiflags and ctypes.sizeof(ctypes.c_void_p) == 8


def route(start: Any, slots: Sequence[Any], held: int) -> Route | None:
    """The route from an object through these slots, given as the members of classes; None where it cannot be read as it
    is thought to lie. `start` is an object that nobody else refers to beyond."""
    if not has_layout():
        return None
    offsets = [_offset(s) for s in slots]
    objects = [start]
    for s, at in zip(slots, offsets, strict=True):
        objects.append(s.__get__(objects[-1]))
        if _pointer(id(objects[-2]) + at) != id(objects[-1]):
            return None
    _, value, node, storage, _ = objects
    classes = (value.__class__, node.__class__, storage.__class__)
    weak = (classes[1].__weakrefoffset__, classes[2].__weakrefoffset__)
    if any(_pointer(id(x) + 8) != id(c) for x, c in zip((value, node, storage), classes, strict=True)):
        return None
    if not all(_counts(x) for x in (value, node, storage)):
        return None
    if not all(_shows_references(x, at) for x, at in zip((node, storage), weak, strict=True)):
        return None
    a, b, c, d = offsets
    return Route((a, b, c, d), classes, weak, held)


def _pointer(at: int) -> int:
    return ctypes.c_void_p.from_address(at).value or 0


def _offset(member: Any) -> int:
    """The place of a slot in its objects: the third word of what the descriptor's last word points to."""
    return ctypes.c_ssize_t.from_address(_pointer(id(member) + 40) + 16).value


def _counts(x: Any) -> bool:
    """True where the number of references to `x` stands at its beginning."""

    def count() -> int:
        return ctypes.c_int32.from_address(id(x)).value

    before = count()
    more = [x, x, x]
    return 0 < before < 1000 and count() == before + len(more)


def _shows_references(x: Any, at: int) -> bool:
    """True where the weak references to `x` are found at that place."""
    before = _pointer(id(x) + at)
    weak = ref(x)
    found = _pointer(id(x) + at)
    del weak
    return not before and bool(found) and not _pointer(id(x) + at)
