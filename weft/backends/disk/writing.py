"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from weft.backends.disk import drafts
from weft.errors import FileError


class replacing:  # noqa: N801  (a context)
    """A file to write that takes the place of `path` when the block ends well, and vanishes when not.

    The new file is written beside the old one, in a draft, and takes over its name and its permissions; a link is
    followed. What a process that was killed left is removed by the next that writes into the folder. A pipe or a device
    ("/dev/stdout") is written to as it is. FileError where the system refuses: no room, no permission, no such folder.

    >>> with replacing(Path("x")) as file:
    ...     file.write(b"all or nothing")
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft: Path | None = None
        self._file: BinaryIO | None = None

    def __enter__(self) -> BinaryIO:
        try:
            # a link stays one, to a new file
            self._target = target = Path(os.path.realpath(self._path))
            mode = _mode(target)
            if mode is not None and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                self._file = open(target, "wb")
                return self._file
            if mode is not None:
                _check_writable(target, mode)
            drafts.remove_abandoned(target.parent)
            self._draft, self._file = drafts.create(target.parent)
            if mode is not None:
                _copy_mode(self._file, self._draft, stat.S_IMODE(mode))
        except OSError as error:
            raise self._refused(error) from error
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        file = self._file
        assert file is not None  # entered
        try:
            if error is None:
                file.flush()
                if self._draft is not None:
                    os.fsync(file.fileno())
                    drafts.settle(file, self._draft, self._target)
            file.close()
        except OSError as failure:
            error = error or failure
        if error is not None:
            with contextlib.suppress(OSError):
                file.close()
            if self._draft is not None:
                with contextlib.suppress(OSError):
                    self._draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> FileError:
        folder = self._target.parent
        if error.errno == errno.ENOENT and not folder.is_dir():
            return FileError(f"{self._path} cannot be written: there is no folder {folder}; make it first")
        why = error.strerror or str(error)
        kept = "; what was there before is kept" if self._file is None or self._draft is not None else ""
        return FileError(f"{self._path} cannot be written: {why}{kept}")


def _mode(path: Path) -> int | None:
    """The mode of the file, its kind and permissions; None for none."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _copy_mode(file: BinaryIO, path: Path, mode: int) -> None:
    """Give the open file the permissions: by its descriptor, where there may be another of its name by now."""
    os.chmod(file.fileno() if os.chmod in os.supports_fd else path, mode)


def _check_writable(path: Path, mode: int) -> None:
    """OSError for what may not be written to: replacing a file needs no permission of its own."""
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
