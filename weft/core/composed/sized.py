"""Calls at sizes that never came: made of what was recorded at a few others, without running the function.

    softmax of (9, 64), (21, 64)    recorded
    softmax of (33, 64)             recorded at n = 4, 160 instead; from here on made for any n of these bounds

A function's graph may depend on sizes as it likes. So it is recorded at the least and the greatest size that are to be
made, and, where those that came are not, at odd and even ones between, and all of these, and all that came before, must
be one graph with polynomials of the sizes. Where some are halves, rounded, it is recorded at sizes of all remainders by
4. Where forms are verified, what is made is compared with what is recorded, each time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from weft.core.execute import recordings
from weft.core.execute.run import learned_template
from weft.ir.calls import Given, GraphCall
from weft.ir.index import Var
from weft.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from weft.scheduler.sized import SizedTemplate

Sizes: TypeAlias = tuple[int, ...]
"""All axes of all tensors of a call, one after the other."""

Calls: TypeAlias = "tuple[GraphCall | Given | None, ...]"

SAMPLES = 2
"""Recordings before something is learned: that takes some more."""

TRIES = 3
"""Times that something is learned: sizes may outgrow what was learned, or turn out to be several."""

ROOM = 4
"""Times that sizes may outgrow those that came, before something is learned again."""

VARIABLES = 4
"""Most sizes that vary by themselves."""

PROBES = 4
"""Sizes at which there are recordings when something is learned, of those that came or of others."""

SIZES_KEPT = 64
"""Sizes at which recordings are kept, of functions of which nothing is learned: the latest ones."""

LEAST = 4
"""The least size that is learned, or else the least that came; with fewer, rules simplify, by one less as well."""


@dataclass(slots=True)
class SizedCalls:
    """The calls that a function was recorded as, by the sizes of its tensors; and those for other sizes."""

    samples: dict[Sizes, Calls] = field(default_factory=dict[Sizes, Calls])
    tries: int = 0
    known: _Known | None = None
    stored: _Stored | None = None
    """The work of earlier processes."""
    changed: bool = False
    """True where there is more than what was stored."""

    def at(self, sizes: Sizes, record: Callable[[Sizes], Calls | None]) -> Calls | None:
        """The calls at these sizes, where they are known; they may be learned now, by recordings at other sizes."""
        if self.known is None and self.stored is not None:
            self.known = self.stored.take_known()
        known = self.known
        made = None if known is None else known.at(sizes)
        if made is None:
            made = self._recorded_at(sizes)
        if made is not None or (known is not None and known.covers(sizes)) or self.tries >= TRIES:
            return made
        samples = self._latest()
        if len(samples) < SAMPLES:
            return None
        self.tries += 1
        self.changed = True
        self.known = _learned(samples, sizes, record)
        return None if self.known is None else self.known.at(sizes)

    def add(self, sizes: Sizes, calls: Calls) -> None:
        """Remember what was recorded."""
        kept = [*self.samples.items(), (sizes, calls)]
        self.samples = dict(kept[-SIZES_KEPT:])  # another thread may look at the old ones
        self.changed = True

    def _recorded_at(self, sizes: Sizes) -> Calls | None:
        """The calls that were recorded at just these sizes, by this process or an earlier one."""
        found = self.samples.get(sizes)
        if found is None and self.stored is not None:
            found = self.stored.take(sizes)
            if found is not None:
                self.samples = {**self.samples, sizes: found}
        return found

    def _latest(self) -> dict[Sizes, Calls]:
        """The samples that something is learned from."""
        for sizes in tuple(self.stored.samples) if self.stored is not None else ():
            if len(self.samples) >= SAMPLES:
                break
            self._recorded_at(sizes)
        return dict(list(self.samples.items())[-SAMPLES - TRIES :])

    def written(self) -> dict[str, Any]:
        """All of it as JSON has it."""
        kept = {} if self.stored is None else dict(self.stored.samples)
        kept.update({s: recordings.written_calls(calls) for s, calls in self.samples.items()})
        known = None if self.known is None else self.known.written()
        if known is None and self.stored is not None:
            known = self.stored.known
        samples = [[s, calls] for s, calls in kept.items() if calls is not None][-SIZES_KEPT:]
        return {"samples": samples, "tries": self.tries, "known": known}

    @staticmethod
    def read(record: Any, count: int) -> SizedCalls:
        """All that was written, so many calls at each size, which are looked at when they are asked for."""
        samples = {tuple(map(int, sizes)): calls for sizes, calls in record["samples"]}
        known = record["known"]
        listed: list[Any] = [*samples.values(), *([] if known is None else [known["calls"]])]
        if any(calls.__class__ is not list or len(calls) != count for calls in listed):
            raise ValueError("other calls than these")
        return SizedCalls(tries=int(record["tries"]), stored=_Stored(samples, known))


@dataclass(slots=True)
class _Stored:
    """Calls by sizes, and what was learned of them, as JSON has them. What makes no sense is absent."""

    samples: dict[Sizes, Any]
    known: Any

    def take(self, sizes: Sizes) -> Calls | None:
        """The calls at these sizes, which are not here any more."""
        record = self.samples.pop(sizes, None)
        try:
            return None if record is None else recordings.read_calls(record)
        except recordings.NO_SENSE:
            return None

    def take_known(self) -> _Known | None:
        """The calls that were learned, which are not here any more."""
        record, self.known = self.known, None
        try:
            return None if record is None else _Known.read(record)
        except recordings.NO_SENSE:
            return None


def alike(calls: Sequence[GraphCall | Given | None], others: Sequence[GraphCall | Given | None]) -> bool:
    """True for calls that do the same."""
    one, other = ([c and c.whole for c in some] for some in (calls, others))
    return one == other


@dataclass(frozen=True, slots=True)
class _Known:
    """The calls for all sizes within the variables' bounds. `places`: those of each variable among the sizes."""

    variables: tuple[Var, ...]
    places: tuple[tuple[int, ...], ...]
    fixed: tuple[tuple[int, int], ...]
    calls: tuple[tuple[SizedTemplate, tuple[int, ...]] | Given | None, ...]

    def covers(self, sizes: Sizes) -> bool:
        """True for sizes that are these, within the bounds; some of them are to be recorded nevertheless."""
        return self._values(sizes) is not None

    def _values(self, sizes: Sizes) -> dict[str, int] | None:
        if any(sizes[k] != n for k, n in self.fixed):
            return None
        env: dict[str, int] = {}
        for v, places in zip(self.variables, self.places, strict=True):
            n = env[v.name] = sizes[places[0]]
            if not v.lo <= n <= v.hi or any(sizes[k] != n for k in places):
                return None
        return env

    def at(self, sizes: Sizes) -> Calls | None:
        """The calls at these sizes; None where they have to be recorded."""
        env = self._values(sizes)
        if env is None:
            return None
        made: list[GraphCall | Given | None] = []
        for call in self.calls:
            if isinstance(call, tuple):
                template = call[0].at(env)
                if template is None:
                    return None
                made.append(GraphCall(template, call[1]))
            else:
                made.append(call)
        return tuple(made)

    def written(self) -> Any:
        """All of it as JSON has it."""
        calls = [
            [recordings.written_sized(c[0], self.variables), c[1]]
            if isinstance(c, tuple)
            else c and recordings.written_calls([c])
            for c in self.calls
        ]
        return {
            "variables": [[v.name, v.lo, v.hi] for v in self.variables],
            "places": self.places,
            "fixed": self.fixed,
            "calls": calls,
        }

    @staticmethod
    def read(record: Any) -> _Known:
        """All that was written."""
        variables = tuple([Var(str(name), int(lo), int(hi)) for name, lo, hi in record["variables"]])
        places = tuple([tuple(map(int, p)) for p in record["places"]])
        fixed = tuple([(int(k), int(n)) for k, n in record["fixed"]])
        calls: list[tuple[SizedTemplate, tuple[int, ...]] | Given | None] = []
        for c in record["calls"]:
            if c is not None and len(c) == 2:
                template, uses = recordings.read_sized(c[0], variables), tuple(map(int, c[1]))
                if len(uses) != len(template.placeholders):
                    raise ValueError("a call on other inputs")
                calls.append((template, uses))
                continue
            (given,) = (None,) if c is None else recordings.read_calls(c)
            if isinstance(given, GraphCall):
                raise ValueError("a call at one size")
            calls.append(given)
        if not variables or len(places) != len(variables) or not all(places):
            raise ValueError("variables that are read nowhere")
        return _Known(variables, places, fixed, tuple(calls))


