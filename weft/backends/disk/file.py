"""A file mapped into this process, for reading."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from time import monotonic_ns
from typing import BinaryIO

from weft.backends.disk.pages import LARGE_PAGE
from weft.errors import FileError

_PAGE = mmap.ALLOCATIONGRANULARITY

_FRESH_NS = 1_000_000
"""The time for which a file that was found unchanged is taken to be so."""


_FLAGS = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0) | getattr(os, "O_CLOEXEC", 0)


def open_regular(path: Path) -> BinaryIO:
    """The file of that name, to read. FileError at once for a folder, a pipe or a device, which would have to be waited
    for; FileNotFoundError and PermissionError as `open`."""
    try:
        _check_regular(path, os.stat(path).st_mode)  # before it is opened: to open a device may do something
        file = open(path, "rb", opener=_opened)  # noqa: SIM115  (the caller's)
    except (FileNotFoundError, PermissionError, FileError):
        raise
    except (OSError, ValueError) as error:  # ValueError: names that no file can have
        raise FileError(f"{str(path)!r} cannot be read: {error}") from None
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)
    except FileError:
        file.close()
        raise
    return file


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | _FLAGS)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe" if stat.S_ISFIFO(mode) else "no regular file"
        raise FileError(f"{path} cannot be read: it is {what}")


class MappedFile:
    """The bytes of a file as they were when it was opened.

    The file may be deleted, or replaced by another of its name: the mapping keeps the old one alive. Written to in
    place or cut short it is not what it was any more, and `check` refuses it, before and after each use.

    What remains: a program that cuts a file while a kernel, or an array that `np.asarray` gave, reads the part that
    goes ends this process by SIGBUS: the system has no gentler answer for mapped files. `faulthandler.enable()` has
    Python print the line. Replacing a file (as weft does) or writing to a copy is always safe.
    """

    __slots__ = ("__weakref__", "_checked", "_descriptor", "_mapping", "_stamp", "path", "size")

    def __init__(self, file: BinaryIO) -> None:
        """The contents of an open file, which need not stay open. FileError where it cannot be mapped."""
        self.path = os.path.abspath(os.fspath(file.name))
        self._descriptor = os.dup(file.fileno())
        self._stamp = self._now()
        self._checked = 0
        self.size = self._stamp[0]
        try:
            self._mapping = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise FileError(f"{self.path} cannot be mapped into memory: {error}") from None

    def _now(self) -> tuple[int, int]:
        """The marks that change when somebody writes to the file: its size, and when it was last written to."""
        status = os.fstat(self._descriptor)
        return status.st_size, status.st_mtime_ns

    def check(self) -> None:
        """FileError unless the file is as it was when it was opened. A microsecond."""
        size, written = self._now()
        if (size, written) != self._stamp:
            what = f"has {size:,} bytes now" if size != self.size else "was written to"
            raise FileError(
                f"{self.path} has changed since it was opened with {self.size:,} bytes: it {what}; open it again, and "
                "replace files that are in use instead of writing into them (as save_safetensors does)"
            )

    def check_often(self) -> None:
        """As `check`, but once a millisecond: plans ask for each of hundreds of tensors in a file."""
        now = monotonic_ns()
        if now - self._checked > _FRESH_NS:
            self.check()
            self._checked = now

    def view(self, begin: int, end: int) -> memoryview:
        """The bytes from `begin` to before `end`, which stay mapped as long as somebody holds the view."""
        if not 0 <= begin <= end <= self.size:
            raise FileError(f"{self.path} has {self.size:,} bytes, not {end:,}: it is cut short")
        return memoryview(self._mapping)[begin:end]

    def in_large_pages(self, begin: int, end: int) -> None:
        """Have the system read and map these bytes by the two megabytes, where it can: all of them are going to be
        used. It is asked before they are; what it has in small pages by then stays there."""
        if end - begin >= LARGE_PAGE:
            self._advise("MADV_HUGEPAGE", begin, end)

    def will_need(self, begin: int, end: int) -> None:
        """Have the system read these bytes ahead, where it can be asked to."""
        self._advise("MADV_WILLNEED", begin, end)

    def is_cached(self, at: int) -> bool:
        """True where the byte is there without waiting for the medium; False where the system does not say."""
        try:
            return os.preadv(self._descriptor, [bytearray(1)], at, os.RWF_NOWAIT) > 0
        except (OSError, AttributeError):
            return False

    def read_into(self, room: bytearray, at: int) -> None:
        """Read what is there from `at` on, and so into the system's cache. An error is met when the bytes are used."""
        with contextlib.suppress(OSError):
            os.preadv(self._descriptor, [room], at)

    def release(self, begin: int, end: int) -> None:
        """These bytes are not needed for now: they take no memory of this process any more, and come back when used."""
        self._advise("MADV_DONTNEED", begin, end)

    def _advise(self, advice: str, begin: int, end: int) -> None:
        option, first = getattr(mmap, advice, None), begin // _PAGE * _PAGE
        if option is not None and end > first:
            try:
                self._mapping.madvise(option, first, min(end, self.size) - first)
            except OSError:
                return  # advice only

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_descriptor"):  # `close` outlives the module where the interpreter ends
            close(self._descriptor)

    def __repr__(self) -> str:
        return f"MappedFile({self.path!r})"
