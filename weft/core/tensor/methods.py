"""Functions as methods of Tensor, under torch's names, and their forms in place: those that the table of names lists.

What type checkers read is methods.pyi, which `tools/surface.py` writes.
"""

from __future__ import annotations

from weft.core.args.handle import Handle
from weft.core.surface.offering import as_method, function_of
from weft.core.tensor.inplace import in_place
from weft.surface.table import rows


class Methods(Handle):
    """Functions that give a new Tensor, and those that make the handle stand for it. Tensor inherits them."""

    __slots__ = ()


for _row in rows("Tensor").values():
    setattr(Methods, _row.name, as_method(_row.name, function_of(_row)))
for _row in rows("Tensor_").values():
    setattr(Methods, f"{_row.name}_", in_place(function_of(_row), f"{_row.name}_"))
