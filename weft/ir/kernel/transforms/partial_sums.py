from __future__ import annotations

from dataclasses import replace

from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.schedule import Kernel, NestLoop
from weft.ir.kernel.transforms.arguments import FACTORS, one_of, reducing_loops, reductions
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, find_value
from weft.ir.loops import LoopKind
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PartialSums(Transform):
    """A reducing loop adds to a partial sum, which is added to the whole after so many iterations.

        for i in 0..n: s += x(i)  ->  for o in 0..n/f:  p = 0;  for i in 0..f: p += x(f*o + i);  s += p

    `levels`: f, then how many partial sums have one of their own again, and so on. In the loop of a maximum that online
    sums run beside, these have the partial sums, relative to the maximum so far. Reassociates. f need not divide n,
    which may be known at run time only, nor need the loop be empty: what is computed in it stays there. Needs: a serial
    loop, reducing, of a sum or such a maximum. Unrolling or splitting the loop afterwards undoes it.
    """

    value: str
    loop: str
    levels: tuple[int, ...]

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> PartialSums | None:
        value = one_of(pick, reductions(k))
        loop = None if value is None else one_of(pick, reducing_loops(k, value))
        if value is None or loop is None:
            return None
        return cls(value.name, loop, tuple(pick(FACTORS) for _ in range(pick((1, 2)))))

    def check(self, k: Kernel) -> Refusal | None:
        item, spec = find_value(k, self.value), find(k, self.loop)
        if isinstance(item, Refusal):
            return item
        if isinstance(spec, Refusal):
            return spec
        if any(n < 1 for n in self.levels):
            return Refusal(f"levels of {self.levels} iterations")
        if k.nests[self.value].loop(self.loop) is None or not spec.reduce or spec.kind is not LoopKind.SERIAL:
            return Refusal(f"{self.loop} is no serial reducing loop of {self.value}")
        if k.nests[self.value].online is not None:
            return Refusal(f"{self.value} runs in another's loop")
        assert item.reduce is not None
        if item.reduce.op is not Op.ADD and not followers(k, self.loop):
            return Refusal(f"{self.value} is no sum, and none runs beside it in {self.loop}")
        return None

    def apply(self, k: Kernel) -> Kernel:
        nest = k.nests[self.value]

        def marked(s: NestLoop) -> NestLoop:
            return replace(s, levels=self.levels) if s.var.name == self.loop else s

        return k.with_nest(self.value, replace(nest, loops=tuple(map(marked, nest.loops))))


def followers(k: Kernel, loop: str) -> list[ItemValue]:
    """The online sums that run in a loop."""
    return [
        i
        for i in k.algorithm.items
        if isinstance(i, ItemValue) and (on := k.nests[i.name].online) is not None and on.loop == loop
    ]
