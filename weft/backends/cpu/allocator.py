"""Recycled, aligned memory blocks.

A fresh page costs a fault (3 GB/s measured for first touches), so blocks are kept when they die and given out again.
Three kinds by size:

    up to 64 KiB       64-byte aligned, carved from 2 MiB slabs, kept for ever
    above              page aligned, carved from regions of 32 MiB that are advised to use huge pages
    from 2 MiB         an anonymous mapping each, 2 MiB aligned and advised to use huge pages, but for a tail that
                       fills too little of one: what is left of a huge page that is touched is memory that nobody uses

Where a system has no huge pages to ask for, those in between have a mapping each, too.

Sizes are rounded up to size classes with eight steps per doubling (at most 12.5 % more). What idles beyond `idle_limit`
bytes goes back to the system, what idles longest first: mappings wholly, of regions the pages, whose addresses are kept
for the next block of that size.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from weft.ir.forks import awaited
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import numpy.typing as npt

ALIGNMENT = 64
SMALL_BYTES = 64 << 10
HUGE_BYTES = 2 << 20
_SLAB_BYTES = 2 << 20
_REGION_BYTES = 32 << 20
_MAX_SLACK = 1 / 32
"""The part of a block, at most, by which its last huge page may be longer than the block."""
_REGIONS = hasattr(mmap, "MADV_HUGEPAGE") and hasattr(mmap, "MADV_DONTNEED")
_PAGE = mmap.PAGESIZE


class OutOfMemoryError(MemoryError):
    """The system or the byte limit refused a block. Carries the numbers, in bytes."""

    def __init__(self, reason: str, requested: int, live: int, idle: int, limit: int | None) -> None:
        bound = "no limit set" if limit is None else f"limit {_readable(limit)}"
        super().__init__(
            f"{reason}: {_readable(requested)} requested with {_readable(live)} live and "
            f"{_readable(idle)} idle ({bound})"
        )
        self.requested = requested
        self.live = live
        self.idle = idle
        self.limit = limit


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes by state, in whole size classes: in living blocks, their peak (with idle small ones), waiting to be reused,
    and mapped in all."""

    live: int
    peak: int
    idle: int
    mapped: int


class MemoryBlock:
    """`nbytes` bytes at `address`, of `size` that are its own; they return to the allocator when this object dies or
    is released. A released block has no address, so that every use of it fails."""

    __slots__ = ("__weakref__", "address", "give_back", "nbytes", "size")

    def __init__(self, give_back: Callable[[int], None], address: int, nbytes: int, size: int) -> None:
        self.give_back = give_back  # may be called from any thread and at any point of the program
        self.size = size
        self.address = address
        self.nbytes = nbytes

    def __del__(self) -> None:
        try:
            self.give_back(self.address)
        except AttributeError:  # released
            return

    def release(self) -> None:
        """Give the bytes back now. ValueError when they were released before."""
        try:
            address = self.address
            del self.address
        except AttributeError:
            raise ValueError(f"a block of {self.nbytes} bytes is released twice") from None
        self.give_back(address)

    def __repr__(self) -> str:
        where = f"at {self.address:#x}" if hasattr(self, "address") else "released"
        return f"MemoryBlock({self.nbytes} bytes {where})"


class Borrowed(MemoryBlock):
    """Bytes of somebody else, to be read: `owner` keeps them alive."""

    __slots__ = ("owner",)

    def __init__(self, address: int, nbytes: int, owner: object) -> None:
        super().__init__(_nothing, address, nbytes, nbytes)
        self.owner = owner


class Portion(Borrowed):
    """Bytes of a block, to be read and written: `owner` is the block."""

    __slots__ = ()


def _nothing(address: int) -> None:
    """Borrowed bytes are given back by letting go of their owner."""


_new = object.__new__


class _Idle(deque[int]):
    """Addresses of idle small blocks of one size class. A living block holds it, and so the allocator's memory."""

    def __init__(self, allocator: Allocator) -> None:
        super().__init__()
        self.allocator = allocator


class _Region:
    """Memory that blocks are carved from, in huge pages where the system has them: reading them in order is faster by a
    fifth than in small ones, and a first touch is for many blocks."""

    def __init__(self) -> None:
        self._mapping = _anonymous(_REGION_BYTES + HUGE_BYTES - _PAGE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._mapping))
        _advise_pages(self._mapping, 0, len(self._mapping), huge=True)
        self._next = (self._start + HUGE_BYTES - 1) & -HUGE_BYTES
        self._end = self._next + _REGION_BYTES

    @property
    def left(self) -> int:
        """The bytes that are not carved yet."""
        return self._end - self._next

    def carve(self, size: int) -> int:
        """The address of the next block."""
        address = self._next
        self._next += size
        return address

    def strip(self, address: int, size: int) -> None:
        """Give the pages of a block back; its address stays good, and is zero when it is next touched."""
        self._mapping.madvise(mmap.MADV_DONTNEED, address - self._start, size)


