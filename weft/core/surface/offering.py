"""Functions as users find them: what stands around each is the `Form` of its row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from weft.core.args.argument_types import checked
from weft.core.surface import overrides
from weft.core.surface.keywords import translated, with_aliases, with_out
from weft.core.views import views
from weft.errors import wraps_calls
from weft.surface.table import Form, Row

wraps_calls(__file__)


@cache  # one object in all namespaces
def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    found = checked(function)
    if found is not function:
        found.__module__ = "weft.nn.functional"
    return found


def offered(found: Any, row: Row, name: str, home: str) -> Any:
    """A module's function as a namespace offers it under a name; other things as they are."""
    if not isinstance(found, FunctionType):
        return found
    match row.form:
        case Form.MODULE | Form.PLAIN:
            function: Callable[..., Any] = found
        case Form.CHECKED:
            function = _checked(found)
        case Form.OUT:
            function = _named(with_out(found, name), name, home)
        case Form.MADE:
            function = _named(with_out(views.offered(name, found), name), name, home)
    if row.listed or row.form is Form.CHECKED:
        overrides.offer(function, name, home)
    return function


def _named(function: Callable[..., Any], name: str, home: str) -> Callable[..., Any]:
    function.__module__, function.__name__, function.__qualname__ = home, name, name
    return function


def function_of(row: Row) -> Callable[..., Any]:
    """The function behind a method; of a `late` module one that imports it at its first call."""
    if row.late:
        return _late(row.module, row.attribute)
    function: Callable[..., Any] = getattr(import_module(row.module), row.attribute)
    return function


def as_method(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as the method of Tensor of that name."""
    return views.offered(name, with_aliases(function))


def as_operator(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function as the method of two operands that Python calls for an operator: by position, so it takes no aliases
    and is not asked for types."""

    def call(input: Any, other: Any) -> Any:
        return function(input, other)

    call.__name__, call.__qualname__ = function.__name__, function.__qualname__
    call.__module__, call.__doc__ = function.__module__, function.__doc__
    call.__wrapped__ = function  # pyright: ignore[reportFunctionMemberAccess]  (what inspect.signature follows)
    return views.offered(name, call)


def _late(module: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] | None = None

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal found
        if found is None:
            found = checked(getattr(import_module(module), name))
        return found(*args, **translated(found, kwargs)) if kwargs else found(*args)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"See {module}.{name}."
    return call
