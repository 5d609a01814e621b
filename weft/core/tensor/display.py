"""Printing of tensors."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.context import configured_device
from weft.core.args.defaults import get_default_dtype
from weft.core.execute import run
from weft.errors import ArgumentError
from weft.ir.dtypes import bool_, float32, int64
from weft.ir.index import Index
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Options:
    """Digits behind the point, from how many elements on and to how many at each edge to shorten, letters per line, and
    whether to write powers of ten (None: where the numbers ask for it)."""

    precision: int = 4
    threshold: float = 1000
    edgeitems: int = 3
    linewidth: int = 80
    sci_mode: bool | None = None


_PROFILES = {
    "default": Options(), "short": Options(precision=2, edgeitems=2), "full": Options(threshold=math.inf),
}  # fmt: skip
_options = Options()


def set_printoptions(
    precision: int | None = None,
    threshold: float | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Set how tensors print from now on; a profile ("default", "short", "full") sets what is not given.

    >>> weft.set_printoptions(precision=2)
    """
    global _options
    if profile is not None and profile not in _PROFILES:
        raise ArgumentError(
            f"set_printoptions: profile must be one of {', '.join(_PROFILES)}, got {profile!r}"
        )
    base = _options if profile is None else _PROFILES[profile]
    _options = Options(
        base.precision if precision is None else precision,
        base.threshold if threshold is None else threshold,
        base.edgeitems if edgeitems is None else edgeitems,
        base.linewidth if linewidth is None else linewidth,
        sci_mode,
    )


def text(t: Tensor) -> str:
    """Values as numpy prints them, and what is not obvious from them as torch does. Computes the tensor."""
    v = t.value
    notes: list[str] = []
    if any(isinstance(n, Index) for n in v.shape):
        return f"tensor(..., shape={v.shape}, dtype={v.dtype!r})"
    if v.node.device == run.META:
        kind = [] if v.dtype is get_default_dtype() else [f"dtype={v.dtype!r}"]
        grad = ["requires_grad=True"] if v.needs_grad else []
        parts = ["...", "device='meta'", f"size={tuple(v.shape)}", *kind, *grad]
        return f"tensor({', '.join(parts)})"
    array = run.to_numpy(v.node)
    if v.dtype.is_narrow:
        array = array.astype(np.float32)
    o = _options
    written: dict[str, Any] = {}
    if o.sci_mode is True and v.dtype.is_float:

        def scientific(x: Any) -> str:
            return np.format_float_scientific(x, precision=o.precision, unique=False)

        written["formatter"] = {"float_kind": scientific}
    body = np.array2string(
        array, o.linewidth if o != Options() else None, separator=", ", prefix="tensor(", precision=o.precision,
        threshold=int(min(o.threshold, sys.maxsize)), edgeitems=o.edgeitems,
        suppress_small=True if o.sci_mode is False else None, **written,
    )  # fmt: skip
    if array.size == 0 and len(v.shape) > 1:
        notes.append(f"size={tuple(v.shape)}")
    if v.dtype not in (get_default_dtype(), int64, bool_) or (array.size == 0 and v.dtype is not float32):
        notes.append(f"dtype={v.dtype!r}")
    device = t.device
    if device != configured_device():
        notes.append(f"device='{device}'")
    if v.needs_grad:
        notes.append("requires_grad=True")
    return f"tensor({', '.join([body, *notes])})"
