"""Merging adjacent axes of a kernel: one long loop instead of two short ones, wherever memory allows it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from weft.ir.graph import Shape
from weft.ir.index import Guard, Int, Sum, Var, flatten, variables
from weft.ir.numerics import pinned
from weft.scheduler.kernelize.groups import Frame, Group, Kind


def runs(group: Group) -> list[tuple[Var, ...]]:
    """Maximal runs of two or more coordinates that the kernel depends on only through their flat combination."""
    pairs = _pairs(group)
    if pairs:
        for steps in _dependences(group):
            pairs = {(a, b): n for (a, b), n in pairs.items() if _fits(steps, a, b, n)}
            if not pairs:
                return []
    out: list[tuple[Var, ...]] = []
    follows = dict(pairs.keys())
    starts = [a for a in follows if a not in follows.values()]
    for a in starts:
        run = [a]
        while run[-1] in follows:
            run.append(follows[run[-1]])
        out.append(tuple(run))
    return out


def _pairs(group: Group) -> dict[tuple[Var, Var], int]:
    """Pairs of coordinates that are adjacent in every frame that has one of them, with the inner one's extent."""
    lists = [axes for f in group.frames for axes in (f.axes, f.reduced) if axes]
    summed = {v for f in group.frames for v in f.reduced} if pinned() else set[Var]()
    out: dict[tuple[Var, Var], int] = {}
    for axes in lists:
        for a, b in pairwise(axes):
            n = group.extents[b]
            if a in summed or b in summed:
                continue  # the order of a pinned sum is that of its axes
            if isinstance(n, int) and (a, b) not in out and all(_together(f, a, b) for f in group.frames):
                out[a, b] = n
    firsts, seconds = [a for a, _ in out], [b for _, b in out]
    return {(a, b): n for (a, b), n in out.items() if firsts.count(a) == 1 and seconds.count(b) == 1}


def _together(f: Frame, a: Var, b: Var) -> bool:
    return all(_adjacent(axes, a, b) for axes in (f.axes, f.reduced))


def _adjacent(axes: tuple[Var, ...], a: Var, b: Var) -> bool:
    if a in axes:
        at = axes.index(a) + 1
        return at < len(axes) and axes[at] == b
    return b not in axes


def _fits(steps: dict[Var, int | None], a: Var, b: Var, n: int) -> bool:
    x, y = steps.get(a, 0), steps.get(b, 0)
    return x is not None and y is not None and x == y * n


def _dependences(group: Group) -> Iterable[dict[Var, int | None]]:
    """The step of each index expression of the kernel along each coordinate (None: not constant)."""
    seen: set[tuple[int, tuple[Int, ...]]] = set()
    for s in group.loads:
        if (id(s.node), s.index) not in seen:
            seen.add((id(s.node), s.index))
            yield steps_of(s.index, s.node.shape)
    for f in group.outputs():
        for store in f.stores:
            yield steps_of(store.index, store.node.shape)
            yield from _guard_steps(store.guard)
    for s in group.index_dependent:
        match s.kind:
            case Kind.RANGE:
                yield _steps(s.index[0])
            case Kind.ONE_HOT:
                yield _steps(s.index[s.axis])
            case Kind.PAD | Kind.SELECT:
                for g in s.guards:
                    yield from _guard_steps(g)
            case _:
                pass


def steps_of(index: tuple[Int, ...], shape: Shape) -> dict[Var, int | None]:
    """The step of the flat offset of `index` along each coordinate."""
    out: dict[Var, int | None] = {}
    step: Int = 1
    for i, n in zip(reversed(index), reversed(shape), strict=True):
        if i.__class__ is Var and i not in out and isinstance(step, int):
            out[i] = step  # pyright: ignore[reportArgumentType]
        elif i != 0:
            return _steps(flatten(index, shape))
        step = step * n
    return out


def _guard_steps(guard: Guard) -> Iterable[dict[Var, int | None]]:
    for c in guard:
        for x in (c.value, c.lo, c.hi):
            if x is not None:
                yield _steps(x)


def _steps(x: Int) -> dict[Var, int | None]:
    """The step along each coordinate, computed indices taken as constants: their own indices are checked too."""
    if isinstance(x, int):
        return {}
    out: dict[Var, int | None] = {}
    for atom, c in x.terms if isinstance(x, Sum) else ((x, 1),):
        if isinstance(atom, Var):
            out[atom] = c if atom not in out else None
        else:
            for v in variables(atom):
                out[v] = None
    return out
