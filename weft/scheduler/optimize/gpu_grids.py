"""Every item in grids of its own, on devices whose tasks are thread blocks.

elementwise  y(i) = f(x(i))      one grid; consecutive threads, consecutive vectors
reductions   r = sum k: x(k)     a block for each result or several, in two steps when there are few results; without
                                 a scratchpad a thread for each, the terms of long ones cut into parts
"""
# Tests: tests/scheduler/test_golden.py, tests/scheduler/optimize/test_gpu.py

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import elements
from weft.ir.index import Index, Var, ceildiv, coefficient, high, substitute
from weft.ir.kernel.algorithm import Item, ItemValue, Output
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Vectorize
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.access import accesses, vector_score
from weft.scheduler.optimize.gpu_threads import (
    ACCESS_BYTES,
    MAX_FINAL,
    MIN_TERMS,
    THREADS,
    WARP,
    along,
    bind_step,
    cut,
    inlined,
    is_static,
    loops_of,
    merged,
    reduces_well,
    thread_steps,
)
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.steps import extent, merge, split

BLOCKS_PER_CORE = 8
"""Blocks per multiprocessor that keep the memory busy."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Every kernel has the form."""

    kernel: Kernel


@dataclass(frozen=True)
class Grids(Choice):
    """A grid for each item."""

    items: int

    def __str__(self) -> str:
        return f"{self.items} item{'s' if self.items > 1 else ''}, in grids of their own"


def recognise(k: Kernel, info: DeviceInfo) -> Anything:
    """Any kernel."""
    return Anything(inlined(k))


def choose(form: Anything, info: DeviceInfo) -> Grids:
    """The only way."""
    return Grids(len(form.kernel.algorithm.items))


def apply(form: Anything, choice: Grids, info: DeviceInfo) -> Kernel:
    """Every item in grids of its own."""
    k = form.kernel
    for item in list(k.algorithm.items):
        if isinstance(item, Output) or item.reduce is None:
            k = _elementwise(k, item)
        else:
            k = _reduction(k, item, info)
    return k


RULE = Rule("gpu_grids", recognise, choose, apply)


def _elementwise(k: Kernel, item: Item) -> Kernel:
    """One thread per vector of elements, or per element."""
    loops = loops_of(k, item.name)
    if isinstance(item, Output) and any(s.combine is not None for s in item.stores):
        return _scatter(k, item)
    free = [n for n in loops if Bind(n, LoopKind.BLOCK).check(k) is None]
    if not free:
        return k
    axis = {e.name: a for a, e in k.nests[item.name].bind.items() if isinstance(e, Var)}
    lane = max(
        free, key=lambda n: (vector_score(k.algorithm, item, axis[n]) if n in axis else -1e9, loops.index(n))
    )
    vector = ""
    width = _width(k, item, axis[lane]) if lane in axis and is_static(k, lane) else 1
    if len(free) < len(loops):
        rest = [n for n in loops if n not in free]
        k = run(k, Permute(item.name, (*(n for n in free if n != lane), lane, *rest)))
    else:
        k = run(k, Permute(item.name, (*(n for n in free if n != lane), lane)))
        if width > 1:
            k, lane, vector = split(k, lane, width, f"{lane}v", f"{lane}w")
    order = [*(n for n in free if n in loops_of(k, item.name) and n not in (lane, vector)), lane]
    k = _grid(k, order)
    return attempt(k, Vectorize(vector)) if vector else k


