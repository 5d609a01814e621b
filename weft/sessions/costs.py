"""The price of keeping each value of a graph, and its use: the problem of `keeping.py`, from nodes and regions.

A candidate is computed from the candidates below it: time and bytes are those of the nodes in between, each as much of
it as the candidate's region needs (`ir/regions`). Times are estimates from the device's rates: they say which values
are worth more than others, and not how long a run takes.
"""
# Tests: tests/sessions/test_keeper.py

from __future__ import annotations

from collections.abc import Mapping, Sequence

from weft.backends.protocol import DeviceInfo
from weft.ir.graph import Node, elements, toposort
from weft.ir.index import high
from weft.ir.ops import COMBINE, MOVEMENT
from weft.ir.regions import boxes as bx
from weft.ir.regions.graphs import needs
from weft.ir.regions.ops import Used, always
from weft.ir.regions.region import NOTHING, Region
from weft.lazy_dataclass import dataclass
from weft.scheduler.keeping import nbytes
from weft.sessions.retention import Candidate, Case, Matrix, Retention

WIDE_SHARE = 0.5
"""The share of an input that does not change from which on a part of a reader needs the whole input."""


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A bucket: its name, and the region of each node that may differ."""

    name: str
    dirty: Mapping[Node, Region]


def retention(
    stored: Sequence[Node],
    results: Sequence[Node],
    changes: Sequence[Change],
    chances: Matrix,
    info: DeviceInfo,
    used: Used = always,
) -> Retention:
    """The problem of which `stored` nodes, in the order of computation, to keep. The first change is of everything;
    `used`: the operands that nodes really read."""
    graph = _Graph(stored, info, used)
    pinned = frozenset(results)
    values = tuple(
        [
            Candidate(value_name(k, n), nbytes(n), graph.ns(n), graph.inputs[k], n in pinned)
            for k, n in enumerate(stored)
        ]
    )
    cases = [_everything(changes[0].name, values), *(graph.case(c, values) for c in changes[1:])]
    return Retention(values, tuple(cases), chances)


def value_name(k: int, n: Node) -> str:
    """The name of stored value number k, the same in every process."""
    return f"{k} {n.op.name.lower()} {n.dtype.name}[{', '.join(map(str, n.shape))}]"


def _everything(name: str, values: Sequence[Candidate]) -> Case:
    wide = frozenset((k, i) for k, v in enumerate(values) for i in v.inputs)
    ns, nbytes_of = tuple(v.ns for v in values), tuple(v.nbytes for v in values)
    return Case(name, frozenset(range(len(values))), ns, nbytes_of, wide)


class _Graph:
    """The nodes between each candidate and those below it."""

    def __init__(self, stored: Sequence[Node], info: DeviceInfo, used: Used) -> None:
        self._info, self._used = info, used
        self._nodes = tuple(stored)
        self._number = {n: k for k, n in enumerate(stored)}
        self._between: list[tuple[Node, ...]] = []
        self.inputs: list[tuple[int, ...]] = []
        for n in stored:
            inner, cuts = self._below(n)
            self._between.append(inner)
            self.inputs.append(cuts)

    def _below(self, root: Node) -> tuple[tuple[Node, ...], tuple[int, ...]]:
        """The nodes that compute a candidate, readers first, and the candidates that they read."""
        inner, cuts, left = {root}, set[int](), [root]
        while left:
            for i in left.pop().inputs:
                if i in self._number:
                    cuts.add(self._number[i])
                elif i not in inner and i.inputs and i.storage is None:
                    inner.add(i)
                    left.append(i)
        order = [n for n in reversed(toposort([root])) if n in inner] if len(inner) > 1 else [root]
        return tuple(order), tuple(sorted(cuts))

    def ns(self, n: Node) -> float:
        """The time to compute all of a candidate."""
        k = self._number[n]
        work = sum(_work(m) for m in self._between[k])
        return self._ns(work, nbytes(n) + sum(nbytes(self._nodes[i]) for i in self.inputs[k]))

    def _ns(self, work: float, moved: float) -> float:
        info = self._info
        return info.launch_ns + 1e9 * max(work / info.flops, moved / info.bandwidth)

    def case(self, change: Change, values: Sequence[Candidate]) -> Case:
        """A change as a bucket: how much of each candidate its runs compute, and which ones need all of an input."""
        nodes = self._nodes
        dirty = {k: r for k, n in enumerate(nodes) if not (r := change.dirty.get(n, NOTHING)).is_empty}
        part = [dirty.get(k, NOTHING) for k in range(len(nodes))]
        part_ns, part_bytes, wide = [0.0] * len(nodes), [0] * len(nodes), set[tuple[int, int]]()
        for k in range(len(nodes) - 1, -1, -1):
            if part[k].is_empty:
                continue
            needed, work = self._needed(k, part[k])
            moved = _share(part[k], nodes[k]) * nbytes(nodes[k])
            for i, region in needed.items():
                moved += _share(region, nodes[i]) * nbytes(nodes[i])
                if i in dirty:
                    if not dirty[i].contains(region):
                        wide.add((k, i))
                elif _share(region, nodes[i]) > WIDE_SHARE:
                    wide.add((k, i))
                else:
                    part[i] = part[i] | region
            part_ns[k] = min(self._ns(work, moved), values[k].ns)
            part_bytes[k] = int(_share(part[k], nodes[k]) * nbytes(nodes[k]))
        return Case(change.name, frozenset(dirty), tuple(part_ns), tuple(part_bytes), frozenset(wide))

    def _needed(self, k: int, region: Region) -> tuple[dict[int, Region], float]:
        """The regions of the candidates below one that a region of it is computed from, and the work."""
        found, work = dict[Node, Region](), 0.0
        inner = self._between[k]
        found[inner[0]] = region
        cuts = dict[int, Region]()
        for n in inner:
            r = found.get(n, NOTHING)
            if r.is_empty:
                continue
            read = needs(n, r, self._used)
            counted = (read[0], n.inputs[0]) if n.op in COMBINE else (r, n)
            work += _share(*counted) * _work(n)
            for i, x in zip(n.inputs, read, strict=True):
                if i in self._number:
                    at = self._number[i]
                    cuts[at] = cuts[at] | x if at in cuts else x
                else:
                    found[i] = found[i] | x if i in found else x
        return {i: r for i, r in cuts.items() if not r.is_empty}, work


def _work(n: Node) -> float:
    """The operations of a node: one for each element that it computes or adds up."""
    if n.op in MOVEMENT:
        return 0.0
    return float(high(elements((n.inputs[0] if n.op in COMBINE else n).shape)))


def _share(region: Region, n: Node) -> float:
    """The part of a node's elements that are in a region, at most."""
    count = high(elements(n.shape))
    boxes = sum(max(0, high(bx.volume(b))) for b in region.boxes)
    return min(1.0, boxes / count) if count else 0.0
