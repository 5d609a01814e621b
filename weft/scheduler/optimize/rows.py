"""Elementwise work and reductions that touch each input element a few times: bound by memory, so few passes.

    rows     y(i, j) = f(x(i, j), r(i)),  r(i) = sum j: ...     r is computed at the loop over i, lanes along j
    columns  y(j) = f(r(j)),  r(j) = sum i: x(i, j)             r is computed for a panel of j, lanes along j
    whole    r = sum k: x(k)                                    partial sums over chunks on all cores, then their sum

A long sum is cut into levels of few sequential additions (`levels`), which makes its error that of pairwise summation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir import numerics
from weft.ir.dtypes import DType, accumulator, int32
from weft.ir.graph import elements
from weft.ir.index import Int, Var, ceildiv, coefficient, flatten, high, substitute, variables
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, Output, Param, reads
from weft.ir.kernel.decisions import pick, with_decisions_of
from weft.ir.kernel.schedule import Kernel, NestLoop
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.clip import Clip
from weft.ir.kernel.transforms.compute_at import ComputeAt
from weft.ir.kernel.transforms.hint import Stream
from weft.ir.kernel.transforms.mark import Bind, Unroll, Vectorize
from weft.ir.kernel.transforms.pad import Pad
from weft.ir.kernel.transforms.permute import Permute
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.kernel.transforms.stage import Arrange
from weft.ir.kernel.transforms.trim import Trim
from weft.ir.loops import LoopKind, Scope
from weft.ir.numerics import CHAIN_TERMS, Tree
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize import abreast, parallel
from weft.scheduler.optimize.access import MIN_RUN, accesses, is_costly, lane_step, vector_score
from weft.scheduler.optimize.extents import divides, typical, typical_elements
from weft.scheduler.optimize.levels import SUM_CHAIN, apart, in_levels, long, pinned_steps, summed
from weft.scheduler.optimize.prefetch import ask_for_rows, large, prefetch
from weft.scheduler.optimize.rule import Choice, Rule
from weft.scheduler.optimize.staging import fits, stage_columns, stage_repeated, stage_shared
from weft.scheduler.optimize.steps import extent as extent_of
from weft.scheduler.optimize.steps import sized, split, typical_extent

VECTORS_IN_FLIGHT = 4
"""Independent accumulators (or independent vectors in flight), in SIMD registers."""

UNSIZED_VECTORS = 2
"""The same of a sum along a row whose length is only known at run time: a short one fills few, and of a long one so
many keep up with the second-level cache. What is computed side by side with other rows has one."""

STREAM_SHARE = 4
"""Only outputs larger than the last-level cache over this are stored past it: smaller ones may stay."""

PARTS_PER_CORE = 4
"""Partial sums of a column per core."""

LARGE_SHARE = 4
"""Parameters larger than so many second-level caches stream by."""

ROWS_IN_REGISTERS = 8
"""Rows of a column's sum that are added in registers before they are added to what is in memory."""

BUSY_OPERATIONS = 32
"""Operations that keep a core's pipelines busy with one vector."""

MIN_LANE_TERMS = 8
"""A reduction over fewer elements runs for lanes along another axis rather than along its own."""

MIN_RUNTIME_STEPS = 4
"""Steps of a row of typical runtime size, from which on each is of several vectors: less of the last is in vain."""

MIN_WAITING_ROWS = 16
"""Rows of a sum, added one after the other, from which on their latency counts."""

MAX_MERGED = 64
"""Iterations of merged loops that are tasks enough."""


@dataclass(frozen=True, slots=True)
class Anything:
    """Every kernel has the form."""

    kernel: Kernel


@dataclass(frozen=True, slots=True)
class Staging:
    """A kernel with values that are kept a row at a time (`rows`) or whole, so that they are computed once."""

    kernel: Kernel
    rows: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"keep {', '.join((*self.rows, *self.whole))}" if self.rows or self.whole else "keep nothing"


@dataclass(frozen=True)
class Staged(Choice):
    """The values that may be kept, the most first; the first that fit into the cache are."""

    decision = "rows.staging"

    options: tuple[Staging, ...]

    def text(self, made: Kernel) -> str:
        """The text of the choice, with the values that are kept of those that were to be."""
        kept = ", ".join(n for n in self.options[0].rows + self.options[0].whole if n in made.nests)
        return f"lanes along what is contiguous{f', {kept} kept' if kept else ''}"


def recognise(k: Kernel, info: DeviceInfo) -> Anything:
    """Any kernel."""
    return Anything(k)


def choose(form: Anything, info: DeviceInfo) -> Staged:
    """The costly parts that may be kept: those that items share and that results share, the latter, or nothing."""
    shared, rows = stage_shared(form.kernel)
    found: list[Staging] = []
    for start, staged in ((shared, rows), (form.kernel, ())) if rows else ((form.kernel, ()),):
        once, whole = stage_repeated(start)
        both, columns = stage_columns(once)
        found += [Staging(both, staged, whole + columns)] if columns else []
        found += [Staging(once, staged, whole)] if staged or whole else []
    found.append(Staging(form.kernel))
    names = list(map(str, found))
    k, first = pick(form.kernel, "rows.staging", names)
    return Staged(
        tuple(replace(x, kernel=with_decisions_of(x.kernel, k)) for x in found[names.index(first) :])
    )


