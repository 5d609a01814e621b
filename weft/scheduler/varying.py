"""Patterns of the sizes of an outline: which vary, and how they hang together, learned from graphs that have it.

    sizes of two graphs    17 64 17 128 2176          pattern    n 64 n 128 128*n    (2 <= n <= 256)
                           42 64 42 128 5376

A pattern is a guess, and needs no proof: a graph has it if it gives all of the graph's sizes, which is looked at for
each graph (`Pattern.bind`). A graph that does not fit is one more to learn from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeAlias

from weft.ir.index import Index, Int, Var, evaluate
from weft.scheduler.outline import Role

Column: TypeAlias = tuple[int, ...]
"""The sizes at one place, in each of the graphs."""

DIVISORS = (2, 3, 4, 5, 6, 7, 8, 16, 32)
"""Steps by which windows and pools go."""

VARIABLES = 8
"""Most variables of a pattern: with more, hardly anything is known of what the kernels do."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """Sizes as expressions of runtime variables."""

    variables: tuple[Var, ...]
    sizes: tuple[Int, ...]
    places: tuple[int, ...]
    """The place that each variable is read at."""
    _constants: tuple[Callable[[Column], tuple[int, ...]], tuple[int, ...]]
    _expressions: tuple[tuple[Index, Callable[[Column], tuple[int, ...]]], ...]

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
        expressions = tuple([(e, _several(at)) for e, at in varying.items()])
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
        env = self.environment(values)
        for e, places in self._expressions:
            if set(places(sizes)) != {evaluate(e, env)}:
                return None
        return values

    def environment(self, values: Sequence[int]) -> dict[str, int]:
        """The variables' values by name."""
        return {v.name: x for v, x in zip(self.variables, values, strict=True)}


def patterns(roles: Sequence[Role], samples: Sequence[Column], rooms: Sequence[int]) -> Iterator[Pattern]:
    """Patterns that the samples have in common, the likeliest first. Variables have room up to as many times the
    largest value seen, and on to a power of two, as the first of `rooms` says; then as the next one does.

    What the data says comes first: other sizes mostly follow from it. Then what the program says, or what is smaller.
    """
    columns = list(zip(*samples, strict=True))
    same = [c.count(c[0]) == len(c) for c in columns]
    varying = [k for k in range(len(columns)) if not same[k]]
    order = sorted(varying, key=lambda k: roles[k])
    smallest = sorted(varying, key=lambda k: (roles[k] is not Role.LEAF, sum(columns[k])))
    for by in (order,) if _distinct(columns, order) == _distinct(columns, smallest) else (order, smallest):
        for room in rooms:
            found = _pattern(columns, same, by, roles, room)
            if found is not None:
                yield found


def _distinct(columns: Sequence[Column], order: Sequence[int]) -> list[Column]:
    """The distinct columns in this order."""
    return list(dict.fromkeys(columns[k] for k in order))


def _pattern(
    columns: Sequence[Column], same: Sequence[bool], order: Sequence[int], roles: Sequence[Role], room: int
) -> Pattern | None:
    """The pattern in which the columns, in this order, are expressions of those before, or variables."""
    found: dict[Column, Int] = {}
    variables: dict[Var, tuple[Column, int]] = {}
    for k in order:
        column = columns[k]
        if column in found:
            continue
        known = [(c, v) for v, (c, _) in variables.items()]
        e = expressed(
            column, known, _FORMS if roles[k] in (Role.LEAF, Role.CHOSEN, Role.DERIVED) else _PLACES
        )
        if e is None:
            if len(variables) == VARIABLES:
                return None
            low = min(0 if roles[k] in (Role.START, Role.PADDING) else 2, *column)
            e = Var(f"size{len(variables)}", low, max((1 << (room * max(column) - 1).bit_length()), low + 1))
            variables[e] = column, k
        found[column] = e
    sizes = tuple([c[0] if s else found[c] for c, s in zip(columns, same, strict=True)])
    return Pattern.of(tuple(variables), sizes, tuple([k for _, k in variables.values()]))


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


def _divided(column: Column, known: Sequence[tuple[Column, Var]]) -> Iterator[Index]:
    """(v + d) // a * b + e: a window's steps"""
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
_FORMS: tuple[Form, ...] = (*POLYNOMIALS, _divided)
_PLACES: tuple[Form, ...] = (_sum,)
"""Forms of where something begins: that seldom follows from sizes, but many a formula fits two of them."""
