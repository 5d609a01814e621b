"""Patterns of the sizes of an outline: which vary, and how they hang together, learned from graphs that have it.

    sizes of two graphs    17 64 17 128 2176          pattern    n 64 n 128 128*n    (2 <= n <= 256)
                           42 64 42 128 5376

A pattern is a guess, and needs no proof: a graph has it if it gives all of the graph's sizes, which is looked at for
each graph (`Pattern.bind`). A graph that does not fit is one more to learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce
from operator import itemgetter
from types import MappingProxyType
from typing import TypeAlias

from weft.ir.compiled_index import picker
from weft.ir.index import (
    Index,
    Int,
    Sum,
    Var,
    at_least,
    coefficient,
    evaluate,
    floordiv,
    minimum,
    substitute,
)
from weft.ir.index import variables as index_variables
from weft.lazy_dataclass import dataclass
from weft.scheduler.formulas import LIKELY, PLACES, POLYNOMIALS, Column, by_rule, divided, expressed, shifted
from weft.scheduler.outline import Follows, Padded, Role, Share, Total

MANY = 6
"""With so many variables or more, what four graphs have in common is no chance."""

VARIABLES = 100
"""Most variables of a pattern: each size is looked for among the sums of any two."""

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
        expected = tuple([s for s in sizes if isinstance(s, int)])
        varying: dict[Index, list[int]] = {}
        for k, s in enumerate(sizes):
            if not isinstance(s, int):
                varying.setdefault(s, []).append(k)
        expressions = tuple([
            (_evaluator(e, variables), at[0], picker(at[1:]) if len(at) > 1 else None) for e, at in varying.items()
        ])  # fmt: skip
        return Pattern(variables, sizes, places, (picker(fixed), expected), expressions)

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
    then what is smaller anywhere: an axis of the data is then what is left of it, and where that begins. Then, what
    the program says waits for what makes as much of other sizes: what is added to them may be free. At last, the same
    patterns with variables that others limit: several may be cut from one axis, or filled up to the longest.
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
    different: dict[tuple[Column, ...], list[int]] = {}
    for by in orders:
        different.setdefault(tuple(dict.fromkeys(columns[k] for k in by)), by)
    related: dict[tuple[Column, ...], _Related | None] = {}
    for limited in (False, True):
        for distinct, by in different.items():
            if distinct not in related:
                related[distinct] = _related(columns, same, by, roles, rooms[0], follows)
            found = related[distinct]
            if found is None:
                continue
            rests = _rests(found, columns, by, roles)
            sizes = [c[0] if s else found.sizes[c] for c, s in zip(columns, same, strict=True)]
            for room in rooms:
                pattern = _pattern(found, sizes, rests, room, limited)
                if pattern is not None:
                    yield pattern


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


@dataclass(frozen=True, slots=True)
class _Related:
    """Sizes as expressions of variables, and the column that each variable has and the place that it is read at."""

    sizes: Mapping[Column, Int]
    variables: Mapping[Var, tuple[Column, int]]


def _related(
    columns: Sequence[Column],
    same: Sequence[bool],
    order: Sequence[int],
    roles: Sequence[Role],
    room: int,
    follows: Mapping[int, Follows],
) -> _Related | None:
    """The columns, in this order, as expressions of those before, or variables; None with too many of these."""
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
                    form = partial(by_rule, rule, size, found, fixed)
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
        if 2 * len(column) <= min(len(known), MANY):
            forms = LIKELY
        else:
            forms = (*POLYNOMIALS, partial(shifted, found), divided) if column in free else PLACES
        e = expressed(column, known, forms)
        if e is None:
            if len(variables) == VARIABLES:
                return None
            low = _least(roles[k], column)
            e = Var(f"size{len(variables)}", low, _most(column, low, room))
            variables[e] = column, k
        found[column] = e
    return _Related(found, variables)


def _most(column: Column, low: int, room: int) -> int:
    return max(1 << (room * max(column) - 1).bit_length(), low + 1)


def _rests(
    found: _Related, columns: Sequence[Column], order: Sequence[int], roles: Sequence[Role]
) -> list[Int]:
    """The sizes less the least that each may be."""
    return list(dict.fromkeys(found.sizes[columns[k]] - _least(roles[k], columns[k]) for k in order))


def _pattern(
    found: _Related, sizes: Sequence[Int], rests: Sequence[Int], room: int, limited: bool
) -> Pattern | None:
    """The pattern of these sizes. `limited`: of variables with limits, where a size may be negative without; None where
    none is."""
    variables = found.variables
    bounds = {v: (v.lo, _most(column, v.lo, room)) for v, (column, _) in variables.items()}
    for rest in rests:
        _narrow(bounds, rest, variables)
    limits = _limits(rests, variables, bounds) if limited else {}
    given = None if limits is None else _within(limits, bounds)
    if given is None:
        return None
    own = tuple([Var(v.name, *bounds[v]) for v in variables])
    exact = tuple([substitute(e, given) for e in sizes])
    return Pattern.of(own, exact, tuple([k for _, k in variables.values()]))


Bounds: TypeAlias = dict[Var, tuple[int, int]]

Limits: TypeAlias = dict[Var, list[Int]]
"""Sizes that variables do not exceed."""


def _limits(
    rests: Sequence[Int], variables: Mapping[Var, tuple[Column, int]], bounds: Bounds
) -> Limits | None:
    """The limits with which none of the rests, of sizes less the least they may be, is negative; None where they are
    not without, or nothing helps.

    Of n - a - b, the variable met first is limited: a is min(a, n - b), and b, for that, min(b, n). Nothing changes in
    a graph of the pattern, which has no such sizes; another is none of the pattern.
    """
    limits: Limits = {}
    asked = list(rests)
    while True:
        given = _within(limits, bounds)
        if given is None:
            return None
        negative = next((e for e in reversed(asked) if at_least(substitute(e, given)) < 0), None)
        if negative is None:
            return limits or None
        for v in variables:
            times = -(coefficient(negative, v) or 0)
            if times > 0 and (most := floordiv(negative + v * times, times)) not in limits.get(v, ()):
                limits.setdefault(v, []).append(most)
                asked.append(negative + (v - bounds[v][0]) * times)
                _narrow(bounds, asked[-1], variables)
                break
        else:
            return None


def _within(limits: Limits, bounds: Bounds) -> dict[Var, Int] | None:
    """The smallest of each variable, between its bounds, and its limits, which have theirs; None where these go in a
    circle."""
    given: dict[Var, Int] = {}
    while len(given) < len(bounds):
        ready = [
            v
            for v in bounds
            if v not in given and all(index_variables(e) <= given.keys() for e in limits.get(v, ()))
        ]
        if not ready:
            return None
        for v in ready:
            own = Var(v.name, *bounds[v])
            given[v] = reduce(minimum, [substitute(e, given) for e in limits.get(v, ())], own)
    return given


def _least(role: Role, column: Column) -> int:
    """The least that a size may be: 0 and 1 are part of the structure, but for where something begins or is added."""
    return min(0 if role in (Role.START, Role.PADDING) else 2, *column)


def _narrow(bounds: Bounds, rest: Int, variables: Mapping[Var, tuple[Column, int]]) -> None:
    """Narrow the bounds of the one variable of `rest` to those within which it is not negative."""
    if isinstance(rest, int) or at_least(rest) >= 0:
        return
    v, *others = index_variables(rest)
    if others:
        return
    seen = variables[v][0]

    def last(good: int, end: int) -> int:
        """The last value on the way from a good one to the end of the bounds for which it is not."""
        if evaluate(rest, {v.name: end}) >= 0:
            return end
        while abs(end - good) > 1:
            middle = (good + end) // 2
            good, end = (middle, end) if evaluate(rest, {v.name: middle}) >= 0 else (good, middle)
        return good

    lo, hi = bounds[v]
    bounds[v] = max(lo, last(min(seen), v.lo)), min(hi, last(max(seen), v.hi))
