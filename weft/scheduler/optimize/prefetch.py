"""Asking for what comes next before it is read.

Rows that are read several times: while a later pass computes on one row, the next one comes from memory.

    for i:                                      for i:
      m = max j: x[i, j]        from memory       m = max j: x[i, j]                   from cache
      e(j) = exp(x[i, j] - m)   from cache   ->   e(j) = exp(x[i, j] - m)              from cache
      ..                                                 prefetch x[i + 1, j]

The first pass over a row waits for memory and computes little, the others compute and leave memory idle. The second
pass asks for what the first one will read.

What is read once, in order: some way ahead of where the loop is, into the second-level cache. The hardware follows such
a stream by itself, but only within a page, and not far enough ahead to keep memory busy, unless there are several.

    for i:                            for i:
      y(i) = f(x[i])            ->      prefetch x[i + steps]
                                        y(i) = f(x[i])

Panels that all tiles of rows use, of which the first waits for memory and the others leave it idle: each step asks for
its share of the next panel.

    for p:                                  for p:
      for tile: for k:                        for tile: for k:
        s += w[p, k] * x[tile, k]     ->        prefetch w[p + 1, tile * steps + k * share]
                                                s += w[p, k] * x[tile, k]

What is read and written along with the results of a tile, which takes its time to compute: the steps of its sums ask
for it, line by line. An optimizer's update reads three arrays and writes four for each gradient.

    for tile:                               for tile:
      for k: s += x[k] * dy[k, tile]  ->      for k:
      w[tile] = w[tile] - f(s)                  prefetch w[tile, lines of k]
                                                s += x[k] * dy[k, tile]
                                              w[tile] = w[tile] - f(s)
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import elements
from weft.ir.index import Int, Var, ceildiv, coefficient, flatten, high, substitute
from weft.ir.kernel.algorithm import Item, Param, reads
from weft.ir.kernel.decisions import pick
from weft.ir.kernel.hints import accesses, apart, lines_of
from weft.ir.kernel.schedule import Kernel, NestLoop
from weft.ir.kernel.transforms.base import attempt
from weft.ir.kernel.transforms.hint import PrefetchNext, PrefetchOutput, PrefetchShares
from weft.ir.loops import LoopKind

PLACES = 4
"""Places in which memory is read at once, from which on it is kept busy."""

ROW_SHARE = 8
"""A row takes at most one of so many parts of the second-level cache: two are there, beside what is computed."""

MIN_AHEAD_BYTES = 1024
"""The least of them where several streams share them."""

PANELS_AT_ONCE = 3
"""The second cache has room for so many panels where the next one is asked for: two, and what streams by."""

ROWS_AHEAD_BYTES = 1 << 14
"""Bytes of short rows that are asked for ahead."""

MIN_RUN_BYTES = 4 * MIN_AHEAD_BYTES
"""Shorter runs are left to the hardware: much of what lies behind their end would be asked for in vain."""


def prefetch(k: Kernel, info: DeviceInfo) -> Kernel:
    """`k` asking for what it will read next of large parameters."""
    return prefetch_streams(prefetch_rows(k, info), info, info.costs.prefetch_bytes, 0)


def prefetch_streams(k: Kernel, info: DeviceInfo, ahead: int, abreast: int) -> Kernel:
    """`k` with items that read large parameters in order asking for what lies some way `ahead` of it, in bytes, or
    `abreast` where they read in so many places at once that the hardware looks far enough ahead.

    Not where another item asks for it already (`prefetch_rows`)."""
    asked = [i for i in k.algorithm.items if k.nests[i.name].prefetch is not None]
    new = [p for p in large(k, info) if all(_run(k, i, p) is None for i in asked)]
    for item in k.algorithm.items:
        around = _around(k, item)
        inner = next((s for s in reversed(around) if s.kind is not LoopKind.UNROLL), None)
        if item in asked or inner is None:
            continue
        steps: dict[str, int] = {}
        for p in new:
            at = _run(k, item, p)
            step = 0 if at is None else (coefficient(at, inner.var) or 0) * p.dtype.itemsize
            if (
                at is not None
                and 0 < step <= MIN_AHEAD_BYTES
                and _length(at, around) * p.dtype.itemsize >= MIN_RUN_BYTES
            ):
                steps[p.name] = step
        if not steps:
            continue
        streams = sum(_streams(k, item, p, around) for p in new if p.name in steps)
        first = ahead if streams < PLACES else abreast
        k, far = pick(k, "prefetch.bytes", list(dict.fromkeys((first, ahead, 0, 1024, 2048, 4096, 8192))))
        if far:
            count = ceildiv(max(far // streams, MIN_AHEAD_BYTES), max(steps.values()))
            k = attempt(k, PrefetchNext(item.name, inner.var.name, count, tuple(steps)))
    return k


def _streams(k: Kernel, item: Item, p: Param, around: list[NestLoop]) -> int:
    """In how many places the item reads the parameter side by side: rows that are written out, unless they are near."""
    at = _run(k, item, p)
    rows = [s for s in around if s.kind is LoopKind.UNROLL]
    far = [
        s
        for s in rows
        if at is None or abs(coefficient(at, s.var) or 0) * p.dtype.itemsize >= MIN_AHEAD_BYTES
    ]
    return prod(high(s.extent) for s in far)


def large(k: Kernel, info: DeviceInfo) -> list[Param]:
    """The parameters that the second-level cache does not hold, for their size or since they are far."""
    params = k.algorithm.params
    return [p for p in params if p.far or high(elements(p.shape)) * p.dtype.itemsize > info.l2_bytes]


def _length(at: Int, around: list[NestLoop]) -> int:
    """Elements that the loops run over without a gap, the innermost of them first."""
    loops = [s for s in reversed(around) if s.kind is not LoopKind.UNROLL]
    length = coefficient(at, loops[0].var) or 0
    for spec in loops:
        if coefficient(at, spec.var) != length:
            break
        length *= high(spec.extent)
    return length


def prefetch_rows(k: Kernel, info: DeviceInfo) -> Kernel:
    """`k` with the second pass over each row of a large parameter fetching the next row."""
    for p in large(k, info):
        if p.written:
            continue
        passes = [(item, at) for item in k.algorithm.items if (at := _run(k, item, p)) is not None]
        if len(passes) < 2:
            continue
        chains = [_around(k, item) for item, _ in passes]
        common = [
            s[0] for s in zip(*chains, strict=False) if all(x.var == s[0].var for x in s) and s[0].extent != 1
        ]
        if not common:
            continue
        step = coefficient(passes[1][1], common[-1].var)
        if step and abs(step) * p.dtype.itemsize * ROW_SHARE <= info.l2_bytes:
            k = attempt(k, PrefetchNext(passes[1][0].name, common[-1].var.name))
    return k


def ask_for_rows(k: Kernel, name: str, loop: str, info: DeviceInfo) -> Kernel:
    """`k` with an item that reads short rows of a large parameter, one in each iteration of a loop, asking for those
    some iterations ahead: the hardware does not follow from row to row."""
    item = k.algorithm.item(name)
    inside = [s for s in k.nests[name].loops if not s.reduce and s.kind is not LoopKind.PARALLEL]
    for p in large(k, info):
        at = _run(k, item, p)
        step = 0 if at is None else (coefficient(at, _variable(k, loop)) or 0)
        row = prod(
            high(s.extent) for s in inside if at is not None and 0 < (coefficient(at, s.var) or 0) < step
        )
        nbytes = row * p.dtype.itemsize
        if row < step and MIN_AHEAD_BYTES <= nbytes < MIN_RUN_BYTES:
            k = attempt(k, PrefetchNext(name, loop, ceildiv(ROWS_AHEAD_BYTES, nbytes), (p.name,)))
    return k


def ask_for_tile(k: Kernel, name: str, loop: str, info: DeviceInfo) -> Kernel:
    """`k` with an item that reads rows of a large parameter side by side, within `loop`, asking for those that the next
    tile of them will read: the hardware does not follow from tile to tile."""
    around = k.enclosing(name)
    outer = around[[s.var.name for s in around].index(loop) - 1]
    asked: list[str] = []
    for p in large(k, info):
        at = _run(k, k.algorithm.item(name), p)
        step = 0 if at is None else (coefficient(at, outer.var) or 0) * p.dtype.itemsize
        if not p.written and step >= MIN_AHEAD_BYTES and step * ROW_SHARE <= info.l2_bytes:
            asked.append(p.name)
    return attempt(k, PrefetchNext(name, outer.var.name, 1, tuple(asked))) if asked else k


def ask_for_panel(k: Kernel, name: str, loop: str, param: str, nbytes: int, info: DeviceInfo) -> Kernel:
    """`k` with an item that uses a panel of `nbytes` bytes in each iteration of `loop`, tile by tile, asking for the
    next one meanwhile, where the parameter lies in memory and two fit into the cache."""
    if nbytes * PANELS_AT_ONCE > info.l2_bytes or all(p.name != param for p in large(k, info)):
        return k
    return attempt(k, PrefetchShares(name, loop, param))


def ask_for_output(k: Kernel, name: str, output: str, info: DeviceInfo) -> Kernel:
    """`k` with a sum, computed tile by tile, asking for what the output reads and writes at each result, where some of
    these parameters are large."""
    nest, item = k.nests[name], k.algorithm.item(output)
    loop = next((s.var.name for s in reversed(nest.loops) if s.reduce and s.kind is LoopKind.SERIAL), None)
    if loop is None or nest.prefetch is not None:
        return k
    turns, inner = apart(k, name, loop, output)
    if not all(isinstance(s.extent, int) for s in (*turns, *inner)):
        return k
    full: dict[Param, int] = {}
    for p, at in _places(k, item):
        found = lines_of(p, at, inner)
        if found is not None:
            full[p] = found[-1]
    if all(p not in full for p in large(k, info)):
        return k
    k, way = pick(k, "prefetch.output", ("step by step", "tile by tile"))
    if way != "step by step":
        return k
    steps = prod(high(s.extent) for s in turns) // max(full.values())
    return attempt(
        k,
        PrefetchOutput(name, loop, output, 1 << max(0, steps.bit_length() - 1), tuple(p.name for p in full)),
    )


def _places(k: Kernel, item: Item) -> Iterator[tuple[Param, Int]]:
    """The offsets at which an item reads and writes parameters."""
    nest = k.nests[item.name]
    for name, index in accesses(item, nest):
        p = k.algorithm.param(name)
        if p is not None:
            yield p, flatten([substitute(i, nest.bind) for i in index], p.shape)


def _variable(k: Kernel, loop: str) -> Var:
    owner = k.owner(loop)
    assert owner is not None
    spec = k.nests[owner].loop(loop)
    assert spec is not None
    return spec.var


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


def _around(k: Kernel, item: Item) -> list[NestLoop]:
    """The loops around the item's innermost one, outermost first."""
    return [*k.enclosing(item.name), *k.nests[item.name].loops[:-1]]
