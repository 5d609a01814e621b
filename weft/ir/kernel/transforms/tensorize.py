"""Tensorize: the innermost loops of a sum of products become instructions of a matrix unit."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.kernel.algorithm import ItemValue, reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import one_of, reductions
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find
from weft.ir.loops import LoopKind
from weft.ir.matrix import MatrixUnit
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Tensorize(Transform):
    """unroll i, j: for k in 0..unit.k: c += a * b   ->   unroll i, j: matrix k in unit.k: c += a * b

    The terms of `loop` are summed by one instruction, together with those of the unrolled loops around it and of the
    warp's threads. What is computed stays the same but for the order of the additions. Needs: a sum of products of
    two staged values of the unit's operand dtype (converted to the sum's, if they differ); `loop` is innermost,
    reduces, and has the unit's extent; around it are unrolled loops up to the threads.
    """

    loop: str
    unit: MatrixUnit

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Tensorize | None:
        value = one_of(pick, reductions(k, Op.ADD))
        nest = None if value is None else k.nests[value.name]
        if value is None or nest is None or not nest.loops:
            return None
        loop = nest.loops[-1]
        operands = [x.dtype for x in reads(value)]
        if not operands or not isinstance(loop.extent, int):
            return None
        return cls(loop.var.name, MatrixUnit(1, 1, loop.extent, operands[0], value.dtype, (), ()))

    def check(self, k: Kernel) -> Refusal | None:
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        owner = k.owner(self.loop)
        assert owner is not None
        item, nest = k.algorithm.item(owner), k.nests[owner]
        if nest.loops[-1].var.name != self.loop or not spec.reduce or spec.extent != self.unit.k:
            return Refusal(f"{self.loop} is not the innermost loop, over {self.unit.k} terms of a sum")
        if not isinstance(item, ItemValue) or item.reduce is None or item.reduce.op is not Op.ADD:
            return Refusal(f"{owner} is no sum")
        if item.dtype is not self.unit.accumulator:
            return Refusal(
                f"{owner} is {item.dtype.name}, and sums of the unit are {self.unit.accumulator.name}"
            )
        e = item.expr
        if (
            not isinstance(e, ScalarCall)
            or e.op is not Op.MUL
            or any(self._staged(k, x) is None for x in e.args)
        ):
            return Refusal(f"{owner} is no product of two staged values of {self.unit.operand.name}")
        around = [s.kind for s in nest.loops[:-1]]
        last = max((i for i, kind in enumerate(around) if kind is LoopKind.THREAD), default=-1)
        if last < 0 or any(kind is not LoopKind.UNROLL for kind in around[last + 1 :]):
            return Refusal(f"the loops of {owner} inside its threads are not all unrolled")
        return None

    def _staged(self, k: Kernel, e: Expr) -> Load | None:
        if isinstance(e, ScalarCall) and e.op is Op.CAST and e.dtype is self.unit.accumulator:
            e = e.args[0]
        if not isinstance(e, Load) or e.guard or e.dtype is not self.unit.operand:
            return None
        return e if k.algorithm.param(e.source) is None else None

    def apply(self, k: Kernel) -> Kernel:
        owner = k.owner(self.loop)
        assert owner is not None
        nest = k.nests[owner]
        matrix = replace(nest.loops[-1], kind=LoopKind.MATRIX)
        return k.with_nest(owner, replace(nest, loops=(*nest.loops[:-1], matrix)))
