"""The image of a region under index expressions: lo <= f(v) < hi is solved for v, and g(v) evaluated there.

    v in 0..24,  9 <= v < 20,  g = (v//6, v%6)       v = 6q + r:   q = 1, r in 3..6   |   q = 2   |   q = 3, r in 0..2
                                                     g:            [1:2, 3:6] | [2:3, 0:6] | [3:4, 0:2]

Variables run over intervals, whose ends may depend on runtime variables. A condition narrows these intervals, and parts
them where one box of variables will not do (`_restricted_sum`). The image of such a box is a box where no two of g's
expressions depend on one variable, and each takes all values between its ends (`span`). Where that, or a condition, is
not proven, the answer holds more than the truth, and says so.
"""
# Tests: tests/ir/regions/test_solve.py, tests/ir/regions/test_ops.py

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from weft.ir.index import (
    FloorDiv,
    Int,
    Max,
    Min,
    Mod,
    Product,
    Sum,
    Var,
    bounds,
    ceildiv,
    coefficient,
    floordiv,
    high,
    low,
    maximum,
    minimum,
    variables,
)
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.region import Region

Ranges: TypeAlias = Mapping[Var, Interval]
"""The values of each variable. Other variables in an expression are runtime variables."""

MAX_PARTS = 4
"""The boxes of variables that one condition may part a box into at either end."""

MAX_CASES = 64
"""The boxes of variables beyond which conditions narrow them only."""

MAX_ROUNDS = 3
"""The passes over conditions that are not solved exactly: narrowing one variable may let another narrow more."""


class Condition(NamedTuple):
    """lo <= value < hi; `lo` and `hi` are free of the variables that are solved for, and None where open."""

    value: Int
    lo: Int | None
    hi: Int | None


class Span(NamedTuple):
    """The values of an expression: from `lo` to before `hi`; all of these where `dense`."""

    lo: Int
    hi: Int
    dense: bool


def image(ranges: Ranges, conditions: Sequence[Condition], wanted: Sequence[Int]) -> Region:
    """The values that the `wanted` expressions take together where the variables keep to their ranges and the
    conditions hold."""
    found: list[IndexBox] = []
    exact = True
    for case, solved in _cases(ranges, conditions, MAX_ROUNDS):
        for part in _parted(case, wanted):
            spans = [span(x, part) for x in wanted]
            found.append(tuple([Interval(s.lo, s.hi) for s in spans]))
            exact = exact and solved and all(s.dense for s in spans) and _is_box(part, wanted)
    return Region.of(found, exact)


def span(x: Int, ranges: Ranges) -> Span:
    """The values of `x`. Its operands are taken to be independent, so that `lo` and `hi` may be too far apart; then,
    and where values between them may be missing, it is not dense."""
    if isinstance(x, int) or variables(x).isdisjoint(ranges):
        return Span(x, x + 1, True)
    match x:
        case Var():
            return Span(*ranges[x], True)
        case Sum():
            return _span_of_sum(x, ranges)
        case FloorDiv() if _is_fixed(x.den, ranges):
            s = span(x.num, ranges)
            return Span(floordiv(s.lo, x.den), floordiv(s.hi - 1, x.den) + 1, s.dense)
        case Mod() if isinstance(x.den, int):
            s = span(x.num, ranges)
            period = floordiv(s.lo, x.den)
            if period == floordiv(s.hi - 1, x.den):
                return Span(s.lo - period * x.den, s.hi - period * x.den, s.dense)
            return Span(0, x.den, s.dense and low(s.hi - s.lo) >= x.den)
        case Product():
            return _span_of_product(x, ranges)
        case Min() | Max():
            pick = minimum if isinstance(x, Min) else maximum
            a, b = span(x.a, ranges), span(x.b, ranges)
            return Span(pick(a.lo, b.lo), pick(a.hi, b.hi), False)
        case _:
            first, last = bounds(x)
            return Span(first, last + 1, False)


def _span_of_sum(x: Sum, ranges: Ranges) -> Span:
    """Dense where each step is no larger than what the smaller steps together reach, as with mixed-radix digits."""
    lo: Int = x.const
    last: Int = x.const
    reach, dense = 1, True
    met: set[Var] = set()
    for atom, c in reversed(x.terms):  # by the size of their factors, the smallest first
        s = span(atom, ranges)
        a, b = (s.lo, s.hi - 1) if c > 0 else (s.hi - 1, s.lo)
        lo, last = lo + a * c, last + b * c
        moving = _moving(atom, ranges)
        if moving:
            dense = dense and s.dense and abs(c) <= reach and met.isdisjoint(moving)
            reach += abs(c) * max(low(s.hi - s.lo) - 1, 0)
            met |= moving
    return Span(lo, last + 1, dense)


