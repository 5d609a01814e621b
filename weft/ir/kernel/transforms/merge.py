from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from weft.ir.index import floordiv, mod
from weft.ir.kernel.schedule import Kernel, NestLoop, fresh, loop_var
from weft.ir.kernel.transforms.arguments import one_of
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.ir.kernel.transforms.split import move_children
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Merge(Transform):
    """for i in 0..n: for j in 0..m  ->  for ij in 0..n*m, with i = ij // m, j = ij % m.

    Needs: j directly inside i, both serial, both reducing or neither; m a constant; nothing computed between them.
    """

    outer: str
    inner: str
    merged: str = ""

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Merge | None:
        pairs = [(a, b) for n in k.nests.values() for a, b in pairwise(s.var.name for s in n.loops)]
        pair = one_of(pick, pairs)
        return None if pair is None else cls(*pair)

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
        if not isinstance(b.extent, int):
            return Refusal(f"the extent {b.extent!r} of {self.inner} is only known at run time")
        if any(n.at is not None and n.at.item == owner and n.at.loop == self.outer for n in k.nests.values()):
            return Refusal(f"something is computed between {self.outer} and {self.inner}")
        return serial(k, a) or serial(k, b)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.outer)
        assert owner is not None
        d = k.nests[owner].depth(self.outer)
        a, b = k.nests[owner].loops[d : d + 2]
        assert isinstance(b.extent, int)
        extent = a.extent * b.extent
        var = loop_var(fresh(k.names(), self.merged or f"{self.outer}_{self.inner}"), extent)
        k = k.rebind({a.var: floordiv(var, b.extent), b.var: mod(var, b.extent)})
        nest = k.nests[owner]
        loops = (*nest.loops[:d], NestLoop(var, extent, reduce=a.reduce), *nest.loops[d + 2 :])
        k = k.with_nest(owner, replace(nest, loops=loops))
        return move_children(k, owner, self.inner, var.name)
