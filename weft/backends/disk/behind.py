"""Write-behind: a thread writes one piece of a file while the caller computes the next."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import BinaryIO, Self

from weft.backends.disk.pages import start_writeback

SMALL = 1 << 20
"""Bytes that are sooner written than handed to a thread."""


class WriteBehind:
    """Gives what it is given to `file`, in order, by a thread of its own.

    `write` waits until the piece before has been written: at most one piece is kept beside the one that the caller
    makes. An error of the thread (no room, say) is raised in the caller, by its next `write`, `flush`, or at the end of
    the block; nothing is written after it.

    >>> with WriteBehind(file) as behind:
    ...     for piece in pieces:
    ...         behind.write(compute(piece))
    """

    __slots__ = ("_file", "_last", "_pool")

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._pool: ThreadPoolExecutor | None = None
        self._last: Future[None] | None = None

    def write(self, data: memoryview) -> None:
        """Write these bytes after all that came before. They must stay as they are, and are let go of when written."""
        self.flush()
        if len(data) < SMALL:
            self._file.write(data)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "weft-write-behind")
        self._last = self._pool.submit(self._put, data)

    def flush(self) -> None:
        """Wait for what was given; OSError where it could not be written."""
        last, self._last = self._last, None
        if last is not None:
            last.result()

    def _put(self, data: memoryview) -> None:
        begin = self._file.tell()
        self._file.write(data)
        start_writeback(self._file.fileno(), begin, len(data))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self.flush()
        finally:
            if self._pool is not None:
                self._pool.shutdown()
