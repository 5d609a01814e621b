from __future__ import annotations

from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Index, Int, Var
from weft.ir.kernel.algorithm import Item, ItemValue, Output
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import empty, find_value
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Inline(Transform):
    """The value is computed anew wherever it is read, and stored nowhere. Needs: no reduction; no place of its own."""

    value: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Inline | None:
        return cls(pick(values(k)).name)

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if item.reduce is not None:
            return Refusal(f"{self.value} is a reduction")
        return empty(k, self.value)

    def apply(self, k: Kernel) -> Kernel:
        value = k.algorithm.item(self.value)
        assert isinstance(value, ItemValue)

        def replaced(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.source != value.name:
                return None
            at: dict[Var, Int] = {a.var: i for a, i in zip(value.axes, e.index, strict=True)}
            inlined = ex.transform(
                value.expr, lambda _: None, lambda x: at.get(x) if isinstance(x, Var) else None
            )
            return ex.where(ex.test(e.guard), inlined, ex.Const(e.dtype, 0)) if e.guard else inlined

        items = tuple(map_exprs(i, replaced) for i in k.algorithm.items if i.name != self.value)
        nests = {n: nest for n, nest in k.nests.items() if n != self.value}
        return replace(k, algorithm=replace(k.algorithm, items=items), nests=nests)


def map_exprs(item: Item, leaf: ex.Callable[[Expr], Expr | None]) -> Item:
    """The item with `leaf` applied throughout its expressions, those inside indices included."""
    memo: dict[Expr, Expr] = {}

    def on(e: Expr) -> Expr:
        return ex.transform(e, leaf, None, memo)

    def on_index(i: Int) -> Int:
        from weft.ir.index import Opaque, rewrite

        def opaque(x: Index) -> Int | None:
            if not isinstance(x, Opaque):
                return None
            value = on(x.value)
            return x if value is x.value else ex.as_index(value, x.lo, x.hi)

        return rewrite(i, opaque)

    match item:
        case ItemValue():
            return replace(item, expr=on(item.expr))
        case Output():
            stores = tuple(
                replace(s, expr=on(s.expr), index=tuple(on_index(i) for i in s.index)) for s in item.stores
            )
            return replace(item, stores=stores)
