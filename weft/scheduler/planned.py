"""The graph that a plan computes in place of one: what other orders of sums and of memory save."""
# Tests: tests/scheduler/test_factored_sums.py, tests/scheduler/test_winograd.py

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.protocol import DeviceInfo
from weft.ir.calls import expand_calls
from weft.ir.graph import Node
from weft.scheduler.factored_sums import factored
from weft.scheduler.layouts import laid_out
from weft.scheduler.loop_panels import with_panels


def planned(outputs: Sequence[Node], info: DeviceInfo) -> Sequence[Node]:
    """The nodes that a plan on such a device computes for `outputs`, calls expanded."""
    return with_panels(laid_out(factored(expand_calls(outputs)), info), info)
