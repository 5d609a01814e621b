"""torch.serialization: what programs say about files. Nothing has to be allowed: weft.load runs no code of a file."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Any

__all__ = ["_is_zipfile"]

FILE_LIKE = MAP_LOCATION = StorageType = Any
_safe: list[Any] = []


class LoadEndianness(Enum):
    """The order of bytes in files."""

    NATIVE, LITTLE, BIG = 1, 2, 3


class SourceChangeWarning(Warning):
    """A warning that weft does not give."""


def add_safe_globals(safe_globals: Sequence[Any]) -> None:
    """Keep the list for who asks for it: files make no objects of a program's classes."""
    _safe.extend(safe_globals)


def get_safe_globals() -> list[Any]:
    """The globals that were added."""
    return list(_safe)


def clear_safe_globals() -> None:
    """Forget it."""
    _safe.clear()


def safe_globals(safe_globals: Sequence[Any]) -> AbstractContextManager[None]:
    """A context that changes nothing."""
    return nullcontext()


def get_unsafe_globals_in_checkpoint(f: Any) -> list[str]:
    """None: nothing in a file is run."""
    return []


def normalize_storage_type(storage_type: Any) -> Any:
    """The type."""
    return storage_type


def location_tag(storage: Any) -> str:
    """ "cpu"."""
    return "cpu"


def default_restore_location(storage: Any, location: str) -> Any:
    """The storage."""
    return storage


def get_default_load_endianness() -> None:
    """None: files are little-endian."""


def set_default_load_endianness(endianness: Any) -> None:
    """Nothing."""


def get_crc32_options() -> bool:
    """True."""
    return True


def set_crc32_options(compute_crc32: bool) -> None:
    """Nothing."""


def get_default_mmap_options() -> int:
    """The option of the system's call (MAP_PRIVATE)."""
    return 2


def set_default_mmap_options(flags: int) -> AbstractContextManager[None]:
    """Nothing; also as a context."""
    return nullcontext()


def check_module_version_greater_or_equal(
    module: Any, req_version_tuple: tuple[Any, ...], error_if_malformed: bool = True
) -> bool:
    """True where a module's version is at least the required one."""
    have = tuple(
        int(p) for p in str(module.__version__).split(".")[: len(req_version_tuple)] if p.isdecimal()
    )
    return have >= tuple(req_version_tuple)


def _is_zipfile(f: Any) -> bool:
    return zipfile.is_zipfile(f)
