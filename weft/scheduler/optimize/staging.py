"""Costly parts that several items of a kernel compute alike are computed once per row, and kept while the row is.

    s(i) = sum j: exp(x(i, j) - m(i))           per row i:  e(j) = exp(x(i, j) - m(i)), a row in local memory
    y(i, j) = exp(x(i, j) - m(i)) / s(i)    ->              s    = sum j: e(j)
                                                            y(j) = e(j) / s

Softmax computes half as many exponentials so. Pays while the row fits into a core's second-level cache beside its
input. What does not depend on all of a reduction's results is computed once for all of them:

    y(j) = sum k: gelu(h[k]) * w[j, k]   ->   g(k) = gelu(h[k]);   y(j) = sum k: g(k) * w[j, k]

The same holds of an output's parts that all rows need alike, along which its lanes run, so that no loop can be left by
them (a column's factor of batch norms, or of squeeze-and-excitation):

    y(i, j) = x[i, j] / sqrt(v[j] + e)   ->   f(j) = sqrt(v[j] + e);   y(i, j) = x[i, j] / f(j)

So is a small operand turned that lies across the lanes, such as the taps of a depthwise convolution, channels last:

    y(i, c) = sum t: x[i + t, c] * w[c, t]   ->   v(t, c) = w[c, t];   y(i, c) = sum t: x[i + t, c] * v(t, c)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load, ScalarCall
from weft.ir.graph import elements
from weft.ir.index import Index, Int, Var, flatten, high, variables
from weft.ir.kernel.algorithm import Algorithm, Axis, Item, ItemValue, Output, reads
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.stage import Stage
from weft.ir.ops import EXPANDED, SLOW, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.optimize.access import MIN_RUN, lane_step, vector_score

MIN_READERS = 8
"""Results from which on a part that all need is worth keeping."""

MIN_OPERATIONS = 6
"""Operations from which on that pays: fewer hide behind loading the other operand."""

CACHE_SHARE = 4
"""Staged rows may take the second-level cache over this."""


@dataclass(frozen=True, slots=True)
class _Use:
    """A part of an item, and the item's axes that it depends on, in the order in which the part names them."""

    item: str
    part: Expr
    axes: tuple[str, ...]


