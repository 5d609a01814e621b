"""Parts of torch.compiler, torch._dynamo and torch.export that are more than names that change nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import weft
from weft.core.execute import tracing


def is_compiling() -> bool:
    """True while a function is being traced by `weft.compile`."""
    return tracing.current() is not None


def list_backends(*args: Any, **kwargs: Any) -> list[str]:
    """The names that torch.compile's `backend` may be here: weft compiles by itself, whatever it is."""
    return ["inductor", "eager"]


def optimize(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """weft.compile, as a decorator with arguments."""
    return weft.compile


def set_stance(*args: Any, **kwargs: Any) -> AbstractContextManager[None]:
    """A context that changes nothing."""
    return nullcontext()


class NeverRaised(Exception):  # noqa: N818  (it is one of torch's)
    """An exception of torch's compiler, for programs that catch it."""


class OptimizedModule(weft.nn.Module):
    """The class of compiled modules, for programs that ask `isinstance`: what has been compiled has `_orig_mod`."""


def _compiled_class() -> type:
    layer = weft.nn.Identity()
    compiled: Any = type(weft.compile(layer))
    return OptimizedModule if compiled is type(layer) else compiled


optimized_module: type = _compiled_class()
"""The class of `weft.compile(module)`."""


class _Dimension(type):
    """`Dim("batch", min=1, max=8)`, and the kinds of dimensions `Dim.AUTO`, `Dim.DYNAMIC`, `Dim.STATIC`."""

    AUTO, DYNAMIC, STATIC = "AUTO", "DYNAMIC", "STATIC"


class Dim(metaclass=_Dimension):
    """A dimension of which programs tell torch.export that it may change."""

    def __init__(self, name: str, *, min: int | None = None, max: int | None = None) -> None:
        self.__name__, self.min, self.max = name, min, max
