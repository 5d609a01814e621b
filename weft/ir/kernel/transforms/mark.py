"""Unroll, vectorize, bind: how a loop's iterations run."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from weft.ir.index import Index, Int, Sum, coefficient, high, low, span, substitute, variables
from weft.ir.kernel.algorithm import Output, StoreTo
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import loops
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.ir.loops import FORBIDDEN_INSIDE, LANE_KINDS, LoopKind, misplaced
from weft.lazy_dataclass import dataclass

UNROLL_LIMIT = 256


def _mark(k: Kernel, loop: str, kind: LoopKind) -> Kernel:
    owner = k.owner(loop)
    assert owner is not None
    nest = k.nests[owner]
    d = nest.depth(loop)
    return k.with_nest(
        owner, replace(nest, loops=(*nest.loops[:d], replace(nest.loops[d], kind=kind), *nest.loops[d + 1 :]))
    )


@dataclass(frozen=True, slots=True)
class Unroll(Transform):
    """for i in 0..n  ->  the body n times. Needs: n constant and at most 256."""

    loop: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Unroll | None:
        return cls(pick(loops(k)))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        if not isinstance(spec.extent, int) or spec.extent > UNROLL_LIMIT:
            return Refusal(
                f"the extent {spec.extent!r} of {self.loop} is not a constant up to {UNROLL_LIMIT}"
            )
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        return _mark(k, self.loop, LoopKind.UNROLL)


@dataclass(frozen=True, slots=True)
class Vectorize(Transform):
    """for i in 0..n  ->  n lanes of a vector, statement by statement. Reassociates a reduction: lanes add as a tree.

    Needs: n constant and at most 256; nothing is computed inside the loop; no parallel or vector loop inside it.
    """

    loop: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Vectorize | None:
        return cls(pick(loops(k)))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        if not isinstance(spec.extent, int) or spec.extent > UNROLL_LIMIT:
            return Refusal(
                f"the extent {spec.extent!r} of {self.loop} is not a constant up to {UNROLL_LIMIT}"
            )
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        inside = nest.loops[nest.depth(self.loop) :]
        names = {s.var.name for s in inside}
        if any(n.at is not None and n.at.item == owner and n.at.loop in names for n in k.nests.values()):
            return Refusal(f"something is computed inside {self.loop}")
        if misplaced([LoopKind.VECTOR, *(s.kind for s in inside)]):
            return Refusal(f"there is a parallel or vector loop inside {self.loop}")
        if any(spec.var in variables(s.extent) for s in inside):
            return Refusal(f"a loop inside {self.loop} is as long as its iteration says")
        if any(s.kind in LANE_KINDS for s in nest.loops):
            return Refusal(f"{owner} already has a vector loop")
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        return _mark(k, self.loop, LoopKind.VECTOR)


@dataclass(frozen=True, slots=True)
class Bind(Transform):
    """for i in 0..n  ->  independent iterations: tasks on cores (parallel), or blocks and threads of a GPU's grid.

    Needs: no reduction over the loop; no scatter, whose stores may meet; no vector loop around it; no tasks
    inside tasks.
    """

    loop: str
    kind: LoopKind = LoopKind.PARALLEL

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Bind | None:
        return cls(pick(loops(k)))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        owner = k.owner(self.loop)
        assert owner is not None
        item = k.algorithm.item(owner)
        if self.kind in (LoopKind.SERIAL, LoopKind.UNROLL, *LANE_KINDS):
            return Refusal(f"{self.kind.value} is no parallel kind")
        if spec.reduce:
            return Refusal(f"{self.loop} reduces: split the reduction into steps first")
        if isinstance(item, Output) and any(_may_meet(k, item, s, self.loop) for s in item.stores):
            return Refusal(f"iterations of {self.loop} may store to the same element")
        nest = k.nests[owner]
        outside = [*k.enclosing(owner), *nest.loops[: nest.depth(self.loop)]]
        if any(s.kind in LANE_KINDS for s in outside):
            return Refusal(f"{self.loop} is inside a vector loop")
        within = [*nest.loops[nest.depth(self.loop) + 1 :]]
        for name, other in k.nests.items():
            if any(item == owner and count > nest.depth(self.loop) for item, count in k.path(name)):
                within.extend(other.loops)
        if self.kind is LoopKind.PARALLEL:
            if any(s.kind is LoopKind.PARALLEL for s in (*outside, *within)):
                return Refusal(f"there is a parallel loop around {self.loop} or in it: merge them")
            if any(s.kind in (LoopKind.BLOCK, LoopKind.THREAD) for s in outside):
                return Refusal(f"{self.loop} is inside a loop of a GPU's grid")
        for outer in outside:
            if self.kind in FORBIDDEN_INSIDE.get(outer.kind, ()):
                return Refusal(f"a {self.kind.value} loop inside {outer.var.name}, a {outer.kind.value} loop")
        for inner in within:
            if inner.kind in FORBIDDEN_INSIDE.get(self.kind, ()):
                return Refusal(
                    f"{inner.var.name}, a {inner.kind.value} loop, inside a {self.kind.value} loop"
                )
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        return _mark(k, self.loop, self.kind)


def _may_meet(k: Kernel, item: Output, store: StoreTo, loop: str) -> bool:
    """Stores at data-dependent places: one of the other indices must tell any two iterations of the loop apart.

    A place may be data-dependent without showing it: in an axis of one element only the guard is left of it.
    """
    index = store.index
    named = {v for i in index if not isinstance(i, int) for v in variables(i)}
    every = all(a.extent == 1 or a.var in named for a in item.axes)
    if every and not any(isinstance(i, Index) and i.computed for i in index):
        return False
    nest = k.nests[item.name]
    depth = nest.depth(loop)
    var, inner = nest.loops[depth].var, {s.var for s in nest.loops[depth + 1 :]}
    for i in index:
        if isinstance(i, int):
            continue
        # c*[computed] + rest: stores of two iterations are apart when their rests differ by less than c, or by all that
        # computed places may: rows of their own
        terms = i.terms if isinstance(i, Sum) else ((i, 1),)
        apart = gcd(*(c for a, c in terms if a.computed))
        places: Int = sum((a * c for a, c in terms if a.computed), start=0)
        at = substitute(i - places, nest.bind)
        step = coefficient(at, var)
        reach = span(at - var * step, inner) if step else None
        if step and reach is not None and reach[1] <= abs(step):
            if not apart or abs(step) * var.hi + reach[1] <= apart:
                return False
            if reach[1] + high(places) - low(places) <= abs(step):
                return False
    return True
