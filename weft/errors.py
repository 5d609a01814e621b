"""Errors about a user's mistake: one family of RuntimeErrors, each also what a Python user would catch.

A message says which op, with which shapes and dtypes, and what to do; the place in the user's own code is added here.
"""
# Tests: tests/core/test_errors.py

from __future__ import annotations

import builtins
import inspect
import os
from typing import Any, Self

from weft.lazy_dataclass import dataclass

_HOME = os.path.dirname(__file__)

_WRAPPERS: set[str] = set()


def wraps_calls(file: str) -> None:
    """The functions in a file of weft stand around what users call: no message is about them."""
    _WRAPPERS.add(file)


# Functions that users do not call by these names.
_SYNTAX = frozenset({"getitem", "setitem", "gradients"})
_CALLS = frozenset({"Module._call_impl", "call_hooked"})


@dataclass(frozen=True, slots=True)
class CallSite:
    """A user's call of weft: file:line of the innermost frame outside weft, and the function called there."""

    location: str
    function: str


def user_call() -> CallSite:
    """The user's call; "<unknown>" and no function when every frame is weft's."""
    frame, function = inspect.currentframe(), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(_HOME) and not name.startswith(("<frozen", "<weft")):
            return CallSite(f"{name}:{frame.f_lineno}", function)
        code = frame.f_code
        if name in _WRAPPERS:
            frame = frame.f_back
            continue
        if "<locals>" in code.co_qualname:  # what a decorator made, and users call otherwise
            function = ""
        elif code.co_name != "forward" and code.co_qualname not in _CALLS:
            function = code.co_name
        frame = frame.f_back
    return CallSite("<unknown>", "")


def named(message: str, function: str) -> str:
    """The message of a helper, "sub: ...", under the name of the function that the user called: "lerp: sub: ..."."""
    op, colon, _ = message.partition(": ")
    public = function.isidentifier() and not function.startswith("_") and function not in _SYNTAX
    if not public or not colon or " " in op:
        return message
    known = {op, op.rpartition(".")[2], op.removesuffix("_"), f"{op}_"}
    return message if function in known else f"{function}: {message}"


class WeftError(RuntimeError):
    """Base of everything weft raises on purpose. `message` is the text, `location` the user's file:line.

    All are RuntimeErrors, as most of torch's are, and of the kind that a Python user would catch besides.
    """

    def __init__(self, message: str, location: str | None = None) -> None:
        if location is None:
            call = user_call()
            message, location = named(message, call.function), call.location
        self.message, self.location = message, location
        super().__init__(f"{message}\n  at {location}")

    def __reduce__(self) -> tuple[type[Self], tuple[Any, ...]]:
        return type(self), (self.message, self.location)


class ShapeError(WeftError, ValueError):
    """Shapes do not fit the operation."""


class ArgumentError(WeftError, ValueError):
    """An argument has a value that the operation does not take."""


class NoValueError(ArgumentError):
    """A tensor stands for others, as in a function that is traced or batched, and has no value of its own."""


class DTypeError(WeftError, TypeError):
    """An element type, or the type of an argument, does not fit the operation."""


class MemberError(ArgumentError, KeyError):
    """A module cannot have a member of this name."""

    __str__ = BaseException.__str__  # a KeyError prints the repr of its message


class UnmadeError(WeftError, AttributeError):
    """A module is given members before Module.__init__ has run, or lacks what that makes."""


class IndexError(WeftError, builtins.IndexError):  # noqa: A001  (the public name, used as weft.IndexError)
    """An index or a dimension is out of range."""


class DeviceError(WeftError):
    """A device does not exist, cannot be used, or two tensors live on different ones."""


class FileError(WeftError, OSError):
    """A file cannot be read or written, or is not what it was when it was opened."""


class FileFormatError(FileError, ArgumentError):
    """A file is damaged, or something else than what it is read as: a FileError, and the ValueError of parsers."""


class FileDTypeError(FileFormatError, DTypeError):
    """A file holds elements of a type that weft lacks."""


class MemoryPlanError(WeftError, MemoryError):
    """A plan does not fit the memory it may use."""


class GradError(WeftError):
    """A gradient was asked for where there is none, or would be lost."""
