"""The schedule of a kernel from its algorithm and a device description, by rules, at once.

    contraction (sum of products with reuse)  -> `contraction`: register tiles, packed panels
    online-reducible chain (attention)        -> `online`: one pass over tiles
    a sum with a factor per block of it       -> `blocks`: weights of few bits, times a vector
    reductions over windows (depthwise)       -> `windows`: the window copied, tiles in registers
    running sums of short rows                -> `prefixes`: lanes along the results
    few results of two operands (their taps)  -> `taps`: all of them in registers, lanes along what is summed
    everything else                           -> `rows`: rows or columns of reductions around elementwise work
    what combines where data says, of any    -> `scatters`: lanes and tasks along what data does not name
    any kernel, where tasks are thread blocks -> `gpu`
    sums that are then still long chains      -> `levels.bounded`, whatever rule made them

The rules read sizes, access patterns and the description; they know no operator by name.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.kernel.algorithm import Algorithm
from weft.ir.kernel.schedule import Kernel, initial
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import blocks, contraction, gpu, online, prefixes, rows, scatters, taps, windows
from weft.scheduler.optimize.levels import bounded

_RULES = (
    online.schedule,
    contraction.schedule,
    blocks.schedule,
    windows.schedule,
    prefixes.schedule,
    taps.schedule,
    rows.schedule,
)


def schedule(algorithm: Algorithm, info: DeviceInfo) -> Kernel:
    """A good schedule for `algorithm` on a device like `info`."""
    return bounded(_by_rule(initial(algorithm), info), info)


def _by_rule(kernel: Kernel, info: DeviceInfo) -> Kernel:
    if info.task_kind is LoopKind.BLOCK:
        return gpu.schedule(kernel, info)
    for rule in _RULES:
        scheduled = rule(kernel, info)
        if scheduled is not None:
            return scatters.spread(scheduled, info)
    return kernel
