"""torch.nn.modules.utils: a number repeated, for sizes of kernels and strides."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, cast


def _repeated(n: int, x: Any) -> tuple[Any, ...]:
    return tuple(cast("Iterable[Any]", x)) if isinstance(x, Iterable) else (x,) * n


def _ntuple(n: int, name: str = "parse") -> Callable[[Any], tuple[Any, ...]]:
    """The function that gives a tuple as it is, and a number n times."""
    return partial(_repeated, n)


_single, _pair, _triple, _quadruple = (_ntuple(n) for n in (1, 2, 3, 4))

__all__ = ["_ntuple", "_pair", "_quadruple", "_single", "_triple"]
