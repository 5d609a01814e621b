"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from weft.errors import FileError


class replacing:  # noqa: N801  (a context)
    """A file to write that takes the place of `path` when the block ends well, and vanishes when not.

    FileError where the system refuses: no room, no permission, no such folder.

    >>> with replacing(Path("x")) as file:
    ...     file.write(b"all or nothing")
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")

    def __enter__(self) -> BinaryIO:
        try:
            self._file = open(self._draft, "xb")
        except OSError as error:
            raise self._refused(error) from error
        return self._file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
            self._file.close()
            if error is None:
                os.replace(self._draft, self._path)
                _sync_folder(self._path.parent)
        except OSError as failure:
            error = error or failure
        if error is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            with contextlib.suppress(OSError):
                self._draft.unlink(missing_ok=True)
        if isinstance(error, OSError) and not isinstance(error, FileError):
            raise self._refused(error) from error

    def _refused(self, error: OSError) -> FileError:
        return FileError(
            f"{self._path} cannot be written: {error.strerror or error}; what was there before is kept"
        )


def _sync_folder(folder: Path) -> None:
    """Have the new name survive a power failure, where the system can be asked to."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
