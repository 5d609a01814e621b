from __future__ import annotations

from dataclasses import dataclass, replace

from weft.ir.index import ceildiv
from weft.ir.kernel.schedule import Kernel, loop_var
from weft.ir.kernel.transforms.base import Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial


@dataclass(frozen=True, slots=True)
class Pad(Transform):
    """for i in 0..n  ->  for i in 0..n', n' the next multiple of `multiple`.

    The extra iterations compute what is never stored: lowering guards loads, reductions and stores. Needs: a serial
    loop; it has not been split or merged; nothing is computed at it or inside it yet (regions would grow).
    """

    loop: str
    multiple: int

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        if self.multiple < 1:
            return Refusal(f"a multiple of {self.multiple}")
        if not isinstance(spec.extent, int):
            return Refusal(f"the extent {spec.extent!r} of {self.loop} is only known at run time")
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        if spec.extent % self.multiple and owner in {n.at.item for n in k.nests.values() if n.at is not None}:
            return Refusal(f"something is computed in {owner}'s loops, whose regions would grow")
        if sum(e is spec.var or e == spec.var or _sums(e, spec) for e in nest.bind.values()) != 1:
            return Refusal(f"{self.loop} is no longer a whole axis")
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        d = nest.depth(self.loop)
        spec = nest.loops[d]
        assert isinstance(spec.extent, int)
        extent = int(ceildiv(spec.extent, self.multiple)) * self.multiple
        if extent == spec.extent:
            return k
        var = loop_var(spec.var.name, extent)
        # the region grows with the loop that runs over it
        grown = tuple(
            max(n, extent) if _covers(k, owner, a, spec) else n for a, n in enumerate(nest.size)
        )
        k = k.rebind({spec.var: var})
        nest = k.nests[owner]
        loops = (*nest.loops[:d], replace(spec, var=var, extent=extent), *nest.loops[d + 1 :])
        return k.with_nest(owner, replace(nest, loops=loops, size=grown))


def _sums(e: object, spec: object) -> bool:
    """`e` is the loop's variable plus something that is free of it: an axis that the loop alone runs over."""
    from weft.ir.index import Sum, coefficient
    from weft.ir.kernel.schedule import LoopSpec

    assert isinstance(spec, LoopSpec)
    return isinstance(e, Sum) and coefficient(e, spec.var) == 1


def _covers(k: Kernel, owner: str, axis: int, spec: object) -> bool:
    from weft.ir.kernel.schedule import LoopSpec

    assert isinstance(spec, LoopSpec)
    item = k.algorithm.item(owner)
    e = k.nests[owner].bind[item.axes[axis].var]
    return e == spec.var or _sums(e, spec)
