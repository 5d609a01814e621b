"""Device memory that is kept for the next request of its size."""

from __future__ import annotations

import threading
from typing import Any

from .driver import wgpu

SMALL = 1 << 20
"""Up to here sizes are rounded to 256 bytes, beyond to 1 MiB."""


class MemoryBlock:
    """`nbytes` bytes as a buffer. A freed block has none, so that every use of it fails."""

    __slots__ = ("__weakref__", "_pool", "_size", "buffer", "nbytes")

    def __init__(self, pool: Pool, buffer: Any, nbytes: int, size: int) -> None:
        self._pool, self.buffer, self.nbytes, self._size = pool, buffer, nbytes, size

    def free(self) -> None:
        """Give the bytes back now. ValueError when they were given back before."""
        if not hasattr(self, "buffer"):
            raise ValueError(f"WebGPU memory of {self.nbytes} bytes is freed twice")
        buffer = self.buffer
        del self.buffer
        self._pool.release(buffer, self._size)

    def __del__(self) -> None:
        if hasattr(self, "buffer"):
            self._pool.release(self.buffer, self._size)

    def __repr__(self) -> str:
        return f"MemoryBlock({self.nbytes} bytes{'' if hasattr(self, 'buffer') else ', freed'})"


class Pool:
    """The memory of one device. Its queue is in order, so a block may be used again at once."""

    def __init__(self, handle: Any, memory_bytes: int, largest: int) -> None:
        self._handle, self._memory_bytes, self._largest = handle, memory_bytes, largest
        self._free: dict[int, list[Any]] = {}
        # A dying block may be collected together with its buffer, which would then be given back: all are held here.
        self._alive: dict[int, Any] = {}
        self._lock = threading.RLock()
        self.used = 0
        self.limit: int | None = None

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Uninitialized memory. MemoryError when there is none."""
        step = 256 if nbytes <= SMALL else 1 << 20
        size = max(step, -(-nbytes // step) * step)
        if nbytes > self._largest:
            raise MemoryError(f"the device binds at most {self._largest:,} bytes at once, not {nbytes:,}")
        size = min(size, max(self._largest, 256))
        with self._lock:
            most = self._memory_bytes if self.limit is None else min(self._memory_bytes, self.limit)
            if self.used + size > most:
                raise MemoryError(
                    f"{nbytes:,} bytes are too many: {self.used:,} of {most:,} are in use by tensors"
                )
            found = self._free.get(size)
            buffer = found.pop() if found else self._fresh(size)
            self._alive[id(buffer)] = buffer
            self.used += size
        return MemoryBlock(self, buffer, nbytes, size)

    def _fresh(self, size: int) -> Any:
        usage = wgpu().BufferUsage
        try:
            return self._handle.create_buffer(
                size=size, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
            )
        except wgpu().GPUError:
            self._trim()
        try:
            return self._handle.create_buffer(
                size=size, usage=usage.STORAGE | usage.COPY_SRC | usage.COPY_DST
            )
        except wgpu().GPUError as error:
            raise MemoryError(f"the device has no {size:,} bytes left: {error}") from error

    def _trim(self) -> None:
        """Give all kept buffers back to the driver."""
        for buffers in self._free.values():
            for buffer in buffers:
                del self._alive[id(buffer)]
        self._free.clear()

    def release(self, buffer: Any, size: int) -> None:
        """Keep a buffer for the next request of its size."""
        with self._lock:
            self.used -= size
            self._free.setdefault(size, []).append(buffer)
