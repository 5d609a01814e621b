"""Refuse by name what a device cannot compute, before it is compiled; nothing is left out or changed silently."""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.backends.storage import unsupported
from weft.errors import DeviceError
from weft.ir.dtypes import DTYPES
from weft.ir.expr import ScalarCall, walk
from weft.ir.loops import Alloc, Program
from weft.ir.loops_names import every, roots
from weft.ir.ops import ELEMENTWISE, Op

_MADE_BY_PASSES = frozenset({Op.FMA})
"""Only where the device has them."""


def check_supported(program: Program, info: DeviceInfo) -> None:
    """DTypeError for a dtype that the device lacks, DeviceError for an op that it neither has nor can be expanded
    into others. `program` has its functions expanded."""
    if len(info.dtypes) == len(DTYPES) and info.native >= ELEMENTWISE - _MADE_BY_PASSES:
        return
    statements = list(every(program.body))
    buffers = [*program.params, *(s.buffer for s in statements if isinstance(s, Alloc))]
    for b in buffers:
        if b.dtype not in info.dtypes:
            raise unsupported(info, b.dtype)
    for e in walk(r for s in statements for r in roots(s)):
        if e.dtype not in info.dtypes:
            raise unsupported(info, e.dtype)
        if isinstance(e, ScalarCall) and e.op not in info.native:
            raise DeviceError(
                f"{info.name} has no {e.op.symbol} of {e.args[0].dtype.name}, nor what it could be made of; "
                "compute it on a device that does, such as cpu"
            )
