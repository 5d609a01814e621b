"""Across: the terms of a reduction are neighbouring threads', which exchange them through their registers."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import one_of
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.ir.kernel.transforms.mark import UNROLL_LIMIT
from weft.ir.loops import LANE_KINDS, LoopKind
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Across(Transform):
    """for r in 0..n: s += x[n*i + r]   ->   across r in n: s += x[n*i + r]

    What the threads n*i to n*i + n - 1 have computed is combined as a tree, without LOCAL memory and barriers where
    that is how threads and elements lie (`passes.grid`); as vector lanes else. Reassociates. Needs: n constant, a power
    of two and at most 256; `loop` is innermost and reduces; no vector loop around it.
    """

    loop: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Across | None:
        innermost = [n.loops[-1] for n in k.nests.values() if n.loops]
        loop = one_of(pick, [s.var.name for s in innermost if s.reduce])
        return None if loop is None else cls(loop)

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        n = spec.extent
        if not isinstance(n, int) or not 0 < n <= UNROLL_LIMIT or n & (n - 1):
            return Refusal(f"the extent {n!r} of {self.loop} is no power of two up to {UNROLL_LIMIT}")
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        if (
            nest.loops[-1].var.name != self.loop
            or not spec.reduce
            or not isinstance(k.algorithm.item(owner), ItemValue)
        ):
            return Refusal(f"{self.loop} is not the innermost loop, over the terms of a reduction")
        if any(n.at is not None and n.at.item == owner and n.at.loop == self.loop for n in k.nests.values()):
            return Refusal(f"something is computed inside {self.loop}")
        if any(s.kind in LANE_KINDS for s in nest.loops):
            return Refusal(f"{owner} already has a vector loop")
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        across = replace(nest.loops[-1], kind=LoopKind.ACROSS)
        return k.with_nest(owner, replace(nest, loops=(*nest.loops[:-1], across)))
