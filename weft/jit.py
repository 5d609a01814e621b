"""torch.jit for programs that use it: functions and modules stay what they are, which weft compiles at every use.

`weft.compile` traces one into a plan. Programs in files (`torch.jit.save`) are not offered: save a state_dict.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["export", "ignore", "is_scripting", "is_tracing", "script", "script_method", "trace", "unused"]

F = TypeVar("F")


def script(obj: F, *args: Any, **kwargs: Any) -> F:
    """`obj`, a function, a class or a module, as it is."""
    return obj


def trace(func: F, example_inputs: Any = None, *args: Any, **kwargs: Any) -> F:
    """`func`, a function or a module, as it is: not fixed to what the examples do."""
    return func


script_method = export = script


def ignore(drop: Any = False, **kwargs: Any) -> Any:
    """A decorator that changes nothing, with or without arguments. `unused` is the same."""
    if callable(drop):
        return drop
    unchanged: Callable[[Any], Any] = script
    return unchanged


unused = ignore


def is_scripting() -> bool:
    """False."""
    return False


is_tracing = is_scripting
