"""The arithmetic that an algorithm states: how much a kernel computes at least."""

from __future__ import annotations

from weft.ir import expr as ex
from weft.ir.expr import ScalarCall
from weft.ir.graph import elements
from weft.ir.index import Int
from weft.ir.kernel.algorithm import Algorithm, Item, ItemValue
from weft.ir.ops import CONVERSIONS


def operations(a: Algorithm) -> Int:
    """Operations of all items, functions as the arithmetic they take (`OpInfo.cost`). Each is counted once for every
    value of the axes that it depends on: relu(x[i, k]) in a product over (i, j, k) once for every (i, k)."""
    total: Int = 0
    for item in a.items:
        total = total + _of(item)
    return total


def _of(item: Item) -> Int:
    extents = {axis.var.name: axis.extent for axis in item.all_axes}
    every = frozenset(extents)
    cost: dict[frozenset[str], int] = {}
    for e in ex.walk(item.exprs()):
        if isinstance(e, ScalarCall) and e.op not in CONVERSIONS:
            axes = ex.names_of(e) & every
            cost[axes] = cost.get(axes, 0) + e.op.info.cost
    if isinstance(item, ItemValue) and item.reduce is not None:
        cost[every] = cost.get(every, 0) + 1
    total: Int = 0
    for axes, each in cost.items():
        total = total + elements(tuple([n for name, n in extents.items() if name in axes])) * each
    return total
