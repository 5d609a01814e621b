"""torch.overrides: what classes with `__torch_function__` and functions that respect them are written with."""
# Tests: tests/core/surface/test_overrides.py

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from weft.core.args.handle import Handle, tensor_class
from weft.core.surface import overrides
from weft.core.surface.overrides import (
    BaseTorchFunctionMode,
    DisableTorchFunction,
    DisableTorchFunctionSubclass,
    TorchFunctionMode,
)

__all__ = [
    "BaseTorchFunctionMode", "DisableTorchFunction", "DisableTorchFunctionSubclass", "TorchFunctionMode",
    "get_default_nowrap_functions", "get_ignored_functions", "get_overridable_functions", "handle_torch_function",
    "has_torch_function", "has_torch_function_unary", "has_torch_function_variadic", "is_tensor_like",
    "is_tensor_method_or_property", "resolve_name", "wrap_torch_function",
]  # fmt: skip

overrides.install()  # classes that are no tensors are known by nothing else


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """True where one of these arguments, or a mode, takes over a call with them."""
    return bool(overrides.overloaded(relevant_args)) or overrides.in_mode()


def has_torch_function_unary(x: Any) -> bool:
    """The same for one argument."""
    return has_torch_function((x,))


def has_torch_function_variadic(*args: Any) -> bool:
    """The same for arguments one by one."""
    return has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """The result of the first of the relevant arguments that does not decline. DTypeError where all do."""
    return overrides.taken_over(public_api, overrides.overloaded(relevant_args), args, kwargs)


def wrap_torch_function(dispatcher: Callable[..., Iterable[Any]]) -> Callable[[Any], Any]:
    """A decorator of a function that arguments may take over; dispatcher(*args) gives those that are asked."""

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            relevant = tuple(dispatcher(*args, **kwargs))
            if has_torch_function(relevant):
                return handle_torch_function(call, relevant, *args, **kwargs)
            return function(*args, **kwargs)

        return call

    return decorate


def is_tensor_like(inp: Any) -> bool:
    """True for a Tensor, and for what has `__torch_function__`."""
    return isinstance(inp, Handle) or hasattr(inp.__class__, "__torch_function__")


def get_default_nowrap_functions() -> set[Any]:
    """Functions whose results Tensor.__torch_function__ leaves as they are."""
    return set(overrides.nowrap_functions())


def get_overridable_functions() -> dict[Any, list[Any]]:
    """The functions that look for `__torch_function__`, by where they are."""
    import sys

    found: dict[Any, list[Any]] = {tensor_class(): list(dict.fromkeys(f for _, f in overrides.methods()))}
    for home, function in overrides.namespace_functions():
        found.setdefault(sys.modules[home], []).append(function)
    return found


def get_ignored_functions() -> set[Any]:
    """Functions that look for nobody."""
    return {overrides.same_as, overrides.default}


def is_tensor_method_or_property(func: Any) -> bool:
    """True for a method of Tensor, and the getter of a property."""
    return any(func is f for _, f in overrides.methods()) or getattr(func, "__name__", "") == "__get__"


def resolve_name(f: Any) -> str | None:
    """The name under which programs know a function; None for one that is not of weft's."""
    for name, method in overrides.methods():
        if method is f:
            return f"weft.Tensor.{name}"
    module = getattr(f, "__module__", "") or ""
    return f"{module}.{f.__name__}" if module.startswith("weft") else None
