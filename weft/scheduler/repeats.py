"""Graphs of a program whose graphs change from run to run: computed segment by segment, on plans that segments share.

    episode of 37 steps    step step step ... step   sums of gradients   update of the weights
            of 52 steps    the same plans, more often

A program that unrolls its steps makes another graph for each number of them, one that walks trees for each tree, and a
plan of the whole serves just that one. Where values are small, a launch costs as much as what it computes, so little is
lost by storing them between segments.

Very large graphs are cut when they first come: to plan them as a whole takes seconds.

A segment is what lies between nodes of certain kinds, its ends. Ends that served a graph are tried first for the next
ones, so that equal parts of different graphs are cut alike. How a graph is cut changes no value but by rounding: the
segments are its own nodes, in an order in which each comes after what it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import pairwise
from typing import TypeAlias, TypeVar

from weft.ir.graph import Attrs, Fill, Node, toposort
from weft.ir.ops import MOVEMENT
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.scheduler.outline import taken_apart

MIN_NODES = 96
"""Graphs of fewer nodes are planned as they are."""

MANY_NODES = 512
"""Graphs of as many are cut when they come first, where segments repeat much: they take long to plan as a whole."""

MOST_PLANNED = 0.5
"""The part of such a graph's nodes that is to be planned for its segments, at most."""

OWN_PLAN_AFTER = 32
"""The number of times that such a graph has to come for a plan of its own: planning it takes as long, about, as so many
runs by segments."""

MAX_VALUE_BYTES = 1 << 16
"""A graph with a larger value is planned as it is: to store it would take more than a launch."""

MAX_SEGMENT_NODES = 40
"""Segments of more nodes are cut again, and those that follow each other are joined up to as many."""

MAX_UNCUT_NODES = 16
"""Segments of more nodes are cut at their runs: with another number of turns, each would be another segment."""

MAX_JOINED = 32
"""Most equal segments that are joined."""

MIN_OCCURRENCES = 4
"""A kind of node ends segments if it occurs this often."""

NODES_PER_SEGMENT = 3.0
"""The cost of running one more segment, in nodes to be planned."""

MIN_NODES_GAINED = 16
"""The nodes that are planned less, at least, for a part of a graph to be cut."""

MAX_PERIOD = 12
"""Most kinds that come in turns in a run."""

CANDIDATES = 12
"""Kinds of nodes that are tried as ends of segments."""

MANY_STRUCTURES = 4
"""A program's graphs change if so many structures of the same kinds of nodes came."""

ALIKE = 0.7
"""The part of two graphs' kinds of nodes that they have in common if they are of one program."""

PROGRAMS_KEPT, ENDS_KEPT, SEGMENTS_KEPT = 16, 16, 4096
"""Programs, sets of ends and segments that are remembered; the one met longest ago goes first."""

T = TypeVar("T")

Kind: TypeAlias = int
"""The hash of a node without what plans for all sizes and numbers leave open. That two kinds have one hash is no
matter: it makes a graph be cut elsewhere."""

Segment: TypeAlias = tuple[Kind, ...]

Cut: TypeAlias = tuple[int, int]
"""The begin and the end of a segment in the order of nodes."""


@dataclass(slots=True)
class _Program:
    """Graphs of nearly the same kinds of nodes: these, and the structures that came."""

    kinds: frozenset[Kind]
    structures: set[int] = field(default_factory=set[int])
    """Their hashes, until they are many."""


