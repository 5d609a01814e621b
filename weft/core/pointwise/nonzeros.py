"""Indices of nonzero elements: computed at once, since the size of the result depends on it."""
# Tests: tests/core/test_surface.py, tests/core/compile/test_compile_breaks.py

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from weft.autograd.context import default_device
from weft.autograd.value import Value
from weft.core.args.handle import value_of, wrap
from weft.core.execute import run

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Array: TypeAlias = np.ndarray[Any, Any]


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
        return tuple(_indices(f.astype(np.int64), home) for f in _coordinates(np.atleast_1d(array)))
    found = _coordinates(np.atleast_1d(array))
    rows = np.empty((len(found[0]), array.ndim), np.int64)
    for d in range(array.ndim):
        rows[:, d] = found[d]
    return _indices(rows, home)


def flat_places(array: Array) -> Array:
    """The places of nonzero elements in row-major order: NumPy looks for true ones several times faster."""
    return np.flatnonzero(array if array.dtype == np.bool_ else array != 0)


def _coordinates(array: Array) -> list[Array]:
    """The places of nonzero elements in each dimension: quotients of flat ones, in 32 bits if these fit."""
    rest = flat_places(array)
    rest = rest.astype(np.int32) if array.size <= np.iinfo(np.int32).max else rest
    found: list[Array] = []
    for n in array.shape[:0:-1]:
        above = rest // rest.dtype.type(n)
        found.append(rest - above * rest.dtype.type(n))
        rest = above
    return [rest, *found[::-1]]


def _indices(found: Array, home: str) -> Tensor:
    return wrap(Value(run.from_numpy(found, home)))


def argwhere(input: Tensor) -> Tensor:
    """The indices of the nonzero elements, one per row. Computes the input."""
    return nonzero(input)
