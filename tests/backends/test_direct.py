"""Routes through objects to their memory, and runs that read them."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from weft.backends.cpu.runtime import Runtime, open_runtime
from weft.backends.direct import Access, DirectRun, Route, Source, has_layout, route


class Bytes:
    """A memory."""

    def __init__(self, *values: int) -> None:
        self.array = np.array(values, np.uint8)
        self.address = self.array.ctypes.data


class Storage:
    __slots__ = ("__weakref__", "memory", "other")


class Node:
    __slots__ = ("__weakref__", "storage")


class Value:
    __slots__ = ("node", "other")


class Handle:
    __slots__ = ("__dict__", "__weakref__", "value")


class Stand(Storage):
    """A storage of another class."""


def chain(memory: Any, storage: type = Storage) -> Handle:
    h = Handle()
    h.value = Value()
    h.value.node = Node()
    h.value.node.storage = storage()
    h.value.node.storage.memory = memory
    return h


SLOTS = [
    Handle.__dict__["value"],
    Value.__dict__["node"],
    Node.__dict__["storage"],
    Storage.__dict__["memory"],
]


def _held(h: Handle) -> int:
    s = h.value.node.storage
    return sys.getrefcount(s)


@pytest.fixture
def way() -> Route:
    if not has_layout():
        pytest.skip("this interpreter has no routes")
    found = route(chain(Bytes(0)), SLOTS, _held(chain(Bytes(0))))
    assert found is not None
    return found


@pytest.fixture
def runtime() -> Runtime:
    return open_runtime()


def copying(runtime: Runtime, way: Route, sources: Sequence[Source], count: int, **options: Any) -> DirectRun:
    """A run that copies the first source to the second, four bytes."""
    plan = runtime.plan([runtime.runner.copy_instruction(1, 0, 4)], externals=2)
    made = plan.direct(sources, count, route=way, **options)
    assert made is not None
    return made


def test_no_route_where_something_else_lies_there(way: Route) -> None:
    assert way.classes == (Value, Node, Storage) and len(set(way.offsets)) >= 1
    h = chain(Bytes(0))
    seen = weakref.ref(h.value.node.storage)  # somebody refers weakly to what is tried
    assert route(h, SLOTS, 3) is None and seen() is not None


@pytest.mark.parametrize("holds", [False, True])
def test_memory_is_found_through_objects(way: Route, runtime: Runtime, holds: bool) -> None:
    source, target = chain(Bytes(1, 2, 3, 4)), chain(Bytes(0, 0, 0, 0))
    fixed = copying(runtime, way, [Source(Access.READ, source), Source(Access.READ, target)], 0, holds=holds)
    assert fixed.run() and target.value.node.storage.memory.array.tolist() == [1, 2, 3, 4]
    given = [Source(Access.STORAGE, index=0), Source(Access.READ, index=1)]
    other = chain(Bytes(5, 6, 7, 8))
    assert copying(runtime, way, given, 2, holds=holds).run(other.value.node.storage, target)
    assert target.value.node.storage.memory.array.tolist() == [5, 6, 7, 8]
    memory = source.value.node.storage.memory
    before = sys.getrefcount(memory)
    for _ in range(100):
        assert fixed.run()
    assert sys.getrefcount(memory) == before and fixed.runs[0] == 101


def test_what_is_not_there_is_refused(way: Route, runtime: Runtime) -> None:
    source, target = chain(Bytes(1, 2, 3, 4)), chain(Bytes(0, 0, 0, 0))
    run = copying(runtime, way, [Source(Access.READ, source), Source(Access.READ, target)], 0).run
    for spoil in (
        lambda: setattr(source, "value", None),
        lambda: setattr(source.value, "node", None),
        lambda: setattr(source.value.node, "storage", None),
        lambda: setattr(source.value.node, "storage", Stand()),
        lambda: delattr(source.value.node.storage, "memory"),
        lambda: setattr(source.value.node.storage, "memory", 5),
        lambda: delattr(source, "value"),
    ):
        spoil()
        assert run() is False
        source.value = chain(Bytes(1, 2, 3, 4)).value
        assert run() is True
    by_storage = copying(runtime, way, [Source(Access.STORAGE, index=0), Source(Access.READ, target)], 1).run
    assert by_storage(Stand()) is False and by_storage(3) is False
    assert by_storage(source.value.node.storage) is True


def test_only_what_nobody_else_sees_is_written(way: Route, runtime: Runtime) -> None:
    source, target = chain(Bytes(1, 2, 3, 4)), chain(Bytes(0, 0, 0, 0))
    sources = [Source(Access.READ, source), Source(Access.WRITE, target)]
    run = copying(runtime, way, sources, 0, holds=True).run
    for look in (
        lambda: target.value,
        lambda: target.value.node,
        lambda: target.value.node.storage,
        lambda: target.value.node.storage.memory,
        lambda: weakref.ref(target.value.node),
        lambda: weakref.ref(target.value.node.storage),
    ):
        seen = look()
        assert run() is False
        del seen
        assert run() is True
    assert target.value.node.storage.memory.array.tolist() == [1, 2, 3, 4]
    held = weakref.ref(target), target
    assert run() is True and held  # the tensor itself may be seen


def test_a_storage_that_the_caller_names_is_one_reference_more(way: Route, runtime: Runtime) -> None:
    source = chain(Bytes(1, 2, 3, 4))
    sources = [Source(Access.READ, source), Source(Access.WRITE, index=0, named=1)]
    run = copying(runtime, way, sources, 2, holds=True).run

    def step(t: Handle) -> bool:
        s = t.value.node.storage
        return run(t, s)

    def another(t: Handle) -> bool:
        s = chain(Bytes(0)).value.node.storage
        return run(t, s)

    target = chain(Bytes(0, 0, 0, 0))
    assert step(target) is True and target.value.node.storage.memory.array.tolist() == [1, 2, 3, 4]
    assert another(target) is False
    seen = target.value.node.storage
    assert step(target) is False and seen is not None
