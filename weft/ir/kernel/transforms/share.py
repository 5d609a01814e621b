from __future__ import annotations

from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Index, Int, Var
from weft.ir.kernel.algorithm import Item, ItemValue
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import one_of, shuffled, values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value
from weft.ir.kernel.transforms.inline import map_exprs
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Share(Transform):
    """A part of an item that equals another value's expression reads that value instead of computing it again.

        w(i, j) = exp(s(i, j) - m(i));  o(i) = sum l: exp(s(i, l) - m(i)) * v[l]   ->   o(i) = sum l: w(i, l) * v[l]

    `axes` names, for each axis of the value `source`, the item's axis in its place. Needs: the parts are equal then; a
    pure value that comes before the item and has no place yet.
    """

    item: str
    source: str
    axes: tuple[str, ...]

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Share | None:
        source = one_of(pick, [v for v in values(k) if v.reduce is None])
        if source is None:
            return None
        item = pick(k.algorithm.items[k.algorithm.items.index(source) + 1 :])
        axes = shuffled(pick, (a.var.name for a in item.all_axes))
        return cls(item.name, source.name, axes[: len(source.axes)])

    def check(self, k: Kernel) -> Refusal | None:
        source = find_value(k, self.source)
        if isinstance(source, Refusal):
            return source
        if source.reduce is not None:
            return Refusal(f"{self.source} is a reduction")
        if k.nests[self.source].at is not None:
            return Refusal(f"{self.source} already has its place")
        names = [i.name for i in k.algorithm.items]
        if self.item not in names or names.index(self.item) <= names.index(self.source):
            return Refusal(f"{self.item} does not come after {self.source}")
        part = self._part(k, source)
        if part is None:
            return Refusal(f"{self.item} has no axes {self.axes}")
        if part not in set(ex.walk(k.algorithm.item(self.item).exprs())):
            return Refusal(f"{self.item} does not compute {self.source}")
        return None

    def _part(self, k: Kernel, source: ItemValue) -> Expr | None:
        item = k.algorithm.item(self.item)
        axes = {a.var.name: a for a in item.all_axes}
        if len(self.axes) != len(source.axes) or not all(n in axes for n in self.axes):
            return None
        if any(axes[n].extent != a.extent for n, a in zip(self.axes, source.axes, strict=True)):
            return None
        at: dict[Var, Int] = {a.var: axes[n].var for n, a in zip(self.axes, source.axes, strict=True)}

        def on_index(x: Index) -> Int | None:
            return at.get(x) if isinstance(x, Var) else None

        return ex.transform(source.expr, lambda _: None, on_index)

    def apply(self, k: Kernel) -> Kernel:
        source = k.algorithm.item(self.source)
        assert isinstance(source, ItemValue)
        part = self._part(k, source)
        item = k.algorithm.item(self.item)
        axes = {a.var.name: a.var for a in item.all_axes}
        load = Load(source.dtype, source.name, tuple(axes[n] for n in self.axes))
        changed: Item = map_exprs(item, lambda e: load if e == part else None)
        items = tuple(changed if i is item else i for i in k.algorithm.items)
        return replace(k, algorithm=replace(k.algorithm, items=items))
