from __future__ import annotations

from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import Index, Int, Var
from weft.ir.kernel.algorithm import Axis, ItemValue, Reduce, readers
from weft.ir.kernel.schedule import Kernel, fresh, initial_nest
from weft.ir.kernel.transforms.arguments import reductions
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value, unscheduled
from weft.ir.kernel.transforms.inline import map_exprs
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Distribute(Transform):
    """s = sum j: x(j) * (a(j) + b(j))   ->   s = sum j: x(j) * a(j);  n = sum j: x(j) * b(j), read as s + n.

    Reassociates: what a and b have against each other is lost in the sum, not in each term. Needs: a sum of a product
    of floats one of whose factors is a sum; the value has no place yet, and nothing is computed in its loops.
    """

    value: str
    name: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Distribute | None:
        found = [v for v in reductions(k) if distributed(v) is not None]
        return cls(pick(found).name, fresh(k.names(), "rest")) if found else None

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if distributed(item) is None:
            return Refusal(f"{self.value} is no sum of products with a sum")
        if self.name in k.names():
            return Refusal(f"the name {self.name} is taken")
        return unscheduled(k, item)

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.value)
        assert isinstance(item, ItemValue) and item.reduce is not None
        parts = distributed(item)
        assert parts is not None
        used = k.names() | {self.name}
        axes = {
            a.var: Axis(Var(fresh(used, a.var.name), a.var.lo, a.var.hi), a.extent) for a in item.all_axes
        }

        def own(x: Index) -> Int | None:
            return axes[x].var if isinstance(x, Var) and x in axes else None

        def both(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.source != self.value:
                return None
            return ex.call(Op.ADD, e, Load(e.dtype, self.name, e.index, e.guard))

        of_item = tuple([axes[a.var] for a in item.axes])
        summed = tuple([axes[a.var] for a in item.reduce.axes])
        rest = ItemValue(
            self.name, of_item, ex.transform(parts[1], lambda _: None, own),
            Reduce(Op.ADD, summed, item.reduce.tree),
        )  # fmt: skip
        users = {r.name for r in readers(k.algorithm, self.value)}
        items = tuple(
            x
            for i in k.algorithm.items
            for x in (
                (replace(item, expr=parts[0]), rest)
                if i is item
                else (map_exprs(i, both) if i.name in users else i,)
            )
        )
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        return k.with_nest(self.name, initial_nest(rest, used))


def distributed(item: ItemValue) -> tuple[Expr, Expr] | None:
    """(x * a, x * b) of a sum of x * (a + b), in floats; None for another value."""
    e = item.expr
    if (
        item.reduce is None
        or item.reduce.op is not Op.ADD
        or not isinstance(e, ScalarCall)
        or e.op is not Op.MUL
        or not e.dtype.is_float
    ):
        return None
    for x, total in (e.args, e.args[::-1]):
        if isinstance(total, ScalarCall) and total.op is Op.ADD:
            first, second = total.args
            return ex.call(Op.MUL, x, first), ex.call(Op.MUL, x, second)
    return None
