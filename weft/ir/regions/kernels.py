"""Regions through a kernel: of its parameters and values, from the access relation that its algorithm states.

    sum(i, j) = sum r: x[i, r] * w[r, j]            wanted y[2:4, :]   needs sum[2:4, :], x[2:4, :] and all of w
    y[i, j]   = where(sum[i, j] <= 0, 0, sum[i, j])

Each load of an item is a relation between the item's element and the element loaded, under the load's guard and under
the conditions on indices beside which a `where` does not choose it; there, its index may leave the shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import NEVER, Guard, InRange, Int, both
from weft.ir.kernel.algorithm import Algorithm, Item, ItemValue, StoreTo
from weft.ir.kernel.transforms.trim import implied
from weft.ir.ops import Op
from weft.ir.regions.access import Access
from weft.ir.regions.region import NOTHING, Region, within

MAX_PATHS = 512
"""The pairs of an expression and a condition that are told apart in an item; beyond, conditions are left out."""


def needed(algorithm: Algorithm, wanted: Mapping[str, Region]) -> dict[str, Region]:
    """By name, the region of each parameter and value that the `wanted` regions of written parameters are computed
    from: of those parameters themselves, what they hold before and keep."""
    before: dict[str, Region] = {}
    shapes = _shapes(algorithm)
    for item in reversed(algorithm.items):
        later = dict(before)
        for target, source, access in relation(item):
            found = access.needs(wanted.get(target, NOTHING) | later.get(target, NOTHING))
            found = within(found, shapes[source])
            before[source] = before.get(source, NOTHING) | found
    for name, region in wanted.items():
        kept = region
        for written in _written(algorithm, name):
            kept = kept - written
        before[name] = before.get(name, NOTHING) | kept
    return before


def reached(algorithm: Algorithm, changed: Mapping[str, Region]) -> dict[str, Region]:
    """By name, the region of each value and written parameter that can change when those of `changed` do."""
    found, shapes = dict(changed), _shapes(algorithm)
    for item in algorithm.items:
        before = dict(found)
        for target, source, access in relation(item):
            region = within(access.reaches(before.get(source, NOTHING)), shapes[target])
            found[target] = found.get(target, NOTHING) | region
    return found


def _shapes(algorithm: Algorithm) -> dict[str, tuple[Int, ...]]:
    """The shape of each parameter and value."""
    values = {i.name: tuple([a.extent for a in i.axes]) for i in algorithm.items if isinstance(i, ItemValue)}
    return {p.name: p.shape for p in algorithm.params} | values


def relation(item: Item) -> Iterator[tuple[str, str, Access]]:
    """The accesses of an item: (name of what is written, name of what is read, relation)."""
    axes = [(a.var, a.extent) for a in item.all_axes]
    if isinstance(item, ItemValue):
        own = tuple([a.var for a in item.axes])
        for load, guard in _loads((item.expr,)):
            yield item.name, load.source, Access.of(axes, own, load.index, both(guard, load.guard))
        return
    for store in item.stores:
        for load, guard in _loads(_computed(store)):
            under = both(store.guard, both(guard, load.guard))
            yield store.param, load.source, Access.of(axes, store.index, load.index, under)
        if store.combine is not None:
            yield store.param, store.param, Access.of(axes, store.index, store.index, store.guard)


def _computed(store: StoreTo) -> tuple[Expr, ...]:
    """The expressions that a store computes: the value, and those that its place depends on."""
    from weft.ir import expr as ex

    inner = [v for i in store.index for v in ex.opaque_values(i)]
    return (store.expr, *inner, *((ex.test(store.guard),) if store.guard else ()))


def _written(algorithm: Algorithm, name: str) -> Iterator[Region]:
    """The regions of a parameter that a kernel certainly writes anew."""
    for item in algorithm.items:
        if not isinstance(item, ItemValue):
            for s in item.stores:
                if s.param == name and s.combine is None:
                    axes = [(a.var, a.extent) for a in item.axes]
                    yield Access.of(axes, s.index, (), s.guard).reaches(Region(((),)))


def _loads(roots: tuple[Expr, ...]) -> Iterator[tuple[Load, Guard]]:
    """The loads under expressions, each with conditions without which it does not count."""
    seen: set[tuple[Expr, Guard]] = set()
    stack: list[tuple[Expr, Guard]] = [(e, ()) for e in roots]
    while stack:
        e, guard = stack.pop()
        if len(seen) > MAX_PATHS:
            guard = ()
        if (e, guard) in seen or guard == NEVER:
            continue
        seen.add((e, guard))
        match e:
            case Load():
                yield e, guard
                stack += [(part, guard) for part in e.parts]
            case ScalarCall(op=Op.WHERE, args=(condition, a, b)):
                holds = tuple(implied(condition))
                stack += [(condition, guard), (a, both(guard, holds)), (b, both(guard, _opposite(condition)))]
            case _:
                stack += [(part, guard) for part in e.parts]


def _opposite(condition: Expr) -> Guard:
    """Conditions that hold where a condition on indices does not."""
    match tuple(implied(condition)):
        case (InRange(value, lo, None),) if lo is not None and _is_all(condition):
            return (InRange(value, None, lo),)
        case (InRange(value, None, hi),) if hi is not None and _is_all(condition):
            return (InRange(value, hi, None),)
        case _:
            return ()


def _is_all(condition: Expr) -> bool:
    """True where nothing but what it implies makes up a condition: no operand of an AND was left out."""
    return not (isinstance(condition, ScalarCall) and condition.op is Op.AND)
