"""Schedules for devices whose tasks are thread blocks: what `rows` and `contraction` are for cores.

    elementwise  y(i) = f(x(i))                        one grid; consecutive threads, consecutive vectors
    rows         y(i, j) = f(x(i, j), r(i))            a block per row, or several rows per block: partial results in
                 r(i) = sum j: ...                     registers, combined by the threads of a warp (`Across`), and
                                                       through LOCAL memory where there are several, or where the
                                                       device does not do that
    else         each reduction in a grid of its own (in two steps when it has few results), then the outputs

A block's values are LOCAL and its loops bound to threads one by one; `weft.ir.passes.grid` makes one program of
threads of them, with what only one thread touches in its registers.

Devices without a scratchpad (`DeviceInfo.scratchpad`) get threads that share nothing: rows are a thread each, and the
terms of long reductions are cut into parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.protocol import DeviceInfo
from weft.ir.errors import IRError
from weft.ir.graph import elements
from weft.ir.index import Index, Var, ceildiv, coefficient, high, substitute, variables
from weft.ir.kernel.algorithm import Axis, Item, Output, Value, readers, reads
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.across import Across
from weft.ir.kernel.transforms.base import attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.inline import Inline
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.merge import Merge
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.loops import LoopKind
from weft.scheduler.optimize import gpu_contraction, gpu_online
from weft.scheduler.optimize.access import accesses, is_costly, vector_score
from weft.scheduler.optimize.steps import merge, split

THREADS = 256
"""Of a block, unless a row is long and rows are few."""

MOST_THREADS = 1024

WARP = 32

ACCESS_BYTES = 16
"""The widest load or store of one thread."""

WARP_ELEMENTS = 32
"""Elements of a row that each thread of a warp takes, at most, where the row is the warp's alone."""

WARP_ROWS_PER_CORE = 16
"""Rows per multiprocessor from which on a warp for each keeps the memory busy."""

KEPT = 64
"""Elements of a row that one thread may keep in registers."""

EASILY_KEPT = 32
"""The same, with room for what is computed of them in half of a thread's registers."""

LONG_ROWS = (512, 1024)
"""Threads of a block for rows that would be more."""

FINAL = 16
"""Partial results that every thread adds up by itself at the end of a reduction."""

BLOCKS_PER_CORE = 8
"""Blocks per multiprocessor that keep the memory busy."""

CHAIN = 64
"""Terms that one thread should have to add, at least, before a reduction is spread over more threads."""


def schedule(k: Kernel, info: DeviceInfo) -> Kernel:
    """The schedule of any kernel."""
    for rule in (gpu_online.schedule, gpu_contraction.schedule):
        tiled = rule(k, info)
        if tiled is not None:
            return tiled
    k = _inlined(k)
    try:
        fused = _rows(k, info)
    except IRError:  # a transform's condition does not hold for this kernel
        fused = None
    return fused if fused is not None else _apart(k, info)


def _inlined(k: Kernel) -> Kernel:
    """Values without reductions are computed where they are read, unless that repeats costly work in a reduction."""
    for item in list(k.algorithm.items):
        if isinstance(item, Value) and item.reduce is None:
            users = readers(k.algorithm, item.name)
            if len(users) == 1 or not is_costly(item.expr) or _points(item) >= max(_points(u) for u in users):
                k = attempt(k, Inline(item.name))
    return k


def _points(item: Item) -> int:
    return high(elements(tuple(a.extent for a in item.all_axes)))


def extent(k: Kernel, loop: str) -> int:
    """The extent of a loop (the largest, of one of runtime size)."""
    owner = k.owner(loop)
    assert owner is not None, loop
    spec = k.nests[owner].loop(loop)
    assert spec is not None
    return high(spec.extent)


def is_static(k: Kernel, loop: str) -> bool:
    """Whether the extent is known now."""
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


# rows --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Lanes:
    """How a row is cut: `threads` threads, each with vectors of `width` elements."""

    threads: int
    width: int


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
    """How many threads combine what they have in registers; 1 where none do."""
    return min(info.warp, WARP) if info.shuffles else 1


