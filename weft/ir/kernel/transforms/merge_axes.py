from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Index, Int, Var, floordiv, high, mod
from weft.ir.kernel.algorithm import Axis, Item, ItemValue, Output, StoreTo, readers, reads
from weft.ir.kernel.schedule import Kernel, fresh, initial_nest
from weft.ir.kernel.transforms.arguments import one_of, values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value, unscheduled
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class MergeAxes(Transform):
    """c(.., a, b, ..) and the output that reads it  ->  c(.., ab, ..), with a = ab // n, b = ab % n.

    A long axis tiles better than two short ones. Needs: one output reads the value, at two adjacent axes of its own;
    neither has been scheduled; n is a constant.
    """

    value: str
    first: str
    second: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> MergeAxes | None:
        value = pick(values(k))
        pair = one_of(pick, list(pairwise(a.var.name for a in value.axes)))
        return None if pair is None else cls(value.name, *pair)

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        names = [a.var.name for a in item.axes]
        if (self.first, self.second) not in pairwise(names):
            return Refusal(f"{self.first}, {self.second} are not adjacent axes of {self.value}")
        at = names.index(self.first)
        if not isinstance(item.axes[at + 1].extent, int) or not isinstance(item.axes[at].extent, int):
            return Refusal(f"an extent of {self.first}, {self.second} is only known at run time")
        users = readers(k.algorithm, self.value)
        if len(users) != 1 or not isinstance(users[0], Output):
            return Refusal(f"{self.value} is not read by one output")
        out = users[0]
        axes = [a.var for a in out.axes]
        for load in (r for r in reads(out) if r.source == self.value):
            a, b = load.index[at], load.index[at + 1]
            if a not in axes or b not in axes or axes.index(b) != axes.index(a) + 1:  # pyright: ignore[reportArgumentType]
                return Refusal(f"{out.name} does not read {self.value} at adjacent axes of its own")
        return unscheduled(k, item) or unscheduled(k, out)

    def apply(self, k: Kernel) -> Kernel:
        value = k.algorithm.item(self.value)
        assert isinstance(value, ItemValue)
        out = readers(k.algorithm, self.value)[0]
        assert isinstance(out, Output)
        at = [a.var.name for a in value.axes].index(self.first)
        load = next(r for r in reads(out) if r.source == self.value)
        used = k.names()
        at_out = [a.var for a in out.axes].index(load.index[at])  # pyright: ignore[reportArgumentType]
        merged_value = _merged(value, at, used)
        out_axis = _axis(out.axes[at_out], out.axes[at_out + 1], used)
        mapping = _mapping(out.axes[at_out], out.axes[at_out + 1], out_axis)

        def on_load(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.source == self.value and len(e.index) == len(value.axes):
                return Load(e.dtype, e.source, (*e.index[:at], out_axis.var, *e.index[at + 2 :]), e.guard)
            return None

        stores = tuple(_store(s, mapping, on_load) for s in out.stores)
        carries = tuple(c for c in (_expr(c, mapping, on_load) for c in out.carries) if isinstance(c, Load))
        new_out = replace(
            out, axes=(*out.axes[:at_out], out_axis, *out.axes[at_out + 2 :]), stores=stores, carries=carries
        )
        swap: dict[str, Item] = {self.value: merged_value, out.name: new_out}
        items = tuple(swap.get(i.name, i) for i in k.algorithm.items)
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        k = k.with_nest(self.value, initial_nest(merged_value, used))
        return k.with_nest(out.name, initial_nest(new_out, used))


def _axis(a: Axis, b: Axis, used: set[str]) -> Axis:
    extent = a.extent * b.extent
    return Axis(Var(fresh(used, f"{a.var.name}{b.var.name}"), 0, max(high(extent) - 1, 0)), extent)


def _mapping(a: Axis, b: Axis, merged: Axis) -> dict[Var, Int]:
    assert isinstance(b.extent, int)
    return {a.var: floordiv(merged.var, b.extent), b.var: mod(merged.var, b.extent)}


def _merged(value: ItemValue, at: int, used: set[str]) -> ItemValue:
    a, b = value.axes[at], value.axes[at + 1]
    axis = _axis(a, b, used)
    expr = _expr(value.expr, _mapping(a, b, axis), lambda _: None)
    return replace(value, axes=(*value.axes[:at], axis, *value.axes[at + 2 :]), expr=expr)


def _expr(e: Expr, mapping: dict[Var, Int], leaf: ex.Callable[[Expr], Expr | None]) -> Expr:
    return ex.transform(e, leaf, lambda x: mapping.get(x) if isinstance(x, Var) else None)


def _store(s: StoreTo, mapping: dict[Var, Int], leaf: ex.Callable[[Expr], Expr | None]) -> StoreTo:
    from weft.ir.index import rewrite, rewrite_guard

    def on_int(i: Int) -> Int:
        def on_index(x: Index) -> Int | None:
            if isinstance(x, Var):
                return mapping.get(x)
            value = getattr(x, "value", None)
            return ex.as_index(_expr(value, mapping, leaf), x.lo, x.hi) if isinstance(value, Expr) else None

        return rewrite(i, on_index)

    index = tuple(on_int(i) for i in s.index)
    return replace(s, index=index, expr=_expr(s.expr, mapping, leaf), guard=rewrite_guard(s.guard, on_int))