def _span_of_product(x: Product, ranges: Ranges) -> Span:
    """A runtime number times one factor that varies."""
    varying = [f for f in x.factors if not _is_fixed(f, ranges)]
    by: Int = 1
    for f in x.factors:
        by = by * f if _is_fixed(f, ranges) else by
    if len(varying) > 1 or low(by) < 0:
        return Span(x.lo, x.hi + 1, False)
    s = span(varying[0], ranges)
    return Span(s.lo * by, (s.hi - 1) * by + 1, False)


def _is_fixed(x: Int, ranges: Ranges) -> bool:
    return isinstance(x, int) or variables(x).isdisjoint(ranges)


def _moving(x: Int, ranges: Ranges) -> set[Var]:
    """The variables in `x` that have more than one value, as far as is known."""
    return {v for v in variables(x) if v in ranges and ranges[v].hi - ranges[v].lo != 1}


def _is_box(ranges: Ranges, wanted: Sequence[Int]) -> bool:
    """True where the expressions take their values independently, and show it where a variable has none."""
    met: set[Var] = set()
    alone: set[Var] = set()
    for x in wanted:
        moving = _moving(x, ranges)
        if not met.isdisjoint(moving):
            return False
        met |= moving
        alone |= {v for v in moving if len(moving) == 1 and coefficient(x, v) in (1, -1)}
    return all(i.is_filled or v in alone for v, i in ranges.items())


def _parted(ranges: Ranges, wanted: Sequence[Int]) -> Iterator[Ranges]:
    """The same values in a few parts, one for each of a variable that steps over values: 4*b + c for c in 1..3."""
    for x in wanted:
        if isinstance(x, Sum) and not span(x, ranges).dense:
            leader = next((a for a, _ in x.terms if _moving(a, ranges)), None)
            if isinstance(leader, Var):
                lo, hi = ranges[leader]
                if isinstance(lo, int) and isinstance(hi, int) and hi - lo <= MAX_PARTS:
                    for k in range(lo, hi):
                        yield from _parted({**ranges, leader: Interval(k, k + 1)}, wanted)
                    return
    yield ranges


# conditions -----------------------------------------------------------------------------------------------------------


class _Cases(NamedTuple):
    """Disjoint ranges in which a condition can hold; everywhere in them where `exact`."""

    ranges: list[Ranges]
    exact: bool


def _cases(ranges: Ranges, conditions: Sequence[Condition], rounds: int) -> Iterator[tuple[Ranges, bool]]:
    """Disjoint ranges in which all conditions can hold, and whether they do everywhere there."""
    found: list[tuple[Ranges, tuple[Condition, ...]]] = [(ranges, ())]
    for c in sorted(conditions, key=lambda c: len(_moving(c.value, ranges))):
        parts = MAX_PARTS if len(found) < MAX_CASES else 0
        after: list[tuple[Ranges, tuple[Condition, ...]]] = []
        for r, unsolved in found:
            cases = _restricted(c.value, c.lo, c.hi, r, parts)
            after += [(new, unsolved if cases.exact else (*unsolved, c)) for new in cases.ranges]
        found = after
    for r, unsolved in found:
        if any(i.is_empty for i in r.values()):
            continue
        if unsolved and rounds and r != ranges and _is_known(r):
            yield from _cases(r, unsolved, rounds - 1)
        else:
            yield r, not unsolved


def _is_known(ranges: Ranges) -> bool:
    return all(isinstance(end, int) for i in ranges.values() for end in i)


def _restricted(x: Int, lo: Int | None, hi: Int | None, ranges: Ranges, parts: int) -> _Cases:
    """The cases of lo <= x < hi."""
    s = span(x, ranges)
    lo, hi = s.lo if lo is None else lo, s.hi if hi is None else hi
    if any(high(end) <= 0 for end in (hi - lo, hi - s.lo, s.hi - lo)):
        return _Cases([], True)
    if low(s.lo - lo) >= 0 and low(hi - s.hi) >= 0:
        return _Cases([ranges], True)
    match x:
        case Var() if x in ranges:
            return _Cases([{**ranges, x: ranges[x] & Interval(lo, hi)}], True)
        case Sum():
            return _restricted_sum(x, lo, hi, ranges, parts)
        case FloorDiv() if _is_fixed(x.den, ranges):
            return _restricted(x.num, lo * x.den, hi * x.den, ranges, parts)
        case Mod() if isinstance(x.den, int):
            return _restricted_mod(x, x.den, maximum(lo, 0), minimum(hi, x.den), ranges, parts)
        case _:
            return _Cases([ranges], False)


