"""Zip archives, as torch writes them: reading any that could be a checkpoint, and writing with sizes known beforehand.

Reading finds everything in the central directory and believes none of it: places are checked against the file, sizes
against a bound before anything is unpacked, and checksums before bytes are used. Members that are stored are not
copied. Writing gives one stored member after the other, each aligned, to a file that need not be able to seek.
Format: APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3.
"""
# Tests: tests/io/test_torch_files.py, tests/io/test_malformed.py

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import field
from typing import BinaryIO, Protocol

from weft.errors import FileFormatError
from weft.io.source import Source
from weft.lazy_dataclass import dataclass

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_LOCATOR, _END_64, _DESCRIPTOR = b"PK\x06\x07", b"PK\x06\x06", b"PK\x07\x08"
_FULL, _FULL_16 = 0xFFFFFFFF, 0xFFFF
_ENCRYPTED, _DESCRIBED, _UTF8 = 1, 8, 0x800
_STORED, _DEFLATED = 0, 8

MAX_EXPANSION = 16.0
"""So many times as many bytes as the file has may its members have together, unpacked, unless more are allowed."""

_ALWAYS = 1 << 20  # bytes that may be unpacked from a file of any size
ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Member:
    """A file in an archive: `begin` is where its bytes are, `packed` how many, `size` how many they become."""

    name: str
    begin: int
    packed: int
    size: int
    deflated: bool
    crc: int


class Archive:
    """The members of a zip archive by name. FileFormatError for what is damaged, or unpacks to more than
    `max_expansion` times its size."""

    def __init__(self, source: Source, op: str, max_expansion: float = MAX_EXPANSION) -> None:
        self.source, self._op = source, op
        try:
            self.members = {m.name: m for m in self._directory()}
        except struct.error:
            raise self._bad("it is cut short") from None
        except UnicodeDecodeError:
            raise self._bad("a name in it is no text") from None
        total = sum(m.size for m in self.members.values())
        if total > max(max_expansion * source.size, _ALWAYS):
            raise FileFormatError(
                f"{op}: {source.path} has {source.size:,} bytes and would unpack to {total:,}, more than "
                f"{max_expansion:g} times as many; if you trust it, say so with max_expansion="
            )
        stored = sum(m.size for m in self.members.values() if not m.deflated)
        if stored > source.size:
            raise self._bad("its members overlap")

    def read(self, name: str) -> memoryview:
        """The bytes of a member, unpacked. KeyError where there is none."""
        m = self.members[name]
        self.source.check()
        self.source.in_large_pages(m.begin, m.begin + m.packed)
        data = self.source.view(m.begin, m.begin + m.packed)
        if m.deflated:
            data = memoryview(self._inflated(m, data))
        # 0: not computed, as torch leaves it when told so
        if m.crc and zlib.crc32(data) != m.crc:
            raise self._bad(f"the bytes of {name} are not those that were written (checksum)")
        return data

    def _inflated(self, m: Member, data: memoryview) -> bytes:
        machine = zlib.decompressobj(-15)
        try:
            out = machine.decompress(data, m.size + 1)
        except zlib.error as error:
            raise self._bad(f"{m.name} cannot be unpacked ({error})") from None
        if len(out) != m.size:
            raise self._bad(f"{m.name} does not unpack to the {m.size:,} bytes that it announces")
        return out

    def _bad(self, why: str) -> FileFormatError:
        return FileFormatError(f"{self._op}: {self.source.path} is damaged: {why}")

    def _bytes(self, begin: int, count: int) -> bytes:
        if begin < 0 or begin + count > self.source.size:
            raise self._bad("it is cut short")
        return bytes(self.source.view(begin, begin + count))

    def _directory(self) -> Sequence[Member]:
        tail_at = max(0, self.source.size - 22 - _FULL_16)
        tail = self._bytes(tail_at, self.source.size - tail_at)
        found = tail.rfind(_END)
        if found < 0:
            raise self._bad("it begins as a zip archive, and does not end as one")
        end_at = tail_at + found
        count, length, begin = struct.unpack_from("<HII", tail, found + 10)
        if _FULL in (length, begin) or count == _FULL_16:
            mark, at = struct.unpack("<4s4xQ4x", self._bytes(end_at - 20, 20))
            if mark != _LOCATOR:
                raise self._bad("it has no place of its directory")
            mark, count, length, begin = struct.unpack("<4s28xQQQ", self._bytes(at, 56))
            if mark != _END_64:
                raise self._bad("it has no place of its directory")
        content = self._bytes(begin, length)
        out: list[Member] = []
        names: set[str] = set()
        at = 0
        for _ in range(count):
            member, at = self._entry(content, at)
            if member.name in names:
                raise self._bad(f"it has two members called {member.name!r}")
            names.add(member.name)
            out.append(member)
        return out

    def _entry(self, content: bytes, at: int) -> tuple[Member, int]:
        mark, flags, method, crc, packed, size, name_length, extra_length, comment_length, begin = (
            struct.unpack_from("<4s4xHH4xIIIHHH8xI", content, at)
        )
        if mark != _CENTRAL:
            raise self._bad("its directory is no list of members")
        after = at + 46 + name_length
        name = content[at + 46 : after].decode("utf-8" if flags & _UTF8 else "ascii")
        extra = content[after : after + extra_length]
        packed, size, begin = self._wide(extra, [size, packed, begin])
        if flags & _ENCRYPTED or method not in (_STORED, _DEFLATED):
            raise self._bad(f"{name} is packed in a way that is not known")
        mark, own, other = struct.unpack("<4s22xHH", self._bytes(begin, 30))
        if mark != _LOCAL:
            raise self._bad(f"{name} is not where its directory says")
        data = begin + 30 + own + other
        if data + packed > self.source.size or (method == _STORED and packed != size):
            raise self._bad(f"{name} is cut short")
        member = Member(name, data, packed, size, method == _DEFLATED, crc)
        return member, after + extra_length + comment_length

    def _wide(self, extra: bytes, fields: list[int]) -> tuple[int, int, int]:
        """The packed and unpacked size and the place, which stand in the extra field where 32 bits are too few."""
        at = 0
        while at + 4 <= len(extra):
            kind, length = struct.unpack_from("<HH", extra, at)
            if kind == 1:
                wide = [*struct.unpack_from(f"<{length // 8}Q", extra, at + 4)]
                fields = [wide.pop(0) if n == _FULL and wide else n for n in fields]
                break
            at += 4 + length
        size, packed, begin = fields
        return packed, size, begin