def apply(form: Anything, choice: Staged, info: DeviceInfo) -> Kernel:
    """Every item in its loops, and what the caches should do."""
    made = (_kept(x, info) for x in choice.options)
    k = next(k for k in made if not isinstance(k, Refusal))
    return prefetch(stream(k, info), info)


RULE = Rule("rows", recognise, choose, apply)


def _kept(staging: Staging, info: DeviceInfo) -> Kernel | Refusal:
    """The items in their loops, if what is kept fits into the cache."""
    k = _nests(staging.kernel, info, frozenset((*staging.rows, *staging.whole)))
    unfit = fits(k, staging.rows, staging.whole, info) if staging.rows or staging.whole else None
    return k if unfit is None else unfit


def _nests(k: Kernel, info: DeviceInfo, staged: frozenset[str] = frozenset()) -> Kernel:
    """Every item in its loops. The values `staged` are there, a row of each, before what reads them begins."""
    k, parts = _parted(k, info, staged)
    outputs = [i for i in k.algorithm.items if isinstance(i, Output)]
    carried = {c.source for o in outputs for c in o.carries}
    closed: frozenset[str] = frozenset()
    for out in outputs:
        if out.name not in carried:
            k, inside = _output(k, out, info, alone=not parts)
            closed |= inside
    for item in reversed(k.algorithm.items):
        if isinstance(item, Output) and item.name in carried:
            k = place(k, item, Scope.LOCAL, closed)
    for item in reversed(list(k.algorithm.items)):
        if item.name in parts:
            k = _part(k, item.name, info)
        elif isinstance(item, ItemValue):
            k = _value(k, item, info, closed, staged)
            if (
                item.reduce is None
            ):  # its lanes are a panel's: what it is computed from is there for all of them
                closed |= {s.var.name for s in k.nests[item.name].loops}
    return k


def stream(k: Kernel, info: DeviceInfo) -> Kernel:
    """Outputs are stored past the last-level cache when it cannot hold them beside the inputs, if the kernel reads
    nothing of them. What is not, but fits, takes up to five times as long, for both who writes and who reads it next;
    otherwise a third more."""
    if sum(map(_typical_bytes, k.algorithm.params)) <= info.l3_bytes:
        return k
    read = {load.source for item in k.algorithm.items for load in reads(item)}
    for out in k.algorithm.items:
        if isinstance(out, Output):
            written = {s.param: k.algorithm.param(s.param) for s in out.stores}
            size = sum(_typical_bytes(p) for p in written.values() if p is not None)
            if size * STREAM_SHARE > info.l3_bytes and not written.keys() & read:
                k = attempt(k, Stream(out.name))
    return k


def _typical_bytes(p: Param) -> int:
    return typical_elements(p.shape) * p.dtype.itemsize


# tall matrices summed along their height ---------------------------------------------------------------------------


def _parted(
    k: Kernel, info: DeviceInfo, staged: frozenset[str] = frozenset()
) -> tuple[Kernel, frozenset[str]]:
    """Sums down the columns of tall matrices, in a partial sum per task: each reads whole rows, one after another.

        s(j) = sum i: x[i, j]   ->   p(j, t) = sum i of t: x[i, j], a task for each t;   s(j) = sum t: p(j, t)

    Columns cut into panels, one per core, would read short pieces of rows, which memory is slow at. Only where the
    results are few, so that combining them costs nothing. The names of the partial sums. A pinned sum may read values
    that are `staged`, of which each part computes its own.
    """
    values = [i for i in k.algorithm.items if isinstance(i, ItemValue)]
    if k.algorithm.pinned:
        values = [i for i in values if i.name not in staged]
    outputs = [i for i in k.algorithm.items if isinstance(i, Output)]
    if not values or len(outputs) != 1 or not parallel.pays(k, info) or info.cores == 1:
        return k, frozenset()
    (out,) = outputs
    if any(s.combine is not None for s in out.stores):
        return k, frozenset()
    parts: list[str] = []
    whole = k
    for item in values:
        part = _partial(k, item, out, info, staged)
        if isinstance(part, Refusal) or part.check(k) is not None:
            return whole, frozenset()
        k = run(k, part)
        parts.append(part.name)
    return k, frozenset(parts)


def _partial(
    k: Kernel, item: ItemValue, out: Output, info: DeviceInfo, staged: frozenset[str]
) -> SplitReduce | Refusal:
    """A partial sum per task of a value that is such a sum."""
    own = [r.source for r in reads(item) if k.algorithm.param(r.source) is None]
    if item.reduce is None or (own and not (k.algorithm.pinned and staged.issuperset(own))):
        return Refusal(f"{item.name} is no sum of what memory has")
    count = high(elements(tuple(a.extent for a in item.axes)))
    results = high(elements(tuple(a.extent for a in out.axes)))
    best = max(item.all_axes, key=lambda a: (vector_score(k.algorithm, item, a.var), item.all_axes.index(a)))
    rows = max(item.reduce.axes, key=lambda a: high(a.extent))
    pieces = info.cores * PARTS_PER_CORE
    least = pieces * SUM_CHAIN // 4
    if best in item.reduce.axes:
        return Refusal(f"{item.name} is contiguous along the summed {best.var.name}")
    if not isinstance(rows.extent, int) or rows.extent < least:
        return Refusal(f"{item.name} sums {high(rows.extent):,} rows; parts of them pay from {least:,}")
    most = info.l1_bytes // 8 * info.cores
    if results > count or count > most:
        return Refusal(f"{item.name} has {count:,} results; parts of them pay up to {most:,}")
    if item.reduce.tree is not Tree.FREE:
        return _pinned_partial(item, rows, info)
    return SplitReduce(item.name, rows.var.name, ceildiv(rows.extent, pieces), f"{item.name}_part")


