"""The rules of algorithms, checked."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.errors import IRError
from weft.ir.expr import Expr, FromIndex, Load, ScalarCall, Temp, indices, walk
from weft.ir.index import NEVER, Guard, Int, Opaque, Var, atoms, high, in_range, variables
from weft.ir.kernel.algorithm import Algorithm, Axis, Item, ItemValue, Output, StoreTo, reads
from weft.ir.loops_verify import call_error
from weft.ir.ops import COMBINE, kind_error


def verify(algorithm: Algorithm) -> None:
    """Raise an IRError that names the rule and the item unless `algorithm` is well formed.

    Names are unique; items come before their readers; an expression uses only its item's axes and the runtime
    variables; loads have one index per axis, which stays inside a value's axes; written parameters are not read;
    narrow floats are only loaded, stored and cast; every value has a reader and every written parameter a store.
    """
    _Verifier(algorithm).run()


class _Verifier:
    def __init__(self, a: Algorithm) -> None:
        self.a = a
        self.params = {p.name: p for p in a.params}
        self.done: dict[str, Item] = {}
        self.extents: dict[Var, Int] = {x.var: x.extent for item in a.items for x in item.all_axes}
        self.seen: set[Expr] = set()
        self.item: Item | None = None

    def fail(self, rule: str, where: object = "") -> IRError:
        part = f"{self.item.name}: {where!r}" if self.item is not None else ""
        return IRError(rule, f"algorithm {self.a.name}", part)

    def run(self) -> None:
        self.names()
        for item in self.a.items:
            self.item = item
            self.check(item)
            self.done[item.name] = item
        self.item = None
        used = {r.source for item in self.a.items for r in reads(item)}
        for item in self.a.items:
            if isinstance(item, ItemValue) and item.name not in used:
                raise self.fail(f"nothing reads {item.name}")
        stored = {s.param for item in self.a.items if isinstance(item, Output) for s in item.stores}
        for p in self.a.params:
            if p.written and p.name not in stored:
                raise self.fail(f"nothing is stored to {p.name}")

    def names(self) -> None:
        names = [p.name for p in self.a.params] + [v.name for v in self.a.variables]
        for item in self.a.items:
            names += [item.name, *(x.var.name for x in item.all_axes)]
        seen: set[str] = set()
        for n in names:
            if n in seen:
                raise self.fail(f"the name {n} is used twice")
            seen.add(n)

    def check(self, item: Item) -> None:
        scope = {x.var for x in item.all_axes} | set(self.a.variables)
        self.seen = set()
        for x in item.all_axes:
            self.axis(x)
        match item:
            case ItemValue():
                self.expr(item.expr, scope)
                self.value(item)
            case Output():
                for s in item.stores:
                    self.store(s, scope)
                for c in item.carries:
                    other = self.done.get(c.source)
                    if not isinstance(other, Output) or len(other.axes) != len(c.index):
                        raise self.fail("an output carries an earlier output, with one index per axis", c)

    def axis(self, x: Axis) -> None:
        if x.var.lo != 0 or x.var.hi != max(high(x.extent) - 1, 0):
            raise self.fail(f"{x.var.name} runs over {x.var.lo}..{x.var.hi}, not over {x.extent!r} elements")
        if not variables(x.extent) <= set(self.a.variables):
            raise self.fail(f"the extent {x.extent!r} uses unknown variables")

    def value(self, item: ItemValue) -> None:
        if item.dtype.is_narrow:
            raise self.fail("values are no narrow floats: they are computed in f32")
        if item.reduce is None:
            return
        if item.reduce.op not in COMBINE.values() or not item.reduce.axes:
            raise self.fail("a reduction combines over one axis or more by ADD, MUL, MAX or MIN")
        why = kind_error(item.reduce.op, item.dtype)
        if why is not None:
            raise self.fail(f"{item.reduce.op.symbol} {why}")

    def store(self, s: StoreTo, scope: set[Var]) -> None:
        p = self.params.get(s.param)
        if p is None or not p.written:
            raise self.fail(f"{s.param} is no parameter to write")
        if len(s.index) != len(p.shape):
            raise self.fail(f"{s.param} has {len(p.shape)} axes", s.index)
        if s.expr.dtype is not p.dtype:
            raise self.fail(f"a {s.expr.dtype.name} value is stored to {s.param}, which is {p.dtype.name}")
        if s.combine is not None and (s.combine not in COMBINE.values() or p.dtype.is_narrow):
            raise self.fail(f"{s.combine.symbol} cannot combine {p.dtype.name} in memory")
        for i, n in zip(s.index, p.shape, strict=True):
            self.index(i, scope)
            if not s.guard and not self.inside(i, n):
                raise self.fail(f"the index {i!r} may leave the axis of {n!r} elements", s.param)
        self.guard(s.guard, scope)
        self.expr(s.expr, scope)

    def inside(self, i: Int, n: Int) -> bool:
        """The index is within the axis. Where runtime variables have a say, who binds them vouches for it."""
        if (isinstance(i, Var) and self.extents.get(i) == n) or in_range(i, 0, n) == ():
            return True
        runtime = not (variables(i) | variables(n)).isdisjoint(self.a.variables)
        return runtime and in_range(i, 0, n) != NEVER

    def guard(self, g: Guard, scope: set[Var]) -> None:
        for c in g:
            for i in (c.value, c.lo, c.hi):
                if i is not None:
                    self.index(i, scope)

    def index(self, i: Int, scope: set[Var]) -> None:
        for a in atoms(i):
            if isinstance(a, Var) and a not in scope:
                raise self.fail(f"{a.name} is not an axis here, nor a runtime variable", i)
            if isinstance(a, Opaque):
                if not a.value.dtype.is_int:
                    raise self.fail(f"an index is computed as {a.value.dtype.name}", i)
                self.expr(a.value, scope)

    def expr(self, root: Expr, scope: set[Var]) -> None:
        for e in walk([root]):
            if e in self.seen:
                continue
            self.seen.add(e)
            for i in indices(e):
                self.index(i, scope)
            match e:
                case Load():
                    self.load(e)
                case ScalarCall():
                    why = call_error(e)
                    if why:
                        raise self.fail(why, e)
                case FromIndex() if not e.dtype.is_int:
                    raise self.fail(f"an index has an integer dtype, not {e.dtype.name}", e)
                case Temp():
                    raise self.fail("names are bound in lowered loops only", e)
                case _:
                    pass

    def load(self, e: Load) -> None:
        p = self.params.get(e.source)
        if p is not None:
            if p.written:
                raise self.fail(f"{p.name} is written: it cannot be read", e)
            self.shaped(e, p.shape, p.dtype.name)
            if not e.guard and any(in_range(i, 0, n) == NEVER for i, n in zip(e.index, p.shape, strict=True)):
                raise self.fail("the index is never inside", e)
            return
        item = self.done.get(e.source)
        if not isinstance(item, ItemValue):
            raise self.fail(f"{e.source} is no parameter, nor a value computed before", e)
        self.shaped(e, tuple(x.extent for x in item.axes), item.dtype.name)
        if not all(self.inside(i, x.extent) for i, x in zip(e.index, item.axes, strict=True)):
            raise self.fail(f"the index may leave the axes of {item.name}", e)

    def shaped(self, e: Load, shape: Iterable[Int], dtype: str) -> None:
        if len(e.index) != len(tuple(shape)):
            raise self.fail(f"{e.source} has {len(tuple(shape))} axes", e)
        if e.dtype.name != dtype:
            raise self.fail(f"{e.source} is {dtype}, not {e.dtype.name}", e)
