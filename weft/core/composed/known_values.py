"""Checks of values that are in memory already: what is not computed yet is not computed for a check."""

from __future__ import annotations

import math

from weft.autograd.value import Value
from weft.core.composed.composite import values_are_read
from weft.core.execute import run
from weft.errors import ArgumentError
from weft.ir.ops import Op

MOST = 1 << 20
"""Elements that are looked at: below a millisecond, whatever the operation takes."""


def check_known(op: str, what: str, v: Value, low: float = 0.0, high: float = math.inf) -> None:
    """ArgumentError where values are known, up to `MOST` of them, and one is NaN or not from `low` to `high`.

    torch checks them on a CPU whenever it is called, on a GPU some time afterwards. Here only leaves are known: under
    `weft.compile`, and for what other operations gave, a check would compute.
    """
    values_are_read()
    node = v.node
    if node.op is Op.CAST and node.inputs[0].dtype.is_float and node.dtype is not node.inputs[0].dtype:
        node = node.inputs[0]  # what is widened
    array = run.host_array(node)
    if array is None or not 0 < array.size <= MOST:
        return
    least, most = float(array.min()), float(array.max())
    if not (low <= least and most <= high):
        bounds = f"from {low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
        raise ArgumentError(f"{op}: {what} must be {bounds}, got {least if not low <= least else most:g}")
