"""Injectivity of an index: whether it reaches each element of a tensor at most once."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.graph import Shape, elements
from weft.ir.index import FloorDiv, Index, Int, Mod, Sum, Var, atoms, flatten, high, in_range, variables


def one_to_one(index: tuple[Int, ...], shape: Shape, extents: Mapping[Var, Int]) -> frozenset[Var] | None:
    """The coordinates that `index` depends on, if different values of them give different elements of `shape`, and
    there are no more such values than elements; None otherwise."""
    used: list[Var] = []
    plain = True
    for i, n in zip(index, shape, strict=True):
        if isinstance(i, int):
            continue
        v = _shifted(i)
        extent = None if v is None else extents.get(v)
        if v is None or extent is None or v in used or (extent != n and high(extent) > high(n)):
            plain = False
            break
        used.append(v)
    if plain:
        return frozenset(used)
    return _mixed_radix(index, shape, extents)


def _shifted(i: Index) -> Var | None:
    """The coordinate that the index is, but for a constant."""
    if isinstance(i, Var):
        return i
    only = i.terms[0] if isinstance(i, Sum) and len(i.terms) == 1 else None
    return only[0] if only is not None and only[1] == 1 and isinstance(only[0], Var) else None


def _mixed_radix(index: tuple[Int, ...], shape: Shape, extents: Mapping[Var, Int]) -> frozenset[Var] | None:
    """`one_to_one` for mixed radix: the flat offset is a sum of coordinates, each step longer than all smaller ones
    together."""
    flat = flatten(index, shape)
    terms = flat.terms if isinstance(flat, Sum) else ((flat, 1),) if isinstance(flat, Var) else ()
    if not terms and not isinstance(flat, int):
        return None
    reach, points = 0, 1
    for atom, c in sorted(terms, key=lambda t: abs(t[1])):
        if not isinstance(atom, Var) or not isinstance(extents.get(atom), int) or abs(c) <= reach:
            return None
        reach += abs(c) * atom.hi
        points *= atom.hi + 1
    total = elements(shape)
    return (
        frozenset(v for i in index for v in variables(i))
        if isinstance(total, int) and points <= total
        else None
    )


def divided(i: Int) -> set[Var]:
    """The coordinates inside quotients and remainders: a reshape has split them."""
    if isinstance(i, int | Var):
        return set()
    return {v for a in atoms(i) if isinstance(a, FloorDiv | Mod) for v in variables(a)}


def within(index: tuple[Int, ...], shape: Shape, extents: Mapping[Var, Int]) -> bool:
    """True where no coordinates lead out of `shape`, as they may where a guard decides if the element is read."""
    return all(
        (isinstance(i, Var) and extents.get(i) == n) or in_range(i, 0, n) == ()
        for i, n in zip(index, shape, strict=True)
    )


def covers(axes: frozenset[Var], shape: Shape, extents: Mapping[Var, Int]) -> bool:
    """True where the coordinates have as many points as `shape` has elements."""
    sizes = sorted((extents[v] for v in axes), key=repr)
    wanted = sorted((n for n in shape if n != 1), key=repr)
    return sizes == wanted or elements(tuple(sizes)) == elements(shape)