def _of_a_row(n: int, itemsize: int, rows: int, most: int, info: DeviceInfo) -> Lanes:
    """How each of `rows` rows is cut: for one warp, which needs no barriers, where rows are short and many."""
    group = together(info)
    if group > 1 and n <= group * WARP_ELEMENTS and rows >= info.cores * WARP_ROWS_PER_CORE:
        one = cut(n, itemsize, group)
        if one.threads & (one.threads - 1) == 0 and n <= one.threads * WARP_ELEMENTS:
            return one
    return cut(n, itemsize, most)


def _rows(k: Kernel, info: DeviceInfo) -> Kernel | None:
    """The kernel as one grid of rows; None when it is none."""
    outputs = [i for i in k.algorithm.items if isinstance(i, Output)]
    carried = {c.source for o in outputs for c in o.carries}
    mains = [o for o in outputs if o.name not in carried]
    values = [i for i in k.algorithm.items if isinstance(i, Value)]
    if len(mains) != 1 or not values:
        return None
    out = mains[0]
    loops = loops_of(k, out.name)
    if any(v.reduce is None or not v.axes for v in values) or any(not is_static(k, n) for n in loops):
        return None
    if any(s.combine is not None for o in outputs for s in o.stores):
        return None
    needs = [_indexed_by(k, out, r.source) for r in reads(out) if k.algorithm.param(r.source) is None]
    rows = set[str]().union(*needs)
    if not rows or any(n != rows for n in needs):
        return None
    row_loops = [n for n in loops if n in rows]
    inner = [n for n in loops if n not in rows]
    lengths = [high(a.extent) for v in values for a in _along(k, v)]
    if not lengths or any(not _reduces_well(k, v) for v in values):
        return None
    count = 1
    for n in row_loops:
        count *= extent(k, n)
    length = max(lengths)
    if count < info.cores and length * count > THREADS * CHAIN * 4:
        return None
    most = MOST_THREADS if count < info.cores * 2 and length >= MOST_THREADS * 8 else THREADS
    if info.scratchpad and length > THREADS * EASILY_KEPT:
        most = next(
            (
                t
                for t in LONG_ROWS
                if t <= info.bounds.threads and length <= t * EASILY_KEPT and length % (t * 4) == 0
            ),
            most,
        )
    if not info.scratchpad:
        if any(high(elements(tuple(a.extent for a in v.axes))) != count for v in values):
            return None  # a row's threads would have to share the value
        if count < info.cores * info.warp and length > CHAIN:
            return None
    itemsize = max(p.dtype.itemsize for p in k.algorithm.params)
    lanes = _of_a_row(length, itemsize, count, most, info) if info.scratchpad else ALONE
    tall = max(1, min(THREADS // lanes.threads, extent(k, row_loops[-1])))
    kept = ""
    if (
        lanes is not ALONE
        and length % (lanes.threads * lanes.width) == 0
        and length <= lanes.threads * KEPT
        and set(lengths) == {length}
    ):
        if len(inner) == 1 and extent(k, inner[0]) == length:
            k, kept = _kept_row(k, values[0], out)
    k, block = _blocks_of_rows(k, out, row_loops, inner, lanes, tall, bool(kept))
    k = _other_outputs(k, [o for o in outputs if o is not out], out, block, tall)
    for v in reversed(values):
        item = k.algorithm.item(v.name)
        assert isinstance(item, Value)
        k = _reduce_in_block(k, item, (out.name, block), lanes, bool(kept), info)
    if kept:
        k = run(k, ComputeAt(kept, out.name, block))
        *pure, lane = loops_of(k, kept)
        for n in pure:
            k = run(k, Bind(n, LoopKind.THREAD))
        k = _lanes(k, lane, lanes, True)
    return k


def _kept_row(k: Kernel, first: Value, out: Output) -> tuple[Kernel, str]:
    """The row that the first reduction and later items read, as a value of its own: read once, kept in registers.

    Its name; empty where the items do not share one.
    """
    axis = _along(k, first)[0].var
    plain = [
        r
        for r in reads(first)
        if k.algorithm.param(r.source) is not None
        and r.index
        and r.index[-1] == axis
        and not r.guard
        and all(isinstance(i, Var) for i in r.index)
        and set(r.index) == {a.var for a in (*first.axes, *_along(k, first))}
    ]
    if len(plain) != 1 or len(first.all_axes) != len(first.axes) + 1:
        return k, ""
    part = plain[0]
    name = fresh(k.names(), "row")
    trial = run(k, Stage(first.name, part, name, tuple(i.name for i in part.index if isinstance(i, Var))))
    shared = 0
    for item in list(trial.algorithm.items):
        for r in reads(item):
            if r.source == part.source and item.name not in (name, first.name):
                step = Share(item.name, name, tuple(i.name if isinstance(i, Var) else "" for i in r.index))
                if r.guard or step.check(trial) is not None:
                    return k, ""
                trial, shared = run(trial, step), shared + 1
                break
    return (trial, name) if shared else (k, "")


def _indexed_by(k: Kernel, out: Output, source: str) -> set[str]:
    bind = k.nests[out.name].bind
    used: set[str] = set()
    for load in reads(out):
        if load.source == source:
            used |= {v.name for i in load.index for v in variables(substitute(i, bind))}
    return used


def _along(k: Kernel, v: Value) -> list[Axis]:
    """The axis that lanes run along: the reduced one with the best accesses."""
    assert v.reduce is not None
    axes = [a for a in v.reduce.axes if isinstance(a.extent, int) and a.extent > 1]
    return [max(axes, key=lambda a: (vector_score(k.algorithm, v, a.var), axes.index(a)))] if axes else []


def _reduces_well(k: Kernel, v: Value) -> bool:
    """Lanes along the reduced axis read neighbours, or the row is short."""
    along = _along(k, v)
    if not along or any(not isinstance(a.extent, int) for a in v.all_axes):
        return False
    best = max((vector_score(k.algorithm, v, a.var) for a in v.axes if a.extent != 1), default=-1e9)
    return vector_score(k.algorithm, v, along[0].var) >= best


def _blocks_of_rows(
    k: Kernel, out: Output, rows: list[str], inner: list[str], lanes: Lanes, tall: int, kept: bool
) -> tuple[Kernel, str]:
    """The output's loops: rows over blocks (and `tall` of them over threads), the rest over lanes; the blocks' loop."""
    last, across = rows[-1], ""
    k = run(k, Permute(out.name, (*rows, *inner)))
    if tall > 1:
        k = run(k, Pad(last, tall))
        k, last, across = split(k, last, tall, f"{last}b", f"{last}y")
    if inner:
        k = _lanes(k, inner[-1], lanes, kept)
    if across:
        k = run(k, Bind(across, LoopKind.THREAD))
    k, block = merged(k, [*rows[:-1], last])
    return run(k, Bind(block, LoopKind.BLOCK)), block


def _lanes(k: Kernel, loop: str, lanes: Lanes, written_out: bool) -> Kernel:
    """A loop over threads and vectors; what one thread does of it written out if asked."""
    if lanes is ALONE:
        return k
    n = extent(k, loop)
    width = lanes.width if n % (lanes.threads * lanes.width) == 0 else 1
    threads = min(lanes.threads, int(ceildiv(n, width)))
    k = run(k, Pad(loop, threads * width))
    at = loop
    if width > 1:
        k, at, vector = split(k, loop, width, f"{loop}v", f"{loop}w")
        k = attempt(k, Vectorize(vector))
    if extent(k, at) > threads:
        k, own, at = split(k, at, threads, f"{at}o", f"{at}t")
        if written_out:
            k = attempt(k, Unroll(own))
    return run(k, Bind(at, LoopKind.THREAD)) if threads > 1 else k


def _other_outputs(k: Kernel, others: list[Output], out: Output, block: str, tall: int) -> Kernel:
    """Outputs that are computed beside the main one: their rows over threads."""
    for other in reversed(others):
        k = run(k, ComputeAt(other.name, out.name, block))
        loops = loops_of(k, other.name)
        count = 1
        for n in reversed(loops):
            if is_static(k, n) and count * extent(k, n) <= THREADS:
                count *= extent(k, n)
                k = attempt(k, Bind(n, LoopKind.THREAD))
    return k


def _reduce_in_block(
    k: Kernel, v: Value, at: tuple[str, str], lanes: Lanes, kept: bool, info: DeviceInfo
) -> Kernel:
    """A value computed by the threads of one block, for all rows of the block."""
    axis = (
        _along(k, v)[0]
        if not kept
        else max(v.reduce.axes, key=lambda a: high(a.extent))
        if v.reduce
        else v.axes[0]
    )
    n = high(axis.extent)
    own = (
        lanes
        if n % (lanes.threads * lanes.width) == 0
        else cut(n, ACCESS_BYTES // lanes.width, lanes.threads)
    )
    k, steps = _steps(k, v.name, axis.var.name, own, info)
    for name, _ in steps:
        k = run(k, ComputeAt(name, *at))
    for name, axes in steps:
        k = _bind_step(k, name, axes, own)
        if kept and axes == "lanes":  # registers are numbered when the program is made
            for n in loops_of(k, name, True):
                k = attempt(k, Unroll(n))
    return k


def _steps(
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
    elif group > 1 and threads % group == 0 and threads // group <= FINAL * 2:
        k = run(k, SplitReduce(name, _reduced(k, name), group, f"{name}_few"))
        steps.append((f"{name}_few", "across"))
    elif threads > FINAL * 2:
        k = run(k, SplitReduce(name, _reduced(k, name), int(ceildiv(threads, FINAL)), f"{name}_few"))
        steps.append((f"{name}_few", "few"))
    return k, [(name, total), *reversed(steps)]


def _reduced(k: Kernel, name: str) -> str:
    item = k.algorithm.item(name)
    assert isinstance(item, Value) and item.reduce is not None
    return item.reduce.axes[-1].var.name


def _bind_step(k: Kernel, name: str, kind: str, lanes: Lanes) -> Kernel:
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
    elif kind == "total" and reduced and is_static(k, reduced[-1]) and extent(k, reduced[-1]) <= FINAL * 2:
        k = attempt(k, Unroll(reduced[-1]))
    for n in pure:
        if is_static(k, n):
            k = run(k, Bind(n, LoopKind.THREAD))
    return k


# each by itself ----------------------------------------------------------------------------------------------------


def _apart(k: Kernel, info: DeviceInfo) -> Kernel:
    """Every item in grids of its own."""
    for item in list(k.algorithm.items):
        k = (
            _elementwise(k, item)
            if isinstance(item, Output) or item.reduce is None
            else _reduction(k, item, info)
        )
    return k


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


def _reduction(k: Kernel, v: Value, info: DeviceInfo) -> Kernel:
    """A value in one grid, or, when it has few elements, in one of partial results and one of their combination."""
    assert v.reduce is not None
    along = _along(k, v)
    points = high(elements(tuple(a.extent for a in v.axes)))
    terms = high(elements(tuple(a.extent for a in v.reduce.axes)))
    static = all(isinstance(a.extent, int) for a in v.all_axes)
    if not along or not static:
        return _grid_of_points(k, v.name)
    axis = along[0]
    wanted = info.cores * BLOCKS_PER_CORE * THREADS
    if info.scratchpad and _reduces_well(k, v) and terms >= FINAL:
        length = high(axis.extent)
        if points < info.cores and length > THREADS * CHAIN:
            pieces = min(int(ceildiv(length, THREADS * CHAIN)), int(ceildiv(wanted, THREADS * points)))
            whole = int(ceildiv(int(ceildiv(length, pieces)), THREADS * 4)) * THREADS * 4
            k = run(k, SplitReduce(v.name, axis.var.name, whole, f"{v.name}_piece"))
            k = _row_grid(k, f"{v.name}_piece", info)
        return _row_grid(k, v.name, info)
    longest = max(v.reduce.axes, key=lambda a: high(a.extent))
    if points * 2 < wanted and high(longest.extent) > CHAIN:
        pieces = min(int(ceildiv(high(longest.extent), CHAIN)), int(ceildiv(wanted, points)))
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
    assert isinstance(item, Value)
    axis = _along(k, item)
    pure = loops_of(k, name, False)
    if not axis:
        return _grid_of_points(k, name)
    sizes = [
        p.dtype.itemsize for a in accesses(k.algorithm, item) if (p := k.algorithm.param(a.param)) is not None
    ]
    lanes = cut(high(axis[0].extent), max(sizes, default=ACCESS_BYTES))
    k, steps = _steps(k, name, axis[0].var.name, lanes, info)
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
        k = _bind_step(k, step, kind, lanes)
    return k
