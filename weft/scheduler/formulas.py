"""Formulas of sizes: expressions of variables that give the sizes at one place, in each of a few graphs.

    samples    17 42        variable n: 17 42        34 84 is 2*n, 9 21 is (n + 1)//2, 20 45 is n + 3

Most are tried: what they cost is why numbers are compared before an expression is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import reduce
from itertools import combinations_with_replacement, product
from math import gcd, prod
from typing import TypeAlias

from weft.ir.index import Index, Int, Var, at_least, ceildiv, evaluate, floordiv
from weft.scheduler.outline import Follows, Padded, Share, Total

Column: TypeAlias = tuple[int, ...]
"""The sizes at one place, in each of the graphs."""

DIVISORS = (2, 3, 4, 5, 6, 7, 8, 16, 32)
"""Steps by which windows and pools go."""

MULTIPLES = 1024
"""Largest size, but for powers of two, to a multiple of which a padding is found to go."""

FEW = 8
"""Largest number that is added to a window's steps by what two samples say: with any number, most of what two samples
have in common is such a formula by chance."""

Form: TypeAlias = Callable[[Column, Sequence[tuple[Column, Var]]], Iterator[Index]]


def expressed(column: Column, known: Sequence[tuple[Column, Var]], forms: Sequence[Form]) -> Int | None:
    """The column as the simplest expression of known ones that gives it, if there is one."""
    for form in forms:
        for e in form(column, known):
            if all(evaluate(e, {v.name: c[k] for c, v in known}) == x for k, x in enumerate(column)):
                return e
    return None


def by_rule(
    rule: Follows,
    size: Callable[[int], Int | None],
    found: Mapping[Column, Int],
    fixed: Set[int],
    column: Column,
    known: Sequence[tuple[Column, Var]],
) -> Iterator[Index]:
    """The expression by the rule of an op, of the sizes that others were found to have; none where one is not known."""

    def product(places: tuple[int, ...]) -> Int | None:
        return reduce(_times, map(size, places), 1)

    def total(places: tuple[int, ...], step: int) -> Int | None:
        axis = size(places[0])
        return reduce(_plus, map(size, places[1:]), None if axis is None else axis * step - (step - 1))

    match rule:
        case Padded(inner, step):
            e = total(inner, step)
            if e is not None:
                yield from _filled(column, e, found, known, fixed)
        case Total(parts, step):
            e = total(parts, step)
            if e is not None:
                yield from _index(e)
        case Share(whole, others):
            e, rest = product(whole), product(others)
            if e is not None and rest is not None and at_least(rest) > 0:
                yield from _index(floordiv(e, rest))


def _times(a: Int | None, b: Int | None) -> Int | None:
    return None if a is None or b is None else a * b


def _plus(a: Int | None, b: Int | None) -> Int | None:
    return None if a is None or b is None else a + b


def _filled(
    column: Column,
    inner: Int,
    found: Mapping[Column, Int],
    known: Sequence[tuple[Column, Var]],
    fixed: Set[int],
) -> Iterator[Index]:
    """d - e, and b*ceil(e/b) - e: up to a size, also to one that was `found`, or to a multiple; likely of a size that
    others are `fixed` to"""
    inside = [evaluate(inner, {v.name: c[k] for c, v in known}) for k in range(len(column))]
    totals = tuple([a + b for a, b in zip(inside, column, strict=True)])
    yield from _index(totals[0] - inner)
    whole = found.get(totals)
    if whole is not None:
        yield from _index(whole - inner)
    common, most = gcd(*totals), max(column)
    anything = range(most + 1, MULTIPLES + 1) if len(column) > 2 else ()  # of two, it may be by chance
    steps = (*sorted(fixed), 1 << most.bit_length(), *anything)
    for b in [b for b in steps if b > most and common % b == 0][:1]:
        yield from _index(ceildiv(inner, b) * b - inner)


def _multiple(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """c * v"""
    for c, v in known:
        if c[0] and column[0] % c[0] == 0 and column[0]:
            times = column[0] // c[0]
            if _equal(column, [x * times for x in c]):
                yield from _index(v * times)


def _sum(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """v + d, and the sums and differences of two"""
    for c, v in known:
        d = column[0] - c[0]
        if _equal(column, [x + d for x in c]):
            yield from _index(v + d)
    for e, d in _pairs(column, known):
        yield from _index(e + d)


def _total(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """v + w, and their differences"""
    yield from [e for e, d in _pairs(column, known) if not d]


def _pairs(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[tuple[Index, int]]:
    """The sums and differences of two variables that give the column with a number more."""
    for n, (a, v) in enumerate(known):
        for b, w in known[:n]:
            for k, m in ((1, 1), (1, -1), (-1, 1)):
                d = column[0] - k * a[0] - m * b[0]
                if column[-1] == k * a[-1] + m * b[-1] + d and _equal(
                    column, [k * x + m * y + d for x, y in zip(a, b, strict=True)]
                ):
                    yield from [(e, d) for e in _index(v * k + w * m)]


def _line(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """a * v + d"""
    for c, v in known:
        k = next((k for k, x in enumerate(c) if x != c[0]), None)
        if k is not None and (column[k] - column[0]) % (c[k] - c[0]) == 0:
            a = (column[k] - column[0]) // (c[k] - c[0])
            d = column[0] - a * c[0]
            if _equal(column, [a * x + d for x in c]):
                yield from _index(v * a + d)


def shifted(
    found: Mapping[Column, Int], column: Column, known: Sequence[tuple[Column, Var]]
) -> Iterator[Index]:
    """e + d, for an e that another size was found to be; the least d first"""
    near = sorted(found.items(), key=lambda item: abs(column[0] - item[0][0]))
    for c, e in near:
        if all(x - y == column[0] - c[0] for x, y in zip(column, c, strict=True)):
            yield from _index(e + (column[0] - c[0]))


def divided(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """(v + d) // a * b + e: a window's steps. First without e, rounded down or up"""
    samples = len(column)
    for c, v in known:
        for a in DIVISORS:
            for d in (0, a - 1):
                for b in (1, 2, a):
                    if _equal(column, [(x + d) // a * b for x in c]):
                        yield from _index((v + d) // a * b)
    for c, v in known:
        for a in DIVISORS:
            for d in range(1 - a, a):
                first, last = (c[0] + d) // a, (c[-1] + d) // a
                for b in (1, 2, a):
                    e = column[0] - first * b
                    if column[-1] == last * b + e and (abs(e) <= FEW or samples > 2):
                        yield from _index((v + d) // a * b + e)


def _halved(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """(v + d) // 2 * b + e"""
    for c, v in known:
        for d in (0, 1):
            for b in (1, 2):
                e = column[0] - (c[0] + d) // 2 * b
                if _equal(column, [(x + d) // 2 * b + e for x in c]):
                    yield from _index((v + d) // 2 * b + e)


def _halves(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """c * ((u + d) // 2) * ((w + e) // 2): the elements of halved images"""
    for (a, u), (b, w) in combinations_with_replacement(known, 2):
        for d, e in product((0, 1), repeat=2):
            some = [(x + d) // 2 * ((y + e) // 2) for x, y in zip(a, b, strict=True)]
            if some[0] and column[0] and column[0] % some[0] == 0:
                times = column[0] // some[0]
                if _equal(column, [x * times for x in some]):
                    yield from _index((u + d) // 2 * ((w + e) // 2) * times)


def _product(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """c * v * w"""
    yield from _products(column, known, 2)


def _volume(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """c * u * v * w"""
    yield from _products(column, known, 3)


def _products(column: Column, known: Sequence[tuple[Column, Var]], count: int) -> Iterator[Index]:
    """c * the product of so many variables"""
    for some in combinations_with_replacement(known, count):
        first = prod([c[0] for c, _ in some])
        if first and column[0] % first == 0 and column[0]:
            whole: Int = column[0] // first
            for _, v in some:
                whole = whole * v
            yield from _index(whole)


def _equal(column: Column, values: Sequence[int]) -> bool:
    """True where these are the column's values: to compare takes less than to make an expression."""
    return column == tuple(values)


def _index(e: Int) -> Iterator[Index]:
    if not isinstance(e, int):
        yield e


POLYNOMIALS: tuple[Form, ...] = (_multiple, _sum, _product, _line)
COUNTS: tuple[Form, ...] = (*POLYNOMIALS, _volume)
"""With what batches of images count."""
HALVES: tuple[Form, ...] = (*POLYNOMIALS, _halved, _halves)
"""With what windows of every other element have. One of these is the only one for graphs at sizes of all remainders by
4, if sizes of such graphs repeat by 1, 2 or 4."""
PLACES: tuple[Form, ...] = (_sum,)
"""Forms of where something begins: that seldom follows from sizes, but many a formula fits two of them."""
LIKELY: tuple[Form, ...] = (_multiple, _total, _product)
"""Forms that a few graphs hardly have by chance: with many variables, some other formula fits two or three of them."""
