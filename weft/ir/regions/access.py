"""Access relations: pairs (element written, element read), given as index expressions over common variables.

    y = x[1:, ::2].sum(1)        { ( (i), (i + 1, 2*k) )  for i in 0..n, k in 0..m }
                                     y         x

Which elements of x some of y need, and which of y some of x reach, are the same question asked in two directions: fix
one side to a region, and look where the other side is. `solve` answers it for any expressions; the relation is made so
that the answer is a box as often as can be:

    digits       a variable v that is divided becomes its digits, d*q + r, so that v // d is q and v % d is r:
                 (24) -> (4, 6) is  { ( (6*q + r), (q, r) ) },  and a reshape is a change of digits
    equations    padding between elements asks for i % 2 = 0: with digits, r = 0, and i is 2*q
"""
# Tests: tests/ir/regions/test_solve.py, tests/ir/regions/test_ops.py

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from weft.ir.index import (
    FloorDiv,
    Guard,
    InRange,
    Int,
    Mod,
    Opaque,
    Var,
    atoms,
    coefficient,
    floordiv,
    high,
    low,
    map_guard,
    rewrite,
    substitute,
    variables,
)
from weft.ir.regions.boxes import Interval
from weft.ir.regions.region import Region, united, within
from weft.ir.regions.solve import Condition, image, span
from weft.lazy_dataclass import dataclass

MAX_DIGITS = 16
"""The variables that a relation may be given for quotients and remainders; other ones are bounded only."""


@dataclass(frozen=True, slots=True)
class Access:
    """out(v) is made of read(v), for all `v` in their ranges that fulfil the conditions; not `exact` where the data
    decides which of these pairs there are."""

    ranges: tuple[tuple[Var, Interval], ...]
    out: tuple[Int, ...]
    read: tuple[Int, ...]
    conditions: tuple[Condition, ...] = ()
    exact: bool = True

    @staticmethod
    def of(
        axes: Iterable[tuple[Var, Int]],
        out: Sequence[Int],
        read: Sequence[Int],
        guard: Guard = (),
        exact: bool = True,
    ) -> Access:
        """The relation over axes of these extents. An index that is computed from data may be any in its bounds."""
        ranges = {v: Interval(0, n) for v, n in axes}
        free: dict[Opaque, Var] = {}

        def unknown(i: Int) -> Int:
            return rewrite(i, lambda x: _freed(x, free) if isinstance(x, Opaque) else None)

        expressions = [c for g in guard for c in (g.value, g.lo, g.hi) if c is not None]
        known = not any(not isinstance(i, int) and i.computed for i in (*out, *read, *expressions))
        if not known:
            out, read = [unknown(i) for i in out], [unknown(i) for i in read]
            guard = map_guard(guard, unknown)
        ranges |= {v: Interval(v.lo, v.hi + 1) for v in free.values()}
        return Access(tuple(ranges.items()), tuple(out), tuple(read), (), exact and known).where(guard)

    def where(self, guard: Guard) -> Access:
        """The pairs for which the guard holds, too."""
        ranges = dict(self.ranges)
        conditions = [c for g in guard for c in _conditions(g, ranges)]
        return _in_digits(replace(self, conditions=(*self.conditions, *conditions)))

    def needs(self, region: Region) -> Region:
        """The elements read that those of `region` are made of."""
        return self._image(self.out, region, self.read)

    def reaches(self, region: Region) -> Region:
        """The elements written that those read in `region` have a part in."""
        return self._image(self.read, region, self.out)

    def _image(self, given: Sequence[Int], region: Region, wanted: Sequence[Int]) -> Region:
        ranges, images = dict(self.ranges), list[Region]()
        if given == wanted and not self.conditions and _are_places(given):
            everything = tuple([ranges[i] if isinstance(i, Var) else Interval(0, 1) for i in given])
            found = within(region, everything)
            return replace(found, exact=found.exact and self.exact)
        for box in region.boxes:
            inside = [Condition(i, *sides) for i, sides in zip(given, box, strict=True)]
            images.append(image(ranges, (*inside, *self.conditions), wanted))
        found = united(images)
        return replace(found, exact=found.exact and region.exact and self.exact)

    def rewritten(self, by: Mapping[Var, Int], ranges: Iterable[tuple[Var, Interval]]) -> Access:
        """The same pairs over other variables: some replaced by expressions of new ones."""

        def new(i: Int) -> Int:
            return substitute(i, by)

        kept = [(v, i) for v, i in self.ranges if v not in by]
        conditions = [Condition(new(c.value), c.lo, c.hi) for c in self.conditions]
        return replace(
            self,
            ranges=(*kept, *ranges),
            out=tuple(map(new, self.out)),
            read=tuple(map(new, self.read)),
            conditions=tuple(conditions),
        )