def _pinned_partial(item: ItemValue, rows: Axis, info: DeviceInfo) -> SplitReduce | Refusal:
    """The same of a chain whose blocks are pinned: a part for each."""
    assert item.reduce is not None
    if item.reduce.tree is Tree.LANES or item.reduce.op is not Op.ADD:
        return Refusal(f"the order in which {item.name} is summed is pinned")
    if any(a.extent != 1 for a in item.reduce.axes if a is not rows):
        return Refusal(f"{item.name} has blocks of several axes")
    blocks = ceildiv(rows.extent, CHAIN_TERMS)
    if not info.cores <= high(blocks) <= CHAIN_TERMS:
        return Refusal(f"{item.name} has {blocks:,} blocks; parts are for {info.cores} to {CHAIN_TERMS}")
    return SplitReduce(item.name, rows.var.name, CHAIN_TERMS, f"{item.name}_part")


def _part(k: Kernel, name: str, info: DeviceInfo) -> Kernel:
    """A partial sum: tasks outside, then rows, lanes along the columns."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue)
    across = _across(k, replace(item, axes=item.axes[:-1]))
    assert item.reduce is not None
    k, rows = _runs(k, item, info) if item.reduce.tree is Tree.FREE else (k, ())
    far = {p.name for p in large(k, info)} & {r.source for r in reads(item)}
    if far and item.reduce.tree is Tree.FREE and not rows and not any(_computed(k, item)):
        k = _few(k, name)
    nest = k.nests[name]
    pure = [s.var.name for s in nest.loops if not s.reduce]
    axis = {v.name: a for a, e in nest.bind.items() for v in variables(e) if nest.loop(v.name) is not None}
    task = next(n for n in pure if axis[n] == item.axes[-1].var)
    columns = [n for n in pure if n != task]
    inner = next(n for n in columns if axis[n] == item.axes[across].var)
    reduced = [s.var.name for s in nest.loops if s.reduce]
    order = (task, *reduced, *(n for n in columns if n != inner), inner)
    if item.reduce.tree is not Tree.FREE:
        order = (task, *_as_memory_lies(k, item, order[1:-1]), inner)
    rank = len(item.axes)
    layout = Arrange(name, Scope.LOCAL, (rank - 1, *range(rank - 1)), (1,) * rank)
    k = attempt(run(k, Permute(name, order), layout), Bind(task, info.task_kind))
    k, vectors = _at_once(k, item, info)
    k = lanes(k, inner, min(info.lanes(item.dtype) * vectors, extent_of(k, inner)))
    k = _in_registers(k, name)
    if item.reduce.tree is not Tree.FREE:
        k = attempt(ask_for_rows(k, name, reduced[-1], info), Trim(name, reduced[-1], strict=True))
    return _within(k, name, rows, across, info)


def _as_memory_lies(k: Kernel, item: ItemValue, loops: Sequence[str]) -> list[str]:
    """The loops of an item in the order in which memory has most of what it reads."""
    bind = k.nests[item.name].bind
    sizes = {
        r: high(elements(p.shape)) for r in reads(item) if (p := k.algorithm.param(r.source)) is not None
    }
    if not sizes:
        return list(loops)
    load = max(sizes, key=sizes.__getitem__)
    p = k.algorithm.param(load.source)
    assert p is not None
    at = flatten([substitute(i, bind) for i in load.index], p.shape)
    step = {v.name: abs(coefficient(at, v) or 0) for v in variables(at)}
    return sorted(loops, key=lambda n: -step.get(n, 0))


# the output ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shape:
    """Loops of an output: those that all values are indexed by (`shared`), the other ones (`outer`), and the one that
    lanes run along; `column` when values depend on it too."""

    shared: tuple[str, ...]
    outer: tuple[str, ...]
    vector: str | None
    column: bool


def _needs(k: Kernel, out: Output) -> list[set[str]]:
    """For each reduction that the output depends on: the loops of the output that it is indexed by."""
    bind = k.nests[out.name].bind
    sets: list[set[str]] = []
    todo = [(load.source, load.index) for load in reads(out)]
    while todo:
        source, index = todo.pop()
        if k.algorithm.param(source) is not None:
            continue
        item = k.algorithm.item(source)
        if isinstance(item, ItemValue) and item.reduce is None:  # what it is computed from counts
            at = {a.var: i for a, i in zip(item.axes, index, strict=True)}
            todo += [(r.source, tuple(substitute(i, at) for i in r.index)) for r in reads(item)]
        else:
            sets.append({v.name for i in index for v in variables(substitute(i, bind))})
    return sets


def _shape(k: Kernel, out: Output) -> tuple[Kernel, _Shape]:
    nest = k.nests[out.name]
    loops = [s.var.name for s in nest.loops]
    needs = _needs(k, out)
    if not loops:
        return k, _Shape((), (), None, False)
    axis = {e.name: a for a, e in nest.bind.items() if isinstance(e, Var)}
    scatter = any(s.combine is not None for s in out.stores)
    vector_name = None
    if not scatter:
        scores = {n: vector_score(k.algorithm, out, axis[n]) for n in reversed(loops)}
        k, vector = pick(k, "rows.lanes", sorted(scores, key=scores.__getitem__, reverse=True))
        spec = nest.loop(vector)
        assert spec is not None
        vector_name = vector if typical(spec.extent) >= 2 else None
    weight = {n: sum(n in s for s in needs) for n in loops}
    order = sorted((n for n in loops if n != vector_name), key=lambda n: (-weight[n], loops.index(n)))
    shared = [n for n in order if weight[n] == len(needs)]
    column = vector_name is not None and weight[vector_name] > 0
    return k, _Shape(tuple(shared), tuple(n for n in order if n not in shared), vector_name, column)


def _output(k: Kernel, out: Output, info: DeviceInfo, alone: bool = True) -> tuple[Kernel, frozenset[str]]:
    """The output's loops, over all cores if the work is worth it and is done inside them (`alone`); and those of them
    inside which no value is computed: the lanes of a panel."""
    k, shape = _shape(k, out)
    big = alone and parallel.pays(k, info)
    if shape.vector is None:
        order = (*shape.shared, *shape.outer)
        k = run(k, Permute(out.name, order)) if order else k
        k = parallel.spread(k, out.name, _prefix(k, shape.shared or order[:1]), info) if big else k
        return k, frozenset()
    wide = info.lanes(int32 if _gathers(k, out, shape.vector) else _widest(out))
    register = min(wide, info.lanes(_widest(out)), extent_of(k, shape.vector))
    if shape.column:
        return _output_panels(k, out, shape, shape.vector, register, info, big)
    return _output_rows(k, out, shape, shape.vector, register, info, big), frozenset()


def _output_panels(
    k: Kernel, out: Output, shape: _Shape, v: str, register: int, info: DeviceInfo, big: bool
) -> tuple[Kernel, frozenset[str]]:
    """Panels of results whose values are computed for all of a panel; the loops inside one."""
    width = _panel(k, typical_extent(k, v), register, info, big and not shape.shared, bool(shape.outer))
    unsized = not sized(k, v)
    if unsized and not _long_columns(k):
        width = max(width // MIN_RUNTIME_STEPS // register, 1) * register
    k = run(k, Pad(v, width))
    k, panel, within = split(k, v, width, f"{v}_panel", f"{v}_v")
    k = run(k, Permute(out.name, (*shape.shared, panel, *shape.outer, within)))
    k = lanes(k, within, min(register, width))
    if unsized:
        k = attempt(k, Clip(f"{within}_o"))
    k = parallel.spread(k, out.name, _prefix(k, (*shape.shared, panel)), info) if big else k
    return k, frozenset(s.var.name for s in k.nests[out.name].loops if s.var.name.startswith(within))


def _output_rows(
    k: Kernel, out: Output, shape: _Shape, v: str, register: int, info: DeviceInfo, big: bool
) -> Kernel:
    """Rows of results, some vectors at a time; of a single row, each task has a part."""
    extent, outer = typical_extent(k, v), (*shape.shared, *shape.outer)
    single = all(extent_of(k, n) == 1 for n in outer)
    vectors = 1
    if not _heavy(out):
        k, vectors = _in_flight(k, VECTORS_IN_FLIGHT if single or sized(k, v) else 1)
    least = register * vectors * (1 if sized(k, v) else MIN_RUNTIME_STEPS)
    step = register * (vectors if extent >= least else 1)
    n = parallel.padded(extent, step, info, big and single)
    share = n // parallel.tasks(n // step, info) if single and big else n
    k = run(k, Pad(v, n if sized(k, v) else share if single and big else step))
    k = run(k, Permute(out.name, (*outer, v)))
    if single and big and n > step:
        k, task, v = split(k, v, share, f"{v}_task", f"{v}_s")
        return attempt(lanes(k, v, step), Bind(task, info.task_kind))
    k = lanes(k, v, step)
    return parallel.spread(k, out.name, _prefix(k, shape.shared or outer[:1]), info) if big else k


def _in_flight(k: Kernel, usual: int = VECTORS_IN_FLIGHT) -> tuple[Kernel, int]:
    """Independent vectors that are computed at a time: the usual number, or another."""
    return pick(k, "rows.vectors", list(dict.fromkeys((usual, VECTORS_IN_FLIGHT, 1, 2, 8))))


def lanes(k: Kernel, loop: str, count: int) -> Kernel:
    """The loop in steps of vectors: one vector loop of `count` lanes inside a serial one."""
    owner = k.owner(loop)
    assert owner is not None
    spec = k.nests[owner].loop(loop)
    assert spec is not None
    if not divides(count, spec.extent):
        if Pad(loop, count).check(k) is not None:
            return attempt(k, Vectorize(loop)) if high(spec.extent) <= 4 * count else k
        k = run(k, Pad(loop, count))
        spec = k.nests[owner].loop(loop)
        assert spec is not None
    if spec.extent == count:
        return attempt(k, Vectorize(loop))
    k, _, inner = split(k, loop, count, f"{loop}_o", f"{loop}_l")
    return attempt(k, Vectorize(inner))


def _panel(k: Kernel, extent: int, lanes: int, info: DeviceInfo, big: bool, rows: bool) -> int:
    """Results per panel: they fill half of the first-level cache, but each core has some.

    One panel for each where values run down columns, since narrow panels read short pieces of rows; more where they
    run along rows, to even out what the cores are slowed by: less than a vector even, but of several `rows` of results.
    """
    width = min(extent, info.l1_bytes // 8)
    if big and all(
        _along_rows(k, i) for i in k.algorithm.items if isinstance(i, ItemValue) and i.reduce is not None
    ):
        width = min(width, ceildiv(extent, parallel.tasks(extent, info)))
        return width if width < lanes and not rows else ceildiv(width, lanes) * lanes
    if big:
        width = min(width, max(lanes * VECTORS_IN_FLIGHT, ceildiv(extent, info.cores)))
    return ceildiv(width, lanes) * lanes


def _long_columns(k: Kernel) -> bool:
    """Some value adds up so many rows that additions would wait for each other but for several vectors of them."""
    sums = [i.reduce.axes for i in k.algorithm.items if isinstance(i, ItemValue) and i.reduce is not None]
    return any(prod(typical(a.extent) for a in axes) > MIN_WAITING_ROWS for axes in sums)


def _along_rows(k: Kernel, item: ItemValue) -> bool:
    """The reduction's lanes run along what it reduces over."""
    assert item.reduce is not None
    return _fastest(k, item) in item.reduce.axes


