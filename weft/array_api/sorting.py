"""Sorting functions of the standard."""

from __future__ import annotations

from weft.core.functions import sorting
from weft.core.tensor.tensor import Tensor


def argsort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The indices that sort along an axis."""
    return sorting.argsort(x, axis, descending)


def sort(x: Tensor, /, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """Sorted along an axis."""
    return sorting.sort(x, axis, descending).values
