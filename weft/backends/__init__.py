"""Backends: what turns lowered loops into running code, each in a package of its own."""
# Tests: tests/backends/test_registry.py

from __future__ import annotations

import importlib
from types import ModuleType

_MODULES = ("cuda",)


def __getattr__(name: str) -> ModuleType:
    if name in _MODULES:
        return importlib.import_module(f"weft.backends.{name}")
    raise AttributeError(f"module 'weft.backends' has no attribute {name!r}")