def stage_shared(k: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """`k` with the costly parts that several items share as values of their own, without a place, and their names."""
    names: list[str] = []
    while True:
        uses = _most_shared(k)
        if not uses:
            return k, tuple(names)
        first, others = uses[0], uses[1:]
        name = fresh(k.names(), "staged")
        step = Stage(first.item, first.part, name, first.axes)
        if step.check(k) is not None:
            return k, tuple(names)
        alone = staged = run(k, step)
        for use in others:
            staged = attempt(staged, Share(use.item, name, use.axes))
        if staged is alone:
            return k, tuple(names)
        k = staged
        names.append(name)


def stage_repeated(k: Kernel, operations: int = MIN_OPERATIONS) -> tuple[Kernel, tuple[str, ...]]:
    """`k` with parts of reductions that several of their results need alike, of so many operations or a costly one, as
    values of their own, and their names."""
    names: list[str] = []
    for item in k.algorithm.items:
        if isinstance(item, ItemValue) and item.reduce is not None:
            for part in _repeated(item, {a.var for a in item.reduce.axes}, item.axes, operations, EXPANDED):
                name = fresh(k.names(), "once")
                step = Stage(item.name, part, name)
                if step.check(k) is None:
                    k = run(k, step)
                    names.append(name)
            for load, order in across_lanes(k.algorithm, item):
                name = fresh(k.names(), "turned")
                step = Stage(item.name, load, name, order)
                if step.check(k) is None:
                    k = run(k, step)
                    names.append(name)
    return k, tuple(names)


def stage_columns(k: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """`k` with parts of outputs that differ from lane to lane but not from row to row as values of their own, and their
    names."""
    names: list[str] = []
    for item in k.algorithm.items:
        if not isinstance(item, Output) or any(s.combine is not None for s in item.stores):
            continue
        scores = {a: vector_score(k.algorithm, item, a.var) for a in reversed(item.axes) if a.extent != 1}
        lane = max(scores, key=scores.__getitem__, default=None)
        if lane is None or high(lane.extent) < MIN_READERS:
            continue
        others = [a for a in item.axes if a is not lane]
        for part in _repeated(item, {lane.var}, others, MIN_OPERATIONS, SLOW):
            name = fresh(k.names(), "column")
            step = Stage(item.name, part, name)
            if step.check(k) is None:
                k = run(k, step)
                names.append(name)
    return k, tuple(names)


def across_lanes(algorithm: Algorithm, item: ItemValue) -> list[tuple[Load, tuple[str, ...]]]:
    """The loads that lie apart along the axis of results along which most of what is read lies side by side, and whose
    elements are needed often; with the order of axes in which they lie side by side too."""
    assert item.reduce is not None
    summed = {a.var for a in item.reduce.axes}
    loads = [r for r in dict.fromkeys(reads(item)) if algorithm.param(r.source) is not None]
    lane = next((a for a in reversed(item.axes) if _lies_along(algorithm, loads, a)), None)
    if lane is None or len(loads) < 2:
        return []
    found: list[tuple[Load, tuple[str, ...]]] = []
    for load in loads:
        on = {v for i in load.index for v in variables(i)}
        uses = high(elements(tuple(a.extent for a in item.all_axes if a.var not in on)))
        if load.guard or lane.var not in on or not on & summed or uses < MIN_READERS:
            continue
        if _step(algorithm, load, lane) != 1:
            names = [a.var.name for a in item.all_axes if a.var in on and a is not lane]
            found.append((load, (*names, lane.var.name)))
    return found


def _lies_along(algorithm: Algorithm, loads: list[Load], axis: Axis) -> bool:
    """The load that most axes are in, the last of these, is contiguous along the axis."""
    largest = max(
        reversed(loads), key=lambda r: len({v for i in r.index for v in variables(i)}), default=None
    )
    return largest is not None and axis.extent != 1 and _step(algorithm, largest, axis) == 1


def _step(algorithm: Algorithm, load: Load, axis: Axis) -> int | None:
    """The step of the load along the axis."""
    p = algorithm.param(load.source)
    assert p is not None
    return lane_step(flatten(load.index, p.shape), axis.var, MIN_RUN)


def _repeated(
    item: Item, varying: AbstractSet[Var], axes: Sequence[Axis], operations: int, slow: AbstractSet[Op]
) -> list[Expr]:
    """The largest parts of so many operations, or a slow one, that depend on the axes `varying`, but not on all of
    `axes`."""
    many = {a.var for a in axes if high(a.extent) >= MIN_READERS}
    exprs = item.exprs()
    on: dict[Expr, set[Var]] = {}
    for e in ex.walk(exprs):
        on[e] = {v for i in ex.indices(e) for v in variables(i)}.union(*(on[x] for x in e.parts))
    out: list[Expr] = []
    stack, seen = list(exprs), set(exprs)
    while stack:
        e = stack.pop()
        if not isinstance(e, ScalarCall):
            continue
        if on[e] & varying and many - on[e] and _takes_time(e, operations, slow):
            out.append(e)
        else:
            new = [x for x in dict.fromkeys(e.args) if x not in seen]
            seen.update(new)
            stack.extend(new)
    return out


def _takes_time(e: Expr, operations: int, slow: AbstractSet[Op]) -> bool:
    calls = [x for x in ex.walk([e]) if isinstance(x, ScalarCall)]
    return len(calls) >= operations or any(x.op in slow and not _divides_by_constant(x) for x in calls)


def _divides_by_constant(e: ScalarCall) -> bool:
    """True for a division that is a product."""
    return e.op in (Op.DIV, Op.FLOORDIV, Op.MOD) and isinstance(e.args[1], Const)


def fits(k: Kernel, rows: tuple[str, ...], whole: tuple[str, ...], info: DeviceInfo) -> Refusal | None:
    """The refusal to keep the values; None where the `rows` have a place, and all leave others most of the cache."""
    size = 0
    for name in (*rows, *whole):
        item, nest = k.algorithm.item(name), k.nests[name]
        assert isinstance(item, ItemValue)
        size += storage_size(nest) * item.dtype.itemsize
        if nest.at is None and name in rows:
            return Refusal(f"{name} has no row: no loop is around all its readers")
    room = info.l2_bytes // CACHE_SHARE
    return (
        None
        if size <= room
        else Refusal(f"what is kept takes {size:,} bytes; {room:,} may stay in the cache")
    )


def _most_shared(k: Kernel) -> list[_Use]:
    """The largest costly part that two items compute over equal axes: where it is, first item first; empty without."""
    outlines = [_costly_outlines(item) for item in k.algorithm.items]
    several = Counter(h for of_item in outlines for h in set(of_item.values()))
    found: dict[Expr, list[_Use]] = {}
    for item, outline in zip(k.algorithm.items, outlines, strict=True):
        for e, h in outline.items():
            if several[h] > 1:
                form, axes = _form(item, e)
                if len(axes) > 1:
                    found.setdefault(form, []).append(_Use(item.name, e, axes))
    shared = [u for u in found.values() if len({x.item for x in u}) > 1]
    return max(shared, key=lambda u: _size(u[0].part), default=list[_Use]())


def _costly_outlines(item: Item) -> dict[Expr, int]:
    """The costly calls of an item, operands first, and of each a hash of its ops, which parts of one form share. A form
    is as large as its part: to make that of every part of a long formula is quadratic."""
    hashes: dict[Expr, int] = {}
    costly: set[Expr] = set()
    for e in ex.walk(item.exprs()):
        op = e.op if isinstance(e, ScalarCall) else None
        hashes[e] = hash((e.__class__, op, e.dtype, *[hashes[x] for x in e.parts]))
        if op in EXPANDED or not costly.isdisjoint(e.parts):
            costly.add(e)
    calls = ex.walk(item.exprs(), into_indices=False)
    return {e: hashes[e] for e in calls if e in costly and isinstance(e, ScalarCall)}


def _form(item: Item, e: Expr) -> tuple[Expr, tuple[str, ...]]:
    """The part with its axes named by their order and extent, and those axes."""
    axes = {a.var: a for a in item.all_axes}
    order: dict[Var, Int] = {}

    def on_index(x: Index) -> Int | None:
        if isinstance(x, Var) and x in axes:
            return order.setdefault(x, Var(f"@{len(order)}<{axes[x].extent!r}", x.lo, x.hi))
        return None

    form = ex.transform(e, lambda _: None, on_index)
    return form, tuple(v.name for v in order)


def _size(e: Expr) -> int:
    return sum(1 for _ in ex.walk([e]))
