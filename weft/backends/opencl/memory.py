"""Device memory that is kept for the next request of its size.

Where the device is the processor, its buffers are blocks of the cpu backend's pool: recycled, on huge pages, and read
by the host in place. Else they are the driver's.
"""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from weft.backends.cpu import allocator as host

from .driver import failed, pyopencl

SMALL = 1 << 20
"""Up to here sizes of the driver's buffers are rounded to 512 bytes, beyond to 2 MiB."""


class MemoryBlock:
    """`nbytes` bytes as an OpenCL buffer, and as the host's block under it where it is the host's memory. A freed block
    has no buffer, so that every use of it fails."""

    __slots__ = ("__weakref__", "_pool", "buffer", "host", "nbytes")

    def __init__(self, pool: Pool, buffer: Any, nbytes: int, block: host.MemoryBlock | None) -> None:
        self._pool, self.buffer, self.nbytes, self.host = pool, buffer, nbytes, block

    def free(self) -> None:
        """Give the bytes back now. ValueError when they were given back before."""
        if not hasattr(self, "buffer"):
            raise ValueError(f"OpenCL memory of {self.nbytes} bytes is freed twice")
        buffer = self.buffer
        del self.buffer
        if self.host is not None:
            self.host.release()
        else:
            self._pool.release(buffer)

    def __del__(self) -> None:
        if hasattr(self, "buffer") and self.host is None:
            self._pool.release(self.buffer)

    def __repr__(self) -> str:
        return f"MemoryBlock({self.nbytes} bytes{'' if hasattr(self, 'buffer') else ', freed'})"


class Pool:
    """The memory of one device, of which at most `memory_bytes` are in use."""

    def __init__(self, context: Any, on_host: bool, memory_bytes: int, largest: int) -> None:
        self._context, self._memory_bytes, self._largest = context, memory_bytes, largest
        self._host = host.Allocator(idle_limit=memory_bytes // 4) if on_host else None
        self._free: dict[int, list[Any]] = {}
        self._lock = threading.RLock()
        self._used = 0
        self._limit: int | None = None

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Uninitialized memory. MemoryError when there is none."""
        if nbytes > self._largest:
            raise MemoryError(f"the device has no buffers of {nbytes:,} bytes, only up to {self._largest:,}")
        if self._host is not None:
            block = self._host.allocate(nbytes)
            return MemoryBlock(self, self._wrap(block.address, max(64, nbytes)), nbytes, block)
        return self._from_driver(nbytes)

    def _wrap(self, address: int, nbytes: int) -> Any:
        cl = pyopencl()
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.USE_HOST_PTR
        return cl.Buffer(self._context, flags, hostbuf=(ctypes.c_char * nbytes).from_address(address))

    def _from_driver(self, nbytes: int) -> MemoryBlock:
        cl = pyopencl()
        step = 512 if nbytes <= SMALL else 2 << 20
        size = max(step, -(-nbytes // step) * step)
        with self._lock:
            most = self._memory_bytes if self._limit is None else min(self._memory_bytes, self._limit)
            if self._used + size > most:
                raise MemoryError(f"{nbytes:,} bytes are too many: {self._used:,} are in use by tensors")
            found = self._free.get(size)
            try:
                buffer = found.pop() if found else cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
            except cl.MemoryError as error:
                self._free.clear()
                try:
                    buffer = cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size)
                except cl.MemoryError:
                    raise MemoryError(f"the device has no {nbytes:,} bytes left: {error}") from error
            except cl.Error as error:
                raise failed("allocate memory", error) from error
            self._used += size
            return MemoryBlock(self, buffer, nbytes, None)

    def release(self, buffer: Any) -> None:
        """Keep a buffer of the driver's for the next request of its size."""
        with self._lock:
            self._used -= buffer.size
            self._free.setdefault(buffer.size, []).append(buffer)

    def used_bytes(self) -> int:
        """Bytes in living blocks."""
        return self._used if self._host is None else self._host.use().live

    def set_limit(self, nbytes: int | None) -> None:
        """Refuse what would bring the bytes in use above `nbytes`."""
        self._limit = nbytes
        if self._host is not None:
            self._host.set_limit(nbytes)
