from __future__ import annotations

from dataclasses import replace

from weft.ir.index import Int, ceildiv, coefficient, high, variables
from weft.ir.kernel.schedule import Kernel, Nest, NestLoop, loop_var
from weft.ir.kernel.transforms.arguments import FACTORS, loops
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Pad(Transform):
    """for i in 0..n  ->  for i in 0..n', n' the next multiple of `multiple`.

    The extra iterations compute what is never stored: lowering guards loads, reductions and stores. Needs: a serial
    loop; it has not been split or merged, and runs over all of an axis that is summed; nothing is computed at it or
    inside it yet (regions would grow); it runs over no rows of an online reduction that another's loop computes, which
    is rescaled in as many rows as that has.
    """

    loop: str
    multiple: int

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Pad | None:
        return cls(pick(loops(k)), pick(FACTORS))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        if self.multiple < 1:
            return Refusal(f"a multiple of {self.multiple}")
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        if _padded(spec, self.multiple) != spec.extent and owner in {
            n.at.item for n in k.nests.values() if n.at is not None
        }:
            return Refusal(f"something is computed in {owner}'s loops, whose regions would grow")
        if _padded(spec, self.multiple) != spec.extent and any(
            spec.var in variables(s.extent) for s in nest.loops
        ):
            return Refusal(f"a loop inside {self.loop} is as long as its iteration says")
        if nest.online is not None and _grown(k, owner, spec, _padded(spec, self.multiple)) != nest.size:
            return Refusal(f"{owner} is rescaled with {nest.online.leader}, whose rows would not grow")
        if sum(_runs_whole(e, spec, nest) for e in nest.bind.values()) != 1:
            return Refusal(f"{self.loop} is no longer a whole axis")
        if spec.reduce and any(_runs_part(k, e, spec) for e in nest.bind.values()):
            return Refusal(f"{self.loop} runs over a part of the axis at a time, and would over the next")
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        d = nest.depth(self.loop)
        spec = nest.loops[d]
        extent = _padded(spec, self.multiple)
        if extent == spec.extent:
            return k
        var = loop_var(spec.var.name, extent)
        grown = _grown(k, owner, spec, extent)
        k = k.rebind({spec.var: var})
        nest = k.nests[owner]
        loops = (*nest.loops[:d], replace(spec, var=var, extent=extent), *nest.loops[d + 1 :])
        return k.with_nest(owner, replace(nest, loops=loops, size=grown))


def _grown(k: Kernel, owner: str, spec: NestLoop, extent: Int) -> tuple[int, ...]:
    """The region of an item, which grows with the loop that runs over it."""
    nest = k.nests[owner]
    return tuple(
        max(n, high(extent)) if _runs_whole(nest.bind[a.var], spec, nest) else n
        for a, n in zip(k.algorithm.item(owner).axes, nest.size, strict=False)
    )


def _padded(spec: NestLoop, multiple: int) -> Int:
    return ceildiv(spec.extent, multiple) * multiple


def _runs_whole(e: Int, spec: NestLoop, nest: Nest) -> bool:
    """The axis bound to `e` is run over by this loop alone: `e` is its variable plus where the region starts."""
    return coefficient(e, spec.var) == 1 and not any(
        v != spec.var and nest.loop(v.name) for v in variables(e)
    )


def _runs_part(k: Kernel, e: Int, spec: NestLoop) -> bool:
    """The axis bound to `e` is run over by this loop together with another item's."""
    return coefficient(e, spec.var) != 0 and any(v != spec.var and k.owner(v.name) for v in variables(e))
