"""The class of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from weft.ir.graph import elements
from weft.ir.index import Int
from weft.naming import package


class Size(tuple[Int, ...]):
    """A shape: a tuple of the sizes of the dimensions, which can also be counted out, as in `x.shape[1:].numel()`."""

    __slots__ = ()

    def numel(self) -> Int:
        """The number of elements of such a tensor: the product of the sizes."""
        return elements(self)

    def __add__(self, other: object) -> Size:  # pyright: ignore[reportIncompatibleMethodOverride]  (a shape)
        return Size((*self, *cast("tuple[Int, ...]", other))) if isinstance(other, tuple) else NotImplemented

    def __radd__(self, other: object) -> Size:
        return Size((*cast("tuple[Int, ...]", other), *self)) if isinstance(other, tuple) else NotImplemented

    def __mul__(self, n: object) -> Size:  # pyright: ignore[reportIncompatibleMethodOverride]  (a shape)
        return Size(tuple(self) * n) if isinstance(n, int) else NotImplemented

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"{package()}.Size({list(self)})"

    __str__ = __repr__

    if not TYPE_CHECKING:  # to a type checker it indexes as a tuple

        def __getitem__(self, key):
            """A size; of a slice, a shape."""
            part = tuple.__getitem__(self, key)
            return Size(part) if isinstance(key, slice) else part