def _width(k: Kernel, item: Item, axis: Var) -> int:
    """Elements of one thread along an axis: what every access that steps along it can move at once."""
    n = axis.hi + 1
    sizes: list[int] = []
    for a in accesses(k.algorithm, item):
        step = coefficient(a.offset, axis)
        param = k.algorithm.param(a.param)
        assert param is not None
        if step == 1:
            sizes.append(param.dtype.itemsize)
        elif a.store or step is None:
            return 1
    if not sizes:
        return 1
    return next(
        (
            w
            for w in (ACCESS_BYTES // max(sizes), 4, 2)
            if w > 1 and w * max(sizes) <= ACCESS_BYTES and n % w == 0
        ),
        1,
    )


def _grid(k: Kernel, loops: list[str]) -> Kernel:
    """Adjacent outer loops (the last one along neighbours in memory) over blocks of threads."""
    k, lane = _merge_static(k, loops)
    loops = loops[: len(loops) - lane[1]]
    name = lane[0]
    if is_static(k, name):
        n = extent(k, name)
        threads = min(THREADS, int(ceildiv(n, WARP)) * WARP) if n > 1 else 1
        if n % threads:
            padded = Pad(name, threads)
            if padded.check(k) is None:
                k = run(k, padded)
            else:
                threads = max((t for t in range(1, threads + 1) if n % t == 0), default=1)
        if extent(k, name) > threads:
            k, block, thread = split(k, name, threads, f"{name}b", f"{name}t")
            k = run(k, Bind(thread, LoopKind.THREAD))
            loops.append(block)
        else:
            k = run(k, Bind(name, LoopKind.THREAD))
    else:
        loops.append(name)
    for n in loops:
        k = run(k, Bind(n, LoopKind.BLOCK))
    return k


def _merge_static(k: Kernel, loops: list[str]) -> tuple[Kernel, tuple[str, int]]:
    """The innermost loops merged as far as they are of known size: the one, and of how many it is made.

    One that would need padding afterwards, which only a whole axis allows, stays apart.
    """
    name, count = loops[-1], 1
    for outer in reversed(loops[:-1]):
        if not is_static(k, outer) or not is_static(k, name) or Merge(outer, name).check(k) is not None:
            break
        if extent(k, name) % WARP and extent(k, name) > THREADS * 4 and count == 1:
            break
        k, name = merge(k, outer, name)
        count += 1
    return k, (name, count)


def _scatter(k: Kernel, out: Output) -> Kernel:
    """Loops over which no two stores meet go over threads; the rest stay in order, so that results are repeatable."""
    bind = k.nests[out.name].bind
    free = [n for n in loops_of(k, out.name) if Bind(n, LoopKind.BLOCK).check(k) is None]
    for s in out.stores:
        if not any(isinstance(i, Index) and i.computed for i in s.index):
            dims = {e.name for i in s.index if isinstance(e := substitute(i, bind), Var)}
            free = [n for n in free if n in dims]
    if not free:
        return k
    rest = [n for n in loops_of(k, out.name) if n not in free]
    k = run(k, Permute(out.name, (*free, *rest)))
    *outer, lane = free
    if is_static(k, lane):
        n = extent(k, lane)
        threads = max(t for t in range(1, min(n, THREADS) + 1) if n % t == 0)
        if threads < n:  # no padding here: what overshoots would seem to meet other rows
            k, block, lane = split(k, lane, threads, f"{lane}b", f"{lane}t")
            outer.append(block)
        k = attempt(k, Bind(lane, LoopKind.THREAD))
    for name in outer:
        k = attempt(k, Bind(name, LoopKind.BLOCK))
    return k


def _reduction(k: Kernel, v: ItemValue, info: DeviceInfo) -> Kernel:
    """A value in one grid, or, when it has few elements, in one of partial results and one of their combination."""
    assert v.reduce is not None
    lanes = along(k, v)
    points = high(elements(tuple(a.extent for a in v.axes)))
    terms = high(elements(tuple(a.extent for a in v.reduce.axes)))
    static = all(isinstance(a.extent, int) for a in v.all_axes)
    if not lanes or not static:
        return _grid_of_points(k, v.name)
    axis = lanes[0]
    wanted = info.cores * BLOCKS_PER_CORE * THREADS
    if info.scratchpad and reduces_well(k, v) and terms >= MAX_FINAL:
        length = high(axis.extent)
        if points < info.cores and length > THREADS * MIN_TERMS:
            pieces = min(int(ceildiv(length, THREADS * MIN_TERMS)), int(ceildiv(wanted, THREADS * points)))
            whole = int(ceildiv(int(ceildiv(length, pieces)), THREADS * 4)) * THREADS * 4
            k = run(k, SplitReduce(v.name, axis.var.name, whole, f"{v.name}_piece"))
            k = _row_grid(k, f"{v.name}_piece", info)
        return _row_grid(k, v.name, info)
    longest = max(v.reduce.axes, key=lambda a: high(a.extent))
    if points * 2 < wanted and high(longest.extent) > MIN_TERMS:
        pieces = min(int(ceildiv(high(longest.extent), MIN_TERMS)), int(ceildiv(wanted, points)))
        factor = int(ceildiv(high(longest.extent), pieces))
        k = run(k, SplitReduce(v.name, longest.var.name, factor, f"{v.name}_piece"))
        k = _grid_of_points(k, f"{v.name}_piece")
    return _grid_of_points(k, v.name)


def _grid_of_points(k: Kernel, name: str) -> Kernel:
    """A thread per element of the value, neighbours along what its accesses step by one; each sums its terms."""
    item = k.algorithm.item(name)
    pure, reduced = loops_of(k, name, False), loops_of(k, name, True)
    if not pure:
        return k
    axis = {e.name: a for a, e in k.nests[name].bind.items() if isinstance(e, Var)}
    lane = max(pure, key=lambda n: (vector_score(k.algorithm, item, axis[n]), pure.index(n)))
    order = [*(n for n in pure if n != lane), lane]
    return _grid(run(k, Permute(name, (*order, *reduced))), order)


def _row_grid(k: Kernel, name: str, info: DeviceInfo) -> Kernel:
    """A block per element of the value, or several: its threads share the terms."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue)
    axis = along(k, item)
    pure = loops_of(k, name, False)
    if not axis:
        return _grid_of_points(k, name)
    sizes = [
        p.dtype.itemsize for a in accesses(k.algorithm, item) if (p := k.algorithm.param(a.param)) is not None
    ]
    lanes = cut(high(axis[0].extent), max(sizes, default=ACCESS_BYTES))
    k, steps = thread_steps(k, name, axis[0].var.name, lanes, info)
    if pure:  # a single result stays at the top of the program: one block computes it
        tall = max(1, min(THREADS // lanes.threads, extent(k, loops_of(k, name, False)[-1])))
        pure = loops_of(k, name, False)
        last, across = pure[-1], ""
        k = run(k, Permute(name, (*pure, *loops_of(k, name, True))))
        if tall > 1:
            k = run(k, Pad(last, tall))
            k, last, across = split(k, last, tall, f"{last}b", f"{last}y")
        k, block = merged(k, [*pure[:-1], last])
        k = run(k, Bind(block, LoopKind.BLOCK))
        if across:
            k = run(k, Bind(across, LoopKind.THREAD))
        for step, _ in steps[1:]:
            k = run(k, ComputeAt(step, name, block))
    for step, kind in steps:
        if step == name and pure:
            continue
        k = bind_step(k, step, kind, lanes)
    return k
