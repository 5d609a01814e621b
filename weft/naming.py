"""The package's name in texts that programs parse: "weft.float32", "weft.Size([2])", "weft.FloatTensor".

Whoever has weft stand in for another package says so once, with `call_it("torch")`; messages of errors stay weft's.
"""
# Tests: tests/core/tensor/test_types.py

from __future__ import annotations

OWN = "weft"


class _Package:
    name = OWN


_package = _Package()


def package() -> str:
    """The name before the dot."""
    return _package.name


def call_it(name: str) -> None:
    """Have texts say `name` from now on."""
    _package.name = name


def is_own() -> bool:
    """True where weft goes by its own name."""
    return _package.name == OWN
