"""Bytes on disk by kind and key, for what is dear to compute: programs, plans, the native runtime.

Every entry is one file: a header, the SHA-256 of the rest, the rest. It is written to a temporary name and moved into
place, so a killed process leaves nothing that a reader could take for an entry, and any number of processes may read
and write at once. What is not whole is removed and counts as absent. A folder that cannot be written makes programs
slower, never wrong: it is reported once, by the logger "weft".

The hash finds accidents, not authors, so what is loaded has to be this user's own: see `weft.private_folders`. Folders
are made for this user only (0700) and so are files (0600), whatever the umask; those of older versions, which others
could read, are mended. A folder that others can write to, or that is another user's, is not used: nothing is loaded
from it and nothing written, which is reported once, and by `python -m weft cache`.
"""
# Tests: tests/scheduler/test_disk_cache.py, tests/test_private_folders.py

from __future__ import annotations

import contextlib
import hashlib
import itertools
import math
import os
import time
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from weft import settings
from weft._version import __version__
from weft.lazy_dataclass import dataclass
from weft.logs import logger
from weft.private_folders import Folder, Refused, opened

MAX_BYTES = 512 << 20
"""Beyond this, the entries that were not used for longest are removed."""

KINDS = frozenset(
    {
        "costs",
        "family",
        "form",
        "host",
        "image",
        "kernel",
        "layouts",
        "limits",
        "links",
        "native",
        "plan",
        "recorded",
        "sources",
        "times",
        "trial",
        "waits",
    }
)
"""The kinds of entries, each in a folder of its own."""

_MAGIC = b"weft cache 1\n"
_SUFFIX = ".weft"
_SWEEP_EVERY = 64
_SWEEP_SECONDS = 60
_TEMPORARY_SECONDS = 3600
_TOUCH_SECONDS = 3600

_numbers = itertools.count()
_warned: list[str] = []  # the cache folders that were complained about
_swept = [-math.inf]  # when this process last removed what is too much


@dataclass(frozen=True, slots=True)
class Usage:
    """The contents of the cache; `refused` says of a folder that is not used why not."""

    folder: Path | None
    entries: int
    nbytes: int
    refused: str | None = None


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
    return digest(__version__, state(COMPILER))


COMPILER = ("ir", "scheduler", "backends")
"""The folders of weft's sources that decide what programs become."""


@cache
def state(folders: tuple[str, ...]) -> str:
    """A hash of the sizes and times of weft's sources in some folders."""
    lines: list[str] = []
    for entry in _found(folders):
        info = entry.stat()
        lines.append(f"{entry.path[len(_HOME) :]} {info.st_size} {info.st_mtime_ns}")
    return digest("\n".join(sorted(lines)))


_HOME = str(Path(__file__).parent)


def sources() -> list[str]:
    """The paths of weft's sources that decide what programs become, in order."""
    return sorted([e.path for e in _found(COMPILER)])


def _found(folders: Iterable[str]) -> Iterator[os.DirEntry[str]]:
    """The sources in folders and those below."""
    below = [os.path.join(_HOME, folder) for folder in folders]
    while below:
        with os.scandir(below.pop()) as entries:
            for e in entries:
                if e.name.endswith(".py"):
                    yield e
                elif e.is_dir() and e.name != "__pycache__":
                    below.append(e.path)


def get(kind: str, key: str) -> bytes | None:
    """The entry's bytes, or None."""
    root = settings.cache_dir()
    if root is None:
        return None
    name = key + _SUFFIX
    try:
        with opened(root, kind, key[:2], holds=_is_ours) as folder:
            data = _entry(folder, name)
    except OSError:
        return None
    except Refused as refusal:
        _warn(root, refusal)
        return None
    if data is None:
        discard(kind, key)
    return data


def _entry(folder: Folder, name: str) -> bytes | None:
    """The bytes of an entry; None for one that is damaged, or that somebody else could have written."""
    try:
        data, written = folder.read(name)
    except Refused:
        return None
    start = len(_MAGIC) + 32
    body = memoryview(data)[start:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : start]:
        return None
    if time.time() - written > _TOUCH_SECONDS:
        with contextlib.suppress(OSError):
            folder.touch(name)
    return bytes(body)


