"""The memory pool: blocks of host memory that know whether they were freed."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from weft.backends.protocol import Memory

ALIGNMENT = 64


class Block:
    """`nbytes` aligned bytes. They go back to the pool when this object dies, or by `release`."""

    def __init__(self, pool: Pool, nbytes: int) -> None:
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        self.nbytes = nbytes
        self.data: np.ndarray[Any, Any] = raw[start : start + nbytes]
        self.address = self.data.ctypes.data
        self.release = weakref.finalize(self, pool.give_back, nbytes)

    def __repr__(self) -> str:
        return f"Block({self.nbytes} bytes{'' if self.release.alive else ', freed'})"


class Pool:
    """Counts the bytes in use, and refuses what goes beyond the limit."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes, self.used_bytes = limit_bytes, 0

    def allocate(self, nbytes: int) -> Block:
        """A block. MemoryError beyond the limit."""
        if self.used_bytes + nbytes > self.limit_bytes:
            raise MemoryError(
                f"c:0 has {self.limit_bytes - self.used_bytes:,} bytes free of {self.limit_bytes:,}, not {nbytes:,}"
            )
        block = Block(self, nbytes)
        self.used_bytes += nbytes
        return block

    def give_back(self, nbytes: int) -> None:
        """A block has died, or was released."""
        self.used_bytes -= nbytes


def own(memory: Memory) -> Block:
    """`memory` as a living block of this backend. ValueError otherwise."""
    if not isinstance(memory, Block):
        raise ValueError(f"not memory of c:0: {memory!r}")
    if not memory.release.alive:
        raise ValueError(f"used after it was freed: {memory!r}")
    return memory