class Allocator:
    """Gives out blocks; see the module. All methods may be called from any thread.

    Idle small blocks stand in one deque per size class, which needs no lock: that is most of what giving one out costs.
    The byte limit counts them as live, since they are kept for ever.
    """

    def __init__(self, *, idle_limit: int = 1 << 30, limit: int | None = None) -> None:
        self._idle_limit = idle_limit
        self._limit = limit
        self._lock = awaited(threading.Lock())
        # Dead large blocks queue here, because a finalizer may run anywhere, also while this thread holds the lock.
        self._dead: deque[tuple[int, int]] = deque()
        self._idle_small = {size: _Idle(self) for size in _SMALL_SIZES}
        # By the request in units of 64 bytes: how an idle block is taken and given back, and its size.
        self._small = [
            (free.pop, free.append, size) for size in _SMALL_SIZES for free in (self._idle_small[size],)
        ]
        self._large: dict[int, list[tuple[int, int]]] = {}
        self._mappings: dict[int, mmap.mmap] = {}
        self._slabs: list[mmap.mmap] = []
        self._slab_next = 0
        self._slab_end = 0
        self._region: _Region | None = None
        self._regions: dict[int, _Region] = {}  # of each carved block
        self._bare: dict[int, list[int]] = {}  # carved blocks without pages, by size
        self._clock = 0
        self._live = 0
        self._peak = 0
        self._idle = 0
        self._mapped = 0

    def allocate(self, nbytes: int) -> MemoryBlock:
        """A block of at least `nbytes` bytes, contents arbitrary. Raises OutOfMemoryError, ValueError if negative."""
        if 0 <= nbytes <= SMALL_BYTES:
            take, give_back, size = self._small[(nbytes + 63) >> 6]
            try:
                address = take()
            except IndexError:
                with self._lock:
                    self._check_limit(size, nbytes)
                    address = self._carve(size, nbytes)
                    self._count(size)
            block = _new(MemoryBlock)  # its constructor would take twice as long, in every call
            block.give_back = give_back
            block.size = size
            block.address = address
            block.nbytes = nbytes
            return block
        size = size_class(nbytes)
        with self._lock:
            if self._dead:
                self._collect()
            self._check_limit(size, nbytes)
            address = self._take(size, nbytes)
            self._count(size)
        return MemoryBlock(partial(self._large_died, size), address, nbytes, size)

    def _check_limit(self, size: int, nbytes: int) -> None:
        if self._limit is not None and self._live + size > self._limit:
            raise self._refusal("out of memory", nbytes)

    def _count(self, size: int) -> None:
        self._live += size
        if self._live > self._peak:
            self._peak = self._live

    def _large_died(self, size: int, address: int) -> None:
        self._dead.append((address, size))
        self._collect_now()

    def use(self) -> MemoryUse:
        """The memory in use now."""
        with self._lock:
            self._collect()
            return MemoryUse(self._live - self.idle_small(), self._peak, self._idle, self._mapped)

    def idle_small(self) -> int:
        """The bytes of idle small blocks, which are kept for ever and count as live against the limit."""
        return sum(size * len(free) for size, free in self._idle_small.items())

    def reset_peak(self) -> None:
        """Let the peak start again from what is live now."""
        with self._lock:
            self._collect()
            self._peak = self._live

    def set_limit(self, limit: int | None) -> None:
        """Bound live plus idle bytes; None for no bound. Blocks that live already stay."""
        with self._lock:
            self._limit = limit
            self._collect()
            if limit is not None:
                self._trim(limit - self._live)

    def trim(self) -> None:
        """Give every idle mapping back to the system."""
        with self._lock:
            self._collect()
            self._trim(0)

    def _collect_now(self) -> None:
        """Collect unless somebody holds the lock; they, or the next call, will."""
        while self._dead and self._lock.acquire(blocking=False):
            try:
                self._collect()
            finally:
                self._lock.release()

    def _collect(self) -> None:
        """Turn dead blocks into idle ones, and trim these to the idle limit."""
        dead = self._dead
        while dead:
            address, size = dead.popleft()
            self._clock += 1
            self._large.setdefault(size, []).append((address, self._clock))
            self._live -= size
            self._idle += size
        if self._idle > self._idle_limit:
            self._trim(self._idle_limit)

    def _take(self, size: int, nbytes: int) -> int:
        """An idle mapping of that class, else a new one."""
        free = self._large.get(size)
        if free:
            self._idle -= size
            return free.pop()[0]
        if self._limit is not None:
            self._trim(self._limit - self._live - size)
        address = self._carve_region(size) if _REGIONS and size < HUGE_BYTES else None
        if address is None:
            address, mapping = self._map(size, nbytes)
            self._mappings[address] = mapping
        return address

    def _carve_region(self, size: int) -> int | None:
        """A block without pages, of a region; None where the system has no room for another region."""
        bare = self._bare.get(size)
        if bare:
            self._mapped += size
            return bare.pop()
        if self._region is None or self._region.left < size:
            try:
                self._region = _Region()
            except (OSError, ValueError):
                return None
        address = self._region.carve(size)
        self._regions[address] = self._region
        self._mapped += size
        return address

    def _carve(self, size: int, nbytes: int) -> int:
        """A new small block from the current slab. What is left of a slab that is too short is lost: < 64 KiB."""
        if self._slab_next + size > self._slab_end:
            address, mapping = self._map(_SLAB_BYTES, nbytes)
            self._slabs.append(mapping)
            self._slab_next, self._slab_end = address, address + _SLAB_BYTES
        address = self._slab_next
        self._slab_next += size
        return address

    def _map(self, size: int, nbytes: int) -> tuple[int, mmap.mmap]:
        """A new mapping: its first suitably aligned address, and the object that holds it."""
        huge = size >= HUGE_BYTES
        length = size + HUGE_BYTES - _PAGE if huge else size
        try:
            mapping = _anonymous(length)
        except (OSError, ValueError, OverflowError):
            self._trim(0)
            try:
                mapping = _anonymous(length)
            except (OSError, ValueError, OverflowError):
                raise self._refusal("the system has no memory left", nbytes) from None
        start = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
        if huge:
            skipped = -start % HUGE_BYTES
            start += skipped
            whole = in_huge_pages(size)
            _advise_pages(mapping, skipped, whole, huge=True)
            if whole < size:
                _advise_pages(mapping, skipped + whole, size - whole, huge=False)
        self._mapped += size
        return start, mapping

    def _trim(self, keep: int) -> None:
        """Unmap idle mappings, longest idle first, until at most `keep` bytes idle."""
        while self._idle > max(0, keep):
            size = min(
                (size for size, free in self._large.items() if free), key=lambda size: self._large[size][0][1]
            )
            free = self._large[size]
            address, _ = free.pop(0)
            if not free:
                del self._large[size]
            region = self._regions.get(address)
            if region is None:
                self._mappings.pop(address).close()
            else:
                region.strip(address, size)
                self._bare.setdefault(size, []).append(address)
            self._idle -= size
            self._mapped -= size

    def _refusal(self, reason: str, nbytes: int) -> OutOfMemoryError:
        return OutOfMemoryError(reason, nbytes, self._live, self._idle, self._limit)


