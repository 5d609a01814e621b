"""Drafts: files that are being written, under names of their own, beside the ones that they will replace.

A draft is locked as long as its process lives, and the system drops the locks of one that was killed. So a draft that
can be locked was abandoned, whichever process, user or container wrote it, and is removed by the next write to its
folder. No reader mistakes one for data: its name has no suffix, and begins with a dot.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import secrets
import stat
from pathlib import Path
from typing import Any, BinaryIO

from weft.backends.disk.pages import LARGE_PAGE

try:
    import fcntl
except ImportError:  # Windows, which refuses to remove a file that somebody has open
    fcntl = None

_NAME = re.compile(r"\.weft-draft-[0-9a-f]{16}")


def create(folder: Path) -> tuple[Path, BinaryIO]:
    """A new draft, open and locked. OSError where there cannot be one."""
    while True:
        path = folder / f".weft-draft-{secrets.token_hex(8)}"
        file: BinaryIO = _InLargePages(path)
        if lock(file) is not False and os.fstat(file.fileno()).st_nlink:
            return path, file
        file.close()  # somebody took it for abandoned before it was locked


class _InLargePages(io.BufferedWriter):
    """A file that is written large page by large page: the system keeps what is written at once together, and maps a
    whole page as one to whoever reads the file next (ext4 since Linux 6.16, XFS)."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "xb"), LARGE_PAGE)

    def write(self, buffer: Any, /) -> int:
        """As of any file. What ends no page waits for what follows."""
        whole = memoryview(buffer)
        data = whole.cast("B") if whole.nbytes else b""  # no view of nothing is cast
        left = LARGE_PAGE - self.tell() % LARGE_PAGE
        if len(data) < left:
            return super().write(data)
        super().write(data[:left])
        self.flush()
        end = left + (len(data) - left) // LARGE_PAGE * LARGE_PAGE
        super().write(data[left:end])
        super().write(data[end:])
        return len(data)


def settle(file: BinaryIO, draft: Path, path: Path) -> None:
    """Give the draft its name, in the place of what has it. OSError where the draft or its folder is gone."""
    if os.name != "posix":
        file.close()
    os.replace(draft, path)
    # The file is whole and in its place; only whether its name survives a power failure is left to the system.
    with contextlib.suppress(OSError):
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_abandoned(folder: Path) -> None:
    """Remove the drafts of processes that ended without doing so."""
    try:
        names = [n for n in os.listdir(folder) if _NAME.fullmatch(n)]
    except OSError:
        return  # a folder may be written to, and not be read
    for name in names:
        with contextlib.suppress(OSError):
            if fcntl is None:
                os.unlink(folder / name)
                continue
            with _opened(folder / name) as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode) and lock(file):
                    os.unlink(folder / name)


def _opened(path: Path) -> BinaryIO:
    """The draft, and nothing that a link of such a name leads to; a pipe or a device is not waited for."""
    return open(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY), "rb", buffering=0)


def lock(file: BinaryIO) -> bool | None:
    """Lock the file: False where somebody else holds it, None where the system has no locks for it."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True