# --- writing


class Sink(Protocol):
    """A destination that bytes are written to."""

    def write(self, data: memoryview | bytes, /) -> object:
        """Take these bytes."""
        ...


@dataclass(slots=True)
class _Written:
    name: bytes
    size: int
    begin: int = 0
    crc: int = 0


@dataclass(slots=True)
class Writing:
    """An archive of stored members in the making: `write` takes their bytes, all in order, and finds where each ends.

    Checksums follow the bytes, so the file is written from front to back and nothing is kept.
    """

    file: BinaryIO
    members: Sequence[tuple[str, int]]
    at: int = 0
    done: list[_Written] = field(default_factory=list[_Written])
    left: int = 0

    def begin(self) -> None:
        """Write what comes before the first byte."""
        self._next()

    def write(self, data: memoryview | bytes) -> None:
        """The next bytes of the members."""
        rest = memoryview(data)
        while rest:
            part, rest = rest[: self.left], rest[self.left :]
            self.done[-1].crc = zlib.crc32(part, self.done[-1].crc)
            self._put(part)
            self.left -= len(part)
            self._next()

    def flush(self) -> None:
        """Give what was written to the system, if the file keeps any."""
        flush = getattr(self.file, "flush", None)
        if flush is not None:
            flush()

    def tell(self) -> int:
        """The position in the file."""
        return self.at

    def fileno(self) -> int:
        """The file's descriptor; -1 for a file in memory, or one of the program's own."""
        try:
            return self.file.fileno()
        except (AttributeError, OSError):
            return -1

    def end(self) -> None:
        """Write the directory."""
        assert len(self.done) == len(self.members) and not self.left, "all bytes are there"
        begin = self.at
        for m in self.done:
            self._put(_central(m))
        length, count = self.at - begin, len(self.done)
        if begin + length >= _FULL or count >= _FULL_16:
            at = self.at
            self._put(struct.pack("<4sQHHIIQQQQ", _END_64, 44, 45, 45, 0, 0, count, count, length, begin))
            self._put(struct.pack("<4sIQI", _LOCATOR, 0, at, 1))
        few = min(count, _FULL_16)
        self._put(struct.pack("<4s4H2IH", _END, 0, 0, few, few, min(length, _FULL), min(begin, _FULL), 0))

    def _next(self) -> None:
        """End members whose bytes are all there, and begin the next."""
        while self.left == 0:
            if self.done:
                self._describe(self.done[-1])
            if len(self.done) == len(self.members):
                return
            name, size = self.members[len(self.done)]
            member = _Written(name.encode(), size, self.at)
            self.done.append(member)
            self.left = size
            self._put(_local(member))
            if size:
                return

    def _describe(self, m: _Written) -> None:
        kind = "<4sIQQ" if m.size >= _FULL else "<4sIII"
        self._put(struct.pack(kind, _DESCRIPTOR, m.crc, m.size, m.size))

    def _put(self, data: memoryview | bytes) -> None:
        self.file.write(data)
        self.at += len(data)


def _local(m: _Written) -> bytes:
    """The local header of a member, padded so that the member's bytes begin at a multiple of 64."""
    size, version = (_FULL, 45) if m.size >= _FULL else (0, 20)
    extra = struct.pack("<HHQQ", 1, 16, 0, 0) if m.size >= _FULL else b""
    pad = -(m.begin + 30 + len(m.name) + len(extra) + 4) % ALIGNMENT
    extra += struct.pack("<2sH", b"FB", pad) + b"Z" * pad
    flags = _DESCRIBED | _UTF8
    return (
        struct.pack(
            "<4s5H3I2H", _LOCAL, version, flags, _STORED, 0, 33, 0, size, size, len(m.name), len(extra)
        )
        + m.name
        + extra
    )


def _central(m: _Written) -> bytes:
    wide = [n for n in (m.size, m.size, m.begin) if n >= _FULL]
    extra = struct.pack(f"<HH{len(wide)}Q", 1, 8 * len(wide), *wide) if wide else b""
    size, begin, version = min(m.size, _FULL), min(m.begin, _FULL), 45 if wide else 20
    return (
        struct.pack(
            "<4s6H3I5H2I", _CENTRAL, version, version, _DESCRIBED | _UTF8, _STORED, 0, 33, m.crc, size, size,
            len(m.name), len(extra), 0, 0, 0, 0, begin,
        )
        + m.name
        + extra
    )  # fmt: skip
