"""Rows of a table, by index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.autograd.value import Value
from weft.core import broadcast as bc
from weft.core.elementwise import eq, where
from weft.core.gather import check_range, index_value, one_hot, rows
from weft.core.handle import value_of, wrap
from weft.core.reductions import size_tensor
from weft.errors import ShapeError
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


def embedding(input: Tensor, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """weight[input]; the row padding_idx gets no gradient.

    Shapes: input (...) of integers, weight (n, dim) -> (..., dim). IndexError for known indices outside 0 ... n - 1.
    """
    i, w = index_value("embedding", input), value_of("embedding", weight)
    bc.same_device("embedding", (i, w))
    if len(w.shape) != 2:
        raise ShapeError(f"embedding: weight must have shape (n, dim), got {tuple(w.shape)}")
    flat = check_range("embedding", bc.reshape(i, (elements(i.shape),)), w.shape[0], 0, negative=False)
    if 0 in flat.shape:
        return wrap(bc.scalar(0, w.dtype, (*i.shape, w.shape[1])))
    out = wrap(bc.reshape(rows(w, 0, flat), (*i.shape, w.shape[1])))
    if padding_idx is None or not w.needs_grad:
        return out
    row = padding_idx + size_tensor(w.shape[0], i.dtype) if padding_idx < 0 else padding_idx
    same = eq(wrap(bc.reshape(i, (*i.shape, 1))), row)
    return where(same, wrap(Value(out.value.node)), out)


__all__ = ["embedding", "one_hot"]
