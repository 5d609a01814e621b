"""Padding as layers: `padding` is a number for every side, or (before, after) of the last size, then of the others."""

from __future__ import annotations

from collections.abc import Sequence

from weft.core.tensor.tensor import Tensor
from weft.errors import ArgumentError
from weft.nn import functional as F
from weft.nn.module import Module


class _Pad(Module):
    rank: int
    mode: str
    value: float | None = None

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        sides = 2 * self.rank
        self.padding = (padding,) * sides if isinstance(padding, int) else tuple(padding)
        if len(self.padding) != sides:
            raise ArgumentError(
                f"{type(self).__name__}: padding must be an int or {sides} ints, got {padding}"
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, self.padding, self.mode, self.value)

    def extra_repr(self) -> str:
        return f"{self.padding}" if self.value is None else f"padding={self.padding}, value={self.value}"


class ZeroPad1d(_Pad):
    """Zeros around. Shapes: (..., L) -> larger ones."""

    rank, mode = 1, "constant"
    value = 0.0


class ZeroPad2d(_Pad):
    """Zeros around. Shapes: (..., H, W) -> larger ones."""

    rank, mode = 2, "constant"
    value = 0.0


class ZeroPad3d(_Pad):
    """Zeros around. Shapes: (..., D, H, W) -> larger ones."""

    rank, mode = 3, "constant"
    value = 0.0


class ConstantPad1d(_Pad):
    """`value` around. Shapes: (..., L) -> larger ones."""

    rank, mode = 1, "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad2d(_Pad):
    """`value` around. Shapes: (..., H, W) -> larger ones."""

    rank, mode = 2, "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value


class ConstantPad3d(_Pad):
    """`value` around. Shapes: (..., D, H, W) -> larger ones."""

    rank, mode = 3, "constant"

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value


class ReflectionPad1d(_Pad):
    """The input mirrored at its border, which is not repeated around. Shapes: (..., L) -> larger ones."""

    rank, mode = 1, "reflect"


class ReflectionPad2d(_Pad):
    """The input mirrored at its border, which is not repeated around. Shapes: (..., H, W) -> larger ones."""

    rank, mode = 2, "reflect"


class ReflectionPad3d(_Pad):
    """The input mirrored at its border, which is not repeated around. Shapes: (..., D, H, W) -> larger ones."""

    rank, mode = 3, "reflect"


class ReplicationPad1d(_Pad):
    """The element at the border around. Shapes: (..., L) -> larger ones."""

    rank, mode = 1, "replicate"


class ReplicationPad2d(_Pad):
    """The element at the border around. Shapes: (..., H, W) -> larger ones."""

    rank, mode = 2, "replicate"


class ReplicationPad3d(_Pad):
    """The element at the border around. Shapes: (..., D, H, W) -> larger ones."""

    rank, mode = 3, "replicate"


class CircularPad1d(_Pad):
    """The elements of the other end around. Shapes: (..., L) -> larger ones."""

    rank, mode = 1, "circular"


class CircularPad2d(_Pad):
    """The elements of the other end around. Shapes: (..., H, W) -> larger ones."""

    rank, mode = 2, "circular"


class CircularPad3d(_Pad):
    """The elements of the other end around. Shapes: (..., D, H, W) -> larger ones."""

    rank, mode = 3, "circular"
