"""Entries that came with weft: programs that were compiled when the package was made. They are only read.

    weft/linux-x86_64.pack    magic, hash of the sources, count | rows, sorted by key | entries, compressed
    a row                     hash of kind and key, hash of the entry, its offset, its length

A pack counts with the sources that it was made from only, which are read once to find out; the answer stays in the
cache on disk. What is not whole counts as absent, as there: a program without a pack has to compile.
"""

from __future__ import annotations

import hashlib
import os
import platform
import struct
import sys
import zlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from weft import disk_cache
from weft._version import __version__
from weft.lazy_dataclass import dataclass

_MAGIC = b"weft pack 1\n"
_HEAD = struct.Struct(f"<{len(_MAGIC)}s32sI")
_ROW = struct.Struct("<32s32sQI")


@dataclass(frozen=True, slots=True)
class Pack:
    """The rows of a pack in memory; entries are read when they are asked for."""

    path: Path
    rows: bytes
    nbytes: int

    def get(self, kind: str, key: str) -> bytes | None:
        """The entry's bytes, or None."""
        wanted, low, high = _name(kind, key), 0, len(self.rows) // _ROW.size
        while low < high:
            middle = (low + high) // 2
            name, whole, offset, length = _ROW.unpack_from(self.rows, middle * _ROW.size)
            if name == wanted:
                return self._entry(whole, offset, length)
            low, high = (middle + 1, high) if name < wanted else (low, middle)
        return None

    def _entry(self, whole: bytes, offset: int, length: int) -> bytes | None:
        if offset + length > self.nbytes:
            return None
        try:
            with open(self.path, "rb") as file:
                file.seek(offset)
                data = zlib.decompress(file.read(length))
        except (OSError, zlib.error):
            return None
        return data if hashlib.sha256(data).digest() == whole else None


def get(kind: str, key: str) -> bytes | None:
    """The bytes of an entry of the pack that came with weft, or None."""
    found = opened()
    return None if found is None else found.get(kind, key)


def place() -> Path:
    """The file of the pack for this system and processor, which need not be there."""
    return Path(__file__).with_name(f"{sys.platform}-{platform.machine()}.pack")


@cache
def opened() -> Pack | None:
    """The pack that came with weft; None where there is none, or it was made from other sources."""
    path = place()
    try:
        with open(path, "rb") as file:
            nbytes = os.fstat(file.fileno()).st_size
            magic, made_from, count = _HEAD.unpack(file.read(_HEAD.size))
            rows = file.read(min(count * _ROW.size, nbytes))
    except (OSError, struct.error):
        return None
    if magic != _MAGIC or len(rows) != count * _ROW.size or not _fits(made_from):
        return None
    return Pack(path, rows, nbytes)


def _fits(made_from: bytes) -> bool:
    """True where these are the hash of weft's sources as they are."""
    key = disk_cache.digest("sources", disk_cache.compiler())
    now = disk_cache.get("sources", key)
    if now is None:
        now = sources()
        disk_cache.put("sources", key, now)
    return now == made_from


def sources() -> bytes:
    """A hash of what in weft decides what programs become: its version, and the text of its sources."""
    h = hashlib.sha256(__version__.encode())
    home = Path(__file__).parent
    for path in disk_cache.sources():
        data = Path(path).read_bytes()
        h.update(f"{os.path.relpath(path, home)} {len(data)}\n".encode())
        h.update(data)
    return h.digest()


def written(entries: Mapping[tuple[str, str], bytes]) -> bytes:
    """A pack of entries by kind and key, for the sources as they are."""
    rows: list[bytes] = []
    bodies: list[bytes] = []
    offset = _HEAD.size + len(entries) * _ROW.size
    for name, data in sorted((_name(*at), data) for at, data in entries.items()):
        bodies.append(zlib.compress(data, 9))
        rows.append(_ROW.pack(name, hashlib.sha256(data).digest(), offset, len(bodies[-1])))
        offset += len(bodies[-1])
    return b"".join((_HEAD.pack(_MAGIC, sources(), len(rows)), *rows, *bodies))


def _name(kind: str, key: str) -> bytes:
    return hashlib.sha256(f"{kind} {key}".encode()).digest()
