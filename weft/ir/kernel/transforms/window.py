from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Expr, FromIndex, Load, ScalarCall, Test
from weft.ir.index import Guard, Int, Var, both, bounds, coefficient, high, in_range, variables
from weft.ir.kernel.algorithm import Axis, Item, ItemValue
from weft.ir.kernel.schedule import Kernel, fresh, initial_nest
from weft.ir.kernel.transforms.arguments import one_of, values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.inline import map_exprs
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Window(Transform):
    """The region that a load of a parameter can reach, zeros outside included, becomes a value of its own, `name`.

        s(i) = sum k: x[i + k - 1] if 0 <= i + k - 1 < n else 0
            ->   w(a) = x[a - 1] if 0 <= a - 1 < n else 0;  s(i) = sum k: w[i + k]

    So does a whole `part` of the item's expression that depends on such indices only: f(x[i + k - 1], y[i + k - 1]).
    Unlike `Stage`, whose value has an element per use, its axes are those of the parameter: overlapping windows share
    elements, and what is done to one, its guard included, is done once. Needs: all indices and guards of the part are,
    up to a constant, those of its load with the most of them.
    """

    item: str
    part: Expr
    name: str

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Window | None:
        value = pick(values(k))
        part = one_of(pick, [e for e in ex.walk(value.exprs()) if isinstance(e, Load | ScalarCall)])
        return None if part is None else cls(value.name, part, fresh(k.names(), "window"))

    def check(self, k: Kernel) -> Refusal | None:
        item = next((i for i in k.algorithm.items if i.name == self.item), None)
        if item is None:
            return Refusal(f"there is no item {self.item}")
        if self.name in k.names():
            return Refusal(f"the name {self.name} is taken")
        if self.part not in set(ex.walk(item.exprs())):
            return Refusal(f"{self.part!r} is not read by {self.item}")
        loads = _loads(self.part)
        if not loads:
            return Refusal(f"{self.part!r} reads nothing")
        for load in loads:
            p = k.algorithm.param(load.source)
            if p is None:
                return Refusal(f"{load.source} is no parameter")
        if _moved(k, self.part, main(self.part).index, lambda d, shift: shift) is None:
            return Refusal(f"{self.part!r} is about more than the indices of one load")
        return None

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.item)
        load = main(self.part)
        used = k.names()
        used.add(self.name)
        reach = [_reach(item, i) for i in load.index]
        axes = tuple(
            Axis(Var(fresh(used, f"{self.name}{d}"), 0, high(n) - 1), n) for d, (_, n) in enumerate(reach)
        )
        at: list[Int] = [a.var + lo for a, (lo, _) in zip(axes, reach, strict=True)]
        inside = _moved(k, self.part, load.index, lambda d, shift: at[d] + shift)
        assert inside is not None
        window = ItemValue(self.name, axes, inside)
        index = tuple(i - lo for i, (lo, _) in zip(load.index, reach, strict=True))
        read = Load(self.part.dtype, self.name, index)

        def swapped(e: Expr) -> Expr | None:
            return read if e == self.part else None

        changed = map_exprs(item, swapped)
        items = tuple(x for i in k.algorithm.items for x in ((window, changed) if i is item else (i,)))
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        return k.with_nest(self.name, initial_nest(window, used))


def main(part: Expr) -> Load:
    """The load of a part whose indices the window's axes are: that with the most of them."""
    return max(_loads(part), key=lambda x: sum(not isinstance(i, int) for i in x.index))


def _loads(part: Expr) -> list[Load]:
    return [x for x in ex.walk([part]) if isinstance(x, Load)]


def _reach(item: Item, i: Int) -> tuple[int, Int]:
    """The first index that `i` may be, and how many there are: those of the item's axes of runtime size, less what the
    axes lack of their largest."""
    lo, hi = bounds(i)
    size: Int = hi - lo + 1
    for a in item.all_axes:
        step = coefficient(i, a.var)
        if step and not isinstance(a.extent, int):
            size = size - (high(a.extent) - a.extent) * abs(step)
            if step < 0:
                return lo, hi - lo + 1  # where it begins is only known at run time
    return lo, size


def _moved(k: Kernel, part: Expr, index: tuple[Int, ...], to: Callable[[int, int], Int]) -> Expr | None:
    """The part with index number d plus a constant s replaced by `to(d, s)`; None where it has others."""
    fits = True
    sized = set(k.algorithm.variables)

    def moved(i: Int) -> Int:
        nonlocal fits
        if isinstance(i, int):
            return i
        for d, own in enumerate(index):
            shift = i - own
            if isinstance(shift, int):
                return to(d, shift)
        fits = False
        return i

    def guarded(guard: Guard) -> Guard:
        nonlocal fits
        out: Guard = ()
        for c in guard:
            fits = fits and all(b is None or variables(b) <= sized for b in (c.lo, c.hi))
            out = both(out, in_range(moved(c.value), c.lo, c.hi))
        return out

    def leaf(e: Expr) -> Expr | None:
        match e:
            case Load():
                return Load(e.dtype, e.source, tuple(moved(i) for i in e.index), guarded(e.guard))
            case Test():
                return ex.test(guarded(e.guard))
            case FromIndex():
                return ex.from_index(moved(e.index), e.dtype)
            case _:
                return None

    out = ex.transform(part, leaf)
    return out if fits else None
