"""torch.compiler: what programs say to a compiler, which is `weft.compile`."""
# Tests: tests/core/compile/test_compile_breaks.py, tests/test_torch_paths.py

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial, wraps
from typing import Any, Self

from weft.core.args.contexts import DecoratingContext
from weft.core.compile.compile import compile, reset  # noqa: A004  (torch's name)
from weft.core.execute import tracing

__all__ = [
    "allow_in_graph", "assume_constant_result", "compile", "cudagraph_mark_step_begin", "disable", "is_compiling",
    "is_dynamo_compiling", "is_exporting", "list_backends", "reset", "set_stance", "substitute_in_graph",
]  # fmt: skip


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """The function, which is never traced: a compiled one that calls it goes on as an uncompiled one from there, and
    with `fullgraph=True` that is an ArgumentError. Also as a decorator, with or without arguments."""
    if fn is None:
        return partial(disable, recursive=recursive, reason=reason)
    if isinstance(fn, type) or not callable(fn):
        return fn
    module: Any = fn
    if hasattr(module, "forward"):  # its calls
        module.forward = disable(module.forward, recursive, reason=reason)
        return module
    name = getattr(fn, "__name__", type(fn).__name__)
    inner: Callable[..., Any] = fn

    @wraps(inner)
    def call(*args: Any, **kwargs: Any) -> Any:
        tracing.host_only(name)
        return inner(*args, **kwargs)

    return call


def is_compiling() -> bool:
    """True while a function is being traced by `weft.compile`."""
    return tracing.current() is not None


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """False: nothing is exported by tracing."""
    return False


def allow_in_graph(fn: Any) -> Any:
    """The function, or the list of them, as it is: every function is traced along."""
    return fn


def assume_constant_result(fn: Any) -> Any:
    """The function as it is: what it gives while a function is traced stays in the trace."""
    return fn


def substitute_in_graph(original_fn: Any, **options: Any) -> Any:
    """A decorator that changes nothing: the original is traced, too."""
    return allow_in_graph


def cudagraph_mark_step_begin() -> None:
    """Nothing: results belong to the caller."""


def list_backends(exclude_tags: Iterable[str] = ()) -> list[str]:
    """The names that `backend=` of weft.compile may say. It takes any name, and there is one way."""
    return ["inductor"]


class set_stance(DecoratingContext):  # noqa: N801  (torch's name)
    """Nothing, as a call, a context or a decorator: what a call does is the same with every stance."""

    def __init__(self, stance: str = "default", **options: Any) -> None:
        self.stance = stance

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass
