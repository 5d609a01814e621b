"""Calls for all sizes, learned from what was recorded at a few.

    softmax of (9, 64), (21, 64)    recorded, as at n = 4 and 160, where there is nobody who asked
    softmax of (n, 64)              one graph with n for all of these

A function's graph may depend on sizes as it likes. So it is recorded at the least and the greatest size that are to be
made, and, where those that came are not, at odd and even ones between, and all of these, and all that came before, must
be one graph with polynomials of the sizes. Where some are halves, rounded, it is recorded at sizes of all remainders by
4; where an axis is filled up to whole blocks, on both sides of such a length.
"""
# Tests: tests/core/composed/test_sized.py

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.core.execute.run import blocks_in, learned_template
from weft.ir.calls import Given, GraphCall
from weft.ir.compiled_index import picker
from weft.ir.index import Var
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.scheduler.sized import Blocks, SizedTemplate

Sizes: TypeAlias = tuple[int, ...]
"""All axes of all tensors of a call, one after the other."""

Calls: TypeAlias = "tuple[GraphCall | Given | None, ...]"

ROOM = 4
"""Times that sizes may outgrow those that came, before something is learned again."""

ROOMS = (4.0, 2.0, 1.5, 1.125)
"""The same where graphs change with the number of blocks, tried in this order."""

VARIABLES = 4
"""Most sizes that vary by themselves."""

PROBES = 4
"""Sizes at which there are recordings when something is learned, of those that came or of others."""

LEAST = 4
"""The least size that is learned, or else the least that came; with fewer, rules simplify, by one less as well."""


def alike(calls: Sequence[GraphCall | Given | None], others: Sequence[GraphCall | Given | None]) -> bool:
    """True for calls that do the same."""
    one, other = ([c and c.whole for c in some] for some in (calls, others))
    return one == other


@dataclass(frozen=True, slots=True)
class Known:
    """The calls for all sizes within the variables' bounds. `places`: those of each variable among the sizes."""

    variables: tuple[Var, ...]
    places: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...]
    calls: tuple[tuple[SizedTemplate, tuple[int, ...]] | Given | None, ...]

    _fixed: tuple[Callable[[Sizes], Sizes], Sizes] = field(init=False)
    """A function that takes out the sizes that are known, and these."""
    _reads: tuple[tuple[int, int, int, Callable[[Sizes], Sizes] | None, int], ...] = field(init=False)
    """The first place of each variable, its bounds, and a function that takes out all of its places, so many."""

    def __post_init__(self) -> None:
        fixed = picker([k for k, _ in self.fixed]), tuple([n for _, n in self.fixed])
        reads = tuple([
            (at[0], v.lo, v.hi, picker(at) if len(at) > 1 else None, len(at))
            for v, at in zip(self.variables, self.places, strict=True)
        ])  # fmt: skip
        object.__setattr__(self, "_fixed", fixed)
        object.__setattr__(self, "_reads", reads)

    def covers(self, sizes: Sizes) -> bool:
        """True for sizes that are these, within the bounds; some of them are to be recorded nevertheless."""
        return self._values(sizes) is not None

    def is_of_the_sizes_of(self, other: Known) -> bool:
        """True where the same sizes vary, beside the same others."""
        return self.places == other.places and self.fixed == other.fixed

    def below(self, sizes: Sizes, least: int) -> tuple[int, ...]:
        """The places of sizes below `least`, where these vary and all others are as they may be."""
        fixed, expected = self._fixed
        if fixed(sizes) != expected or any(len({sizes[k] for k in at}) > 1 for at in self.places):
            return ()
        return tuple([k for at in self.places if sizes[at[0]] < least for k in at])

    def _values(self, sizes: Sizes) -> tuple[int, ...] | None:
        fixed, expected = self._fixed
        if fixed(sizes) != expected:
            return None
        values: list[int] = []
        for at, lo, hi, take, times in self._reads:
            n = sizes[at]
            if not lo <= n <= hi or (take is not None and take(sizes).count(n) < times):
                return None
            values.append(n)
        return tuple(values)

    def at(self, sizes: Sizes) -> Calls | None:
        """The calls at these sizes; None where they have to be recorded."""
        values = self._values(sizes)
        if values is None:
            return None
        made: list[GraphCall | Given | None] = []
        for call in self.calls:
            if isinstance(call, tuple):
                template, uses = call
                found = template.at(values)
                if found is None:
                    return None
                made.append(GraphCall(found, uses))
            else:
                made.append(call)
        return tuple(made)

    def __reduce__(self) -> tuple[Any, ...]:
        return Known, (self.variables, self.places, self.fixed, self.calls)


def learned(
    samples: dict[Sizes, Calls], sizes: Sizes, record: Callable[[Sizes], Calls | None]
) -> Known | None:
    """The calls for all sizes like these; None where they are not one graph."""
    places: dict[Sizes, list[int]] = {}  # by what they were
    fixed: list[tuple[int, int]] = []
    for k, column in enumerate(zip(*samples, sizes, strict=True)):
        if all(n == column[0] for n in column):
            fixed.append((k, column[0]))
        else:
            places.setdefault(column, []).append(k)
    if not 0 < len(places) <= VARIABLES:
        return None
    largest, taken = [max(c) for c in places], {n for _, n in fixed}
    made: dict[Sizes, Calls | None] = {}
    made.update(_usable(samples, [at[0] for at in places.values()], taken))
    came = list(made)

    def recorded(points: Sequence[Sizes]) -> list[Calls] | None:
        for values in points:
            if values not in made:
                made[values] = record(_with(sizes, list(places.values()), values))
        there = [c for v in points if (c := made[v]) is not None]
        return there if len(there) == len(points) else None

    def known_of(found: _Graph) -> Known | None:
        known = Known(found[0], tuple(map(tuple, places.values())), tuple(fixed), found[1])
        right = all(c is None or alike(c, own) for s, own in samples.items() for c in (known.at(s),))
        return known if right else None

    for least in ([LEAST] * len(places), [min(c) for c in places]):  # there are no 18 largest of 4
        probes = list(_probes(least, largest, taken))
        samples_there = [v for v in came if all(n >= m for n, m in zip(v, least, strict=True))][2 - PROBES :]
        for points in ([*_needed(probes, samples_there), *samples_there], probes):
            calls = recorded(points)
            if calls is None:
                break
            found = _one_graph(points, calls) or _with_halves(points, calls, largest, taken, recorded)
            if found is not None:
                return known_of(found)
        else:
            break
    found = _with_blocks(came, largest, taken, recorded) if len(came) > 1 else None
    return None if found is None else known_of(found)


def _with_halves(
    points: Sequence[Sizes],
    calls: Sequence[Calls],
    largest: Sequence[int],
    taken: set[int],
    recorded: Callable[[Sequence[Sizes]], list[Calls] | None],
) -> _Graph | None:
    """The graph, where some sizes are halves of variables; recorded at sizes of all remainders by 4."""
    if _one_graph(points, calls, halves=True) is None:
        return None
    more = _of_all_remainders(points, max(largest), taken)
    further = recorded(more)
    return None if further is None else _one_graph([*points, *more], [*calls, *further], halves=True)


def _with_blocks(
    came: Sequence[Sizes],
    largest: Sequence[int],
    taken: set[int],
    recorded: Callable[[Sequence[Sizes]], list[Calls] | None],
) -> _Graph | None:
    """The graph, where an axis is filled up to whole blocks; recorded just behind such a length, and just before the
    next, so that no other formula fits. It is another graph where little or nothing is added, and, mostly, for many
    blocks: the greatest size is tried nearer and nearer."""
    points: list[Sizes] = list(came[-PROBES:])
    tried: list[Blocks] = []
    while (blocks := next((b for b in _blocks(points, recorded) if b not in tried), None)) is not None:
        tried.append(blocks)
        k, length = blocks.variable, blocks.length
        begin = -(-min(p[k] for p in points) // length) * length
        near = [(*points[0][:k], begin + n, *points[0][k + 1 :]) for n in (1, length - 2)]
        nearer = _distinct([*points, *near], taken)
        likely = _blocks(nearer, recorded)
        points = nearer if likely else points
        if blocks not in likely:  # it was by chance
            continue

        def graph(points: Sequence[Sizes], blocks: Blocks = blocks) -> _Graph | None:
            calls = recorded(points)
            return None if calls is None else _one_graph(points, calls, blocks=blocks)

        *_, greatest = _probes(largest, largest, taken)
        for room in ROOMS:
            last = int(room * max(largest[k], begin)) // length * length + length // 2
            far = greatest if room == ROOMS[0] else points[-1]
            some = _distinct([*points, (*far[:k], last, *far[k + 1 :])], taken)
            found = graph(some)
            if found is not None:
                few = (*points[0][:k], 2 * length + length // 2, *points[0][k + 1 :])
                return graph(_distinct([few, *some], taken)) or found
    return None


def _distinct(points: Sequence[Sizes], taken: set[int]) -> list[Sizes]:
    """The points in which no sizes coincide, each once."""
    return [p for p in dict.fromkeys(points) if len({*p}) == len(p) and taken.isdisjoint(p)]


def _blocks(
    points: Sequence[Sizes], recorded: Callable[[Sequence[Sizes]], list[Calls] | None]
) -> list[Blocks]:
    """Blocks that an axis is filled up to in one of the calls, for these values of the variables."""
    found: list[Blocks] = []
    for same in zip(*(recorded(points) or ()), strict=True):
        templates = [c.template for c in same if isinstance(c, GraphCall)]
        if len(templates) == len(points):
            found += blocks_in(templates, list(zip(*points, strict=True)))
    return found


_Graph: TypeAlias = "tuple[tuple[Var, ...], tuple[tuple[SizedTemplate, tuple[int, ...]] | Given | None, ...]]"
"""Variables, and calls by them, as `Known` has them."""


def _one_graph(
    points: Sequence[Sizes], recorded: Sequence[Calls], halves: bool = False, blocks: Blocks | None = None
) -> _Graph | None:
    """The variables that have these values, and the calls by them; None where what is recorded is not one graph.
    `halves`: sizes may be halves of variables, rounded; with `blocks`, they may follow from their number."""
    columns = list(zip(*points, strict=True))
    variables = tuple([Var(f"size{k}", min(c), max(c)) for k, c in enumerate(columns)])
    calls: list[tuple[SizedTemplate, tuple[int, ...]] | Given | None] = []
    for same in zip(*recorded, strict=True):
        first = same[0]
        there = [c for c in same if isinstance(c, GraphCall)]
        if not isinstance(first, GraphCall):
            if any(c != first for c in same):
                return None
            calls.append(first)
            continue
        if len(there) < len(same) or any(c.uses != first.uses for c in there):
            return None
        known = list(zip(columns, variables, strict=True))
        template = learned_template([c.template for c in there], known, halves, blocks)
        if template is None:
            return None
        calls.append((template, first.uses))
    return variables, tuple(calls)


def _of_all_remainders(points: Sequence[Sizes], largest: int, taken: set[int]) -> list[Sizes]:
    """More values of the variables, so that each has all remainders by 4: none alike, and none of `taken`."""
    used = {n for p in points for n in p} | taken
    found: list[Sizes] = []
    for rest in range(4):
        if all(any(n % 4 == rest for n in column) for column in zip(*points, strict=True)):
            continue
        values: list[int] = []
        for _ in points[0]:
            n = next(n for n in count(4 * (largest // 4) + rest, 4) if n not in used)
            values.append(n)
            used.add(n)
        found.append(tuple(values))
    return found


def _with(sizes: Sizes, places: Sequence[Sequence[int]], values: Sizes) -> Sizes:
    """The sizes with these values of the variables."""
    probe = list(sizes)
    for n, at in zip(values, places, strict=True):
        for k in at:
            probe[k] = n
    return tuple(probe)


def _usable(samples: dict[Sizes, Calls], places: Sequence[int], taken: set[int]) -> dict[Sizes, Calls]:
    """The samples in which no sizes coincide, by the values of the variables, which are at these places."""
    found: dict[Sizes, Calls] = {}
    for sizes, calls in samples.items():
        values = tuple([sizes[k] for k in places])
        if len({*values}) == len(values) and min(values) > 1 and taken.isdisjoint(values):
            found[values] = calls
    return found


def _needed(probes: Sequence[Sizes], samples: Sequence[Sizes]) -> list[Sizes]:
    """The least and the greatest of the probes, and so many of the others that, with the samples, there are enough, odd
    ones and even ones of each variable among them."""
    least, odd, even, greatest = probes
    taken = [least, greatest]
    if not all(any(n % 2 for n in column) for column in zip(*taken, *samples, strict=True)):
        taken.append(odd)
    return taken + [p for p in (even, odd) if p not in taken][: max(PROBES - len(taken) - len(samples), 0)]


def _probes(least: Sequence[int], largest: Sequence[int], taken: set[int]) -> Iterator[tuple[int, ...]]:
    """Sizes to record at, for variables that came to be as large as this: no two alike, and none of `taken`."""
    used = set(taken)

    def free(n: int, step: int) -> int:
        while n in used:
            n += step
        used.add(n)
        return n

    yield tuple([free(n, 1) for n in least])
    yield tuple([free(n + 5 | 1, 2) for n in largest])
    yield tuple([free(2 * n + 10 & ~1, 2) for n in reversed(largest)][::-1])
    yield tuple([free((ROOM * max(n, 8) + 31) // 32 * 32, 32) for n in largest])
