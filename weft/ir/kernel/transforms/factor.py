from __future__ import annotations

from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load, ScalarCall
from weft.ir.index import Index, Int, Var
from weft.ir.kernel.algorithm import ItemValue, readers
from weft.ir.kernel.schedule import Kernel
from weft.ir.kernel.transforms.arguments import values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import empty, find_value
from weft.ir.kernel.transforms.inline import map_exprs
from weft.ir.kernel.transforms.stage import depends_on
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Factor(Transform):
    """o = sum j: (x(j) / c) * v(j)   ->   o = sum j: x(j) * v(j), read as o / c, where c does not depend on j.

    Reassociates: the division happens once per result, after the sum. A quotient that is rounded to a narrower float
    before it is multiplied, `f32(bf16(x / c)) * v`, is rounded before the division instead: as often, to as many
    digits, and nearer to where narrow floats are dense, as c is at least 1 where x is a weight and c their sum.
    With MUL, o = sum j: (x(j) * c) * v(j)   ->   o = sum j: x(j) * v(j), read as o * c.
    Needs: a sum of a product one of whose factors is such a quotient (or product); nothing has been scheduled inside
    the value.
    """

    value: str
    op: Op = Op.DIV

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Factor | None:
        return cls(pick(values(k)).name, pick((Op.DIV, Op.MUL)))

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if _parts(item, self.op) is None:
            kind = "divisor" if self.op is Op.DIV else "factor"
            return Refusal(f"{self.value} is no sum of products with a constant {kind}")
        return empty(k, self.value)

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.value)
        assert isinstance(item, ItemValue)
        parts = _parts(item, self.op)
        assert parts is not None
        product, divisor = parts

        def divided(e: Expr) -> Expr | None:
            if not isinstance(e, Load) or e.source != self.value:
                return None
            at: dict[Var, Int] = {a.var: i for a, i in zip(item.axes, e.index, strict=True)}

            def on_index(x: Index) -> Int | None:
                return at.get(x) if isinstance(x, Var) else None

            return ex.call(self.op, e, ex.transform(divisor, lambda _: None, on_index))

        users = {r.name for r in readers(k.algorithm, self.value)}
        items = tuple(
            replace(item, expr=product) if i is item else map_exprs(i, divided) if i.name in users else i
            for i in k.algorithm.items
        )
        return replace(k, algorithm=replace(k.algorithm, items=items))


def _parts(item: ItemValue, op: Op) -> tuple[Expr, Expr] | None:
    """(x * v, c) of sum (x / c) * v, or of sum (x * c) * v."""
    e = item.expr
    if (
        item.reduce is None
        or item.reduce.op is not Op.ADD
        or not isinstance(e, ScalarCall)
        or e.op is not Op.MUL
    ):
        return None
    summed = {a.var for a in item.reduce.axes}
    if op is Op.MUL:
        return _constant_factor(e, summed)
    for k in (0, 1):
        found = _quotient(e.args[k])
        if found is not None and not depends_on(found[1]) & summed:
            x, divisor = found
            return ex.call(Op.MUL, *((x, e.args[1]) if k == 0 else (e.args[0], x))), divisor
    return None


def _constant_factor(e: Expr, summed: set[Var]) -> tuple[Expr, Expr] | None:
    """(x, c) of x * c, anywhere in a product of several, where c depends on none of `summed`, and x on some."""
    if not isinstance(e, ScalarCall) or e.op is not Op.MUL or not e.dtype.is_float:
        return None
    for x, c in (e.args, e.args[::-1]):
        if not depends_on(c) & summed:
            return (x, c) if depends_on(x) & summed else None
        inner = _constant_factor(c, summed)
        if inner is not None:
            return ex.call(Op.MUL, x, inner[0]), inner[1]
    return None


def _quotient(e: Expr) -> tuple[Expr, Expr] | None:
    """(x, c) of x / c, and of x / c rounded to another float: then x is rounded so."""
    if not isinstance(e, ScalarCall):
        return None
    if e.op is Op.DIV:
        return e.args[0], e.args[1]
    if e.op is Op.CAST and e.dtype.is_float and e.args[0].dtype.is_float:
        inner = _quotient(e.args[0])
        return None if inner is None else (ScalarCall(e.dtype, Op.CAST, (inner[0],)), inner[1])
    return None
