"""How tensors print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft.core import run
from weft.core.defaults import get_default_dtype
from weft.ir.dtypes import bool_, float32, int64
from weft.ir.index import Index

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


def text(t: Tensor) -> str:
    """The tensor as torch prints it: values, and what is not obvious from them. Computes the tensor."""
    v = t.value
    notes: list[str] = []
    if any(isinstance(n, Index) for n in v.shape):
        return f"tensor(..., shape={v.shape}, dtype={v.dtype!r})"
    array = run.to_numpy(v.node)
    if v.dtype.is_narrow:
        array = array.astype(np.float32)
    body = np.array2string(array, separator=", ", prefix="tensor(", precision=4, threshold=1000, edgeitems=3)
    if array.size == 0 and len(v.shape) > 1:
        notes.append(f"size={tuple(v.shape)}")
    if v.dtype not in (get_default_dtype(), int64, bool_) or (array.size == 0 and v.dtype is not float32):
        notes.append(f"dtype={v.dtype!r}")
    device = t.device
    if device != run.configured_device():
        notes.append(f"device='{device}'")
    if v.needs_grad:
        notes.append("requires_grad=True")
    return f"tensor({', '.join([body, *notes])})"
