"""The standard's linear algebra outside of its extension."""

from __future__ import annotations

from collections.abc import Sequence

from weft.array_api.promotion import together
from weft.core.functions import matmul as products
from weft.core.functions import reductions
from weft.core.layout import movement
from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError


def matmul(x1: Tensor, x2: Tensor, /) -> Tensor:
    """The matrix product."""
    return products.matmul(*together("matmul", x1, x2))


def matrix_transpose(x: Tensor, /) -> Tensor:
    """The last two axes exchanged."""
    return movement.matrix_transpose(x)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Tensor:
    """The sum over pairs of axes."""
    a, b = together("tensordot", x1, x2)
    return products.tensordot(a, b, axes)


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """The dot product along an axis."""
    a, b = together("vecdot", x1, x2)
    if axis >= 0 or a.shape[axis] != b.shape[axis]:
        raise ArgumentError(
            f"vecdot: axis {axis} of shapes {tuple(a.shape)} and {tuple(b.shape)} must be negative and agree"
        )
    return reductions.sum(a * b, axis, dtype=a.dtype)
