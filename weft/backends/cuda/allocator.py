"""Device memory that is kept for the next request of its size: a driver's allocation waits for the whole device."""

from __future__ import annotations

import threading
from dataclasses import field

from weft.lazy_dataclass import dataclass

from .driver import OUT_OF_MEMORY, CudaError, Driver

SMALL = 1 << 20
"""Up to here sizes are rounded to 512 bytes, beyond to 2 MiB."""


def rounded(nbytes: int) -> int:
    """The size of the block that a request gets."""
    step = 512 if nbytes <= SMALL else 2 << 20
    return max(step, -(-nbytes // step) * step)


class MemoryBlock:
    """`nbytes` bytes of device memory at `address`; it goes back to the allocator when this object dies or is freed.
    A freed block has no address, so that every use of it fails."""

    __slots__ = ("_allocator", "_size", "address", "nbytes")

    def __init__(self, allocator: Allocator, address: int, nbytes: int) -> None:
        self._allocator, self.address, self.nbytes = allocator, address, nbytes
        self._size = rounded(nbytes)

    def __del__(self) -> None:
        try:
            self._allocator.release(self.address, self._size)
        except AttributeError:  # freed
            return

    def free(self) -> None:
        """Give the bytes back now. ValueError when they were given back before."""
        try:
            address = self.address
            del self.address
        except AttributeError:
            raise ValueError(f"memory of {self.nbytes} bytes is freed twice") from None
        self._allocator.release(address, self._size)


@dataclass(slots=True)
class Allocator:
    """Free blocks by size. All work is on one stream, so a block may be reused at once: the next user comes later.

    The collection of garbage may release blocks in the middle of any of these methods, so the lock may be taken twice.
    """

    driver: Driver
    free: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    used_bytes: int = 0
    kept_bytes: int = 0
    limit_bytes: int | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    def allocate(self, nbytes: int) -> MemoryBlock:
        """Uninitialized memory. MemoryError when there is none, even after giving back what was kept."""
        size = rounded(nbytes)
        with self.lock:
            if self.limit_bytes is not None and self.used_bytes + size > self.limit_bytes:
                raise MemoryError(
                    f"{size:,} bytes would exceed the limit of {self.limit_bytes:,}; {self.used_bytes:,} are in use"
                )
            found = self.free.get(size)
            if found:
                address = found.pop()
                self.kept_bytes -= size
            else:
                address = self._fresh(size)
            self.used_bytes += size
        return MemoryBlock(self, address, nbytes)

    def _fresh(self, size: int) -> int:
        try:
            return int(self.driver.call("cuMemAlloc", size))
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
        self._give_back()
        try:
            return int(self.driver.call("cuMemAlloc", size))
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            raise MemoryError(
                f"the GPU has no {size:,} bytes left; {self.used_bytes:,} are in use by tensors"
            ) from None

    def _give_back(self) -> None:
        kept, self.free = self.free, {}
        for size, addresses in kept.items():
            self.kept_bytes -= size * len(addresses)
            for address in addresses:
                self.driver.call("cuMemFree", address)

    def release(self, address: int, size: int) -> None:
        """Keep a block for the next request of its size."""
        with self.lock:
            self.free.setdefault(size, []).append(address)
            self.used_bytes -= size
            self.kept_bytes += size

    def trim(self) -> None:
        """Give all kept blocks back to the driver."""
        with self.lock:
            self._give_back()
