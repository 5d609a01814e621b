"""Stream, prefetch, in shares or for an output: hints for caches."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.kernel.algorithm import Output, reads
from weft.ir.kernel.hints import apart
from weft.ir.kernel.schedule import Kernel, PrefetchSpec
from weft.ir.kernel.transforms.arguments import items, loops, some_of
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Stream(Transform):
    """y[i] = ..  ->  stream y[i] = ..: past the caches, which keep what they hold, without first reading y's lines.

    Pays for an output that nobody reads before it would have left the caches anyway. Needs: an output, whose stores do
    not combine with what is there.
    """

    output: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Stream | None:
        return cls(pick([i.name for i in k.algorithm.items if isinstance(i, Output)]))

    def check(self, k: Kernel) -> Refusal | None:
        item = next((i for i in k.algorithm.items if i.name == self.output), None)
        if not isinstance(item, Output):
            return Refusal(f"{self.output} is no output")
        if any(s.combine is not None for s in item.stores):
            return Refusal(f"{self.output} combines with what is there")
        return None

    def apply(self, k: Kernel) -> Kernel:
        return k.with_nest(self.output, replace(k.nests[self.output], stream=True))


@dataclass(frozen=True, slots=True)
class PrefetchNext(Transform):
    """Prefetch, where the item reads parameters, what the next iteration of `loop`, around it, will read there,
    or the one that comes `steps` later; only of `params`, if some are named. An output prefetches the places that
    it will write too, unless it streams.

        for i:                          for i:
          for j: s += x[i, j]   ->        for j:
                                            prefetch x[i + 1, j]
                                            s += x[i, j]

    A hint, which vanishes when the loop is split afterwards. Needs: `loop` around the innermost loop of the item.
    """

    item: str
    loop: str
    steps: int = 1
    params: tuple[str, ...] = ()

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> PrefetchNext | None:
        params = tuple(p.name for p in k.algorithm.params if not p.written)
        return cls(pick(items(k)), pick(loops(k)), pick((1, 3)), some_of(pick, params))

    def check(self, k: Kernel) -> Refusal | None:
        if self.steps < 1:
            return Refusal(f"{self.steps} iterations are not ahead")
        if self.item not in k.nests:
            return Refusal(f"there is no item {self.item}")
        around = [*k.enclosing(self.item), *k.nests[self.item].loops[:-1]]
        if not any(s.var.name == self.loop for s in around):
            return Refusal(f"no loop {self.loop} is around the innermost one of {self.item}")
        return None

    def apply(self, k: Kernel) -> Kernel:
        return k.with_nest(
            self.item, replace(k.nests[self.item], prefetch=PrefetchSpec(self.loop, self.steps, self.params))
        )


@dataclass(frozen=True, slots=True)
class PrefetchShares(Transform):
    """Prefetch the run of a parameter that the next iteration of `loop` will read, in shares: each iteration of the
    loops within it, but for lanes and what is written out, asks for as many elements as there are for each.

        for p:                                 for p:
          for i:                                 for i:
            for k: s[i] += w[8*p + k]   ->         for k:
                                                     prefetch w[8*p + 4*i + k/2 + 8]
                                                     s[i] += w[8*p + k]

    So memory delivers the next panel evenly while this one is computed with. A hint, which vanishes when the loop is
    split afterwards. Needs: `loop` around the innermost loop of the item, which reads the parameter; loops of known
    extents within.
    """

    item: str
    loop: str
    param: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> PrefetchShares | None:
        params = [p.name for p in k.algorithm.params if not p.written]
        return cls(pick(items(k)), pick(loops(k)), pick(params)) if params else None

    def check(self, k: Kernel) -> Refusal | None:
        refused = PrefetchNext(self.item, self.loop).check(k)
        if refused is not None:
            return refused
        item = k.algorithm.item(self.item)
        if all(r.source != self.param for r in reads(item)):
            return Refusal(f"{self.item} does not read {self.param}")
        around = [*k.enclosing(self.item), *k.nests[self.item].loops]
        within = around[[s.var.name for s in around].index(self.loop) + 1 :]
        if not all(isinstance(s.extent, int) for s in within):
            return Refusal(f"loops within {self.loop} have sizes of run time")
        return None

    def apply(self, k: Kernel) -> Kernel:
        spec = PrefetchSpec(self.loop, 1, (self.param,), shared=True)
        return k.with_nest(self.item, replace(k.nests[self.item], prefetch=spec))


@dataclass(frozen=True, slots=True)
class PrefetchOutput(Transform):
    """Prefetch, while an item is computed, what an output will read and write of parameters (all, if none is named)
    once it is there: one in so many iterations of `loop`, which is the item's, asks for its share of the lines.

        for t:                                   for t:
          for k: s[i] += a[k] * b[k, i]   ->       for k:
          y[t, i] = s[i] + x[t, i]                   prefetch x[t, 4 * k], y[t, 4 * k] if k % 4 == 0
                                                     s[i] += a[k] * b[k, i]
                                                   y[t, i] = s[i] + x[t, i]

    So memory is read and written evenly while the item is computed in caches. A hint, which vanishes when the loop is
    split afterwards. Needs: the item computed in a loop of the output; loops of known extents from there to `loop`, and
    in the output.
    """

    item: str
    loop: str
    output: str
    steps: int = 1
    params: tuple[str, ...] = ()

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> PrefetchOutput | None:
        outputs = [i.name for i in k.algorithm.items if isinstance(i, Output)]
        params = tuple(p.name for p in k.algorithm.params)
        return cls(pick(items(k)), pick(loops(k)), pick(outputs), pick((1, 2, 3)), some_of(pick, params))

    def check(self, k: Kernel) -> Refusal | None:
        if not any(i.name == self.output and isinstance(i, Output) for i in k.algorithm.items):
            return Refusal(f"{self.output} is no output")
        if self.steps < 1:
            return Refusal(f"one in {self.steps} iterations is none")
        if self.item not in k.nests:
            return Refusal(f"there is no item {self.item}")
        if all(s.var.name != self.loop or s.kind is not LoopKind.SERIAL for s in k.nests[self.item].loops):
            return Refusal(f"{self.item} has no loop {self.loop} that runs step by step")
        if k.nests[self.item].online is not None:
            return Refusal(f"{self.item} runs in loops of another item")
        if all(name != self.output for name, _ in k.path(self.item)):
            return Refusal(f"{self.item} is not computed within {self.output}")
        if not all(
            isinstance(s.extent, int) for part in apart(k, self.item, self.loop, self.output) for s in part
        ):
            return Refusal(f"loops of {self.item} or {self.output} have sizes of run time")
        return None

    def apply(self, k: Kernel) -> Kernel:
        spec = PrefetchSpec(self.loop, self.steps, self.params, output=self.output)
        return k.with_nest(self.item, replace(k.nests[self.item], prefetch=spec))
