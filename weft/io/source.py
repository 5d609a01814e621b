"""The bytes of a file: mapped, or in memory where it was given as an object."""
# Tests: tests/io/test_torch_files.py, tests/io/test_malformed.py

from __future__ import annotations

from typing import Any, BinaryIO, Protocol, cast

from weft.backends.disk.file import MappedFile, open_regular
from weft.backends.disk.format import StrPath, located
from weft.errors import DTypeError, FileFormatError


class Source(Protocol):
    """The bytes of a file, which are as they were when it was opened."""

    path: str
    size: int

    def check(self) -> None:
        """FileError unless the file is as it was."""
        ...

    def check_often(self) -> None:
        """As `check`, for those who ask again and again: a change may be found a millisecond late."""
        ...

    def view(self, begin: int, end: int) -> memoryview:
        """The bytes from `begin` to before `end`."""
        ...

    def in_large_pages(self, begin: int, end: int) -> None:
        """All of these bytes are going to be used."""
        ...

    def release(self, begin: int, end: int) -> None:
        """These bytes are not needed for now."""
        ...


class InMemory:
    """The bytes that were read from a file object."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path, self.size = memoryview(data), path, len(data)

    def check(self) -> None:
        """Nobody changes them."""

    check_often = check

    def view(self, begin: int, end: int) -> memoryview:
        """The bytes from `begin` to before `end`."""
        return self.data[begin:end]

    def in_large_pages(self, begin: int, end: int) -> None:
        """They are where they are."""

    def release(self, begin: int, end: int) -> None:
        """They stay: the object holds them all."""


class Reading:
    """A source as a file to read from, which never reads, or makes room for, more than there is."""

    def __init__(self, source: Source, at: int = 0) -> None:
        self.source, self.at = source, at

    def read(self, count: int = -1) -> bytes:
        """The next bytes, fewer at the end."""
        left = self.source.size - self.at
        count = left if count < 0 else min(count, left)
        self.at += count
        return bytes(self.source.view(self.at - count, self.at))

    def readline(self) -> bytes:
        """The bytes to the next end of a line, and with it."""
        begin, found = self.at, bytearray()
        while not found.endswith(b"\n") and (more := self.read(256)):
            end = more.find(b"\n")
            found += more if end < 0 else more[: end + 1]
        self.at = begin + len(found)
        return bytes(found)


def opened(op: str, f: object) -> Source:
    """A path's file, mapped, or what a file object has from where it stands. FileError for a path that is no regular
    file, and for an empty one; DTypeError for what is neither, or reads text."""
    read = getattr(f, "read", None)
    if read is not None and not isinstance(f, str | bytes):
        data: Any = cast("BinaryIO", f).read()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise DTypeError(
                f'{op}: the file gives {type(data).__name__}, not bytes; open it in binary mode ("rb")'
            )
        named: Any = getattr(f, "name", None)
        source: Source = InMemory(
            bytes(cast("bytes", data)), named if isinstance(named, str) else f"the {type(f).__name__}"
        )
    else:
        with open_regular(located(cast("StrPath", f))) as file:
            path = file.name
            source = MappedFile(file) if file.seek(0, 2) else InMemory(b"", str(path))
    if not source.size:
        raise FileFormatError(f"{op}: {source.path} is empty")
    return source
