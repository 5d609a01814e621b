"""What weft raises about a user's mistake: one family, each also the builtin that a Python user would catch.

A message says which op, with which shapes and dtypes, and what to do; the place in the user's own code is added here.
"""

from __future__ import annotations

import builtins
import inspect
from pathlib import Path
from typing import Any, Self

_HOME = str(Path(__file__).parent)


def user_location() -> str:
    """file:line of the innermost frame outside weft; "<unknown>" when there is none."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_HOME) and not name.startswith("<frozen"):
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "<unknown>"


def user_call() -> str:
    """The name of weft's function that the user's code called; "<unknown>" when there is none."""
    name, frame = "<unknown>", inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_HOME) and not file.startswith("<frozen"):
            return name.strip("_")
        name, frame = frame.f_code.co_name, frame.f_back
    return name


class WeftError(Exception):
    """Base of everything weft raises on purpose. `message` is the text, `location` the user's file:line."""

    def __init__(self, message: str, location: str | None = None) -> None:
        self.message = message
        self.location = user_location() if location is None else location
        super().__init__(f"{message}\n  at {self.location}")

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self.message, self.location)


class ShapeError(WeftError, ValueError):
    """Shapes do not fit the operation."""


class ArgumentError(WeftError, ValueError):
    """An argument has a value that the operation does not take."""


class DTypeError(WeftError, TypeError):
    """An element type, or the type of an argument, does not fit the operation."""


class IndexError(WeftError, builtins.IndexError):  # noqa: A001  (the public name, used as weft.IndexError)
    """An index or a dimension is out of range."""


class DeviceError(WeftError, RuntimeError):
    """A device does not exist, cannot be used, or two tensors live on different ones."""


class FileError(WeftError, OSError):
    """A file cannot be read or written, or is not what it was when it was opened."""


class MemoryPlanError(WeftError, MemoryError):
    """A plan does not fit the memory it may use."""


class GradError(WeftError, RuntimeError):
    """A gradient was asked for where there is none, or would be lost."""
