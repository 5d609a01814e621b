"""Rows that are read several times: while a later pass computes on one row, the next one comes from memory.

    for i:                                      for i:
      m = max j: x[i, j]        from memory       m = max j: x[i, j]                   from cache
      e(j) = exp(x[i, j] - m)   from cache   ->   e(j) = exp(x[i, j] - m)              from cache
      ..                                                 prefetch x[i + 1, j]

The first pass over a row waits for memory and computes little, the others compute and leave memory idle. The second
pass asks for what the first one will read.
"""

from __future__ import annotations

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import elements
from weft.ir.index import Int, coefficient, flatten, high, substitute
from weft.ir.kernel.algorithm import Item, Param, reads
from weft.ir.kernel.schedule import Kernel, LoopSpec
from weft.ir.kernel.transforms.base import attempt
from weft.ir.kernel.transforms.hint import PrefetchNext
from weft.ir.loops import LoopKind

ROWS = 8
"""A row takes at most one of so many parts of the second-level cache: two are there, beside what is computed."""


def prefetch_rows(k: Kernel, info: DeviceInfo) -> Kernel:
    """`k` with the second pass over each row of a large parameter fetching the next row."""
    for p in k.algorithm.params:
        if p.written or high(elements(p.shape)) * p.dtype.itemsize <= info.l2_bytes:
            continue
        passes = [(item, at) for item in k.algorithm.items if (at := _run(k, item, p)) is not None]
        if len(passes) < 2:
            continue
        chains = [_around(k, item) for item, _ in passes]
        common = [s[0] for s in zip(*chains, strict=False) if all(x.var == s[0].var for x in s)]
        if not common:
            continue
        step = coefficient(passes[1][1], common[-1].var)
        if step and abs(step) * p.dtype.itemsize * ROWS <= info.l2_bytes:
            k = attempt(k, PrefetchNext(passes[1][0].name, common[-1].var.name))
    return k


def _run(k: Kernel, item: Item, p: Param) -> Int | None:
    """The offset at which the item reads the parameter, if it is a run of neighbours in vector lanes."""
    nest = k.nests[item.name]
    lane = next((s.var for s in nest.loops if s.kind is LoopKind.VECTOR), None)
    if lane is None:
        return None
    for load in reads(item):
        if load.source == p.name:
            at = flatten([substitute(i, nest.bind) for i in load.index], p.shape)
            if coefficient(at, lane) == 1:
                return at
    return None


def _around(k: Kernel, item: Item) -> list[LoopSpec]:
    """The loops around the item's innermost one, outermost first."""
    return [*k.enclosing(item.name), *k.nests[item.name].loops[:-1]]
