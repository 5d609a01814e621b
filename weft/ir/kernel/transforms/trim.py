from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from weft.ir.expr import Const, Expr, FromIndex, Load, ScalarCall, Test, walk
from weft.ir.index import (
    Guard,
    InRange,
    Int,
    Sum,
    Var,
    bounds,
    ceildiv,
    coefficient,
    floordiv,
    high,
    low,
    map_guard,
    maximum,
    minimum,
    substitute,
    variables,
)
from weft.ir.kernel.algorithm import ItemValue, place, readers
from weft.ir.kernel.lower import identity
from weft.ir.kernel.schedule import Kernel, loop_var
from weft.ir.kernel.transforms.arguments import one_of, reducing_loops, reductions
from weft.ir.kernel.transforms.base import Pick, Refusal, Transform
from weft.ir.kernel.transforms.find import find, find_value
from weft.ir.loops import LANE_KINDS, LoopKind
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Trim(Transform):
    """A reducing loop runs only where a condition in what it reduces can hold.

        for i:                                                for i:
          for j in 0..n: m = max(m, x if j <= i else -inf)  ->    for j in 0..min(n, i + 1): m = max(m, x)

    What the other iterations would reduce is the identity: where(condition, x, -inf) of a maximum, where(condition,
    x, 0) of a sum; exp(-inf - m) is 0 where m is kept finite, or is the same for all of a row of which the condition
    leaves some, and 0 times or over a factor is taken for 0, so an infinity or NaN of a factor that no condition lets
    through adds nothing. Online reductions in the loop must all be trimmed alike.
    With `strict`, a factor's `where` does not count, only what is known as a tensor's `fill`. Where all who read the
    value choose by a condition that no iteration changes, and it fails, nothing is reduced at all.
    Needs: a serial loop, reducing; a condition that is affine in it, where loops further in take any value.
    """

    value: str
    loop: str
    strict: bool = False

    @classmethod
    def propose(cls, k: Kernel, pick: Pick) -> Trim | None:
        value = one_of(pick, reductions(k))
        loop = None if value is None else one_of(pick, reducing_loops(k, value))
        return None if value is None or loop is None else cls(value.name, loop, pick((False, True)))

    def check(self, k: Kernel) -> Refusal | None:
        item = find_value(k, self.value)
        if isinstance(item, Refusal):
            return item
        spec = find(k, self.loop)
        if isinstance(spec, Refusal):
            return spec
        if k.nests[self.value].loop(self.loop) is None or not spec.reduce:
            return Refusal(f"{self.loop} is no reducing loop of {self.value}")
        if spec.kind is not LoopKind.SERIAL:
            return Refusal(f"the loop {self.loop} is {spec.kind.value}")
        if k.nests[self.value].online is not None:
            return Refusal(f"{self.value} runs in another's loop")
        start, stop = self._needed(k)
        if start == 0 and stop == spec.extent:
            return Refusal(f"every iteration of {self.loop} may count")
        return None

    def apply(self, k: Kernel) -> Kernel:
        start, stop = self._needed(k)
        nest = k.nests[self.value]
        spec = nest.loop(self.loop)
        assert spec is not None
        extent = maximum(stop - start, 0)
        var = loop_var(spec.var.name, extent)
        d = nest.depth(self.loop)
        k = k.rebind({spec.var: start + var})
        nest = k.nests[self.value]
        loops = (*nest.loops[:d], replace(spec, var=var, extent=extent), *nest.loops[d + 1 :])
        return k.with_nest(self.value, replace(nest, loops=loops))

    def _needed(self, k: Kernel) -> tuple[Int, Int]:
        """The first iteration that may count, and the end of those."""
        nest = k.nests[self.value]
        spec = nest.loop(self.loop)
        assert spec is not None
        outer = [*k.enclosing(self.value), *nest.loops[: nest.depth(self.loop)]]
        around = {s.var for s in outer if s.kind not in LANE_KINDS}  # an extent is the same in all lanes
        around |= set(k.algorithm.variables)
        members = [self.value]
        members += [n for n, x in k.nests.items() if x.online is not None and x.online.loop == self.loop]
        found: tuple[Int, Int] | None = None
        for name in members:
            item = k.algorithm.item(name)
            assert isinstance(item, ItemValue) and item.reduce is not None
            nothing = identity(item.reduce.op, item.dtype).value
            start: Int = 0
            stop: Int = spec.extent
            for c in _conditions(k, item.expr, float(nothing), self.strict):
                bind = k.nests[name].bind
                at = map_guard((c,), lambda i, bind=bind: substitute(i, bind))
                for first, last in _ranges(at, spec.var, around):
                    start = maximum(start, first)
                    stop = stop if last is None else minimum(stop, last)
            if found is not None:
                start, stop = minimum(start, found[0]), maximum(stop, found[1])
            found = start, stop
        assert found is not None
        start, stop = found
        for c in _choices(k, self.value):
            most = _most(_gap(c), around)
            if variables(_gap(c)) and spec.var not in variables(most) and low(most) < 0:
                stop = minimum(stop, maximum(most + 1, 0) * spec.extent)
        return start, stop