def _restricted_sum(x: Sum, lo: Int, hi: Int, ranges: Ranges, parts: int) -> _Cases:
    """The cases of lo <= c*v + rest < hi, where c*v has the largest step of the terms, and the rest is in r0..r1.

        v:   outer.lo      inner.lo                    inner.hi     outer.hi
             |  rest has to be  |  any rest will do        |  rest has to be  |
             |  large enough    |                          |  small enough    |

    Each value of v at either end is a case of its own. For digits (0 <= rest < c) there is at most one; if there are
    more than `parts`, or runtime variables decide, one case has all values of v.
    """
    fixed: Int = x.const
    for a, k in x.terms:
        fixed = fixed + a * k if _is_fixed(a, ranges) else fixed
    moving = [(a, k) for a, k in x.terms if not _is_fixed(a, ranges)]
    if not moving:
        return _Cases([ranges], False)
    v, c = moving[0]
    rest, lo, hi = x - fixed - v * c, lo - fixed, hi - fixed
    if c < 0:
        c, rest, lo, hi = -c, -rest, 1 - hi, 1 - lo
    r0, r1, _ = span(rest, ranges)
    last = r1 - 1
    own = span(v, ranges)
    outer = Interval(ceildiv(lo - last, c), ceildiv(hi - r0, c)) & Interval(own.lo, own.hi)
    inner = Interval(ceildiv(lo - r0, c), ceildiv(hi - last, c))
    if outer.hi - outer.lo == 1:
        return _then(rest, lo - outer.lo * c, hi - outer.lo * c, _restricted(v, *outer, ranges, parts), parts)
    if outer == inner & Interval(own.lo, own.hi):
        return _restricted(v, *outer, ranges, parts)
    numbers = [x for x in (*outer, *inner, ceildiv(last - r0, c)) if isinstance(x, int)]
    if len(numbers) < 5:  # the ends of `v`, and of other terms where these vary alone
        narrowed = [
            n for r in _restricted(v, *outer, ranges, parts).ranges for n in _narrowed(rest, lo, hi, v, c, r)
        ]
        return _Cases(narrowed, False)
    if numbers[-1] > parts:
        cases = _then(rest, lo - c * (own.hi - 1), hi - c * own.lo, _restricted(v, *outer, ranges, parts), 0)
        return _Cases(cases.ranges, False)
    first, end, inner_first, inner_end, _ = numbers
    middle = max(inner_first, inner_end)
    ends = [
        _then(rest, lo - at * c, hi - at * c, _restricted(v, at, at + 1, ranges, parts), parts)
        for at in (*range(first, min(inner_first, end)), *range(max(middle, first), end))
    ]
    return _together([_restricted(v, *(outer & inner), ranges, parts), *ends])


def _narrowed(rest: Int, lo: Int, hi: Int, v: Int, c: int, ranges: Ranges) -> list[Ranges]:
    """The ranges in which lo <= c*v + rest < hi can hold, as far as the rest is narrowed by where `v` is."""
    s = span(v, ranges)
    return _restricted(rest, lo - (s.hi - 1) * c, hi - s.lo * c, ranges, 0).ranges


def _then(x: Int, lo: Int, hi: Int, cases: _Cases, parts: int) -> _Cases:
    """The cases that fulfil lo <= x < hi, too."""
    found = _together(_restricted(x, lo, hi, r, parts) for r in cases.ranges)
    return _Cases(found.ranges, found.exact and cases.exact)


def _restricted_mod(x: Mod, den: int, lo: Int, hi: Int, ranges: Ranges, parts: int) -> _Cases:
    """The cases of lo <= num % den < hi, for lo and hi in 0..den: one per period, where they are few."""
    s = span(x.num, ranges)
    first, last = floordiv(s.lo, den), floordiv(s.hi - 1, den)
    count = last - first
    if not isinstance(count, int) or count >= max(parts, 1):
        return _Cases([ranges], False)
    periods = [(first + k) * den for k in range(count + 1)]
    return _together(_restricted(x.num, at + lo, at + hi, ranges, parts) for at in periods)


def _together(cases: Iterable[_Cases]) -> _Cases:
    found = list(cases)
    return _Cases([r for c in found for r in c.ranges], all(c.exact for c in found))
