"""The package's name in texts that programs parse: "weft.float32", "weft.Size([2])", "weft.FloatTensor".

Whoever has weft stand in for another package says so once, with `call_it("torch")`; messages of errors stay weft's, and
so do texts by which something is found on disk, made within `own_name()`.
"""
# Tests: tests/core/tensor/test_types.py

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

OWN = "weft"


class _Package:
    name = OWN


_package = _Package()
_keyed: ContextVar[bool] = ContextVar("texts_are_keys", default=False)


def package() -> str:
    """The name before the dot."""
    return OWN if _keyed.get() else _package.name


@contextmanager
def own_name() -> Generator[None]:
    """A block, or a function so decorated, whose texts say weft's own name: keys that other processes find, too."""
    token = _keyed.set(True)
    try:
        yield
    finally:
        _keyed.reset(token)


def call_it(name: str) -> None:
    """Have texts say `name` from now on."""
    _package.name = name


def is_own() -> bool:
    """True where weft goes by its own name."""
    return _package.name == OWN
