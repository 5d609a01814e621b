"""The worker threads behind `weft_parallel`: threads that each make one call into the native worker loop.

ctypes drops the interpreter lock for that call, so workers never compete for it. Kernels reach the pool natively;
Python only starts, stops and counts the threads.
"""
# Tests: tests/backends/cpu/test_runtime.py

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from collections.abc import Sequence

from weft.backends.native_threads import NativeThread
from weft.lazy_dataclass import dataclass

from .native import MAX_PROCESSORS, MAX_THREADS

_SPIN_NS = 30_000
"""Time that an idle worker spins before it sleeps: longer than the gap between two kernels of a plan, and
short enough that a core is not kept from somebody else."""

_OVERSUBSCRIBED_SPIN_NS = 1_000
"""With more threads than cores a spinning thread only keeps another one from working."""

_MAX_STEERED = 16
"""Larger pools are not kept off their caller's processor: that would be a system call per worker when it moves."""

_RETRY_SECONDS = 100e-6
_SHUTDOWN_SECONDS = 1.0
_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class PoolFunctions:
    """Addresses of the native pool's entries (see native.py), and what owns the code behind them."""

    worker: int
    resize: int
    reset: int
    code: object


class Pool:
    """The process' worker threads. The caller of a parallel loop is one of `threads`, so `threads - 1` are workers.

    There is one per loaded runtime, because the native state it steers is one per runtime. All methods may be
    called from any thread; one that changes the count waits until the running job is done.
    """

    def __init__(self, functions: PoolFunctions, cores: int) -> None:
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_int32)(functions.worker)
        self._resize = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.c_int64, ctypes.c_char_p)(
            functions.resize
        )
        self._reset = ctypes.CFUNCTYPE(None, ctypes.c_int32)(functions.reset)
        # Workers are inside of it, and `guard` calls it when the process forks or ends.
        self._code = functions.code
        self._cores = cores
        self._lock = threading.Lock()
        self._workers: list[NativeThread] = []
        self._wanted = 1
        self.forked = False
        """True in a forked child until `revive`: the parent's workers do not exist here."""
        self._reset(0)

    @property
    def threads(self) -> int:
        """The number of threads that a parallel loop may use, its caller included."""
        return self._wanted

    @property
    def workers(self) -> tuple[NativeThread, ...]:
        """The threads beside the caller's."""
        return tuple(self._workers)

    def set_threads(self, count: int) -> None:
        """Grow or shrink the pool; `count` may exceed the cores. Raises ValueError outside 1..1023."""
        if not 1 <= count <= MAX_THREADS:
            raise ValueError(f"a thread count must be between 1 and {MAX_THREADS}, got {count}")
        with self._lock:
            while not self._apply(count):
                time.sleep(_RETRY_SECONDS)
            self._wanted = count

    def revive(self) -> None:
        """In a forked child: start this process' own workers."""
        with self._lock:
            if self.forked:
                self.forked = False
                while not self._apply(self._wanted):
                    time.sleep(_RETRY_SECONDS)

    def shutdown(self) -> None:
        """Stop all workers; parallel loops then run on their caller. Gives up, without harm, on a job that goes on."""
        give_up = time.monotonic() + _SHUTDOWN_SECONDS
        with self._lock:
            while not self._apply(1) and time.monotonic() < give_up:
                time.sleep(_RETRY_SECONDS)
            self._wanted = 1

    def after_fork_in_child(self) -> None:
        """Forget the parent's threads and whatever they were doing. Workers come back with `revive`."""
        self._lock = threading.Lock()
        self._workers = []
        self.forked = self._wanted > 1
        self._reset(int(self.forked))

    def _apply(self, count: int) -> bool:
        """Bring the native count and the threads to `count`; False while a job keeps the pool."""
        spin = _SPIN_NS if count <= self._cores else _OVERSUBSCRIBED_SPIN_NS
        processors = _processors()
        steer = count <= min(len(processors), _MAX_STEERED)
        if not self._resize(count, spin, _mask(processors) if steer else None):
            return False
        for thread in self._workers[count - 1 :]:
            thread.join(_JOIN_SECONDS)
        del self._workers[count - 1 :]
        for index in range(len(self._workers) + 1, count):
            self._workers.append(NativeThread(self._worker, index))
        if not steer:
            _place_anywhere(self._workers, processors)
        return True


def _processors() -> frozenset[int]:
    """The processors that this thread may run on; none where the system does not tell."""
    return frozenset(os.sched_getaffinity(0)) if sys.platform == "linux" else frozenset()


def _mask(processors: frozenset[int]) -> bytes | None:
    """The native form of a set of processors; None where it cannot express them."""
    if not processors or max(processors) >= MAX_PROCESSORS:
        return None
    return sum(1 << processor for processor in processors).to_bytes(MAX_PROCESSORS // 8, sys.byteorder)


def _place_anywhere(threads: Sequence[NativeThread], processors: frozenset[int]) -> None:
    """Undo earlier steering."""
    if sys.platform != "linux":
        return
    for thread in threads:
        # Refused where the process has been moved meanwhile: then the system has placed the thread.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(thread.native_id, processors)


def guard(pool: Pool) -> None:
    """Keep `pool` right across fork and interpreter exit."""
    import atexit

    atexit.register(pool.shutdown)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=pool.after_fork_in_child)
