"""Common parts of schedules of thread blocks: loops shared out to threads, reductions by a block's threads.

A reduction's partial results are in registers, combined by the threads of a warp (`Across`), and through LOCAL memory
where there are several, or where the device does not do that. A block's values are LOCAL and its loops bound to threads
one by one; `weft.ir.passes.grid` makes one program of threads of them, with what only one thread touches in its
registers.
"""
# Tests: tests/scheduler/test_golden.py, tests/scheduler/optimize/test_gpu.py

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import elements
from weft.ir.index import ceildiv, high
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, readers
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.across import Across
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.inline import Inline
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.access import is_costly, vector_score
from weft.scheduler.optimize.steps import extent, merge, split

THREADS = 256
"""Threads of a block, unless a row is long and rows are few."""

MAX_THREADS = 1024
"""Threads of a block, where rows are few and long."""

WARP = 32
"""Threads of a warp, at most."""

ACCESS_BYTES = 16
"""The widest load or store of one thread."""

MAX_FINAL = 16
"""Partial results that every thread adds up by itself at the end of a reduction."""

MIN_TERMS = 64
"""Terms that one thread should have to add before a reduction is spread over more threads."""


def inlined(k: Kernel) -> Kernel:
    """Values without reductions are computed where they are read, unless that repeats costly work in a reduction."""
    for item in list(k.algorithm.items):
        if isinstance(item, ItemValue) and item.reduce is None:
            users = readers(k.algorithm, item.name)
            if len(users) == 1 or not is_costly(item.expr) or _points(item) >= max(_points(u) for u in users):
                k = attempt(k, Inline(item.name))
    return k


def _points(item: Item) -> int:
    return high(elements(tuple(a.extent for a in item.all_axes)))


def is_static(k: Kernel, loop: str) -> bool:
    """True where the extent is known now."""
    owner = k.owner(loop)
    spec = k.nests[owner].loop(loop) if owner is not None else None
    return spec is not None and isinstance(spec.extent, int)


def loops_of(k: Kernel, item: str, reduce: bool | None = None) -> list[str]:
    """The item's loops in order: all, those that reduce, or those that do not."""
    return [s.var.name for s in k.nests[item].loops if reduce is None or s.reduce is reduce]


def merged(k: Kernel, loops: list[str]) -> tuple[Kernel, str]:
    """Adjacent loops as one."""
    name = loops[0]
    for inner in loops[1:]:
        k, name = merge(k, name, inner)
    return k, name


@dataclass(frozen=True, slots=True)
class Lanes:
    """The cut of a row: `threads` threads, each with vectors of `width` elements."""

    threads: int
    width: int

    def __str__(self) -> str:
        return f"{self.threads}x{self.width}"


ALONE = Lanes(1, 1)
"""A row of its own for each thread."""


def cut(n: int, itemsize: int, most: int = THREADS) -> Lanes:
    """A row of `n` elements over at most `most` threads, without a remainder if there is such a cut."""
    for width in (ACCESS_BYTES // max(1, itemsize), 4, 2, 1):
        if width < 1 or width * itemsize > ACCESS_BYTES or n % width:
            continue
        vectors = n // width
        fits = [t for t in range(1, min(most, vectors) + 1) if vectors % t == 0]
        best = max(fits)
        if best == vectors or best >= most // 2 or (best >= WARP * 2 and best % WARP == 0):
            return Lanes(best, width)
    return Lanes(min(most, int(ceildiv(n, WARP)) * WARP), 1)


def together(info: DeviceInfo) -> int:
    """The number of threads that combine what they have in registers; 1 where none do."""
    return min(info.warp, WARP) if info.shuffles else 1


def along(k: Kernel, v: ItemValue) -> list[Axis]:
    """The axis that lanes run along: the reduced one with the best accesses."""
    assert v.reduce is not None
    axes = [a for a in v.reduce.axes if isinstance(a.extent, int) and a.extent > 1]
    return [max(axes, key=lambda a: (vector_score(k.algorithm, v, a.var), axes.index(a)))] if axes else []


def reduces_well(k: Kernel, v: ItemValue) -> bool:
    """Lanes along the reduced axis read neighbours, or the row is short."""
    lanes = along(k, v)
    if not lanes or any(not isinstance(a.extent, int) for a in v.all_axes):
        return False
    best = max((vector_score(k.algorithm, v, a.var) for a in v.axes if a.extent != 1), default=-1e9)
    return vector_score(k.algorithm, v, lanes[0].var) >= best


def thread_steps(
    k: Kernel, name: str, axis: str, lanes: Lanes, info: DeviceInfo
) -> tuple[Kernel, list[tuple[str, str]]]:
    """A reduction as partial results of threads and their combination: (value, its kind), readers first."""
    width, threads = lanes.width, lanes.threads
    if threads * width == 1:
        return k, [(name, "total")]
    k = run(k, SplitReduce(name, axis, threads * width, f"{name}_lanes", True))
    steps = [(f"{name}_lanes", "lanes")]
    if width > 1:
        k = run(k, SplitReduce(name, _reduced(k, name), width, f"{name}_thread"))
        steps.append((f"{name}_thread", "thread"))
    total, group = "total", together(info)
    if 1 < threads <= group and threads & (threads - 1) == 0:
        total = "across"
    elif group > 1 and threads % group == 0 and threads // group <= MAX_FINAL * 2:
        k = run(k, SplitReduce(name, _reduced(k, name), group, f"{name}_few"))
        steps.append((f"{name}_few", "across"))
    elif threads > MAX_FINAL * 2:
        k = run(k, SplitReduce(name, _reduced(k, name), int(ceildiv(threads, MAX_FINAL)), f"{name}_few"))
        steps.append((f"{name}_few", "few"))
    return k, [(name, total), *reversed(steps)]


def _reduced(k: Kernel, name: str) -> str:
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue) and item.reduce is not None
    return item.reduce.axes[-1].var.name


def bind_step(k: Kernel, name: str, kind: str, lanes: Lanes) -> Kernel:
    """One step's loops: rows and lanes over threads, then what is reduced, then vectors."""
    pure, reduced = loops_of(k, name, False), loops_of(k, name, True)
    if kind == "lanes":
        vector: list[str] = []
        if lanes.width > 1 and lanes.threads > 1:
            k, lane, inner = split(k, pure[-1], lanes.width, f"{pure[-1]}t", f"{pure[-1]}w")
            pure, vector = [*pure[:-1], lane], [inner]
        elif lanes.width > 1:
            pure, vector = pure[:-1], [pure[-1]]
        k = run(k, Permute(name, (*pure, *reduced, *vector)))
        for n in vector:
            k = attempt(k, Vectorize(n))
    elif kind == "across":
        k = attempt(k, Across(reduced[-1])) if reduced else k
    elif kind == "thread":
        k = attempt(k, Unroll(reduced[-1])) if reduced else k
    elif (
        kind == "total" and reduced and is_static(k, reduced[-1]) and extent(k, reduced[-1]) <= MAX_FINAL * 2
    ):
        k = attempt(k, Unroll(reduced[-1]))
    for n in pure:
        if is_static(k, n):
            k = run(k, Bind(n, LoopKind.THREAD))
    return k