def _choices(k: Kernel, name: str) -> Iterator[InRange]:
    """Conditions, each bounded at one end and over loop variables, without which no reader uses the value."""
    found: list[InRange] | None = None
    for item in readers(k.algorithm, name):
        bind = k.nests[item.name].bind
        for root in item.exprs():
            mine = _chosen(root, name)
            if mine is not None:
                at = [
                    x for c in mine for x in _one_sided(map_guard((c,), lambda i, b=bind: substitute(i, b)))
                ]
                found = at if found is None else [c for c in found if c in at]
    yield from found or ()


def _chosen(e: Expr, name: str) -> list[InRange] | None:
    """The conditions by which `e` chooses what reads the value; None where it does not read it."""
    used = {x for x in walk([e]) if isinstance(x, Load) and x.source == name}
    if not used:
        return None
    out: list[InRange] = []
    while isinstance(e, ScalarCall):
        reading = [a for a in e.args if any(x in used for x in walk([a]))]
        if len(reading) != 1:
            break
        if e.op is Op.WHERE and reading[0] is e.args[1]:
            out += implied(e.args[0])
        e = reading[0]
    return out


def _one_sided(guard: Guard) -> Iterator[InRange]:
    for c in guard:
        if c.lo is not None:
            yield InRange(c.value, c.lo, None)
        if c.hi is not None:
            yield InRange(c.value, None, c.hi)


def _gap(c: InRange) -> Int:
    """At least 0 where the condition, bounded at one end, holds."""
    if c.lo is not None:
        return c.value - c.lo
    assert c.hi is not None
    return c.hi - c.value - 1


def _conditions(k: Kernel, e: Expr, nothing: float, strict: bool) -> Iterator[InRange]:
    """Conditions on the item's axes without which `e` is `nothing` (0, or an infinity)."""
    match e:
        case ScalarCall(op=Op.WHERE, args=(condition, inside, Const() as outside)) if (
            outside.value == nothing
        ):
            if not strict:
                yield from implied(condition)
            yield from _conditions(k, inside, nothing, strict)
        case ScalarCall(op=Op.MUL) if nothing == 0:
            for factor in _factors(e):
                yield from _conditions(k, factor, nothing, strict)
        case ScalarCall(op=Op.EXP, args=(ScalarCall(op=Op.SUB, args=(x, m)),)) if nothing == 0 and (
            _finite_below(m) or _leaves_some(k, x, m)
        ):
            yield from _conditions(k, x, float("-inf"), strict)
        case ScalarCall(op=Op.DIV, args=(ScalarCall(op=Op.EXP) as x, _)) if nothing == 0:
            yield from _conditions(k, x, nothing, strict)
        case ScalarCall(op=Op.CAST, args=(x,)) if e.dtype.is_float and x.dtype.is_float:
            yield from _conditions(k, x, nothing, strict)
        case Load() if (p := k.algorithm.param(e.source)) is not None:
            if p.fill is not None and p.fill.value == nothing:
                here = {place(a, n): i for a, (n, i) in enumerate(zip(p.shape, e.index, strict=True))}
                yield from map_guard(p.fill.outside, lambda i: substitute(i, here))
        case Load() if not e.guard:
            value = k.algorithm.item(e.source)
            assert isinstance(value, ItemValue)
            op = None if value.reduce is None else value.reduce.op
            if op is None or float(identity(op, value.dtype).value) == nothing:
                at: dict[Var, Int] = {a.var: i for a, i in zip(value.axes, e.index, strict=True)}
                for c in _conditions(k, value.expr, nothing, strict):
                    yield from map_guard((c,), lambda i: substitute(i, at))
        case _:
            pass


def _factors(e: Expr) -> list[Expr]:
    """The factors of the product `e`, each once."""
    found, seen, stack = list[Expr](), {e}, [e]
    while stack:
        x = stack.pop()
        if isinstance(x, ScalarCall) and x.op is Op.MUL:
            new = [a for a in dict.fromkeys(x.args) if a not in seen]
            seen.update(new)
            stack.extend(reversed(new))
        else:
            found.append(x)
    return found