def put(kind: str, key: str, data: bytes) -> None:
    """Keep `data`. What goes wrong is logged once."""
    root = settings.cache_dir()
    if root is None:
        return
    number = next(_numbers)
    temporary = f".{key[:16]}.{os.urandom(8).hex()}.tmp"
    try:
        with opened(root, kind, key[:2], make=True, holds=_is_ours) as folder:
            try:
                folder.write(temporary, _MAGIC + hashlib.sha256(data).digest() + data)
                folder.rename(temporary, key + _SUFFIX)
            except OSError:
                with contextlib.suppress(OSError):
                    folder.unlink(temporary)
                raise
    except (OSError, Refused) as error:
        _warn(root, error)
        return
    if number % _SWEEP_EVERY == os.getpid() % _SWEEP_EVERY and time.monotonic() - _swept[0] > _SWEEP_SECONDS:
        sweep()  # by one process in so many, where each makes few entries: it looks at every file there is


def _warn(root: Path, error: OSError | Refused) -> None:
    """Log, once for each cache folder, that it is of no use."""
    if str(root) in _warned:
        return
    _warned.append(str(root))
    log = logger("weft")
    if isinstance(error, Refused):
        log.warning(
            "compiled programs cannot be kept in %s: %s, so nothing is loaded from it or written to it; remove it, "
            "or make it private (chmod -R go-w, chown), or name another folder in WEFT_CACHE_DIR", root, error
        )  # fmt: skip
    else:
        log.warning("compiled programs cannot be kept in %s: %s", root, error)


def discard(kind: str, key: str) -> None:
    """Remove an entry, if it is there."""
    root = settings.cache_dir()
    if root is not None:
        with contextlib.suppress(OSError, Refused), opened(root, kind, key[:2]) as folder:
            folder.unlink(key + _SUFFIX)


def sweep(max_bytes: int = MAX_BYTES) -> None:
    """Remove what killed processes left, and the entries used least recently until `max_bytes` remain."""
    now, found, total = time.time(), list[tuple[float, int, str, str, str]](), 0
    _swept[0] = time.monotonic()
    for folder, kind, part in _folders():
        for entry in _files(folder):
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                if entry.name.endswith(".tmp"):
                    if now - info.st_mtime > _TEMPORARY_SECONDS:
                        folder.unlink(entry.name)
                    continue
                found.append((info.st_mtime, info.st_size, kind, part, entry.name))
                total += info.st_size
    root = settings.cache_dir()
    for _, size, kind, part, name in sorted(found):
        if total <= max_bytes or root is None:
            break
        with contextlib.suppress(OSError, Refused), opened(root, kind, part) as folder:
            folder.unlink(name)
            total -= size


def usage() -> Usage:
    """The usage of the cache."""
    sizes: list[int] = []
    refused: list[Refused] = []
    for folder, _, _ in _folders(refused):
        for entry in _files(folder):
            with contextlib.suppress(OSError):
                sizes.append(entry.stat(follow_symlinks=False).st_size)
    return Usage(settings.cache_dir(), len(sizes), sum(sizes), str(refused[0]) if refused else None)


def clear() -> None:
    """Remove every entry (and nothing else that may be in the folder)."""
    for folder, _, _ in _folders():
        for entry in _files(folder):
            with contextlib.suppress(OSError):
                folder.unlink(entry.name)


def _folders(refused: list[Refused] | None = None) -> Iterator[tuple[Folder, str, str]]:
    """The folders of entries, each open until the next, with their kinds and names; `refused` gets the others."""
    root = settings.cache_dir()
    if root is None:
        return
    for kind in _below(root, (), refused):
        for part in _below(root, (kind,), refused):
            try:
                with opened(root, kind, part) as folder:
                    yield folder, kind, part
            except OSError:
                continue
            except Refused as refusal:
                if refused is not None:
                    refused.append(refusal)


def _below(root: Path, names: tuple[str, ...], refused: list[Refused] | None) -> list[str]:
    """The folders in the cache folder that may be ours, or in one of them."""
    try:
        with opened(root, *names) as folder:
            found = [e.name for e in folder.entries() if e.is_dir(follow_symlinks=False)]
            return [name for name in found if (len(name) == 2 if names else _is_ours(name))]
    except OSError:
        return []
    except Refused as refusal:
        if refused is not None:
            refused.append(refusal)
        return []


def _files(folder: Folder) -> list[os.DirEntry[str]]:
    """Entries and temporaries."""
    try:
        found = folder.entries()
    except OSError:
        return []
    return [e for e in found if e.name.endswith((_SUFFIX, ".tmp")) and e.is_file(follow_symlinks=False)]


def _is_ours(name: str) -> bool:
    """True for the name of a folder of entries in the cache folder."""
    return name in KINDS
