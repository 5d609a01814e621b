"""Reading ahead: a thread has the system bring in one part of a file while the caller computes from another."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Self

from weft.backends.disk.file import MappedFile

_CHUNK = 1 << 18  # what is read at once: it stays in the second cache
SMALL = 1 << 20  # bytes that are sooner asked for than handed to a thread


class ReadAhead:
    """Reads what it is asked for into the system's cache, in order, by a thread of its own; what it does not get to
    before the block ends is left.

    The advice MADV_WILLNEED alone is worse: on it Linux reads into small pages, which are dear to map, too.
    """

    __slots__ = ("_ended", "_pool")

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._ended = False

    def want(self, file: MappedFile, begin: int, end: int) -> None:
        """These bytes will be needed soon."""
        if end - begin < SMALL or not hasattr(os, "preadv"):
            file.will_need(begin, end)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "weft-read-ahead")
        self._pool.submit(self._read, file, begin, end)

    def _read(self, file: MappedFile, begin: int, end: int) -> None:
        room = bytearray(_CHUNK)
        for at in range(begin, end, _CHUNK):
            if self._ended:
                return
            if not file.is_cached(at):
                file.read_into(room, at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._ended = True
        if self._pool is not None:
            self._pool.shutdown()
