"""Storage whose memory is there when it is first used: weights in a file that nothing may ever ask for."""
# Tests: tests/io/test_safetensors.py

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import numpy as np

from weft.backends.protocol import Borrower, Device, Memory
from weft.backends.storage import Storage
from weft.ir.dtypes import DType
from weft.lazy_dataclass import dataclass

_PIECE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class HostBytes:
    """Bytes in the host's memory. `read` gives them. `release` is told the begin and end of each piece of them that is
    not needed any more. `check`: raises where they are not as they were; None for bytes that are read once only."""

    read: Callable[[], memoryview]
    release: Callable[[int, int], object] | None = None
    check: Callable[[], object] | None = None


def rest(storage: Storage | None) -> None:
    """Let go of the pages of elements that were laid out anew: `DeferredStorage.rest`, where the storage is one."""
    if isinstance(storage, DeferredStorage):
        storage.rest()


class DeferredStorage(Storage):
    """Elements in the host's memory, as `source` has them, that the device gets on first use.

    Where they can be checked at each use, a device that reads the host's memory itself borrows them: mapped files take
    no second place. Else they are copied, and the source is let go.
    """

    __slots__ = ("_check", "_filled", "_lender", "_lock", "_source")

    def __init__(self, device: Device, dtype: DType, shape: tuple[int, ...], source: HostBytes) -> None:
        put = object.__setattr__  # the memory is none of the fields that are set
        put(self, "device", device)
        put(self, "dtype", dtype)
        put(self, "shape", shape)
        put(self, "_source", source)
        put(self, "_check", None)
        put(self, "_filled", None)
        put(self, "_lender", None)
        put(self, "_lock", threading.Lock())

    _source: HostBytes | None
    _check: Callable[[], object] | None
    _filled: Memory | None
    _lender: Memory | None
    """A second reference to what is borrowed: who counts owners finds the lender, too, and does not write there."""
    _lock: threading.Lock

    @property
    def is_filled(self) -> bool:
        """True once the device has the elements."""
        return self._filled is not None

    @property
    def is_borrowed(self) -> bool:
        """True where the device reads the elements where they are."""
        return self._lender is not None

    @property
    def memory(self) -> Memory:  # pyright: ignore[reportIncompatibleVariableOverride]  (there on first use)
        filled = self._filled
        if filled is None:
            with self._lock:
                return self._filled or self._fill()
        if self._check is not None:
            self._check()
        return filled

    def _fill(self) -> Memory:
        source, put = self._source, object.__setattr__
        assert source is not None
        borrowed = self._borrowed(source)
        if borrowed is not None:
            put(self, "_lender", borrowed)
            put(self, "_check", source.check)
            put(self, "_filled", borrowed)
            return borrowed
        memory = self.device.allocate(self.nbytes)
        if self.nbytes:
            self._copy(source, memory)
        put(self, "_source", None)
        put(self, "_filled", memory)
        return memory

    def _borrowed(self, source: HostBytes) -> Memory | None:
        """The bytes as they are; None where the device needs them elsewhere, or aligned to their size."""
        if source.check is None or not self.nbytes or not isinstance(self.device, Borrower):
            return None
        data = np.frombuffer(source.read(), np.uint8)
        return None if data.ctypes.data % self.dtype.itemsize else self.device.borrow(data)

    def _copy(self, source: HostBytes, memory: Memory) -> None:
        """Piece by piece, so that the bytes are not resident twice."""
        data = source.read().cast("B")
        for begin in range(0, self.nbytes, _PIECE_BYTES):
            end = min(begin + _PIECE_BYTES, self.nbytes)
            self.device.write(memory, data[begin:end], begin)
            if source.release is not None:
                source.release(begin, end)

    def rest(self) -> None:
        """The elements are not needed for now: what is borrowed takes no memory of this process until it is read."""
        source = self._source
        if source is not None and self._lender is not None and source.release is not None:
            source.release(0, self.nbytes)

    def __del__(self, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        if ends():  # modules may be gone
            return
        if hasattr(self, "_source"):
            self.rest()