@dataclass(slots=True)
class Memory:
    """Knowledge from graphs that came before about how to cut the next."""

    programs: list[_Program] = field(default_factory=list[_Program])
    ends: dict[frozenset[Kind], None] = field(default_factory=dict[frozenset[Kind], None])
    segments: dict[Segment, None] = field(default_factory=dict[Segment, None])

    def changes(self, kinds: frozenset[Kind], structure: int) -> bool:
        """True where graphs of these kinds of nodes came in many structures, this one included."""
        for k, program in enumerate(self.programs):
            if len(kinds & program.kinds) >= ALIKE * len(kinds | program.kinds):
                self.programs.append(self.programs.pop(k))
                if len(program.structures) < MANY_STRUCTURES:
                    program.structures.add(structure)
                return len(program.structures) >= MANY_STRUCTURES
        self.programs.append(_Program(kinds, {structure}))
        del self.programs[:-PROGRAMS_KEPT]
        return False

    def keep(self, ends: frozenset[Kind], segments: Sequence[Segment]) -> None:
        """Remember how a graph was cut."""
        self.ends.pop(ends, None)
        self.ends[ends] = None
        _forget_oldest(self.ends, ENDS_KEPT)
        for p in segments:
            self.segments.pop(p, None)
            self.segments[p] = None
        _forget_oldest(self.segments, SEGMENTS_KEPT)


def _forget_oldest(table: dict[T, None], most: int) -> None:
    while len(table) > most:
        del table[next(iter(table))]


def candidates(nodes: Sequence[Node]) -> list[Node]:
    """The nodes to be computed for `nodes`, in order; none where these are better planned as a whole. Constants are:
    they are at home on no device that could keep them between segments."""
    if all(n.device is None for n in nodes):
        return []
    order = [n for n in toposort(nodes) if n.inputs and n.storage is None]
    if len(order) < MIN_NODES or not set(order).issuperset(nodes):
        return []
    return [] if any(nbytes(n) > MAX_VALUE_BYTES for n in order if n.op not in MOVEMENT) else order


def kinds_of(order: Sequence[Node]) -> list[Kind]:
    """The kind of each node."""
    return [hash((n.op, taken_apart(n.attrs)[0], n.dtype, n.shape)) for n in order]


def segments(
    nodes: Sequence[Node],
    order: Sequence[Node],
    kinds: Sequence[Kind],
    memory: Memory,
    changes: bool = True,
) -> list[tuple[Node, ...]] | None:
    """The values to compute one after the other, `nodes` among them: those of each segment that others read. None where
    that costs more than planning the graph as a whole or, unless the program's graphs are known to change, where more
    than half of it would have to be planned."""
    for known in (*reversed(memory.ends), None):
        ends = _chosen(kinds) if known is None else known
        cuts = _joined(kinds, list(_at_runs(kinds, _after(kinds, ends))), order)
        if changes:
            pays = _cost(kinds, cuts, memory) < len(order)
        else:
            pays = _planned(kinds, cuts, memory) < MOST_PLANNED * len(order)
        if pays:
            memory.keep(ends, [tuple(kinds[a:b]) for a, b in cuts])
            return _read_elsewhere(nodes, order, cuts)
    return None


def _after(kinds: Sequence[Kind], ends: frozenset[Kind]) -> list[int]:
    """The places behind nodes of these kinds, and the end."""
    found = [k + 1 for k, kind in enumerate(kinds) if kind in ends]
    return found if found and found[-1] == len(kinds) else [*found, len(kinds)]


def _at_runs(kinds: Sequence[Kind], ends: Sequence[int]) -> Iterator[int]:
    """The ends, and in longer segments those of each turn of a run: of a few kinds that come again and again, as where
    the gradients of all steps are added up, or the losses of all are computed."""
    for a, b in pairwise([0, *ends]):
        k = done = a
        while b - a > MAX_UNCUT_NODES and k < b:
            period, turns = _run(kinds, k, b)
            if not turns:
                k += 1
                continue
            if k > done:
                yield k
            yield from range(k + period, k + period * turns + 1, period)
            k = done = k + period * turns
        if done < b:
            yield b


def _run(kinds: Sequence[Kind], begin: int, end: int) -> tuple[int, int]:
    """The period and the turns of the run that begins here; no turns where none does."""
    for period in range(1, MAX_PERIOD + 1):
        k = begin + period
        while k < end and kinds[k] == kinds[k - period]:
            k += 1
        turns = (k - begin) // period
        if turns >= MIN_OCCURRENCES:
            return period, turns
    return 0, 0