def _learned(
    samples: dict[Sizes, Calls], sizes: Sizes, record: Callable[[Sizes], Calls | None]
) -> _Known | None:
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

    for least in ([LEAST] * len(places), [min(c) for c in places]):  # there are no 18 largest of 4
        probes = list(_probes(least, largest, taken))
        samples_there = [v for v in came if all(n >= m for n, m in zip(v, least, strict=True))][2 - PROBES :]
        for points in ([*_needed(probes, samples_there), *samples_there], probes):
            calls = recorded(points)
            if calls is None:
                break
            found = _one_graph(points, calls, False) or _with_halves(points, calls, largest, taken, recorded)
            if found is not None:
                known = _Known(found[0], tuple(map(tuple, places.values())), tuple(fixed), found[1])
                right = all(c is None or alike(c, own) for s, own in samples.items() for c in (known.at(s),))
                return known if right else None
        else:
            return None
    return None


def _with_halves(
    points: Sequence[Sizes],
    calls: Sequence[Calls],
    largest: Sequence[int],
    taken: set[int],
    recorded: Callable[[Sequence[Sizes]], list[Calls] | None],
) -> _Graph | None:
    """The graph, where some sizes are halves of variables; recorded at sizes of all remainders by 4."""
    if _one_graph(points, calls, True) is None:
        return None
    more = _of_all_remainders(points, max(largest), taken)
    further = recorded(more)
    return None if further is None else _one_graph([*points, *more], [*calls, *further], True)


_Graph: TypeAlias = "tuple[tuple[Var, ...], tuple[tuple[SizedTemplate, tuple[int, ...]] | Given | None, ...]]"
"""Variables, and calls by them, as `_Known` has them."""


def _one_graph(points: Sequence[Sizes], recorded: Sequence[Calls], halves: bool) -> _Graph | None:
    """The variables that have these values, and the calls by them; None where what is recorded is not one graph.
    `halves`: sizes may be halves of variables, rounded."""
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
        template = learned_template([c.template for c in there], known, halves)
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
