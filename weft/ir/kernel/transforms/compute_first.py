from __future__ import annotations

from dataclasses import replace

from weft.ir.kernel.algorithm import reads
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ComputeFirst(Transform):
    """The value comes before all others that are computed at its place.

        for j: a[..] = f(x);  p[..] = v[j ..];  r += a * p   ->   for j: p[..] = v[j ..];  a[..] = f(x);  r += a * p

    Panels that a loop begins with can be asked for ahead, all at once. Needs: it reads nothing but parameters.
    """

    value: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> ComputeFirst | None:
        return cls(pick(values(k)).name)

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if any(k.algorithm.param(r.source) is None for r in reads(item)):
            return Refusal(f"{self.value} reads other values")
        return None

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.value)
        items = (item, *(i for i in k.algorithm.items if i is not item))
        return replace(k, algorithm=replace(k.algorithm, items=items))