def implied(e: Expr) -> Iterator[InRange]:
    """Conditions on indices that all hold where `e` is true."""
    match e:
        case Test():
            yield from e.guard
        case ScalarCall(op=Op.AND):
            for a in e.args:
                yield from implied(a)
        case ScalarCall(op=Op.LT | Op.LE, args=(a, b)):
            x, y = _index(a), _index(b)
            if x is not None and y is not None and not isinstance(gap := y - x, int):
                yield InRange(gap, int(e.op is Op.LT), None)
        case _:
            pass


def _index(e: Expr) -> Int | None:
    """The index expression that an integer one is, where no step of it wraps around."""
    found: Int | None = None
    match e:
        case FromIndex():
            found = e.index
        case Const() if e.dtype.is_int:
            found = int(e.value)
        case ScalarCall(op=Op.ADD | Op.SUB, args=(a, b)) if e.dtype.is_int:
            x, y = _index(a), _index(b)
            if x is not None and y is not None:
                found = x + y if e.op is Op.ADD else x - y
        case ScalarCall(op=Op.MUL, args=(a, b)) if e.dtype.is_int:
            x, y = _index(a), _index(b)
            if isinstance(x, int) and y is not None:
                found = y * x
            elif isinstance(y, int) and x is not None:
                found = x * y
        case _:
            pass
    if found is None:
        return None
    lo, hi = bounds(found)
    return found if int(e.dtype.min) <= lo and hi <= int(e.dtype.max) else None


def _finite_below(m: Expr) -> bool:
    """The expression is never -inf: a maximum with a finite number."""
    return (
        isinstance(m, ScalarCall)
        and m.op is Op.MAX
        and any(isinstance(a, Const) and abs(float(a.value)) < float("inf") for a in m.args)
    )


def _leaves_some(k: Kernel, x: Expr, m: Expr) -> bool:
    """True where `x` is read of a parameter whose fill leaves the first or the last element of each row along an axis
    along which `m` is the same: only an infinity or NaN of that element makes the maximum of a row -inf."""
    p = k.algorithm.param(x.source) if isinstance(x, Load) else None
    if not isinstance(x, Load) or p is None or p.fill is None:
        return False
    loads = [e for e in walk([m]) if isinstance(e, Load)]
    own = {v for e in loads for i in e.index for v in variables(i)}
    if not loads or any(isinstance(e, FromIndex | Test) for e in walk([m])):
        return False
    for a, (n, i) in enumerate(zip(p.shape, x.index, strict=True)):
        if isinstance(i, int) or not own.isdisjoint(variables(i)):
            continue
        ends: list[Int] = [0] if low(i) == 0 else []
        ends += [n - 1] if isinstance(n, int) and high(i) == n - 1 else []
        for end in ends:
            at = {place(a, n): end}
            if _always(map_guard(p.fill.outside, lambda e, at=at: substitute(e, at))):
                return True
    return False


def _always(guard: Guard) -> bool:
    """True where conditions hold for all values of what is in them."""
    return all(
        (c.lo is None or low(c.value - c.lo) >= 0) and (c.hi is None or low(c.hi - c.value) > 0)
        for c in guard
    )


def _ranges(guard: Guard, v: Var, around: set[Var]) -> Iterator[tuple[Int, Int | None]]:
    """(first, end) of the values of `v` for which each bound of the conditions can hold, whatever variables that are
    not `around` are; in terms of those."""
    for c in guard:
        gaps = [] if c.lo is None else [c.value - c.lo]
        gaps += [] if c.hi is None else [c.hi - c.value - 1]
        for gap in gaps:  # holds where it is >= 0
            step = coefficient(gap, v)
            if not step:
                continue
            most = _most(gap - v * step, around)
            if step > 0:
                yield maximum(ceildiv(-most, step), 0), None
            else:
                yield 0, maximum(floordiv(most, -step) + 1, 0)


def _most(x: Int, around: set[Var]) -> Int:
    """An upper bound of `x` in terms of the variables `around`."""
    if isinstance(x, int):
        return x
    terms, const = (x.terms, x.const) if isinstance(x, Sum) else (((x, 1),), 0)
    out: Int = const
    for atom, c in terms:
        fixed = not atom.computed and variables(atom) <= around
        out = out + (atom * c if fixed else (atom.hi if c > 0 else atom.lo) * c)
    return out
