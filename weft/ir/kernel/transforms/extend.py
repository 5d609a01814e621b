from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load, ScalarCall
from weft.ir.index import Index, Int, Var, in_range
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, Output, reads
from weft.ir.kernel.lower import identity
from weft.ir.kernel.schedule import Kernel, initial_nest
from weft.ir.kernel.transforms.arguments import FACTORS, one_of, values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value, unscheduled
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Extend(Transform):
    """An axis that values share and sum over gets further elements, which count for nothing.

        x(j in n) = f(j);  m = max j in n: x(j);  w(j in n) = exp(x(j) - m);  o = sum j in n: w(j) * v[j]
        ->  x(j in n') = f(j) if j < n else -inf;  m = max j in n': x(j);  ...

    `axes` names, by item, the axis in it; `value` is the item, a pure value, that is -inf there. Steps over the axis
    are whole then, without a condition on each term. Needs: nothing has been scheduled; every item that reads `value`
    has the axis, and takes a maximum of it or a weight exp(value - m), which is 0 there where m is finite, or like the
    row's others NaN.
    """

    value: str
    axes: tuple[tuple[str, str], ...]
    extent: int

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Extend | None:
        value = pick(values(k))
        axis = one_of(pick, value.axes)
        if axis is None or not isinstance(axis.extent, int):
            return None
        named = {value.name: axis.var.name}
        for item in values(k):
            for r in reads(item):
                source = k.algorithm.item(r.source) if r.source in named else None
                if isinstance(source, ItemValue):
                    at = {a.var.name: i for a, i in zip(source.axes, r.index, strict=True)}
                    along = at.get(named[r.source])
                    if isinstance(along, Var):
                        named.setdefault(item.name, along.name)
        return cls(value.name, tuple(named.items()), axis.extent + pick(FACTORS))

    def check(self, k: Kernel) -> Refusal | None:
        source = find_value(k, self.value)
        if isinstance(source, Refusal):
            return source
        named = dict(self.axes)
        if source.reduce is not None or self.value not in named or not source.dtype.is_float:
            return Refusal(f"{self.value} is no pure value of floats with such an axis")
        for name, axis in self.axes:
            item = find_value(k, name)
            if isinstance(item, Refusal):
                return item
            found = next((a for a in item.all_axes if a.var.name == axis), None)
            if found is None or not isinstance(found.extent, int) or found.extent > self.extent:
                return Refusal(f"{name} has no axis {axis} of at most {self.extent} elements")
            refusal = unscheduled(k, item)
            if refusal is not None:
                return refusal
        for item in k.algorithm.items:
            if item.name not in named and any(
                isinstance(e, Load) and e.source in named and self._shared(k, e, named)
                for e in ex.walk(item.exprs())
            ):
                return Refusal(f"{item.name} reads along the axis")
            if item.name in named and isinstance(item, ItemValue):
                for e in ex.walk(item.exprs()):
                    if isinstance(e, Load) and e.source == self.value and not self._harmless(item, e):
                        return Refusal(
                            f"{item.name} reads {self.value} otherwise than in a maximum or a weight"
                        )
        return None

    def _shared(self, k: Kernel, e: Load, named: Mapping[str, str]) -> bool:
        """The axis is one of those that the load has an index for."""
        item = k.algorithm.item(e.source)
        return isinstance(item, ItemValue) and any(a.var.name == named[e.source] for a in item.axes)

    def _harmless(self, item: ItemValue, load: Load) -> bool:
        if item.reduce is not None and item.reduce.op is Op.MAX and item.expr == load:
            return True
        weights = [
            e for e in ex.walk(item.exprs())
            if isinstance(e, ScalarCall) and e.op is Op.EXP and isinstance(d := e.args[0], ScalarCall)
            and d.op is Op.SUB and d.args[0] == load
        ]  # fmt: skip
        return bool(weights)

    def apply(self, k: Kernel) -> Kernel:
        named = dict(self.axes)
        items: list[Item] = []
        for item in k.algorithm.items:
            if isinstance(item, Output) or item.name not in named:
                items.append(item)
                continue
            old = next(a for a in item.all_axes if a.var.name == named[item.name])
            new = Axis(Var(old.var.name, 0, self.extent - 1), self.extent)
            at: dict[Var, Int] = {old.var: new.var}

            def on_index(x: Index, at: dict[Var, Int] = at) -> Int | None:
                return at.get(x) if isinstance(x, Var) else None

            e: Expr = ex.transform(item.expr, lambda _: None, on_index)
            if item.name == self.value:
                inside = ex.test(in_range(new.var, 0, old.extent))
                e = ex.where(inside, e, Const(e.dtype, identity(Op.MAX, e.dtype).value))
            axes = tuple(new if a is old else a for a in item.axes)
            reduce = item.reduce
            if reduce is not None:
                reduce = replace(reduce, axes=tuple(new if a is old else a for a in reduce.axes))
            items.append(replace(item, axes=axes, expr=e, reduce=reduce))
        k = replace(k, algorithm=replace(k.algorithm, items=tuple(items)))
        used = k.names()
        for name in named:
            k = k.with_nest(name, initial_nest(k.algorithm.item(name), used))
        return k
