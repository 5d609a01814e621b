"""Kernels that differ only in constant places (row 3 here, row 4 there) share one program that is given the places.

A loop that Python unrolls (a recurrent layer's steps, a loss over time) makes the same kernels again and again, each
reading and writing at its own row. Compiling one of each kind instead of all takes the time of one step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.ir import expr as ex
from weft.ir.expr import Expr, Load
from weft.ir.index import Int, Var
from weft.ir.kernel.algorithm import Algorithm, Item, ItemValue, Output, StoreTo
from weft.lazy_dataclass import dataclass

ALIKE = 3
"""So many kernels must be alike: a variable place costs a little arithmetic, a program milliseconds to compile."""

Place: TypeAlias = tuple[str, int, int]
"""A parameter, one of its axes, and the constant position on it."""


@dataclass(frozen=True, slots=True)
class General:
    """An algorithm, and the values of those of its variables that are the kernel's own constants, by name."""

    algorithm: Algorithm
    constants: Mapping[str, int]


def generalize(algorithms: Sequence[Algorithm]) -> list[General]:
    """For each algorithm one that it shares with those alike, and what makes it this one."""
    found = [General(a, {}) for a in algorithms]
    families: dict[Algorithm, list[tuple[int, tuple[Place, ...]]]] = {}
    for k, places in _candidates(algorithms):
        variables = dict(zip(places, _variables(algorithms[k], places), strict=True))
        families.setdefault(_lifted(algorithms[k], variables), []).append((k, places))
    for members in families.values():
        if len({places for _, places in members}) < ALIKE:
            continue
        differing = [n for n in range(len(members[0][1])) if len({places[n] for _, places in members}) > 1]
        first, places = members[0]
        variables = _variables(algorithms[first], places)
        shared = _lifted(algorithms[first], {places[n]: variables[n] for n in differing})
        for k, own in members:
            found[k] = General(shared, {variables[n].name: own[n][2] for n in differing})
    return found


def _candidates(algorithms: Sequence[Algorithm]) -> Iterator[tuple[int, tuple[Place, ...]]]:
    """The distinct algorithms that may have others alike, and their constant places."""
    outlines: dict[tuple[object, ...], list[int]] = {}
    seen: dict[Algorithm, list[int]] = {}
    for k, a in enumerate(algorithms):
        seen.setdefault(a, []).append(k)
    for a, same in seen.items():
        outlines.setdefault((a.name, a.params, a.variables, len(a.items)), []).append(same[0])
    for group in outlines.values():
        if len(group) < ALIKE:
            continue
        for first in group:
            places = tuple(dict.fromkeys(_places(algorithms[first])))
            if places:
                for k in seen[algorithms[first]]:
                    yield k, places


def _places(a: Algorithm) -> Iterator[Place]:
    """The constant positions at which the algorithm reads and writes its parameters, in order of first use."""
    shapes = {p.name: p.shape for p in a.params}

    def constant(source: str, index: tuple[Int, ...]) -> Iterator[Place]:
        for axis, (i, n) in enumerate(zip(index, shapes[source], strict=True)):
            if isinstance(i, int) and isinstance(n, int) and n > 1:
                yield source, axis, i

    for item in a.items:
        for e in ex.walk(item.exprs()):
            if isinstance(e, Load) and e.source in shapes:
                yield from constant(e.source, e.index)
        if isinstance(item, Output):
            for s in item.stores:
                yield from constant(s.param, s.index)


def _variables(a: Algorithm, places: Sequence[Place]) -> list[Var]:
    """A variable for each place, over its axis, with a name that is free in the algorithm."""
    taken = {v.name for v in a.variables} | {p.name for p in a.params} | {i.name for i in a.items}
    taken |= {x.var.name for i in a.items for x in i.all_axes}
    shapes = {p.name: p.shape for p in a.params}
    out: list[Var] = []
    for k, (source, axis, _) in enumerate(places):
        name = f"at{k}"
        while name in taken:
            name += "_"
        n = shapes[source][axis]
        assert isinstance(n, int)
        out.append(Var(name, 0, n - 1))
    return out


def _lifted(a: Algorithm, variables: Mapping[Place, Var]) -> Algorithm:
    """The algorithm with variables for these constants."""
    sources = {source for source, _, _ in variables}

    def index(source: str, at: tuple[Int, ...]) -> tuple[Int, ...]:
        return tuple(variables.get((source, k, i), i) if isinstance(i, int) else i for k, i in enumerate(at))

    def leaf(e: Expr) -> Expr | None:
        if not isinstance(e, Load) or e.source not in sources:
            return None
        at = index(e.source, e.index)
        return None if at == e.index else Load(e.dtype, e.source, at, e.guard)

    memo: dict[Expr, Expr] = {}

    def item(i: Item) -> Item:
        if isinstance(i, ItemValue):
            return replace(i, expr=ex.transform(i.expr, leaf, memo=memo))
        return replace(i, stores=tuple(store(s) for s in i.stores))

    def store(s: StoreTo) -> StoreTo:
        at = index(s.param, s.index) if s.param in sources else s.index
        return replace(s, index=at, expr=ex.transform(s.expr, leaf, memo=memo))

    own = sorted(variables.values(), key=lambda v: v.name)
    return replace(a, variables=(*a.variables, *own), items=tuple(item(i) for i in a.items))