def _lies_along(k: Kernel, item: ItemValue, axis: Axis) -> bool:
    """True where what the item reads, of parameters or of values, is contiguous along the axis."""
    own = [r for r in reads(item) if k.algorithm.param(r.source) is None and r.index]
    along = any(axis.var in variables(r.index[-1]) for r in own)
    return along or vector_score(k.algorithm, item, axis.var) > 0


def _fastest(k: Kernel, item: ItemValue) -> Axis:
    """The axis along which the item's reads are contiguous."""
    axes = [a for a in item.all_axes if a.extent != 1]
    return max(axes, key=lambda a: (vector_score(k.algorithm, item, a.var), axes.index(a)))


def _prefix(k: Kernel, outer: tuple[str, ...]) -> list[str]:
    """The leading loops of those that may be merged that make tasks enough."""
    picked: list[str] = []
    count = 1
    for n in outer:
        picked.append(n)
        count *= extent_of(k, n)
        if count >= MAX_MERGED:
            break
    return picked


def _heavy(item: Item) -> bool:
    """Expressions that fill the registers by themselves: one vector at a time, which is also a quarter of the code."""
    exprs = item.exprs()
    return (
        any(is_costly(e) for e in exprs) or sum(bool(e.operands()) for e in ex.walk(exprs)) > BUSY_OPERATIONS
    )


