"""Simulated devices for tests and for planning: registered for the time of a block, and measured there."""
# Tests: tests/backends/dummy/test_farm.py

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from weft.backends import registry
from weft.backends.dummy.farm import Farm

if TYPE_CHECKING:
    from weft.backends.dummy.device import DummyBackend


@contextmanager
def farm(devices: int | Farm = 4, name: str = "farm", **description: Any) -> Generator[DummyBackend]:
    """A farm of simulated devices, which are there by name inside the block: "farm:0", "farm:1" ...

    `devices` is their number, and the rest goes to `Farm.of`: speeds, memory_bytes, pools, topology, issue_ns,
    timing_only, faults, and fields of `DeviceInfo`. Or it is a `Farm`, with a name of its own.

    >>> with farm(2, speeds=[1, 3]) as f:
    ...     f.names
    ['farm:0', 'farm:1']
    """
    from weft.backends.dummy.device import DummyBackend  # the interpreter, for who uses it only

    backend = DummyBackend(devices if isinstance(devices, Farm) else Farm.of(devices, name, **description))
    registry.register(backend)
    try:
        yield backend
    finally:
        registry.unregister(backend.name)
