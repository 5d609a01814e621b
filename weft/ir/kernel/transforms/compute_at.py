from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace

from weft.ir.expr import Load
from weft.ir.index import (
    Int,
    Opaque,
    Var,
    atoms,
    coefficient,
    high,
    low,
    maximum,
    minimum,
    span,
    substitute,
    variables,
)
from weft.ir.kernel.algorithm import Item, ItemValue, Output, readers, reads
from weft.ir.kernel.schedule import At, Kernel, NestLoop, fresh, initial_nest, loop_var
from weft.ir.kernel.transforms.arguments import items, loops
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import empty
from weft.ir.loops import LANE_KINDS, LoopKind, Scope
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ComputeAt(Transform):
    """The value is computed inside the loop `loop` of `consumer`: the region that the rest of its body needs.

        for v: a[v] = ...                      for o:
        for o: for i: ... a[o*4 + i] ...   ->    for v in 0..4: a[o*4 + v] = ...
                                                 for i: ... a[i] ...

    The value's own loops start anew, one per axis of the region: schedule consumers before producers. Needs: all its
    readers are inside that loop; nothing is computed in the value's loops yet; the loop
    is not in a vector loop. Where a region has no simple bounds along an axis, it is the whole axis.
    """

    item: str
    consumer: str
    loop: str
    scope: Scope = Scope.LOCAL

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> ComputeAt | None:
        loop = pick(loops(k))
        consumer = k.owner(loop)
        assert consumer is not None
        nest = k.nests[consumer]
        around = [*k.enclosing(consumer), *nest.loops[: nest.depth(loop) + 1]]
        own = any(s.kind is LoopKind.THREAD for s in around)  # LOCAL memory belongs to all threads
        return cls(
            pick(items(k)), consumer, loop, Scope.REGISTER if own else pick((Scope.LOCAL, Scope.REGISTER))
        )

    def check(self, k: Kernel) -> Refusal | None:
        nest = k.nests.get(self.item)
        target = k.nests.get(self.consumer)
        if nest is None or target is None:
            return Refusal(f"there is no item {self.item if nest is None else self.consumer}")
        if target.loop(self.loop) is None:
            return Refusal(f"{self.consumer} has no loop {self.loop}")
        if nest.online is not None:
            return Refusal(f"{self.item} runs in another's loop")
        refusal = empty(k, self.item)
        if refusal is not None:
            return refusal
        users = readers(k.algorithm, self.item)
        if not users or self.item == self.consumer:
            return Refusal(f"nothing reads {self.item}")
        if any(s.kind in LANE_KINDS for s in target.loops[: target.depth(self.loop) + 1]):
            return Refusal(f"{self.loop} is in a vector loop")
        item = k.algorithm.item(self.item)
        if isinstance(item, Output) and any(s.combine is not None for s in item.stores):
            return Refusal(f"{self.item} combines into memory: each point must be computed once")
        for user in users:
            if not self._inside(k, user):
                return Refusal(f"{user.name}, which reads {self.item}, is not inside {self.loop}")
        return None

    def _inside(self, k: Kernel, user: Item) -> bool:
        """`user` is computed in the loop, or is the consumer itself."""
        if user.name == self.consumer:
            return True
        depth = k.nests[self.consumer].depth(self.loop) + 1
        return any(name == self.consumer and count >= depth for name, count in k.path(user.name))

    def apply(self, k: Kernel) -> Kernel:
        region = _region(k, self)
        item = k.algorithm.item(self.item)
        used = k.names()
        base = initial_nest(item, used)
        loops: list[NestLoop] = []
        bind = {v: e for v, e in base.bind.items() if v not in {a.var for a in item.axes}}
        for axis, (first, extent) in zip(item.axes, region, strict=True):
            if extent == 1:
                bind[axis.var] = first
                continue
            var = loop_var(fresh(used, axis.var.name), extent)
            loops.append(NestLoop(var, extent))
            bind[axis.var] = first + var
        loops.extend(s for s in base.loops if s.reduce)
        is_value = isinstance(item, ItemValue)
        return k.with_nest(
            self.item,
            replace(
                base,
                loops=tuple(loops),
                bind=bind,
                at=At(self.consumer, self.loop),
                origin=tuple(f for f, _ in region) if is_value else (),
                size=tuple(high(e) for _, e in region) if is_value else (),
                scope=self.scope,
            ),
        )


def _region(k: Kernel, t: ComputeAt) -> list[tuple[Int, Int]]:
    """Per axis of the item: first index and extent of what is read inside the loop."""
    item = k.algorithm.item(t.item)
    target = k.nests[t.consumer]
    depth = target.depth(t.loop) + 1
    outer = {s.var for s in [*k.enclosing(t.consumer), *target.loops[:depth]]}
    regions: list[tuple[Int, Int] | None] = [None] * len(item.axes)
    for user in readers(k.algorithm, t.item):
        nest = k.nests[user.name]
        for load in _loads(user, t.item):
            for a, i in enumerate(load.index):
                at = substitute(i, nest.bind)
                inner = variables(at) - outer - set(k.algorithm.variables)
                extent = item.axes[a].extent
                one = _span(k, at, inner, outer, extent)
                before = regions[a]
                regions[a] = one if before is None else _union(before, one, extent)
    return [(0, a.extent) if r is None else r for r, a in zip(regions, item.axes, strict=True)]


def _loads(user: Item, name: str) -> Iterator[Load]:
    return (r for r in reads(user) if r.source == name)


def _span(k: Kernel, at: Int, inner: Set[Var], outer: Set[Var], extent: Int) -> tuple[Int, Int]:
    """The range that `at` covers while the inner loops run inside the outer ones; the whole axis where that cannot be
    told."""
    found = None if any(isinstance(a, Opaque) for a in atoms(at)) else span(at, inner)
    if found is None:
        return 0, extent
    first, size = found
    lengths = {s.var: s.extent for n in k.nests.values() for s in n.loops if s.var in inner}
    sized = {*k.algorithm.variables, *outer}
    unsized = {v: n for v, n in lengths.items() if not isinstance(n, int)}
    over = isinstance(extent, int) and size > extent and low(first) >= 0
    if over and unsized:
        return first, minimum(extent - first, extent)  # trimmed loops end with the axis, wherever they start
    for v, n in unsized.items():
        step = coefficient(at, v)
        if step and variables(n) <= sized:  # loops that end early read as little
            short = (high(n) - n) * abs(step)
            first, size = first if step > 0 else first + short, size - short
    return first, size


def _union(a: tuple[Int, Int], b: tuple[Int, Int], extent: Int) -> tuple[Int, Int]:
    if a == b:
        return a
    gap = b[0] - a[0]
    if isinstance(gap, int):
        first = a[0] if gap >= 0 else b[0]
        return first, maximum(a[1] + (-gap if gap < 0 else 0), b[1] + (gap if gap > 0 else 0))
    return 0, extent