def _gathers(k: Kernel, out: Output, loop: str) -> bool:
    """True where lanes along a loop read elements that are apart: each has an index of its own."""
    axes = [a for a, e in k.nests[out.name].bind.items() if isinstance(e, Var) and e.name == loop]
    found = accesses(k.algorithm, out)
    steps = [lane_step(x.offset, a, MIN_RUN) for x in found if not x.store for a in axes]
    return any(s not in (0, 1) for s in steps)


def _widest(out: Output) -> DType:
    """The widest dtype stored (16-bit floats are computed in 32 bits): what the lanes are counted in."""
    return max((accumulator(s.expr.dtype) for s in out.stores), key=lambda d: d.bits)


# values --------------------------------------------------------------------------------------------------------------


def place(
    k: Kernel, item: Item, scope: Scope, closed: frozenset[str] = frozenset(), lanes: int = 0
) -> Kernel:
    """Compute the item where its region is smallest without computing anything twice: in the deepest loop, common to
    all its readers, that its index depends on; in the deepest of those in which it has so many `lanes`, if there is
    one."""
    chains: list[list[tuple[str, NestLoop]]] = []
    needed: set[str] = set()
    for user in k.algorithm.items:
        loads = [r for r in reads(user) if r.source == item.name]
        if not loads:
            continue
        chain: list[tuple[str, NestLoop]] = [(user.name, s) for s in k.nests[user.name].loops]
        for name, count in k.path(user.name):
            chain = [(name, s) for s in k.nests[name].loops[:count]] + chain
        chains.append(chain)
        bind = k.nests[user.name].bind
        needed |= {v.name for r in loads for i in r.index for v in variables(substitute(i, bind))}
    if not chains:
        return k
    found: list[tuple[str, str]] = []
    for at in zip(*chains, strict=False):
        owner, spec = at[0]
        if any(c[1].var.name != spec.var.name for c in at) or spec.kind is LoopKind.VECTOR:
            break
        if spec.var.name not in needed:  # inside this loop it would be computed again and again
            break
        if spec.var.name in closed:  # a whole panel at once streams through memory
            break
        found.append((owner, spec.var.name))
    made = k
    for owner, loop in reversed(found):
        made = attempt(k, ComputeAt(item.name, owner, loop, scope))
        if made is not k and _has_lanes(made, item, lanes):
            return made
    return attempt(k, ComputeAt(item.name, *found[-1], scope)) if found else k


def _has_lanes(k: Kernel, item: Item, lanes: int) -> bool:
    """A region of the item has so many elements along its last axis."""
    return not lanes or high(k.nests[item.name].size[-1]) >= lanes


def whole(k: Kernel, name: str, info: DeviceInfo) -> Kernel:
    """A value that all results need alike, computed before them, with lanes."""
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue)
    return _value(k, item, info, frozenset(), frozenset())


