from __future__ import annotations

from dataclasses import replace

from weft.ir.index import variables
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import items, shuffled
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.loops import misplaced
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Permute(Transform):
    """for i: for j: for k  ->  the item's loops in another order, `order` naming all of them, outermost first.

    Reassociates: loops of a floating-point reduction may change places. Needs: nothing is computed at a loop that
    moves, since its region would change; parallel loops stay outside what is not; trimmed loops stay inside those that
    their bounds follow from.
    """

    item: str
    order: tuple[str, ...]

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Permute | None:
        item = pick(items(k))
        return cls(item, shuffled(pick, (s.var.name for s in k.nests[item].loops)))

    def check(self, k: Kernel) -> Refusal | None:
        nest = k.nests.get(self.item)
        if nest is None:
            return Refusal(f"there is no item {self.item}")
        names = [s.var.name for s in nest.loops]
        if sorted(names) != sorted(self.order):
            return Refusal(f"{self.order} is no order of {tuple(names)}")
        first = next(
            (d for d, (a, b) in enumerate(zip(names, self.order, strict=True)) if a != b), len(names)
        )
        for n in k.nests.values():
            if n.at is not None and n.at.item == self.item and nest.depth(n.at.loop) >= first:
                return Refusal(f"something is computed at {n.at.loop}, whose surroundings would change")
            if n.online is not None and n.online.leader == self.item:
                return Refusal(f"online reductions run with {self.item}")
        outside: set[str] = set()
        for spec in (nest.loops[nest.depth(n)] for n in self.order):
            for v in variables(spec.extent):
                if v.name in names and v.name not in outside:
                    return Refusal(
                        f"how far {spec.var.name} runs follows from {v.name}, which would be inside"
                    )
            outside.add(spec.var.name)
        wrong = misplaced([nest.loops[nest.depth(n)].kind for n in self.order])
        return None if wrong is None else Refusal(f"a {wrong[1].value} loop inside a {wrong[0].value} loop")

    def apply(self, k: Kernel) -> Kernel:
        nest = k.nests[self.item]
        return k.with_nest(
            self.item, replace(nest, loops=tuple(nest.loops[nest.depth(n)] for n in self.order))
        )
