from __future__ import annotations

from dataclasses import replace

from weft.ir import expr as ex
from weft.ir.expr import Const, Expr, Load
from weft.ir.index import Index, Int, Var, variables
from weft.ir.kernel.algorithm import Axis, ItemValue
from weft.ir.kernel.schedule import Kernel, Layout, fresh, initial_nest
from weft.ir.kernel.transforms.arguments import FACTORS, one_of, shuffled, values
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find_value
from weft.ir.kernel.transforms.inline import map_exprs
from weft.ir.loops import Scope
from weft.lazy_dataclass import dataclass


def depends_on(e: Expr) -> set[Var]:
    """The index variables that an expression depends on."""
    return {v for x in ex.walk([e]) for i in ex.indices(x) for v in variables(i)}


@dataclass(frozen=True, slots=True)
class Stage(Transform):
    """A part of an item's expression becomes a value of its own, `name`, over the axes that the part depends on.

        c(i, j) = sum k: a[i, k] * f(b[k, j])   ->   t(k, j) = f(b[k, j]);  c(i, j) = sum k: a[i, k] * t[k, j]

    Place it with `ComputeAt` and lay it out with `Arrange`: a packed panel, or a tile in local memory or registers.
    Its axes come in the order of `axes` (names of the item's axes), or of the item's own when empty.
    """

    value: str
    part: Expr
    name: str
    axes: tuple[str, ...] = ()

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Stage | None:
        value = pick(values(k))
        parts = [x for x in ex.walk([value.expr], into_indices=False) if not isinstance(x, Const)]
        part = one_of(pick, parts)
        return None if part is None else cls(value.name, part, fresh(k.names(), "stage"))

    def check(self, k: Kernel) -> Refusal | None:
        item = next((i for i in k.algorithm.items if i.name == self.value), None)
        if item is None:
            return Refusal(f"there is no item {self.value}")
        if self.name in k.names():
            return Refusal(f"the name {self.name} is taken")
        if self.part not in set(ex.walk(item.exprs())):
            return Refusal(f"{self.part!r} is no part of {self.value}")
        names = {a.var.name for a in item.all_axes if a.var in depends_on(self.part)}
        if self.axes and set(self.axes) != names:
            return Refusal(f"{self.part!r} depends on the axes {sorted(names)}, not {self.axes}")
        for e in ex.walk([self.part]):
            if (
                isinstance(e, Load)
                and k.algorithm.param(e.source) is None
                and k.nests[e.source].at is not None
            ):
                return Refusal(f"{e.source}, which {self.part!r} reads, already has its place")
        return None

    def apply(self, k: Kernel) -> Kernel:
        item = k.algorithm.item(self.value)
        used = k.names()
        used.add(self.name)
        needed = depends_on(self.part)
        old = [a for a in item.all_axes if a.var in needed]
        if self.axes:
            old.sort(key=lambda a: self.axes.index(a.var.name))
        new = [Axis(Var(fresh(used, a.var.name), a.var.lo, a.var.hi), a.extent) for a in old]
        rename: dict[Var, Int] = {a.var: b.var for a, b in zip(old, new, strict=True)}

        def on_index(x: Index) -> Int | None:
            return rename.get(x) if isinstance(x, Var) else None

        staged = ItemValue(self.name, tuple(new), ex.transform(self.part, lambda _: None, on_index))
        load = Load(self.part.dtype, self.name, tuple(a.var for a in old))
        changed = map_exprs(item, lambda e: load if e == self.part else None)
        items = tuple(
            x for i in k.algorithm.items for x in ((staged, changed) if i.name == self.value else (i,))
        )
        k = replace(k, algorithm=replace(k.algorithm, items=items))
        return k.with_nest(self.name, initial_nest(staged, used))


@dataclass(frozen=True, slots=True)
class Arrange(Transform):
    """The scope of a value's region, and its layout: axes in `order`, in blocks of `blocks[axis]` elements.

    Needs: the value has a place (`ComputeAt`), if it is to live in registers.
    """

    value: str
    scope: Scope
    order: tuple[int, ...]
    blocks: tuple[int, ...]

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Arrange | None:
        value = pick(values(k))
        rank = len(value.axes)
        order, blocks = shuffled(pick, range(rank)), tuple(pick(FACTORS) for _ in range(rank))
        return cls(value.name, k.nests[value.name].scope, order, blocks)

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        rank = len(item.axes)
        if (
            sorted(self.order) != list(range(rank))
            or len(self.blocks) != rank
            or any(b < 1 for b in self.blocks)
        ):
            return Refusal(f"order {self.order} and blocks {self.blocks} do not fit {rank} axes")
        if self.scope is Scope.GLOBAL:
            return Refusal("only parameters live in global memory")
        return None

    def apply(self, k: Kernel) -> Kernel:
        nest = k.nests[self.value]
        return k.with_nest(
            self.value, replace(nest, scope=self.scope, layout=Layout(self.order, self.blocks))
        )


@dataclass(frozen=True, slots=True)
class PadRows(Transform):
    """`elements` unused elements after each innermost row of a value's region.

        t[i, j] at 32*i + j   ->   t[i, j] at 40*i + j

    It spreads what lies in one column over the banks of a memory. Needs: the value lives in local memory.
    """

    value: str
    elements: int

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> PadRows | None:
        return cls(pick(values(k)).name, pick(FACTORS))

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        if self.elements < 0:
            return Refusal(f"{self.elements} elements are no padding")
        if k.nests[self.value].scope is not Scope.LOCAL:
            return Refusal(f"{self.value} does not live in local memory")
        return None

    def apply(self, k: Kernel) -> Kernel:
        nest = k.nests[self.value]
        return k.with_nest(self.value, replace(nest, layout=replace(nest.layout, pad=self.elements)))