def _value(
    k: Kernel, item: ItemValue, info: DeviceInfo, closed: frozenset[str], staged: frozenset[str]
) -> Kernel:
    if item.reduce is None:
        wide = info.lanes(item.dtype) if k.algorithm.pinned and item.axes and is_costly(item.expr) else 0
        k = place(k, item, Scope.LOCAL, closed, wide)
        return _vector_axes(k, item, info)
    if item.reduce.tree is not Tree.FREE:
        return _pinned(k, item, info, closed)
    axes = [a for a in item.all_axes if a.extent != 1]
    depends = _reduces_over_values(k, item, staged)
    if not axes:
        return place(k, item, Scope.REGISTER, closed)
    best = _fastest(k, item)
    if (
        best in item.reduce.axes
        and best.var not in depends
        and typical(best.extent) >= MIN_LANE_TERMS
        and (isinstance(best.extent, int) or _lies_along(k, item, best))
    ):
        return _row(k, item, best, info, closed)
    inner = _across(k, item)
    k, rows = _runs(k, item, info)
    k = place(k, k.algorithm.item(item.name), Scope.LOCAL, closed)
    return _within(_column(k, item.name, inner, info), item.name, rows, inner, info)


def _pinned(k: Kernel, item: ItemValue, info: DeviceInfo, closed: frozenset[str]) -> Kernel:
    """A reduction whose order is pinned: in lanes along its last axis, or as a chain whose lanes run along another."""
    assert item.reduce is not None
    along = next((a for a in reversed(item.reduce.axes) if a.extent != 1), None)
    if along is None:
        return place(k, item, Scope.REGISTER, closed)
    if item.reduce.tree is Tree.LANES:
        return _row(k, item, along, info, closed)
    inner = _across(k, item)
    k, part = pinned_steps(k, item.name) if item.reduce.op is Op.ADD else (k, None)
    k = place(k, k.algorithm.item(item.name), Scope.LOCAL, closed)
    k = _column(k, item.name, inner, info)
    return k if part is None else _within(k, item.name, (part,), inner, info)


def _reduces_over_values(k: Kernel, item: ItemValue, staged: frozenset[str]) -> set[Var]:
    """The axes by which the item reads other values that are computed inside its loops, so that these stay serial."""
    assert item.reduce is not None
    out: set[Var] = set()
    for load in reads(item):
        if k.algorithm.param(load.source) is None and load.source not in staged:
            out |= {v for i in load.index for v in variables(i)}
    return out & {a.var for a in item.reduce.axes}


def _row(k: Kernel, item: ItemValue, along: Axis, info: DeviceInfo, closed: frozenset[str]) -> Kernel:
    """Lanes along the reduced axis; long reductions in levels, and over all cores when nothing else is."""
    k, rows = abreast.count(k, item, along, info)
    if rows > 1 and isinstance(made := _row_sums(k, item, along, info, closed, rows), Kernel):
        return made
    made = _row_sums(k, item, along, info, closed, 1)
    assert isinstance(made, Kernel)
    return made


def _row_sums(
    k: Kernel, item: ItemValue, along: Axis, info: DeviceInfo, closed: frozenset[str], rows: int
) -> Kernel | Refusal:
    """The same with so many rows at a time, where they come in groups of that size."""
    k, width = _row_lanes(k, item, along, info.lanes(item.dtype), rows)
    k, axis, order, task = _row_levels(k, item, along, width, info, rows)
    leaf, group = order[-1], None
    k = run(k, SplitReduce(leaf, axis, width, f"{leaf}_lanes", True))
    for n in order[order.index(task) if task else 0 :]:
        if n != task:
            k = place(k, k.algorithm.item(n), Scope.REGISTER, closed)
        if rows > 1:
            made = abreast.grouped(k, n, rows) if group is None else abreast.follow(k, n, group)
            if isinstance(made, Refusal):
                return made
            k, group = made
            closed |= {group.loop}
        if n == task:
            k = attempt(k, Bind(k.nests[n].loops[0].var.name, info.task_kind))
    k = (
        _beside(k, f"{leaf}_lanes", leaf)
        if group is None
        else abreast.beside(k, f"{leaf}_lanes", leaf, group)
    )
    k = attempt(k, Vectorize(k.nests[leaf].loops[-1].var.name))
    return _lanes_inside(k, f"{leaf}_lanes", f"{axis}o", group)


