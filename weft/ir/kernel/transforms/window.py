from __future__ import annotations

from dataclasses import dataclass, replace

from weft.ir.expr import Expr, Load
from weft.ir.index import Guard, InRange, Int, Var, both, bounds, in_range
from weft.ir.kernel.algorithm import Axis, Param, Value, reads
from weft.ir.kernel.schedule import Kernel, fresh, initial_nest
from weft.ir.kernel.transforms.base import Refusal, Transform
from weft.ir.kernel.transforms.inline import map_exprs


@dataclass(frozen=True, slots=True)
class Window(Transform):
    """What a load of a parameter can reach, zeros outside included, becomes a value of its own, `name`.

        s(i) = sum k: x[i + k - 1] if 0 <= i + k - 1 < n else 0
            ->   w(a) = x[a - 1] if 0 <= a - 1 < n else 0;  s(i) = sum k: w[i + k]

    Unlike `Stage`, whose value has an element per use, its axes are those of the parameter: overlapping windows share
    elements, and the guard is tested once per element. Needs: the guard speaks of the load's own indices; all sizes
    are constants.
    """

    item: str
    load: Load
    name: str

    def check(self, k: Kernel) -> Refusal | None:
        item = next((i for i in k.algorithm.items if i.name == self.item), None)
        if item is None:
            return Refusal(f"there is no item {self.item}")
        if self.name in k.names():
            return Refusal(f"the name {self.name} is taken")
        if self.load not in set(reads(item)):
            return Refusal(f"{self.load!r} is not read by {self.item}")
        p = k.algorithm.param(self.load.source)
        if p is None:
            return Refusal(f"{self.load.source} is no parameter")
        if p.written:
            return Refusal(f"{p.name} is written by this kernel")
        if not all(isinstance(n, int) for n in p.shape) or any(
            not isinstance(a.extent, int) for a in item.all_axes
        ):
            return Refusal("a size is only known at run time")
        if any(_dimension(self.load, c) is None for c in self.load.guard):
            return Refusal(f"the guard of {self.load!r} is about more than its indices")
        return None

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.item)
        p = k.algorithm.param(self.load.source)
        assert isinstance(p, Param)
        used = k.names()
        used.add(self.name)
        reach = [bounds(i) for i in self.load.index]
        axes = tuple(
            Axis(Var(fresh(used, f"{self.name}{d}"), 0, hi - lo), hi - lo + 1)
            for d, (lo, hi) in enumerate(reach)
        )
        at: list[Int] = [a.var + lo for a, (lo, _) in zip(axes, reach, strict=True)]
        guard: Guard = ()
        for c in self.load.guard:
            found = _dimension(self.load, c)
            assert found is not None
            d, shift = found
            guard = both(guard, in_range(at[d] + shift, c.lo, c.hi))
        window = Value(self.name, axes, Load(self.load.dtype, p.name, tuple(at), guard))
        index = tuple(i - lo for i, (lo, _) in zip(self.load.index, reach, strict=True))
        read = Load(self.load.dtype, self.name, index)

        def swapped(e: Expr) -> Expr | None:
            return read if e == self.load else None

        changed = map_exprs(item, swapped)
        items = tuple(x for i in k.algorithm.items for x in ((window, changed) if i is item else (i,)))
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        return k.with_nest(self.name, initial_nest(window, used))


def _dimension(load: Load, c: InRange) -> tuple[int, int] | None:
    """(d, s) such that the condition is about the load's index number d plus s, between constants."""
    if not all(b is None or isinstance(b, int) for b in (c.lo, c.hi)):
        return None
    for d, i in enumerate(load.index):
        shift = c.value - i
        if isinstance(shift, int):
            return d, shift
    return None
