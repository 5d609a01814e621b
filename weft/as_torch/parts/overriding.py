"""torch.overrides: which functions an object could take over.

weft asks `__torch_function__` itself; what is here is what programs ask and wrap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ContextDecorator
from typing import Any, Self, cast

import weft
from weft.core.tensor.tensor import Tensor


def _overrides(x: Any) -> bool:
    kind = cast("Any", type(x))
    found: Any = getattr(kind, "__torch_function__", None)
    if found is None or kind in (Tensor, weft.nn.Parameter):
        return False
    own: Any = getattr(Tensor, "__torch_function__", None)
    return getattr(found, "__func__", found) is not getattr(own, "__func__", own)


def has_torch_function(relevant_args: Iterable[Any]) -> bool:
    """True where one of the arguments has a `__torch_function__` of its own."""
    return any(map(_overrides, relevant_args))


def has_torch_function_unary(x: Any) -> bool:
    """True where the argument has a `__torch_function__` of its own."""
    return _overrides(x)


def has_torch_function_variadic(*args: Any) -> bool:
    """True where one of the arguments has a `__torch_function__` of its own."""
    return has_torch_function(args)


def handle_torch_function(
    public_api: Callable[..., Any], relevant_args: Iterable[Any], *args: Any, **kwargs: Any
) -> Any:
    """The result of the first argument that takes over the function; TypeError where none does."""
    types: tuple[Any, ...] = tuple(
        dict.fromkeys(cast("Any", type(x)) for x in relevant_args if _overrides(x))
    )
    for kind in types:
        found = kind.__torch_function__(public_api, types, args, kwargs)
        if found is not NotImplemented:
            return found
    raise TypeError(f"no implementation found for '{public_api.__name__}' on types {list(types)}")


def wrap_torch_function(dispatcher: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the function asks the arguments that `dispatcher` gives for `__torch_function__` first."""

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            relevant = dispatcher(*args, **kwargs)
            if has_torch_function(relevant):
                return handle_torch_function(call, relevant, *args, **kwargs)
            return func(*args, **kwargs)

        call.__name__, call.__doc__ = func.__name__, func.__doc__
        return call

    return decorate


def is_tensor_like(inp: Any) -> bool:
    """True for a tensor, and for what has `__torch_function__`."""
    return isinstance(inp, Tensor) or hasattr(inp, "__torch_function__")


def is_tensor_method_or_property(func: Any) -> bool:
    """True for a function with the name of an attribute of Tensor."""
    return getattr(func, "__name__", "") in vars(Tensor)


def get_default_nowrap_functions() -> set[Any]:
    """The functions whose results `__torch_function__` does not wrap: those that read an attribute."""
    return set()


get_ignored_functions = get_default_nowrap_functions


def get_overridable_functions() -> dict[Any, list[Any]]:
    """No list is kept."""
    return {}


get_testing_overrides = get_overridable_functions


def resolve_name(f: Any) -> str | None:
    """The name of a function, with torch's path."""
    name = getattr(f, "__name__", None)
    return None if name is None else f"torch.{'Tensor.' if is_tensor_method_or_property(f) else ''}{name}"


def redispatch(func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """func(*args)."""
    return func(*args, **kwargs)


class TorchFunctionMode(ContextDecorator):
    """For programs that subclass it. weft does not ask modes, so entering one is refused."""

    def __enter__(self) -> Self:
        from weft.as_torch.kinds import refuse

        refuse(
            f"torch.overrides.TorchFunctionMode ({type(self).__name__})",
            "use module hooks, or patch the function",
        )

    def __exit__(self, *error: object) -> None:
        pass
