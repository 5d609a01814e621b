"""Advice to the system on a file's pages in its cache: nothing fails where it is not taken."""

from __future__ import annotations

import contextlib
import os

LARGE_PAGE = 1 << 21
"""Bytes of a large page on most processors: Linux reads, keeps and maps files in such where it can."""


def start_writeback(descriptor: int, begin: int, nbytes: int) -> None:
    """Have the system begin to write these dirty pages to the medium, instead of all of them when they are synced.

    Linux does so on POSIX_FADV_DONTNEED, and drops only pages that are clean; these are not.
    Source: mm/fadvise.c of Linux; posix_fadvise(2).
    """
    if hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, begin, nbytes, os.POSIX_FADV_DONTNEED)
