"""Modules of functions that few programs use are imported at the first call of one of them."""
# Tests: tests/core/surface/test_foreach.py

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from weft.core.args.argument_types import checked
from weft.core.surface.keywords import translated
from weft.errors import wraps_calls

wraps_calls(__file__)


class LazyModule:
    """Stands for a module of functions: each attribute is a function that imports the module when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, function: str) -> Callable[..., Any]:
        if function.startswith("__"):
            raise AttributeError(function)
        module = self._name
        found: Callable[..., Any] | None = None

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal found
            if found is None:
                found = checked(getattr(importlib.import_module(module), function))
            return found(*args, **translated(found, kwargs)) if kwargs else found(*args)

        call.__name__ = call.__qualname__ = function
        call.__doc__ = f"See {module}.{function}."
        return call
