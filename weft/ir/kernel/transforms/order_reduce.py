from __future__ import annotations

from dataclasses import replace

from weft.ir.kernel.schedule import Kernel, initial_nest
from weft.ir.kernel.transforms.arguments import one_of, reductions, shuffled
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value, unscheduled
from weft.ir.numerics import Tree
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class OrderReduce(Transform):
    """s = sum a, b: e(a, b)   ->   s = sum b, a: e(a, b), the axes in the order of `axes` (names).

    Reassociates. Needs: the value has not been scheduled yet.
    """

    value: str
    axes: tuple[str, ...]

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> OrderReduce | None:
        value = one_of(pick, reductions(k))
        if value is None or value.reduce is None:
            return None
        return cls(value.name, shuffled(pick, (a.var.name for a in value.reduce.axes)))

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if item.reduce is None or sorted(a.var.name for a in item.reduce.axes) != sorted(self.axes):
            return Refusal(f"{self.value} does not reduce over {self.axes}")
        if item.reduce.tree is not Tree.FREE:
            return Refusal(f"the order in which {self.value} is summed is pinned")
        return unscheduled(k, item)

    def apply(self, k: Kernel) -> Kernel:
        item = find_value(k, self.value)
        assert not isinstance(item, Refusal) and item.reduce is not None
        axes = {a.var.name: a for a in item.reduce.axes}
        ordered = replace(item, reduce=replace(item.reduce, axes=tuple(axes[n] for n in self.axes)))
        items = tuple(ordered if i is item else i for i in k.algorithm.items)
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        return k.with_nest(self.value, initial_nest(ordered, k.names()))
