from __future__ import annotations

from dataclasses import replace

from weft.ir.index import Int, ceildiv, coefficient, maximum, minimum, span, variables
from weft.ir.kernel.algorithm import Output
from weft.ir.kernel.schedule import Kernel, loop_var
from weft.ir.kernel.transforms.arguments import loops
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, serial
from weft.ir.loops import LANE_KINDS
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Clip(Transform):
    """A loop inside a block of an output ends where the output does.

        for o: for i in 0..f:                      for o: for i in 0..min(f, n - f*o):
          y[f*o + i] = ... if f*o + i < n    ->      y[f*o + i] = ...

    What is computed inside the loop's block afterwards is as small. Needs: a serial loop of an output, along an axis
    whose index is affine in it, with a loop around it on which the end depends.
    """

    loop: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Clip | None:
        found = [clip.loop for clip in map(cls, loops(k)) if clip.check(k) is None]
        return cls(pick(found or loops(k)))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        owner = k.owner(self.loop)
        assert owner is not None
        if not isinstance(k.algorithm.item(owner), Output):
            return Refusal(f"{owner} is a value, whose readers may run over more")
        if self._end(k) == spec.extent:
            return Refusal(f"no iteration of {self.loop} is known to be outside")
        return serial(k, spec)

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest, end = k.nests[owner], self._end(k)
        d = nest.depth(self.loop)
        spec = nest.loops[d]
        var = loop_var(spec.var.name, end)
        k = k.rebind({spec.var: var})
        nest = k.nests[owner]
        return k.with_nest(
            owner,
            replace(nest, loops=(*nest.loops[:d], replace(spec, var=var, extent=end), *nest.loops[d + 1 :])),
        )

    def _end(self, k: Kernel) -> Int:
        """The number of iterations in which some point of the loops inside may be one of the output."""
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        d = nest.depth(self.loop)
        spec, outer = nest.loops[d], [*k.enclosing(owner), *nest.loops[:d]]
        inner = {s.var for s in nest.loops[d + 1 :]}
        inner |= {s.var for s in outer if s.kind in LANE_KINDS}  # an extent is the same in all lanes
        end = spec.extent
        for axis in k.algorithm.item(owner).axes:
            at = nest.bind[axis.var]
            step = coefficient(at, spec.var)
            if step and step > 0:
                least = span(at - spec.var * step, inner)
                if least is not None and not variables(least[0]) & inner:
                    end = minimum(end, maximum(ceildiv(axis.extent - least[0], step), 0))
        return end
