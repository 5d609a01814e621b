from __future__ import annotations

from dataclasses import replace

from weft.ir.index import floordiv
from weft.ir.kernel.schedule import Kernel, NestLoop, fresh, loop_var
from weft.ir.kernel.transforms.arguments import FACTORS, loops
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.ir.loops import LoopKind
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Split(Transform):
    """for i in 0..n  ->  for io in 0..n/f: for ii in 0..f.

    Needs: f divides n (`Pad` first otherwise); the loop is serial and runs no other reduction with it.
    """

    loop: str
    factor: int
    outer: str = ""
    inner: str = ""

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Split | None:
        return cls(pick(loops(k)), pick(FACTORS))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        if self.factor < 1:
            return Refusal(f"a factor of {self.factor}")
        if floordiv(spec.extent, self.factor) * self.factor != spec.extent:
            return Refusal(
                f"{self.factor} does not divide the extent {spec.extent!r} of {self.loop}: pad first"
            )
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        d = nest.depth(self.loop)
        spec = nest.loops[d]
        used = k.names()
        n = floordiv(spec.extent, self.factor)
        vo = loop_var(fresh(used, self.outer or f"{self.loop}o"), n)
        vi = loop_var(fresh(used, self.inner or f"{self.loop}i"), self.factor)
        outer = NestLoop(vo, n, LoopKind.SERIAL, spec.reduce)
        inner = NestLoop(vi, self.factor, LoopKind.SERIAL, spec.reduce)
        k = k.rebind({spec.var: vo * self.factor + vi})
        nest = k.nests[owner]
        k = k.with_nest(owner, replace(nest, loops=(*nest.loops[:d], outer, inner, *nest.loops[d + 1 :])))
        return move_children(k, owner, self.loop, vi.name)


def move_children(k: Kernel, owner: str, loop: str, to: str) -> Kernel:
    """Move what is computed at `loop` of `owner` to its loop `to`."""
    for name, nest in k.nests.items():
        at = nest.at
        if at is not None and at.item == owner and at.loop == loop:
            k = k.with_nest(name, replace(nest, at=replace(at, loop=to)))
    return k
