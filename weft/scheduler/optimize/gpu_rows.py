"""Rows on thread blocks: all that is computed of a row in one grid.

    y(i, j) = f(x(i, j), r(i)),  r(i) = sum j: ...     a block per row, or several rows per block

A row that the first reduction and later items read is read once, and kept in registers. Devices without a scratchpad
(`DeviceInfo.scratchpad`) get threads that share nothing: rows are a thread each.
"""
# Tests: tests/scheduler/test_golden.py, tests/scheduler/optimize/test_gpu.py

from __future__ import annotations

from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import elements
from weft.ir.index import Var, ceildiv, high, substitute, variables
from weft.ir.kernel.algorithm import ItemValue, Output, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.gpu_threads import (
    ACCESS_BYTES,
    ALONE,
    MAX_THREADS,
    MIN_TERMS,
    THREADS,
    Lanes,
    along,
    bind_step,
    cut,
    inlined,
    is_static,
    loops_of,
    merged,
    reduces_well,
    thread_steps,
    together,
)
from weft.scheduler.optimize.rule import Choice, Rule, counted
from weft.scheduler.optimize.steps import extent, split

MAX_WARP_ELEMENTS = 32
"""Elements of a row that each thread of a warp takes, where the row is the warp's alone."""

MIN_WARP_ROWS_PER_CORE = 16
"""Rows per multiprocessor from which on a warp for each keeps the memory busy."""

MAX_KEPT = 64
"""Elements of a row that one thread may keep in registers, of which it has 255."""

MAX_EASILY_KEPT = 32
"""The same, with room for what is computed of them in half of a thread's registers."""

LONG_ROW_THREADS = 512, 1024
"""Threads of a block for rows that would be more."""