def _chosen(kinds: Sequence[Kind]) -> frozenset[Kind]:
    """The kinds after which segments repeat, and after which parts of segments do, as long as these are long."""
    found: set[Kind] = set()
    todo = [(0, len(kinds))]
    while todo:
        begin, end = todo.pop()
        part = kinds[begin:end]
        kind = _best(part) if len(part) > MAX_SEGMENT_NODES else None
        if kind is not None:
            found.add(kind)
            todo += pairwise([begin, *(begin + k for k in _after(part, frozenset({kind})))])
    return frozenset(found)


def _best(kinds: Sequence[Kind]) -> Kind | None:
    """The kind that ends segments of which the fewest nodes have to be planned; None where that is most of them."""
    counts = Counter(kinds)
    # of equally frequent kinds the first one first: hashes are others in each process
    often = sorted((k for k, count in counts.items() if count >= MIN_OCCURRENCES), key=counts.__getitem__)
    best, least = None, float(len(kinds) - MIN_NODES_GAINED)
    for kind in often[:: max(len(often) // CANDIDATES, 1)]:
        ends = _after(kinds, frozenset({kind}))
        cost = _cost(kinds, _joined(kinds, ends))
        if cost < least:
            best, least = kind, cost
    return best


def _cost(kinds: Sequence[Kind], cuts: Sequence[Cut], memory: Memory | None = None) -> float:
    """The nodes of all segments that differ and were not met before, and what it costs to run them one by one."""
    return _planned(kinds, cuts, memory) + NODES_PER_SEGMENT * len(cuts)


def _planned(kinds: Sequence[Kind], cuts: Sequence[Cut], memory: Memory | None = None) -> int:
    """The nodes of all segments that differ and were not met before."""
    found = {tuple(kinds[a:b]) for a, b in cuts}
    return sum(map(len, found if memory is None else found - memory.segments.keys()))


def _joined(kinds: Sequence[Kind], ends: Sequence[int], order: Sequence[Node] = ()) -> list[Cut]:
    """The segments; short ones that follow each other and are equal but for numbers are joined: 2, 4, 8 ..."""
    begins = [0, *ends[:-1]]
    contents = [(tuple(kinds[a:b]), _places(order[a:b])) for a, b in zip(begins, ends, strict=True)]
    found: list[Cut] = []
    k = 0
    while k < len(ends):
        count = 1
        while (
            2 * count <= MAX_JOINED
            and k + 2 * count <= len(ends)
            and ends[k + 2 * count - 1] - begins[k] <= MAX_SEGMENT_NODES
            and all(contents[i] == contents[k] for i in range(k + count, k + 2 * count))
        ):
            count *= 2
        found.append((begins[k], ends[k + count - 1]))
        k += count
    return found


def _places(nodes: Sequence[Node]) -> list[Attrs]:
    """The attributes of nodes but for numbers: with where slices begin, which in one plan are all constants."""
    return [n.attrs for n in nodes if not isinstance(n.attrs, Fill)]


def _read_elsewhere(
    nodes: Sequence[Node], order: Sequence[Node], cuts: Sequence[Cut]
) -> list[tuple[Node, ...]]:
    """The nodes of each segment that are asked for, or that others read: through views, which move nothing."""
    segment = {n: k for k, (a, b) in enumerate(cuts) for n in order[a:b]}
    found: list[dict[Node, None]] = [{} for _ in cuts]
    for n in nodes:
        if n in segment:
            found[segment[n]][n] = None
    for n in order:
        own = segment[n]
        for i in n.inputs:
            source = i
            while source in segment and source.op in MOVEMENT and segment[source] < own:
                source = source.inputs[0]
            if source in segment and segment[source] < own and source.device is not None:
                found[segment[source]][source] = None
    return [tuple(f) for f in found if f]
