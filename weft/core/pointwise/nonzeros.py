"""Indices of nonzero elements: computed at once, since the size of the result depends on it."""
# Tests: tests/core/test_surface.py, tests/core/compile/test_compile_breaks.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from weft.autograd.context import default_device
from weft.autograd.value import Value
from weft.core.args.handle import value_of, wrap
from weft.core.execute import run

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@overload
def nonzero(input: Tensor, *, as_tuple: Literal[False] = False) -> Tensor: ...
@overload
def nonzero(input: Tensor, *, as_tuple: Literal[True]) -> tuple[Tensor, ...]: ...
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Tensor | tuple[Tensor, ...]:
    """The indices of the nonzero elements, one per row, or one vector per dimension, where the input is. Computes the
    input."""
    node = value_of("nonzero", input).node
    array = run.to_numpy(node)
    home = node.device or default_device()
    if as_tuple:
        return tuple(_indices(f, home) for f in np.nonzero(np.atleast_1d(array)))
    return _indices(np.argwhere(array), home)


def _indices(found: np.ndarray[Any, Any], home: str) -> Tensor:
    return wrap(Value(run.from_numpy(found.astype(np.int64), home)))


def argwhere(input: Tensor) -> Tensor:
    """The indices of the nonzero elements, one per row. Computes the input."""
    return nonzero(input)
