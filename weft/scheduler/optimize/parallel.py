"""Spreading loops over cores."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import elements
from weft.ir.index import ceildiv, high
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.mark import Bind
from weft.ir.kernel.transforms.merge import Merge
from weft.scheduler.optimize.steps import merge, split

TASKS_PER_CORE = 8
"""Enough to even out what the cores are slowed by, few enough to cost nothing."""


def most_tasks(info: DeviceInfo) -> int:
    """The number of tasks that are enough for all cores."""
    return info.cores * TASKS_PER_CORE


def tasks(extent: int, info: DeviceInfo, per_core: int = TASKS_PER_CORE) -> int:
    """The number of tasks to cut `extent` iterations into."""
    return min(extent, info.cores * per_core)


def work_ns(flops: float, nbytes: float, info: DeviceInfo) -> float:
    """About how long one core takes."""
    return max(flops / (info.flops / info.cores), nbytes / info.bandwidth) * 1e9


def pays(k: Kernel, info: DeviceInfo, flops: float | None = None) -> bool:
    """True where the kernel's work is worth waking other cores for; `flops` where they are known better."""
    return work_ns(total_flops(k) if flops is None else flops, total_bytes(k), info) > info.costs.wake_ns


BUSY_WAKES = 10
"""Times what is worth waking the other cores for, that a plan takes at least whose cores stay awake."""


def in_company(works: Iterable[float], info: DeviceInfo) -> DeviceInfo:
    """The device as kernels of a plan find it, which take one core so many ns each: where most of a long plan's time is
    in kernels that are worth sharing, the other cores are awake, and waking them costs nothing."""
    each = [max(ns, info.launch_ns) for ns in works]
    shared = sum(ns for ns in each if ns > info.costs.join_ns)
    total = sum(each)
    if info.cores == 1 or total < BUSY_WAKES * info.costs.wake_ns or 2 * shared < total:
        return info
    return replace(info, costs=replace(info.costs, wake_ns=min(info.costs.join_ns, info.costs.wake_ns)))


def total_flops(k: Kernel) -> float:
    """About the operations of the kernel: two per point of every item."""
    return float(sum(high(elements(tuple(a.extent for a in i.all_axes))) * 2 for i in k.algorithm.items))


def total_bytes(k: Kernel) -> float:
    """The bytes of the parameters."""
    return float(sum(high(elements(p.shape)) * p.dtype.itemsize for p in k.algorithm.params))


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
    if isinstance(spec.extent, int):
        k, count = pick(k, "tasks", _counts(spec.extent, info))
        if count < spec.extent:
            k, name, _ = split(k, name, spec.extent // count, f"{name}_task", f"{name}_in")
    bind = Bind(name, info.task_kind)
    return run(k, bind) if bind.check(k) is None else k


def _counts(extent: int, info: DeviceInfo) -> list[int]:
    """Numbers of equal tasks that a loop can be cut into: the least that is enough, then others."""
    enough = [_equal(extent, tasks(extent, info, per_core)) for per_core in (TASKS_PER_CORE, 1, 2, 4, 16)]
    return list(dict.fromkeys(enough))


def _equal(extent: int, wish: int) -> int:
    """The least number of equal tasks, from `wish` on."""
    return next(extent // chunk for chunk in range(extent // wish, 0, -1) if extent % chunk == 0)


def padded(extent: int, lanes: int, info: DeviceInfo, parallel: bool) -> int:
    """`extent` rounded up so that it splits into vectors, and the vectors into tasks."""
    vectors = ceildiv(extent, lanes)
    count = tasks(vectors, info) if parallel else 1
    return ceildiv(vectors, count) * count * lanes
