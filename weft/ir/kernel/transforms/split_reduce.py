from __future__ import annotations

from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Load
from weft.ir.index import Index, Int, Var, ceildiv, high
from weft.ir.kernel.algorithm import Axis, ItemValue, Reduce
from weft.ir.kernel.lower import identity
from weft.ir.kernel.schedule import Kernel, fresh, initial_nest
from weft.ir.kernel.transforms.arguments import one_of, reductions, some_of
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value, unscheduled
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class SplitReduce(Transform):
    """A reduction in two steps: partial results, then their combination.

        s = sum k in 0..n: e(k)   ->   p(l) = sum m: e(.., l, m ..);  s = sum l: p(l)

    With `factor` f the axis k splits into n/f (rounded up) by f: `lanes` makes the partials run over the inner part
    (k = m*f + l, l the lane), else over the outer (k = l*f + m). With factor 0 the whole axis moves to the partials'
    combination: p has an axis per k (reducing the other axes). Axes in `whole` move there too, outside of k.
    Reassociates. Needs: the value has no place yet, and nothing is computed in its loops.
    """

    value: str
    axis: str
    factor: int
    name: str
    lanes: bool = False
    whole: tuple[str, ...] = ()

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> SplitReduce | None:
        value = one_of(pick, reductions(k))
        if value is None or value.reduce is None:
            return None
        axes = [a.var.name for a in value.reduce.axes]
        axis, factor = pick(axes), pick((0, 2, 3, 4))
        whole = some_of(pick, (n for n in axes if n != axis))
        return cls(value.name, axis, factor, fresh(k.names(), "part"), pick((False, True)), whole)

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if item.reduce is None or self.axis not in [a.var.name for a in item.reduce.axes]:
            return Refusal(f"{self.value} does not reduce over {self.axis}")
        if self.factor < 0:
            return Refusal(f"a factor of {self.factor}")
        names = [a.var.name for a in item.reduce.axes]
        if any(n not in names or n == self.axis for n in self.whole) or len(set(self.whole)) < len(
            self.whole
        ):
            return Refusal(f"{self.whole} are not further axes that {self.value} reduces over")
        if self.factor == 0 and len(names) == 1 + len(self.whole):
            return Refusal(f"no axis would be left to the partial results of {self.value}")
        if self.name in k.names():
            return Refusal(f"the name {self.name} is taken")
        return unscheduled(k, item)

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.value)
        assert isinstance(item, ItemValue) and item.reduce is not None
        used = k.names()
        used.add(self.name)
        axis = next(a for a in item.reduce.axes if a.var.name == self.axis)
        others = tuple(a for a in item.reduce.axes if a is not axis and a.var.name not in self.whole)
        moved = tuple(a for a in item.reduce.axes if a.var.name in self.whole)
        pure = tuple(_renamed(a, used) for a in item.axes)
        mapping: dict[Var, Int] = {a.var: b.var for a, b in zip(item.axes, pure, strict=True)}
        kept = tuple(_renamed(a, used) for a in others)
        mapping |= {a.var: b.var for a, b in zip(others, kept, strict=True)}
        far = tuple(_renamed(a, used) for a in moved)
        mapping |= {a.var: b.var for a, b in zip(moved, far, strict=True)}
        expr = item.expr
        if self.factor == 0:
            outer = _renamed(axis, used)
            mapping[axis.var] = outer.var
            inner: tuple[Axis, ...] = ()
            expr = _mapped(expr, mapping)
        else:
            steps = ceildiv(axis.extent, self.factor)
            sizes: tuple[Int, Int] = (self.factor, steps) if self.lanes else (steps, self.factor)
            outer = _axis(used, f"{self.axis}{'l' if self.lanes else 'o'}", sizes[0])
            step = _axis(used, f"{self.axis}{'o' if self.lanes else 'i'}", sizes[1])
            at = step.var * self.factor + outer.var if self.lanes else outer.var * self.factor + step.var
            mapping[axis.var] = at
            inner = (step,)
            expr = _mapped(expr, mapping)
            from weft.ir.index import in_range

            guard = in_range(at, 0, axis.extent)
            if guard:
                expr = ex.where(ex.test(guard), expr, identity(item.reduce.op, item.dtype))
        tree = item.reduce.tree
        partial = ItemValue(
            self.name, (*pure, *far, outer), expr, Reduce(item.reduce.op, (*inner, *kept), tree)
        )
        last = tuple(_renamed(a, used) for a in (*far, outer))
        load = Load(item.dtype, self.name, (*(a.var for a in item.axes), *(a.var for a in last)))
        total = ItemValue(item.name, item.axes, load, Reduce(item.reduce.op, last, tree))
        items = tuple(
            x for i in k.algorithm.items for x in ((partial, total) if i.name == self.value else (i,))
        )
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        k = k.with_nest(self.name, initial_nest(partial, used))
        return k.with_nest(self.value, initial_nest(total, used))


def _axis(used: set[str], name: str, extent: Int) -> Axis:
    return Axis(Var(fresh(used, name), 0, high(extent) - 1), extent)


def _renamed(a: Axis, used: set[str]) -> Axis:
    return Axis(Var(fresh(used, a.var.name), a.var.lo, a.var.hi), a.extent)


def _mapped(e: ex.Expr, mapping: dict[Var, Int]) -> ex.Expr:
    def on_index(x: Index) -> Int | None:
        return mapping.get(x) if isinstance(x, Var) else None

    return ex.transform(e, lambda _: None, on_index)
