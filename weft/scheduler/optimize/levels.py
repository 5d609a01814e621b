"""Long sums in levels of few additions in sequence each, which makes their error that of pairwise summation.

s = sum i, j: x(i, j)   ->   r(i) = sum j: x(i, j);   l(k) = sum m in 0..64: r(64*k + m);   s = sum k: l(k)
"""

from __future__ import annotations

from math import prod

from weft.ir.index import high
from weft.ir.kernel.algorithm import Axis, Value
from weft.ir.kernel.schedule import Kernel, fresh
from weft.ir.kernel.transforms.base import run
from weft.ir.kernel.transforms.split_reduce import SplitReduce
from weft.ir.ops import Op

CHAIN = 64
"""Additions in sequence before a partial sum is set aside."""


def summed(k: Kernel, name: str) -> tuple[Axis, ...]:
    """The axes that a value reduces over."""
    item = k.algorithm.item(name)
    assert isinstance(item, Value) and item.reduce is not None
    return item.reduce.axes


def long(axes: tuple[Axis, ...], steps: int = 1) -> bool:
    """Whether a sum over the axes, `steps` additions for each, is worth levels."""
    return prod(high(a.extent) for a in axes) * steps > 2 * CHAIN


def in_levels(k: Kernel, name: str) -> tuple[Kernel, tuple[str, ...]]:
    """The sum `name` of partial results in levels; the names of those below it, outermost first."""
    below: tuple[str, ...] = ()
    while long(summed(k, name)):
        *rest, last = summed(k, name)
        level = fresh(k.names(), f"{name}_level")
        others = tuple(a.var.name for a in rest)
        if isinstance(last.extent, int) and last.extent > 2 * CHAIN:
            step = SplitReduce(name, last.var.name, CHAIN, level, whole=others)
        elif others:
            step = SplitReduce(name, others[-1], 0, level, whole=others[:-1])
        else:
            break
        if step.check(k) is not None:
            break
        k, below = run(k, step), (level, *below)
    return k, below


def apart(k: Kernel, name: str, axis: str, steps: int) -> tuple[Kernel, str, str]:
    """The sum over `axis`, which takes `steps` additions, apart from those over further axes; the name of the part that
    sums over `axis` (and as much of the others as makes no long chain), and of the axis there."""
    item = k.algorithm.item(name)
    assert isinstance(item, Value) and item.reduce is not None
    others = tuple(a for a in item.reduce.axes if a.var.name != axis and a.extent != 1)
    if item.reduce.op is not Op.ADD or not others or not long(others, steps):
        return k, name, axis
    *rest, last = others
    room = max(1, CHAIN // steps)
    factor = 0
    if high(last.extent) <= room and rest:
        last = rest.pop()
    elif isinstance(last.extent, int):
        factor = next((f for f in range(min(room, last.extent), 1, -1) if last.extent % f == 0), 0)
    part = fresh(k.names(), f"{name}_row")
    step = SplitReduce(name, last.var.name, factor, part, whole=tuple(a.var.name for a in rest))
    if step.check(k) is not None:
        return k, name, axis
    kept = [a.var.name for a in item.reduce.axes if a is not last and a not in rest]
    k = run(k, step)
    return k, part, summed(k, part)[(1 if factor else 0) + kept.index(axis)].var.name
