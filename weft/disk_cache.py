"""Bytes on disk by kind and key, for what is dear to compute: programs, plans, the native runtime.

Every entry is one file: a header, the SHA-256 of the rest, the rest. It is written to a temporary name and moved into
place, so a killed process leaves nothing that a reader could take for an entry, and any number of processes may read
and write at once. What is not whole is removed and counts as absent. A folder that cannot be written makes programs
slower, never wrong: it is reported once, by the logger "weft".
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import math
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from weft import settings
from weft._version import __version__

MAX_BYTES = 512 << 20
"""Beyond this, the entries that were not used for longest are removed."""

_MAGIC = b"weft cache 1\n"
_SUFFIX = ".weft"
_SWEEP_EVERY = 64
_SWEEP_SECONDS = 60
_TEMPORARY_SECONDS = 3600
_TOUCH_SECONDS = 3600

_log = logging.getLogger("weft")
_numbers = itertools.count()
_warned: list[str] = []
_swept = [-math.inf]  # when this process last removed what is too much


@dataclass(frozen=True, slots=True)
class Usage:
    """What the cache holds."""

    folder: Path | None
    entries: int
    nbytes: int


def digest(*parts: str | bytes) -> str:
    """A key from parts, none of which can be mistaken for another's end."""
    h = hashlib.sha256()
    for p in parts:
        data = p.encode() if isinstance(p, str) else p
        h.update(f"{len(data)}:".encode())
        h.update(data)
    return h.hexdigest()


@cache
def compiler() -> str:
    """A hash of what in weft decides what programs become: its version, and the state of its sources."""
    home = Path(__file__).parent
    h = hashlib.sha256(__version__.encode())
    for folder in ("ir", "scheduler", "backends"):
        for path, _, names in sorted(os.walk(home / folder)):
            for name in sorted(n for n in names if n.endswith(".py")):
                found = os.stat(os.path.join(path, name))
                h.update(f"{path[len(str(home)) :]}/{name} {found.st_size} {found.st_mtime_ns}\n".encode())
    return h.hexdigest()


def get(kind: str, key: str) -> bytes | None:
    """The entry's bytes, or None."""
    path = _path(kind, key)
    if path is None:
        return None
    try:
        data = path.read_bytes()
        age = time.time() - path.stat().st_mtime
    except OSError:
        return None
    start = len(_MAGIC) + 32
    body = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        discard(kind, key)
        return None
    if age > _TOUCH_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)
    return bytes(body)


def put(kind: str, key: str, data: bytes) -> None:
    """Keep `data`. What goes wrong is logged once."""
    path = _path(kind, key)
    if path is None:
        return
    number = next(_numbers)
    temporary = path.with_name(f".{key[:16]}.{os.getpid()}.{number}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            temporary.write_bytes(_MAGIC + hashlib.sha256(data).digest() + data)
            os.replace(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        if not _warned:
            _warned.append(str(error))
            _log.warning("compiled programs cannot be kept in %s: %s", path.parent, error)
        return
    if number % _SWEEP_EVERY == os.getpid() % _SWEEP_EVERY and time.monotonic() - _swept[0] > _SWEEP_SECONDS:
        sweep()  # by one process in so many, where each makes few entries: it looks at every file there is


def discard(kind: str, key: str) -> None:
    """Remove an entry, if it is there."""
    path = _path(kind, key)
    if path is not None:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def sweep(max_bytes: int = MAX_BYTES) -> None:
    """Remove what killed processes left, and the entries used least recently until `max_bytes` remain."""
    now, found, total = time.time(), list[tuple[float, int, str]](), 0
    _swept[0] = time.monotonic()
    for entry in _files():
        with contextlib.suppress(OSError):
            info = entry.stat()
            if entry.name.endswith(".tmp"):
                if now - info.st_mtime > _TEMPORARY_SECONDS:
                    os.unlink(entry.path)
                continue
            found.append((info.st_mtime, info.st_size, entry.path))
            total += info.st_size
    for _, size, path in sorted(found):
        if total <= max_bytes:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
            total -= size


def usage() -> Usage:
    """How much there is."""
    sizes: list[int] = []
    for entry in _files():
        with contextlib.suppress(OSError):
            sizes.append(entry.stat().st_size)
    return Usage(settings.cache_dir(), len(sizes), sum(sizes))


def clear() -> None:
    """Remove every entry (and nothing else that may be in the folder)."""
    for entry in _files():
        with contextlib.suppress(OSError):
            os.unlink(entry.path)


def _path(kind: str, key: str) -> Path | None:
    folder = settings.cache_dir()
    return None if folder is None else folder / kind / key[:2] / (key + _SUFFIX)


def _files() -> Iterator[os.DirEntry[str]]:
    """Entries and temporaries of ours: two folders deep."""
    folder = settings.cache_dir()
    if folder is None:
        return
    for kind in _scan(folder):
        for part in _scan(kind.path) if kind.is_dir(follow_symlinks=False) else ():
            for entry in _scan(part.path) if part.is_dir(follow_symlinks=False) else ():
                if entry.name.endswith((_SUFFIX, ".tmp")) and entry.is_file(follow_symlinks=False):
                    yield entry


def _scan(folder: str | Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError:
        return []
