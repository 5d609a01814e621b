from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from weft.ir.index import Index, floordiv, low, mod, variables
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.schedule import Kernel, NestLoop, fresh, loop_var
from weft.ir.kernel.transforms.arguments import one_of
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.ir.kernel.transforms.split import move_children
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Merge(Transform):
    """for i in 0..n: for j in 0..m  ->  for ij in 0..n*m, with i = ij // m, j = ij % m.

    Needs: j directly inside i, both serial, both reducing or neither; nothing computed between them; m a constant, or,
    where `dividing` says that a division at run time is worth it, a size that is not zero, of a loop of an output.
    """

    outer: str
    inner: str
    merged: str = ""
    dividing: bool = False

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Merge | None:
        pairs = [(a, b) for n in k.nests.values() for a, b in pairwise(s.var.name for s in n.loops)]
        pair = one_of(pick, pairs)
        return None if pair is None else cls(*pair, dividing=pick((False, True)))

    def check(self, k: Kernel) -> Refusal | None:
        a, b = find(k, self.outer), find(k, self.inner)
        if isinstance(a, Refusal):
            return a
        if isinstance(b, Refusal):
            return b
        owner = k.owner(self.outer)
        assert owner is not None
        nest = k.nests[owner]
        if k.owner(self.inner) != owner or nest.depth(self.inner) != nest.depth(self.outer) + 1:
            return Refusal(f"{self.inner} is not directly inside {self.outer}")
        if a.reduce != b.reduce:
            return Refusal(f"only one of {self.outer} and {self.inner} reduces")
        if not isinstance(b.extent, int) and not self.dividing:
            return Refusal(f"the extent {b.extent!r} of {self.inner} is only known at run time")
        if not isinstance(b.extent, int) and not isinstance(k.algorithm.item(owner), Output):
            return Refusal(f"{owner} is a value, whose readers ask how far a loop of runtime length goes")
        if not isinstance(b.extent, int) and _varies(b.extent, k):
            return Refusal(f"the extent {b.extent!r} of {self.inner} is another in each iteration")
        if not isinstance(b.extent, int) and low(b.extent) < 1:
            return Refusal(f"the extent {b.extent!r} of {self.inner} may be zero")
        if any(n.at is not None and n.at.item == owner and n.at.loop == self.outer for n in k.nests.values()):
            return Refusal(f"something is computed between {self.outer} and {self.inner}")
        return serial(k, a) or serial(k, b)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.outer)
        assert owner is not None
        d = k.nests[owner].depth(self.outer)
        a, b = k.nests[owner].loops[d : d + 2]
        extent = a.extent * b.extent
        var = loop_var(fresh(k.names(), self.merged or f"{self.outer}_{self.inner}"), extent)
        k = k.rebind({a.var: floordiv(var, b.extent), b.var: mod(var, b.extent)})
        nest = k.nests[owner]
        loops = (*nest.loops[:d], NestLoop(var, extent, reduce=a.reduce), *nest.loops[d + 2 :])
        k = k.with_nest(owner, replace(nest, loops=loops))
        return move_children(k, owner, self.inner, var.name)


def _varies(extent: Index, k: Kernel) -> bool:
    """The extent depends on what is computed or on loops, not on sizes alone."""
    loops = {s.var for nest in k.nests.values() for s in nest.loops}
    return extent.computed or not loops.isdisjoint(variables(extent))
