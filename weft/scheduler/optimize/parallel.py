"""Spreading loops over cores."""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.index import ceildiv
from weft.ir.kernel.schedule import Kernel, LoopSpec
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Bind
from weft.ir.kernel.transforms.merge import Merge
from weft.scheduler.optimize.steps import merge, split

TASKS_PER_CORE = 8
"""Enough to even out what the cores are slowed by, few enough to cost nothing."""

WORTH_NS = 20_000.0
"""Work below this, in nanoseconds on one core, is not worth waking others for."""


def tasks(extent: int, info: DeviceInfo) -> int:
    """How many tasks to cut `extent` iterations into."""
    return min(extent, info.cores * TASKS_PER_CORE)


def work_ns(flops: float, nbytes: float, info: DeviceInfo) -> float:
    """About how long one core takes."""
    return max(flops / (info.flops / info.cores), nbytes / info.bandwidth) * 1e9


def spread(k: Kernel, item: str, loops: list[str], info: DeviceInfo) -> Kernel:
    """Run the leading loops `loops` of an item (adjacent, outermost first) as one parallel loop of enough tasks."""
    if not loops:
        return k
    name = loops[0]
    for inner in loops[1:]:
        if Merge(name, inner).check(k) is not None:
            break
        k, name = merge(k, name, inner)
    spec = k.nests[item].loop(name)
    assert spec is not None
    chunk = _chunk(spec, info)
    if chunk > 1:
        k, name, _ = split(k, name, chunk, f"{name}_task", f"{name}_in")
    bind = Bind(name, info.task_kind)
    return run(k, bind) if bind.check(k) is None else k


def _chunk(spec: LoopSpec, info: DeviceInfo) -> int:
    """The largest divisor of the extent that still leaves enough tasks (1: each iteration is a task)."""
    if not isinstance(spec.extent, int):
        return 1
    wish = spec.extent // tasks(spec.extent, info)
    return next((c for c in range(wish, 0, -1) if spec.extent % c == 0), 1)


def padded(extent: int, lanes: int, info: DeviceInfo, parallel: bool) -> int:
    """`extent` rounded up so that it splits into vectors, and the vectors into tasks."""
    vectors = ceildiv(extent, lanes)
    count = tasks(vectors, info) if parallel else 1
    return ceildiv(vectors, count) * count * lanes
