"""Patterns of the sizes of an outline: which vary, and how they hang together, learned from graphs that have it.

    sizes of two graphs    17 64 17 128 2176          pattern    n 64 n 128 128*n    (2 <= n <= 256)
                           42 64 42 128 5376

A pattern is a guess, and needs no proof: a graph has it if it gives all of the graph's sizes, which is looked at for
each graph (`Pattern.bind`). A graph that does not fit is one more to learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial, reduce
from math import gcd
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias

from weft.ir.index import Index, Int, Sum, Var, at_least, ceildiv, evaluate, floordiv, substitute
from weft.ir.index import variables as index_variables
from weft.lazy_dataclass import dataclass
from weft.scheduler.outline import Follows, Padded, Role, Share, Total

Column: TypeAlias = tuple[int, ...]
"""The sizes at one place, in each of the graphs."""

DIVISORS = (2, 3, 4, 5, 6, 7, 8, 16, 32)
"""Steps by which windows and pools go."""

MULTIPLES = 1024
"""Largest size, but for powers of two, to a multiple of which a padding is found to go."""

VARIABLES = 8
"""Most variables of a pattern: with more, hardly anything is known of what the kernels do."""

NO_RULES: Mapping[int, Follows] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Pattern:
    """Sizes as expressions of runtime variables."""

    variables: tuple[Var, ...]
    sizes: tuple[Int, ...]
    places: tuple[int, ...]
    """The place that each variable is read at."""
    _constants: tuple[Callable[[Column], tuple[int, ...]], tuple[int, ...]]
    _expressions: tuple[tuple[Callable[[Column], int], int, Callable[[Column], tuple[int, ...]] | None], ...]
    """The value of each expression by those of the variables, the first place that has it, and the others."""

    @staticmethod
    def of(variables: tuple[Var, ...], sizes: tuple[Int, ...], places: tuple[int, ...]) -> Pattern:
        """The pattern of these sizes, with each variable read at its place."""
        fixed = [k for k, s in enumerate(sizes) if isinstance(s, int)]
        several = fixed if len(fixed) > 1 else fixed * 2
        expected = tuple([s for k in several if isinstance(s := sizes[k], int)])
        varying: dict[Index, list[int]] = {}
        for k, s in enumerate(sizes):
            if not isinstance(s, int):
                varying.setdefault(s, []).append(k)
        expressions = tuple([
            (_evaluator(e, variables), at[0], _several(at[1:]) if len(at) > 1 else None) for e, at in varying.items()
        ])  # fmt: skip
        return Pattern(variables, sizes, places, (_several(fixed), expected), expressions)

    def bind(self, sizes: Column) -> tuple[int, ...] | None:
        """The values of the variables with which the pattern gives these sizes; None if there are none."""
        values = tuple([sizes[k] for k in self.places])
        for v, value in zip(self.variables, values, strict=True):
            if not v.lo <= value <= v.hi:
                return None
        read, expected = self._constants
        if read(sizes) != expected:
            return None
        for value_of, place, others in self._expressions:
            value = value_of(values)
            if sizes[place] != value or (others is not None and set(others(sizes)) != {value}):
                return None
        return values


def _evaluator(e: Index, variables: Sequence[Var]) -> Callable[[Column], int]:
    """The function that gives the value of an expression by those of the variables."""
    if isinstance(e, Var):
        return itemgetter(variables.index(e))
    if isinstance(e, Sum) and len(e.terms) == 1 and isinstance(of := e.terms[0][0], Var):
        k, factor, rest = variables.index(of), e.terms[0][1], e.const
        return lambda values: values[k] * factor + rest
    names = [v.name for v in variables]
    return lambda values: evaluate(e, dict(zip(names, values, strict=True)))


def patterns(
    roles: Sequence[Role],
    samples: Sequence[Column],
    rooms: Sequence[int],
    follows: Mapping[int, Follows] = NO_RULES,
) -> Iterator[Pattern]:
    """Patterns that the samples have in common, the likeliest first. Variables have room up to as many times the
    largest value seen, and on to a power of two, as the first of `rooms` says; then as the next one does. `follows`:
    how sizes follow from others.

    What the data says comes first: other sizes mostly follow from it. Then what the program says, or what is smaller;
    then what is smaller anywhere: an axis of the data is then what is left of it, and where that begins. At last, what
    the program says waits for what makes as much of other sizes: what is added to them may be free.
    """
    columns = list(zip(*samples, strict=True))
    same = [c.count(c[0]) == len(c) for c in columns]
    varying = [k for k in range(len(columns)) if not same[k]]
    padding = {k for k in varying if isinstance(follows.get(k), Padded)}
    turns = {k: _turn(k, roles[k], follows) for k in varying}
    made = {columns[k]: turns[k] for k in reversed(varying) if _is_made(k, follows, columns)}
    orders = (
        sorted(varying, key=lambda k: turns[k]),
        sorted(varying, key=lambda k: (roles[k] is not Role.LEAF, k in padding, sum(columns[k]))),
        sorted(varying, key=lambda k: (k in padding, sum(columns[k]))),
        sorted(
            varying, key=lambda k: made.get(columns[k], turns[k]) if roles[k] is Role.CHOSEN else turns[k]
        ),
    )
    tried: list[list[Column]] = []
    for by in orders:
        if (distinct := _distinct(columns, by)) in tried:
            continue
        tried.append(distinct)
        for room in rooms:
            found = _pattern(columns, same, by, roles, room, follows)
            if found is not None:
                yield found


def _distinct(columns: Sequence[Column], order: Sequence[int]) -> list[Column]:
    """The distinct columns in this order."""
    return list(dict.fromkeys(columns[k] for k in order))


def _turn(place: int, role: Role, follows: Mapping[int, Follows]) -> tuple[Role, int, int]:
    """The order in which sizes are looked at: by their roles, and those that follow from others after these."""
    rule = follows.get(place)
    if isinstance(rule, Total):
        return min(role, Role.PADDING), max(place, *rule.parts), 1
    return min(role, Role.PADDING), place, 0


def _is_made(place: int, follows: Mapping[int, Follows], columns: Sequence[Column]) -> bool:
    """True where a size is made of others, by the rule of its op."""
    match follows.get(place):
        case Total(parts):
            return all(columns[k] != columns[place] for k in parts)
        case Share(whole):
            return all(columns[k] != columns[place] for k in whole)
        case _:
            return False


def _pattern(
    columns: Sequence[Column],
    same: Sequence[bool],
    order: Sequence[int],
    roles: Sequence[Role],
    room: int,
    follows: Mapping[int, Follows],
) -> Pattern | None:
    """The pattern in which the columns, in this order, are expressions of those before, or variables."""
    found: dict[Column, Int] = {}
    variables: dict[Var, tuple[Column, int]] = {}
    free = {columns[k] for k in order if roles[k] not in (Role.START, Role.PADDING)}
    ruled = {k: follows[k] for k in follows if not same[k]}
    fixed = {c[0] for c, s in zip(columns, same, strict=True) if s}

    def size(k: int) -> Int | None:
        return columns[k][0] if same[k] else found.get(columns[k])

    def follow() -> None:
        """Find the sizes that follow from those found, by the rules of ops."""
        known = [(c, v) for v, (c, _) in variables.items()]
        before = -1
        while before != len(found):
            before = len(found)
            for n, rule in ruled.items():
                if columns[n] not in found:
                    form = partial(_followed, rule, size, found, fixed)
                    e = expressed(columns[n], known, (form,))
                    if e is not None:
                        found[columns[n]] = e

    for k in order:
        column = columns[k]
        if column not in found and variables:
            follow()
        if column in found:
            continue
        known = [(c, v) for v, (c, _) in variables.items()]
        forms = (*POLYNOMIALS, partial(_shifted, found), _divided) if column in free else _PLACES
        e = expressed(column, known, forms)
        if e is None:
            if len(variables) == VARIABLES:
                return None
            low = _least(roles[k], column)
            e = Var(f"size{len(variables)}", low, max((1 << (room * max(column) - 1).bit_length()), low + 1))
            variables[e] = column, k
        found[column] = e
    bounds = {v: (v.lo, v.hi) for v in variables}
    for k in order:
        for v, (lo, hi) in _bounded(found[columns[k]], _least(roles[k], columns[k]), variables).items():
            bounds[v] = max(bounds[v][0], lo), min(bounds[v][1], hi)
    own = {v: Var(v.name, *bounds[v]) for v in variables}
    sizes = [c[0] if s else substitute(found[c], own) for c, s in zip(columns, same, strict=True)]
    return Pattern.of(tuple(own.values()), tuple(sizes), tuple([k for _, k in variables.values()]))


def _least(role: Role, column: Column) -> int:
    """The least that a size may be: 0 and 1 are part of the structure, but for where something begins or is added."""
    return min(0 if role in (Role.START, Role.PADDING) else 2, *column)


def _bounded(e: Int, least: int, variables: Mapping[Var, tuple[Column, int]]) -> dict[Var, tuple[int, int]]:
    """The bounds of the one variable of `e` within which it is not below `least`; none where its own will do."""
    if isinstance(e, int) or at_least(e) >= least:
        return {}
    v, *others = index_variables(e)
    if others:
        return {}
    seen = variables[v][0]

    def last(good: int, end: int) -> int:
        """The last value on the way from a good one to the end of the bounds for which it is not."""
        if evaluate(e, {v.name: end}) >= least:
            return end
        while abs(end - good) > 1:
            middle = (good + end) // 2
            good, end = (middle, end) if evaluate(e, {v.name: middle}) >= least else (good, middle)
        return good

    return {v: (last(min(seen), v.lo), last(max(seen), v.hi))}


def _several(places: Sequence[int]) -> Callable[[Column], tuple[int, ...]]:
    """The function that reads these places; at least two, so that it gives a tuple."""
    if not places:
        return _nothing
    return itemgetter(*(places if len(places) > 1 else (*places, *places)))


def _nothing(_: Column) -> tuple[int, ...]:
    return ()


Form: TypeAlias = Callable[[Column, Sequence[tuple[Column, Var]]], Iterator[Index]]


def expressed(column: Column, known: Sequence[tuple[Column, Var]], forms: Sequence[Form]) -> Int | None:
    """The column as the simplest expression of known ones that gives it, if there is one."""
    for form in forms:
        for e in form(column, known):
            if all(evaluate(e, {v.name: c[k] for c, v in known}) == x for k, x in enumerate(column)):
                return e
    return None


def _followed(
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
            yield from _index(v * (column[0] // c[0]))


def _sum(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """v + d, and the sums and differences of two"""
    for c, v in known:
        yield from _index(v + (column[0] - c[0]))
    for n, (c, v) in enumerate(known):
        for d, w in known[:n]:
            yield from _index(v + w + (column[0] - c[0] - d[0]))
            yield from _index(v - w + (column[0] - c[0] + d[0]))
            yield from _index(w - v + (column[0] - d[0] + c[0]))


def _line(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """a * v + d"""
    for c, v in known:
        k = next((k for k, x in enumerate(c) if x != c[0]), None)
        if k is not None and (column[k] - column[0]) % (c[k] - c[0]) == 0:
            a = (column[k] - column[0]) // (c[k] - c[0])
            yield from _index(v * a + (column[0] - a * c[0]))


def _shifted(
    found: Mapping[Column, Int], column: Column, known: Sequence[tuple[Column, Var]]
) -> Iterator[Index]:
    """e + d, for an e that another size was found to be; the least d first"""
    near = sorted(found.items(), key=lambda item: abs(column[0] - item[0][0]))
    for c, e in near:
        if all(x - y == column[0] - c[0] for x, y in zip(column, c, strict=True)):
            yield from _index(e + (column[0] - c[0]))


def _divided(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """(v + d) // a * b + e: a window's steps. First without e, rounded down or up"""
    for c, v in known:
        for a in DIVISORS:
            for d in (0, a - 1):
                for b in (1, 2, a):
                    if column[0] == (c[0] + d) // a * b:
                        yield from _index((v + d) // a * b)
    for c, v in known:
        for a in DIVISORS:
            for d in range(1 - a, a):
                for b in (1, 2, a):
                    yield from _index((v + d) // a * b + (column[0] - (c[0] + d) // a * b))


def _product(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """c * v * w"""
    for n, (c, v) in enumerate(known):
        for d, w in known[: n + 1]:
            if c[0] * d[0] and column[0] % (c[0] * d[0]) == 0 and column[0]:
                yield from _index(v * w * (column[0] // (c[0] * d[0])))


def _index(e: Int) -> Iterator[Index]:
    if not isinstance(e, int):
        yield e


POLYNOMIALS: tuple[Form, ...] = (_multiple, _sum, _product, _line)
_PLACES: tuple[Form, ...] = (_sum,)
"""Forms of where something begins: that seldom follows from sizes, but many a formula fits two of them."""
