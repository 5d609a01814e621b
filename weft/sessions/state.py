"""The values that a session keeps, and their memory."""
# Tests: tests/sessions/test_session.py

from __future__ import annotations

from sys import getrefcount
from typing import TYPE_CHECKING, Any

from weft.backends.storage import Storage
from weft.ir.dtypes import uint32

if TYPE_CHECKING:
    from weft.backends.protocol import Memory
    from weft.ir.graph import Node


def _references(values: dict[Any, Storage], node: Any) -> tuple[int, int]:
    storage = values[node]
    return getrefcount(storage), getrefcount(storage.memory)


class _Probe:
    nbytes = 0


def _alone() -> tuple[int, int]:
    """The references to a value that nobody else has: the interpreter's own differ by version."""
    device: Any = None
    probe: Any = _Probe()
    values: dict[Any, Storage] = {None: Storage(device, probe, uint32, ())}
    del probe
    return _references(values, None)


_ALONE = _alone()


def own_memory(values: dict[Node, Storage], node: Node) -> Memory:
    """The memory of a kept value, to be written over: a copy where the caller has the value, too."""
    if values[node].nbytes == 0 or is_alone(values, node):
        return values[node].memory
    return copied(values[node]).memory


def copied(storage: Storage, place: Memory | None = None) -> Storage:
    """The same elements in other memory: `place`, or new."""
    device, nbytes = storage.device, storage.nbytes
    fresh = device.allocate(nbytes) if place is None else place
    if not device.copy_from(fresh, device, storage.memory, nbytes):
        device.write(fresh, device.read(storage.memory, nbytes))
    return Storage(device, fresh, storage.dtype, storage.shape)


def is_alone(values: dict[Node, Storage], node: Node) -> bool:
    """True where nobody but the session has a kept value. Who asks must not have it in a variable."""
    storages, memories = _references(values, node)
    return storages <= _ALONE[0] and memories <= _ALONE[1]