def _row_lanes(k: Kernel, item: ItemValue, along: Axis, register: int, rows: int) -> tuple[Kernel, int]:
    """The number of lanes of a row's partial sums: some vectors of them, or as many as a short row has elements.
    Several rows at a time share twice as many as one has."""
    length = along.extent
    if k.algorithm.pinned:
        return k, numerics.lanes(high(length))
    if not isinstance(length, int):
        single = all(a.extent == 1 for a in item.all_axes if a is not along)
        k, vectors = _in_flight(k, VECTORS_IN_FLIGHT if single else 1 if rows > 1 else UNSIZED_VECTORS)
        return k, _width(register, vectors, length)
    k, vectors = _in_flight(k)
    vectors = max(2 * vectors // rows, 1) if rows > 1 else vectors
    width = register
    while width < register * vectors and width < length:
        width *= 2
    return k, width if width <= length else max(2, 1 << (length - 1).bit_length())


def _row_levels(
    k: Kernel, item: ItemValue, along: Axis, width: int, info: DeviceInfo, rows: int
) -> tuple[Kernel, str, list[str], str]:
    """A row's sum in levels of few additions each, and a part for each task when it is all that there is: the axis that
    lanes run along, the names of the levels from the whole sum to that of a block of the axis, and the part's."""
    name, axis, extent, block = item.name, along.var.name, high(along.extent), width * SUM_CHAIN
    whole = not item.axes and all(
        len(k.nests[o.name].loops) == 0 for o in k.algorithm.items if isinstance(o, Output)
    )
    big = whole and parallel.pays(k, info) and item.reduce is not None and item.reduce.tree is Tree.FREE
    leaf, task = name, ""
    outer = next((a for a in summed(k, name) if a.var.name != axis), None)
    if big and outer is not None and isinstance(outer.extent, int):
        leaf = task = f"{name}_part"
        share = abreast.share(outer.extent, parallel.most_tasks(info) * rows, rows)
        k = run(k, SplitReduce(name, outer.var.name, share, task))
        axis = _reduce_axis(k, task, axis)
    elif big and rows > 1:
        leaf = task = f"{name}_part"
        steps, tasks = ceildiv(extent, block), parallel.most_tasks(info) * rows
        extent = block * (abreast.share(steps, tasks, rows) if isinstance(along.extent, int) else SUM_CHAIN)
        k = run(k, SplitReduce(name, axis, extent, task))
        axis = _reduce_axis(k, task, f"{axis}i")
    order = [name, task] if task else [name]
    k, part, axis = apart(k, leaf, axis, min(ceildiv(extent, width), SUM_CHAIN))
    if part != leaf:
        k, below = in_levels(k, leaf)
        order += [*below, part]
        leaf = part
    if extent <= 2 * block or (not isinstance(along.extent, int) and not big):
        return k, axis, order, task  # `levels` bounds what is added in sequence at run time
    total, steps = leaf, ceildiv(extent, block)
    leaf = f"{total}_block"
    k = run(k, SplitReduce(total, axis, block, leaf))
    axis, far = _reduce_axis(k, leaf, f"{axis}i"), _reduce_axis(k, total, f"{axis}o")
    if big and not task:
        task = f"{name}_part"
        chunk = ceildiv(steps, max(parallel.most_tasks(info), ceildiv(steps, SUM_CHAIN)))
        k = run(k, SplitReduce(total, far, chunk, task))
        order.append(task)
    else:
        k, below = in_levels(k, total)
        order += below
    return k, axis, [*order, leaf], task


def _lanes_inside(k: Kernel, name: str, steps_of: str, group: abreast.Group | None) -> Kernel:
    """A row's partial sums: its steps, along the axis whose name starts so, the rows of a group, then the lanes."""
    nest = k.nests[name]
    lane = [s.var.name for s in nest.loops if not s.reduce][-1]
    step = next(a.var for a in k.algorithm.item(name).all_axes if a.var.name.startswith(steps_of))
    steps = {v.name for v in variables(nest.bind[step])}
    within = [s.var.name for s in nest.loops if s.var.name in steps]
    if group is not None:
        within.append(abreast.loop_of(k, name, group))
    order = (*(s.var.name for s in nest.loops if s.var.name not in (*within, lane)), *within, lane)
    k = run(k, Permute(name, order), *([] if group is None else [Unroll(within[-1])]))
    return attempt(k, Vectorize(lane))


def _beside(k: Kernel, item: str, reader: str) -> Kernel:
    """Compute `item` just before the innermost loop of its only reader, which runs over all of it."""
    nest = k.nests[reader]
    if len(nest.loops) > 1:
        return run(k, ComputeAt(item, reader, nest.loops[-2].var.name, Scope.REGISTER))
    return k if nest.at is None else run(k, ComputeAt(item, nest.at.item, nest.at.loop, Scope.REGISTER))


def _reduce_axis(k: Kernel, name: str, wish: str) -> str:
    item = k.algorithm.item(name)
    assert isinstance(item, ItemValue) and item.reduce is not None
    return next(a.var.name for a in item.reduce.axes if a.var.name.startswith(wish))


def _runs(k: Kernel, item: ItemValue, info: DeviceInfo) -> tuple[Kernel, tuple[str, ...]]:
    """A long sum down columns in runs of rows, which bounds its error; the names of the runs' sums, and of those of
    many of them, outermost first.

        s(j) = sum i: x[i, j]   ->   r(j, i) = sum l in 0..64: x[64*i + l, j];   s(j) = sum i: r(j, i)

    A run adds a few rows at a time in registers, so that its sums are read and written once for them.
    """
    assert item.reduce is not None
    axes = item.reduce.axes
    axis = max(axes, key=lambda a: high(a.extent))
    rest = tuple(a for a in axes if a is not axis and a.extent != 1)
    others, name = tuple(a.var.name for a in rest), f"{item.name}_run"
    if item.reduce.op is not Op.ADD or not long(axes):
        return k, ()
    if any(_computed(k, item)) and (_reduces_over_values(k, item, frozenset()) or not _narrow(item, info)):
        return (
            k,
            (),
        )  # what is computed of other values would be so for every few rows: `levels.bounded` makes levels
    even = isinstance(axis.extent, int) or _streams_by(k, item, info)
    if even and typical(axis.extent) >= 2 * SUM_CHAIN:
        step = SplitReduce(
            item.name, axis.var.name, SUM_CHAIN, name, whole=others if long(rest, SUM_CHAIN) else ()
        )
    elif others:
        step = SplitReduce(item.name, others[-1], 0, name, whole=others[:-1])
    else:
        return k, ()
    if step.check(k) is not None:
        return k, ()
    k, below = in_levels(_few(run(k, step), name), item.name)
    return k, (*below, name)


def _streams_by(k: Kernel, item: ItemValue, info: DeviceInfo) -> bool:
    """The item usually reads more than caches hold, beside which a run that ends early costs little."""
    read = {r.source for r in reads(item)}
    sizes = (prod(map(typical, p.shape)) * p.dtype.itemsize for p in k.algorithm.params if p.name in read)
    return max(sizes, default=0) > LARGE_SHARE * info.l2_bytes


def _few(k: Kernel, name: str) -> Kernel:
    """A sum down columns that adds a few rows at a time in registers, and reads them in as many places at once."""
    axis = summed(k, name)[0]
    if not (isinstance(axis.extent, int) and axis.extent >= 2 * ROWS_IN_REGISTERS):
        return k
    if axis.extent % ROWS_IN_REGISTERS:
        return k
    return attempt(k, SplitReduce(name, axis.var.name, ROWS_IN_REGISTERS, f"{name}_few"))


def _narrow(item: ItemValue, info: DeviceInfo) -> bool:
    """One vector has all results: sums of a few rows at a time keep additions from waiting for each other."""
    return high(elements(tuple(a.extent for a in item.axes))) <= info.lanes(item.dtype)


def _computed(k: Kernel, item: Item) -> Iterator[bool]:
    """For each read of the item: whether it is of another item."""
    return (k.algorithm.param(r.source) is None for r in reads(item))


def _within(k: Kernel, name: str, rows: tuple[str, ...], inner: int, info: DeviceInfo) -> Kernel:
    """The runs' sums `rows` computed each where the one before it, `name` first, adds them up: a panel of each."""
    for inside in rows:
        step = [s.var.name for s in k.nests[name].loops if s.reduce]
        if not step:
            return k
        k = run(k, ComputeAt(inside, name, step[-1], Scope.LOCAL))
        k = _in_registers(_column(k, inside, inner, info), inside)
        name = inside
    return k


def _in_registers(k: Kernel, name: str) -> Kernel:
    """The sums of a few rows computed for the vector that `name` adds them to."""
    few = f"{name}_few"
    loops = k.nests[name].loops
    if few not in k.nests or len(loops) < 2 or loops[-1].kind is not LoopKind.VECTOR:
        return k
    k = run(k, ComputeAt(few, name, loops[-2].var.name, Scope.REGISTER))
    own = k.nests[few].loops
    rows, columns = [s.var.name for s in own if s.reduce], [s.var.name for s in own if not s.reduce]
    k = run(k, Permute(few, (*rows, *columns)), *(Unroll(n) for n in rows))
    return run(k, Vectorize(columns[-1])) if columns else k


def _across(k: Kernel, item: ItemValue) -> int:
    """The item's own axis that lanes run along: where its reads are contiguous."""
    return max(
        range(len(item.axes)), key=lambda n: (vector_score(k.algorithm, item, item.axes[n].var), n), default=0
    )


def _column(k: Kernel, name: str, inner: int, info: DeviceInfo) -> Kernel:
    """Lanes along the axis number `inner`, which stays: the reduction outside, a panel of accumulators inside."""
    item, nest = k.algorithm.item(name), k.nests[name]
    assert isinstance(item, ItemValue)
    pure = [s.var.name for s in nest.loops if not s.reduce]
    if not pure or nest.at is None or _children(k, name):
        return k
    along = {v.name for v in variables(nest.bind[item.axes[inner].var])}
    lane = next((n for n in reversed(pure) if n in along), pure[-1])
    spec = nest.loop(lane)
    assert spec is not None
    reduced = [s.var.name for s in nest.loops if s.reduce]
    k = run(k, Permute(name, (*(n for n in pure if n != lane), *reduced, lane)))
    columns = item.axes[inner]
    single = all(a.extent == 1 for a in item.axes if a is not columns)
    k, vectors = _at_once(
        k, item, info, VECTORS_IN_FLIGHT if single or isinstance(columns.extent, int) else 1
    )
    return lanes(k, lane, _width(info.lanes(item.dtype), vectors, spec.extent))


def _at_once(
    k: Kernel, item: ItemValue, info: DeviceInfo, usual: int = VECTORS_IN_FLIGHT
) -> tuple[Kernel, int]:
    """Vectors of a sum down columns at a time: a line of each row that it reads side by side, or as many as may be
    under way."""
    if f"{item.name}_few" in k.nests:
        return k, max(info.costs.line_bytes // (info.lanes(item.dtype) * item.dtype.itemsize), 1)
    return _in_flight(k, usual)


def _children(k: Kernel, name: str) -> bool:
    return any(n.at is not None and n.at.item == name for n in k.nests.values())


def _vector_axes(k: Kernel, item: ItemValue, info: DeviceInfo) -> Kernel:
    nest = k.nests[item.name]
    if not nest.loops or typical(nest.loops[-1].extent) < 2:
        return k
    return lanes(k, nest.loops[-1].var.name, min(info.lanes(item.dtype), high(nest.loops[-1].extent)))


def _width(register: int, vectors: int, extent: Int) -> int:
    """Lanes of some vectors, or of one of them where the extent is only known at run time and usually shorter."""
    if isinstance(extent, int):
        return min(register * vectors, extent)
    return register * max(1, min(vectors, typical(extent) // (register * MIN_RUNTIME_STEPS)))