LONG_ROWS, MAX_FEW = 4, 2
"""Rows are long from so many times what a block's threads should have each; few, below so many per multiprocessor."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """One output whose reductions all belong to its rows, with outputs beside it. `rows` and `inner` are the output's
    loops, over rows and along one; there are `count` rows, whose reductions have `lengths` terms."""

    kernel: Kernel
    out: Output
    beside: tuple[Output, ...]
    values: tuple[ItemValue, ...]
    rows: tuple[str, ...]
    inner: tuple[str, ...]
    count: int
    lengths: tuple[int, ...]

    @property
    def length(self) -> int:
        """Terms of the longest reduction."""
        return max(self.lengths)


@dataclass(frozen=True)
class RowLanes(Choice):
    """The cut of rows, and their number in a block; `kept`: the value that a row is kept as, if it is."""

    decision = "gpu_rows.threads"

    kernel: Kernel
    lanes: Lanes
    tall: int
    kept: str

    def __str__(self) -> str:
        rows = f"{self.tall} row{'s' if self.tall > 1 else ''} per block"
        kept = ", kept in register" if self.kept else ""
        return f"{rows}, {self.lanes.threads} threads with vectors of {self.lanes.width} for each{kept}"


def recognise(k: Kernel, info: DeviceInfo) -> BlockRows | Refusal:
    """A kernel of rows, enough of them for the device."""
    k = inlined(k)
    form = _rows(k)
    if isinstance(form, Refusal):
        return form
    count, length = form.count, form.length
    if count < info.cores and length * count > THREADS * MIN_TERMS * LONG_ROWS:
        return Refusal(
            f"{count} rows of {length:,} elements for {info.cores} multiprocessors; a grid shares each out"
        )
    if not info.scratchpad:
        shared = [v.name for v in form.values if high(elements(tuple(a.extent for a in v.axes))) != count]
        if shared:
            return Refusal(f"a row's threads would have to share {shared[0]}, and share no memory")
        if count < info.cores * info.warp and length > MIN_TERMS:
            most = f"{MIN_TERMS} elements, or from {info.cores * info.warp:,} rows on"
            return Refusal(f"{count:,} rows of {length:,} elements, a thread for each; pays up to {most}")
    return form


def choose(form: BlockRows, info: DeviceInfo) -> RowLanes:
    """Threads for a row, as many rows as fill a block, and whether a row is kept in registers."""
    k = form.kernel
    itemsize = max(p.dtype.itemsize for p in k.algorithm.params)
    lanes = ALONE
    if info.scratchpad:
        most = _most_threads(form, info)
        wishes = (most, *(n for n in (128, 256, 512) if n != most))
        cuts = [_of_a_row(form.length, itemsize, form.count, n, info) for n in wishes]
        k, lanes = pick(k, "gpu_rows.threads", list(dict.fromkeys(cuts)))
    tall = max(1, min(THREADS // lanes.threads, extent(k, form.rows[-1])))
    fits = form.length % (lanes.threads * lanes.width) == 0 and form.length <= lanes.threads * MAX_KEPT
    alike = set(form.lengths) == {form.length} and len(form.inner) == 1
    kept = ""
    if lanes is not ALONE and fits and alike and extent(k, form.inner[0]) == form.length:
        k, kept = _kept_row(k, form.values[0], form.out)
    return RowLanes(k, lanes, tall, kept)


def apply(form: BlockRows, choice: RowLanes, info: DeviceInfo) -> Kernel:
    """Rows over blocks, their reductions and what is stored beside them inside."""
    k, out, lanes, kept = choice.kernel, form.out, choice.lanes, choice.kept
    k, block = _blocks_of_rows(k, out, [*form.rows], [*form.inner], lanes, choice.tall, bool(kept))
    k = _other_outputs(k, form.beside, out, block)
    for v in reversed(form.values):
        item = k.algorithm.item(v.name)
        assert isinstance(item, ItemValue)
        k = _reduce_in_block(k, item, (out.name, block), lanes, bool(kept), info)
    if not kept:
        return k
    k = run(k, ComputeAt(kept, out.name, block))
    *pure, lane = loops_of(k, kept)
    k = run(k, *(Bind(n, LoopKind.THREAD) for n in pure))
    return _lanes(k, lane, lanes, True)


RULE = Rule("gpu_rows", recognise, choose, apply)


def _rows(k: Kernel) -> BlockRows | Refusal:
    """The kernel as one grid of rows."""
    outputs = [i for i in k.algorithm.items if isinstance(i, Output)]
    values = tuple(i for i in k.algorithm.items if isinstance(i, ItemValue))
    carried = {c.source for o in outputs for c in o.carries}
    mains = [o for o in outputs if o.name not in carried]
    if len(mains) != 1 or not values:
        return Refusal(
            f"{counted(len(values), 'value')} and {counted(len(mains), 'output')}; rows have values, and one output"
        )
    (out,) = mains
    loops = loops_of(k, out.name)
    whole = [v.name for v in values if v.reduce is None or not v.axes]
    if whole:
        return Refusal(f"{whole[0]} is no reduction of each row")
    unsized = [n for n in loops if not is_static(k, n)]
    if unsized:
        return Refusal(f"the size of {unsized[0]} is only known at run time")
    if any(s.combine is not None for o in outputs for s in o.stores):
        return Refusal("an output combines with what is there")
    needs = [_indexed_by(k, out, r.source) for r in reads(out) if k.algorithm.param(r.source) is None]
    rows = set[str]().union(*needs)
    if not rows or any(n != rows for n in needs):
        return Refusal(f"values that {out.name} reads are not all of the same rows")
    uneven = [v.name for v in values if not reduces_well(k, v)]
    if uneven:
        return Refusal(f"{uneven[0]} is not contiguous along what it reduces over")
    row_loops, inner = ([n for n in loops if (n in rows) is is_row] for is_row in (True, False))
    lengths = tuple(high(a.extent) for v in values for a in along(k, v))
    beside = tuple(o for o in outputs if o is not out)
    count = prod(extent(k, n) for n in row_loops)
    return BlockRows(k, out, beside, values, tuple(row_loops), tuple(inner), count, lengths)


def _most_threads(form: BlockRows, info: DeviceInfo) -> int:
    """The most threads of a block: more where rows are few and long, and where a row could be kept so."""
    length = form.length
    few = form.count < info.cores * MAX_FEW and length >= MAX_THREADS * 8
    usual = MAX_THREADS if few else THREADS
    if length <= THREADS * MAX_EASILY_KEPT:
        return usual
    fits = (t for t in LONG_ROW_THREADS if t <= info.bounds.threads and length <= t * MAX_EASILY_KEPT)
    return next((t for t in fits if length % (t * 4) == 0), usual)


def _of_a_row(n: int, itemsize: int, rows: int, most: int, info: DeviceInfo) -> Lanes:
    """The cut of each of `rows` rows: for one warp, which needs no barriers, where rows are short and many."""
    group = together(info)
    if group > 1 and n <= group * MAX_WARP_ELEMENTS and rows >= info.cores * MIN_WARP_ROWS_PER_CORE:
        one = cut(n, itemsize, group)
        if one.threads & (one.threads - 1) == 0 and n <= one.threads * MAX_WARP_ELEMENTS:
            return one
    return cut(n, itemsize, most)


def _kept_row(k: Kernel, first: ItemValue, out: Output) -> tuple[Kernel, str]:
    """The row that the first reduction and later items read, as a value of its own: read once, kept in registers.

    Its name; empty where the items do not share one.
    """
    axis = along(k, first)[0].var
    plain = [
        r
        for r in reads(first)
        if k.algorithm.param(r.source) is not None
        and r.index
        and r.index[-1] == axis
        and not r.guard
        and all(isinstance(i, Var) for i in r.index)
        and set(r.index) == {a.var for a in (*first.axes, *along(k, first))}
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


def _other_outputs(k: Kernel, others: tuple[Output, ...], out: Output, block: str) -> Kernel:
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
    k: Kernel, v: ItemValue, at: tuple[str, str], lanes: Lanes, kept: bool, info: DeviceInfo
) -> Kernel:
    """A value computed by the threads of one block, for all rows of the block."""
    axis = (
        along(k, v)[0]
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
    k, steps = thread_steps(k, v.name, axis.var.name, own, info)
    for name, _ in steps:
        k = run(k, ComputeAt(name, *at))
    for name, axes in steps:
        k = bind_step(k, name, axes, own)
        if kept and axes == "lanes":  # registers are numbered when the program is made
            for n in loops_of(k, name, True):
                k = attempt(k, Unroll(n))
    return k
