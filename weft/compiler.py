"""torch.compiler: what programs say to a compiler. weft.compile traces through everything, so little is left to say."""

from __future__ import annotations

from typing import Any

from weft.core import tracing

__all__ = ["disable", "is_compiling", "is_dynamo_compiling", "reset"]


def disable(fn: Any = None, recursive: bool = True, **kwargs: Any) -> Any:
    """The function as it is; also as a decorator. What a compiled function calls is traced along."""
    return disable if fn is None else fn


def is_compiling() -> bool:
    """Whether a function is being traced by `weft.compile`."""
    return tracing.current() is not None


is_dynamo_compiling = is_compiling


def reset() -> None:
    """Nothing: traces belong to compiled functions and go with them."""
