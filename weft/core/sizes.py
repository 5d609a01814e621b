"""The class of shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.ir.graph import elements
from weft.ir.index import Int


class Size(tuple[Int, ...]):
    """A shape: a tuple of the sizes of the dimensions, which can also be counted out, as in `x.shape[1:].numel()`."""

    __slots__ = ()

    def numel(self) -> Int:
        """The number of elements of such a tensor: the product of the sizes."""
        return elements(self)

    if not TYPE_CHECKING:  # to a type checker it indexes as a tuple

        def __getitem__(self, key):
            """A size; of a slice, a shape."""
            part = tuple.__getitem__(self, key)
            return Size(part) if isinstance(key, slice) else part
