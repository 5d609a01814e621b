"""DotBytes: four products of bytes are summed at once, in each lane."""

from __future__ import annotations

from dataclasses import replace

from weft.ir import dtypes
from weft.ir.kernel.algorithm import ItemValue
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import one_of, reductions
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find
from weft.ir.loops import LoopKind
from weft.ir.matrix import TERMS, bytes_of
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class DotBytes(Transform):
    """for k in 4: vector l: c[l] += i32(a) * i32(b)   ->   matrix k in 4: vector l: c[l] += i32(a) * i32(b)

    What processors have one instruction for: the products of a lane's four pairs of bytes, added to its 32-bit sum. The
    sums are integers, so nothing is rounded in any order. Needs: a sum in int32 of products of two integers of 8 bits;
    the loop reduces, over 4 terms, and has only a vector loop inside.
    """

    loop: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> DotBytes | None:
        value = one_of(pick, reductions(k, Op.ADD))
        loops = [] if value is None else [s.var.name for s in k.nests[value.name].loops if s.reduce]
        return cls(pick(loops)) if loops else None

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        owner = k.owner(self.loop)
        assert owner is not None
        item, nest = k.algorithm.item(owner), k.nests[owner]
        if not spec.reduce or spec.extent != TERMS or spec.kind is not LoopKind.SERIAL:
            return Refusal(f"{self.loop} is no serial loop over {TERMS} terms of a sum")
        assert isinstance(item, ItemValue) and item.reduce is not None
        if item.reduce.op is not Op.ADD or item.dtype is not dtypes.int32 or bytes_of(item.expr) is None:
            return Refusal(f"{owner} is no sum in int32 of products of integers of 8 bits")
        inside = [s.kind for s in nest.loops[nest.depth(self.loop) + 1 :]]
        if inside != [LoopKind.VECTOR]:
            return Refusal(f"inside {self.loop} there is not just a vector loop")
        return None

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        loops = tuple(replace(s, kind=LoopKind.MATRIX) if s.var.name == self.loop else s for s in nest.loops)
        return k.with_nest(owner, replace(nest, loops=loops))
