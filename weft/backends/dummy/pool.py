"""The memory pools of simulated devices: every memory has a number, and every use of it is checked."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from weft.backends.dummy.queues import DummyEvent, DummyQueue
from weft.backends.protocol import Memory

_GARBAGE = 0xFF
"""The byte of uninitialized memory: NaN in floats, -1 in integers; a result that depends on it shows."""

_NONE = np.zeros(0, np.uint8)


class DummyMemory:
    """Bytes of one simulated pool. `writer` and `readers`: which work of which queues used it last. `whole`: the memory
    that this is a part of."""

    __slots__ = ("__weakref__", "data", "nbytes", "number", "pool", "readers", "release", "whole", "writer")

    def __init__(
        self, pool: Pool, number: int, nbytes: int, of: tuple[DummyMemory, int] | None = None
    ) -> None:
        self.pool, self.number, self.nbytes = pool, number, nbytes
        self.whole = None if of is None else of[0]
        if of is not None:
            self.data = of[0].data[of[1] : of[1] + nbytes]
        else:
            self.data = _NONE if pool.empty else np.full(nbytes, _GARBAGE, np.uint8)
        self.writer: DummyEvent | None = None
        self.readers: dict[DummyQueue, DummyEvent] = {}
        self.release = weakref.finalize(self, pool.given_back, 0 if of else nbytes)

    def __repr__(self) -> str:
        return f"memory {self.number} of {self.pool.name} ({self.nbytes} bytes)"


class Pool:
    """Bytes that can be allocated, up to a limit. `empty`: they are counted, but there are none."""

    def __init__(self, name: str, limit_bytes: int, empty: bool = False) -> None:
        self.name, self.limit_bytes, self.empty = name, limit_bytes, empty
        self.used_bytes = self.peak_bytes = self.count = 0

    def allocate(self, nbytes: int) -> DummyMemory:
        """Memory filled with garbage. MemoryError where the pool is exhausted, ValueError for a negative size."""
        if nbytes < 0:
            raise ValueError(f"{self.name}: a memory cannot have {nbytes} bytes")
        if self.used_bytes + nbytes > self.limit_bytes:
            free = max(0, self.limit_bytes - self.used_bytes)
            raise MemoryError(f"{self.name} has {free} bytes free of {self.limit_bytes}, not {nbytes}")
        self.count += 1
        memory = DummyMemory(self, self.count, nbytes)
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)
        return memory

    def part(self, memory: Memory, offset: int, nbytes: int) -> DummyMemory:
        """Bytes of a memory as one of its own. ValueError when they are not inside it."""
        m = self.live(memory)
        if offset < 0 or nbytes < 0 or offset + nbytes > m.nbytes:
            raise ValueError(f"out of bounds: bytes {offset} to {offset + nbytes} of {m!r}")
        self.count += 1
        return DummyMemory(self, self.count, nbytes, (m, offset))

    def given_back(self, nbytes: int) -> None:
        """A memory has died, or was freed."""
        self.used_bytes -= nbytes

    def free(self, memory: Memory) -> None:
        """Give the bytes back. ValueError when they were given back before."""
        if isinstance(memory, DummyMemory) and memory.pool is self and not memory.release.alive:
            raise ValueError(f"double free: {memory!r} was freed before")
        self.live(memory).release()

    def live(self, memory: Memory) -> DummyMemory:
        """`memory`, which must be of this pool and not freed. ValueError otherwise."""
        if not isinstance(memory, DummyMemory):
            raise ValueError(f"{type(memory).__name__} is not memory of {self.name}")
        if memory.pool is not self:
            raise ValueError(f"{memory!r} is used on {self.name}")
        if not memory.release.alive or (memory.whole is not None and not memory.whole.release.alive):
            raise ValueError(f"use after free: {memory!r} was freed")
        return memory

    def view(
        self, memory: Memory, offset: int, nbytes: int, work: DummyEvent, writes: bool
    ) -> np.ndarray[Any, Any]:
        """The bytes that this work uses; none where the pool is empty. ValueError when they are not inside the memory,
        or when work of another queue that nothing orders before this has written them, or, for a write, read them."""
        m = self.live(memory)
        if offset < 0 or nbytes < 0 or offset + nbytes > m.nbytes:
            raise ValueError(f"out of bounds: bytes {offset} to {offset + nbytes} of {m!r}")
        self.check_order(m, work, writes)
        return m.data[offset : offset + nbytes]

    def check_order(self, m: DummyMemory, work: DummyEvent, writes: bool) -> None:
        """Note the use; refuse it where it races with another queue's."""
        queue, writer = work.queue, m.writer
        if writer is not None and not queue.comes_after(writer):
            raise ValueError(_race(m, queue, writes, writer.queue, "written"))
        if not writes:
            m.readers[queue] = work
            return
        for reader in m.readers.values():
            if not queue.comes_after(reader):
                raise ValueError(_race(m, queue, writes, reader.queue, "read"))
        m.writer, m.readers = work, {}


def _race(m: DummyMemory, queue: DummyQueue, writes: bool, other: DummyQueue, did: str) -> str:
    return (
        f"missing synchronization: {m!r} is {'written' if writes else 'read'} by {queue} after it was "
        f"{did} by {other}: record an event there and wait for it here"
    )
