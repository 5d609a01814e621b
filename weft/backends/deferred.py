"""Storage whose memory is filled when it is first used: weights in a file that nothing may ever ask for."""
# Tests: tests/io/test_safetensors.py

from __future__ import annotations

import threading
from collections.abc import Callable

from weft.backends.protocol import Device, Memory
from weft.backends.storage import Storage
from weft.ir.dtypes import DType

_PIECE_BYTES = 1 << 24


class DeferredStorage(Storage):
    """Elements that `source` gives as bytes of host memory, copied to the device on first use; then it is let go.
    `copied` is called with the begin and end of each piece of the bytes when it has been copied."""

    __slots__ = ("_copied", "_filled", "_lock", "_source")

    def __init__(
        self,
        device: Device,
        dtype: DType,
        shape: tuple[int, ...],
        source: Callable[[], memoryview],
        copied: Callable[[int, int], object] | None = None,
    ) -> None:
        put = object.__setattr__  # the fields of a frozen dataclass
        put(self, "device", device)
        put(self, "dtype", dtype)
        put(self, "shape", shape)
        put(self, "_source", source)
        put(self, "_copied", copied)
        put(self, "_filled", None)
        put(self, "_lock", threading.Lock())

    _source: Callable[[], memoryview] | None
    _copied: Callable[[int, int], object] | None
    _filled: Memory | None
    _lock: threading.Lock

    @property
    def is_filled(self) -> bool:
        """True once the elements are in the device's memory."""
        return self._filled is not None

    @property
    def memory(self) -> Memory:  # pyright: ignore[reportIncompatibleVariableOverride]  (computed on first use)
        with self._lock:
            if self._filled is None:
                assert self._source is not None
                memory = self.device.allocate(self.nbytes)
                if self.nbytes:
                    self._copy(self._source(), memory)
                object.__setattr__(self, "_filled", memory)
                object.__setattr__(self, "_source", None)
                object.__setattr__(self, "_copied", None)
            return self._filled  # pyright: ignore[reportReturnType]

    def _copy(self, data: memoryview, memory: Memory) -> None:
        """Piece by piece, so that the bytes are not resident twice."""
        data = data.cast("B")
        for begin in range(0, self.nbytes, _PIECE_BYTES):
            end = min(begin + _PIECE_BYTES, self.nbytes)
            self.device.write(memory, data[begin:end], begin)
            if self._copied is not None:
                self._copied(begin, end)
