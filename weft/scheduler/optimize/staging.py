"""Costly parts that several items of a kernel compute alike are computed once per row, and kept while the row is.

    s(i) = sum j: exp(x(i, j) - m(i))           per row i:  e(j) = exp(x(i, j) - m(i)), a row in local memory
    y(i, j) = exp(x(i, j) - m(i)) / s(i)    ->              s    = sum j: e(j)
                                                            y(j) = e(j) / s

Softmax computes half as many exponentials so. Pays while the row fits into a core's second-level cache beside its
input. What does not depend on all of a reduction's results is computed once for all of them:

    y(j) = sum k: gelu(h[k]) * w[j, k]   ->   g(k) = gelu(h[k]);   y(j) = sum k: g(k) * w[j, k]
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.backends.protocol import DeviceInfo
from weft.ir import expr as ex
from weft.ir.expr import Expr, ScalarCall
from weft.ir.index import Index, Int, Var, high, variables
from weft.ir.kernel.algorithm import Item, ItemValue
from weft.ir.kernel.lower import storage_size
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import Refusal, attempt, run
from weft.ir.kernel.transforms.share import Share
from weft.ir.kernel.transforms.stage import Stage
from weft.scheduler.optimize.access import is_costly

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


def stage_repeated(k: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """`k` with parts of reductions that several of their results need alike as values of their own, and their names."""
    names: list[str] = []
    for item in k.algorithm.items:
        if isinstance(item, ItemValue) and item.reduce is not None:
            for part in _repeated(item):
                name = fresh(k.names(), "once")
                step = Stage(item.name, part, name)
                if step.check(k) is None:
                    k = run(k, step)
                    names.append(name)
    return k, tuple(names)


def _repeated(item: ItemValue) -> list[Expr]:
    """The largest parts that take some time and depend on summed axes, but not on all the others."""
    assert item.reduce is not None
    summed = {a.var for a in item.reduce.axes}
    many = {a.var for a in item.axes if high(a.extent) >= MIN_READERS}
    on: dict[Expr, set[Var]] = {}
    for e in ex.walk([item.expr]):
        on[e] = {v for i in ex.indices(e) for v in variables(i)}.union(*(on[x] for x in e.parts))
    out: list[Expr] = []
    stack, seen = [item.expr], {item.expr}
    while stack:
        e = stack.pop()
        if not isinstance(e, ScalarCall):
            continue
        if on[e] & summed and many - on[e] and _takes_time(e):
            out.append(e)
        else:
            new = [x for x in dict.fromkeys(e.args) if x not in seen]
            seen.update(new)
            stack.extend(new)
    return out


def _takes_time(e: Expr) -> bool:
    return is_costly(e) or sum(isinstance(x, ScalarCall) for x in ex.walk([e])) >= MIN_OPERATIONS


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
    found: dict[Expr, list[_Use]] = {}
    for item in k.algorithm.items:
        seen: set[Expr] = set()
        for e in ex.walk(item.exprs(), into_indices=False):
            if isinstance(e, ScalarCall) and is_costly(e) and e not in seen:
                seen.add(e)
                form, axes = _form(item, e)
                if len(axes) > 1:
                    found.setdefault(form, []).append(_Use(item.name, e, axes))
    shared = [u for u in found.values() if len({x.item for x in u}) > 1]
    return max(shared, key=lambda u: _size(u[0].part), default=list[_Use]())


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