def as_numpy(
    block: MemoryBlock,
    dtype: npt.DTypeLike,
    shape: tuple[int, ...],
    *,
    offset: int = 0,
    writable: bool = True,
) -> npt.NDArray[Any]:
    """The block's bytes from `offset` on as a C-contiguous array, without a copy. The array keeps the block alive.

    Raises ValueError where the array would not fit.
    """
    import numpy as np

    kind = np.dtype(dtype)
    if offset < 0 or offset + math.prod(shape) * kind.itemsize > block.nbytes:
        raise ValueError(f"{kind}{list(shape)} at byte {offset} does not fit a block of {block.nbytes} bytes")
    # ctypes keeps every array type it ever made: whole size classes bound their number.
    memory: Any = (ctypes.c_ubyte * block.size).from_address(block.address)
    memory.block = block
    view = np.ndarray(shape, kind, memory, offset)
    if not writable:
        view.flags.writeable = False
    return view


def size_class(nbytes: int) -> int:
    """The block size for a request: the next multiple of an eighth of its power of two.

    >>> [size_class(n) for n in (0, 65, 1000, 1025, 70_000)]
    [64, 128, 1024, 1152, 73728]
    """
    if nbytes < 0:
        raise ValueError(f"a block cannot have {nbytes} bytes")
    step = max(ALIGNMENT, (1 << (nbytes - 1).bit_length()) >> 4)
    if nbytes > SMALL_BYTES:
        step = max(step, _PAGE)
    return max(step, -(-nbytes // step) * step)


_SMALL_SIZES = tuple(size_class(count * ALIGNMENT) for count in range(SMALL_BYTES // ALIGNMENT + 1))


def _anonymous(length: int) -> mmap.mmap:
    """Private zeroed memory, backed on first touch."""
    if hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return mmap.mmap(-1, length)


def in_huge_pages(size: int) -> int:
    """The bytes of a block, from its start on, that lie in huge pages.

    >>> [in_huge_pages(n << 20) >> 20 for n in (2, 3, 9, 99)]
    [2, 2, 8, 100]
    """
    slack = -size % HUGE_BYTES
    return size + slack if slack <= size * _MAX_SLACK else size - size % HUGE_BYTES


def _advise_pages(mapping: mmap.mmap, start: int, nbytes: int, *, huge: bool) -> None:
    """Ask for transparent huge pages, or for none, where the system has them; it may refuse, which costs speed only."""
    advice = getattr(mmap, "MADV_HUGEPAGE" if huge else "MADV_NOHUGEPAGE", None)
    if advice is None:
        return
    try:
        mapping.madvise(advice, start, min(nbytes, len(mapping) - start))
    except OSError:
        return


def _readable(nbytes: int) -> str:
    """12345678 -> "11.8 MiB"."""
    size = float(nbytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