def _are_places(index: Sequence[Int]) -> bool:
    """True where an index is a variable of its own along each axis, or 0."""
    used = [i for i in index if i != 0]
    return all(isinstance(i, Var) for i in used) and len(set(used)) == len(used)


def _freed(x: Opaque, free: dict[Opaque, Var]) -> Var:
    """A variable for an index that only the data tells."""
    return free.setdefault(x, Var(f"?{len(free)}", x.lo, x.hi))


def _conditions(g: InRange, ranges: Mapping[Var, Interval]) -> Iterator[Condition]:
    """A guard's condition, with its ends free of the relation's variables."""
    lo, hi = g.lo, g.hi
    if lo is not None and not variables(lo).isdisjoint(ranges):
        yield Condition(g.value - lo, 0, None)
        lo = None
    if hi is not None and not variables(hi).isdisjoint(ranges):
        yield Condition(hi - g.value, 1, None)
        hi = None
    if lo is not None or hi is not None:
        yield Condition(g.value, lo, hi)


# digits ---------------------------------------------------------------------------------------------------------------


def _in_digits(access: Access) -> Access:
    """The relation without quotients and remainders, as far as digits in the place of variables remove them."""
    for _ in range(MAX_DIGITS):
        found = min(_divided(access), key=lambda a: (a.den, a.text), default=None)
        if found is None:
            return access
        access = _with_digits(access, found)
    return access


def _divided(access: Access) -> Iterator[FloorDiv | Mod]:
    """Quotients and remainders by a number, of a variable plus or minus what may depend on others."""
    ranges = dict(access.ranges)
    for i in (*access.out, *access.read, *(c.value for c in access.conditions)):
        for x in atoms(i):
            if isinstance(x, FloorDiv | Mod) and isinstance(x.den, int) and _digit(x, ranges) is not None:
                yield x


def _digit(x: FloorDiv | Mod, ranges: Mapping[Var, Interval]) -> Var | None:
    """The variable v of (v + rest) // d."""
    found = [v for v in variables(x.num) if v in ranges and coefficient(x.num, v) in (1, -1)]
    return min(found, key=lambda v: v.name, default=None)


def _with_digits(access: Access, x: FloorDiv | Mod) -> Access:
    """The relation with v = d*q + r - rest, where `x` divides v + rest by d."""
    ranges, d, num = dict(access.ranges), x.den, x.num
    v = _digit(x, ranges)
    assert v is not None and isinstance(d, int)
    sign = coefficient(num, v)
    assert sign is not None
    values = span(num, ranges)
    quotients = Interval(floordiv(values.lo, d), floordiv(values.hi - 1, d) + 1)
    n = len(access.ranges)
    q = Var(f"{v.name}/{d}.{n}", low(quotients.lo), max(high(quotients.hi) - 1, low(quotients.lo)))
    r = Var(f"{v.name}%{d}.{n}", 0, d - 1)
    digits = (q * d + r - (num - v * sign)) * sign
    new = access.rewritten({v: digits}, [(q, quotients), (r, Interval(0, d))])
    return replace(new, conditions=(*new.conditions, Condition(digits, *ranges[v])))
