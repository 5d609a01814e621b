"""Names that a file may use besides tensors and containers, because the program says so.

    weft.serialization.add_safe_globals([Config])        # files may hold objects of this class from now on
    with weft.serialization.safe_globals([Config]): ...  # or within a block

A class that is allowed is made as Python's pickle makes it: by its `__new__`, its `__setstate__`, or what it says
itself. So allow only classes of which that does no harm, whatever the file gives them.
"""
# Tests: tests/io/test_torch_files.py, tests/io/test_malformed.py

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

Allowed: TypeAlias = "Any | tuple[Any, str]"
"""A class or function, or one with the name that files give it."""

_allowed: dict[str, Any] = {}


def add_safe_globals(safe_globals: Iterable[Allowed]) -> None:
    """Let files name these classes and functions from now on."""
    for item in safe_globals:
        x, name = cast("tuple[Any, str]", item) if isinstance(item, tuple) else (item, "")
        _allowed[name or f"{x.__module__}.{x.__qualname__}"] = x


def allowed() -> dict[str, Any]:
    """The objects that files may name, by name."""
    return _allowed


def get_safe_globals() -> list[Any]:
    """The objects that files may name."""
    return list(_allowed.values())


def clear_safe_globals() -> None:
    """Let files name nothing but tensors and containers again."""
    _allowed.clear()


@contextmanager
def safe_globals(safe_globals: Iterable[Allowed]) -> Generator[None]:
    """Within the block, let files name these, too."""
    before = dict(_allowed)
    add_safe_globals(safe_globals)
    try:
        yield
    finally:
        _allowed.clear()
        _allowed.update(before)
