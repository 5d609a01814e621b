"""Memory of sessions: one limit for many, and one arena for what each keeps.

    with weft.memory_pool(6 << 30) as pool:
        encode, denoise, decode = (weft.session(f, x, pool=pool) for f, x in graphs)

Where the limit leaves no room for what the next session keeps, it is divided among them (`sharing.py`): each has bytes
of its own from then on. Where that would cost more than it saves, the one that ran longest ago loses all that it kept,
and computes it again at its next run. Weights are nobody's: sessions that use the same tensors read the same memory.
Scratch is the device's, which all plans share.
"""
# Tests: tests/sessions/test_keeper.py

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from weft.backends.protocol import Divider, Rounder
from weft.errors import ArgumentError, MemoryPlanError
from weft.ir.forks import forkable
from weft.scheduler.memory import ALIGNMENT
from weft.sessions.retention import aligned
from weft.sessions.sharing import Ladder, divided, needed

if TYPE_CHECKING:
    from weft.backends.protocol import Device, Memory

T = TypeVar("T")


class Member(Protocol):
    """Something that keeps values in a pool."""

    def release(self) -> None:
        """Let go of all that is kept."""
        ...

    def ladder(self, runs: int, turns: int) -> Ladder:
        """The choices of what to keep, for so many runs, of which some came after another's."""
        ...

    def keep_within(self, nbytes: int) -> None:
        """Let go of all that is kept, and keep within so many bytes from the next run on."""
        ...


class Turns:
    """A lock: one thread at a time does something with what sessions keep, and others wait. What a thread does within
    its own turn, as a handler of a signal would that comes in the middle of a run, is refused."""

    def __init__(self) -> None:
        self._lock = forkable(threading.RLock())
        self._thread = 0

    def take(self, do: Callable[[], T]) -> T:
        """The result of `do`, when it is this thread's turn. ArgumentError where it is already."""
        me = threading.get_ident()
        with self._lock:  # which lets in who has it: an interrupt may have come before or after its turn
            if self._thread == me:
                raise ArgumentError(
                    "session: is called within a run of its own, or of another one of its pool"
                )
            self._thread = me
            try:
                return do()
            finally:
                self._thread = 0


class MemoryPool:
    """A limit in bytes for what sessions keep, their results, and the scratch of their runs; see the module."""

    def __init__(self, nbytes: int) -> None:
        if nbytes <= 0:
            raise ArgumentError(f"memory_pool: a pool of {nbytes} bytes has room for nothing")
        self.nbytes = nbytes
        self.turns = Turns()
        """One session of the pool runs at a time."""
        self._members: dict[weakref.ref[Member], tuple[int, int]] = {}
        self._runs: dict[weakref.ref[Member], tuple[int, int]] = {}
        """The runs of members, and those after another's."""
        self._last: weakref.ref[Member] | None = None
        self._divided_for: frozenset[weakref.ref[Member]] = frozenset()
        """The members among which the limit is divided, or was found better not to be."""

    def __enter__(self) -> MemoryPool:
        return self

    def __exit__(self, *_: object) -> None:
        """Let all sessions of the pool release what they keep. They may be used on, and begin anew."""
        self.turns.take(self._release_all)

    def __repr__(self) -> str:
        return f"<weft.memory_pool of {self.nbytes:,} bytes, {self.used_bytes():,} used>"

    def used_bytes(self) -> int:
        """Bytes of what is kept, and of the most scratch that a run of it takes."""
        return self._kept() + self._scratch(0)

    def enter(self, member: Member, kept: int, scratch: int) -> bool:
        """Have room for what a member keeps and the scratch of its runs: others release what they keep, the one first
        that ran longest ago. False where it has to choose anew what to keep, since the limit is divided from now on.
        MemoryPlanError where there is not so much in all."""
        if kept + scratch > self.nbytes:
            raise MemoryPlanError(f"a session takes {kept + scratch:,} bytes of a pool of {self.nbytes:,}")
        me = weakref.ref(member, self._gone)
        runs, turns = self._runs.get(me, (0, 0))
        self._runs[me] = runs + 1, turns + (self._last != me)
        self._last = me
        self._members.pop(me, None)
        if self._kept() + kept + self._scratch(scratch) > self.nbytes and self._divide():
            return False
        while self._members and self._kept() + kept + self._scratch(scratch) > self.nbytes:
            self._release(next(iter(self._members)))
        self._members[me] = kept, scratch
        return True

    def _divide(self) -> bool:
        """Divide the limit among all members that ever ran, where it is not and that saves time."""
        running = {r: m for r in self._runs if (m := r()) is not None}
        now = frozenset(running)
        seen = sum(turns for _, turns in self._runs.values())
        if now == self._divided_for or len(now) < 2 or seen <= len(now):  # nobody came back yet
            return False
        self._divided_for = now
        ladders = [m.ladder(*self._runs[r]) for r, m in running.items()]
        found = divided(ladders, self.nbytes)
        if found is None:
            return False
        left = self.nbytes - needed(found)
        for m, r in zip(running.values(), found, strict=True):
            m.keep_within(r.kept + r.scratch + left // len(found))
        self._members.clear()
        return True

    def leave(self, member: Member) -> None:
        """Have a member keep nothing any more."""
        self._members.pop(weakref.ref(member), None)

    def _kept(self) -> int:
        return sum(kept for kept, _ in list(self._members.values()))  # a session may die meanwhile

    def _scratch(self, least: int) -> int:
        return max([least, *(scratch for _, scratch in list(self._members.values()))])

    def _release_all(self) -> None:
        for member in list(self._members):
            self._release(member)

    def _release(self, member: weakref.ref[Member]) -> None:
        self._members.pop(member, None)
        found = member()
        if found is not None:
            found.release()

    def _gone(self, member: weakref.ref[Member]) -> None:
        self._members.pop(member, None)
        self._runs.pop(member, None)


class Arena:
    """Memory with values at fixed offsets; where a device cannot divide memories, one for each value."""

    def __init__(self, device: Device, places: Sequence[tuple[int, int]], nbytes: int) -> None:
        self._device, self._places, self._nbytes = device, tuple(places), nbytes
        self._memories: tuple[Memory, ...] | None = None
        self._whole: Memory | None = None

    @staticmethod
    def packed(device: Device, sizes: Sequence[int]) -> Arena:
        """An arena of values of these sizes, one after the other."""
        places, at = list[tuple[int, int]](), 0
        for size in sizes:
            places.append((at, size))
            at += aligned(size)
        return Arena(device, places, at)

    @property
    def nbytes(self) -> int:
        """The bytes that the arena takes of the device's pool."""
        if isinstance(self._device, Divider):
            return rounded(self._device, self._nbytes)
        return sum(size for _, size in self._places)

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memory of each value, allocated when it is first asked for. MemoryError where there is none."""
        if self._memories is None:
            device = self._device
            if isinstance(device, Divider):
                self._memories = tuple([self.part(at, size) for at, size in self._places])
            else:
                self._memories = tuple([device.allocate(size) for _, size in self._places])
        return self._memories

    def part(self, offset: int, nbytes: int) -> Memory:
        """Bytes of the arena, of a device that divides memories."""
        device = self._device
        assert isinstance(device, Divider)
        if self._whole is None:
            self._whole = device.allocate(self._nbytes)
        return device.part(self._whole, offset, nbytes)

    def release(self) -> None:
        """Give the memory back, once nobody uses it."""
        self._memories = self._whole = None


def most_within(device: Device, nbytes: int) -> int:
    """The largest memory that takes no more than so many bytes of the device's pool."""
    low, high = 0, max(nbytes, 0)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if rounded(device, middle) <= nbytes else (low, middle - 1)
    return low // ALIGNMENT * ALIGNMENT


def rounded(device: Device, nbytes: int) -> int:
    """The bytes that a memory of so many takes of the device's pool."""
    return device.rounded_bytes(nbytes) if isinstance(device, Rounder) and nbytes else nbytes
