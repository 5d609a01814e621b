"""The graph of a step: what is kept, with the boxes that a change reaches computed anew.

    new(K) = UPDATE(old(K), K computed on that box only)      for each kept node K, and each box of it that is reached

A box is pulled through the graph (`ir/regions/parts.py`) down to boxes of inputs and of what is kept, which are new
where they were computed anew. Sizes of boxes are numbers, where they begin may be runtime variables.

What a mask makes nothing is not reached (`scheduler/kernelize/uses.py`): token t has no part in rows before t. And
what no result needs is not computed. It is stale then, until a later step needs it, which has to compute it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from weft.ir import graph
from weft.ir.graph import Box, Node, Padding, Shape, apply
from weft.ir.index import Index, Int, Var, high, substitute, variables
from weft.ir.ops import Op
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import needed
from weft.ir.regions.parts import PartsOf, Place, pulled, shrunk
from weft.ir.regions.reach import Reach, Reached
from weft.ir.regions.region import MAX_BOXES, NOTHING, Region
from weft.ir.regions.tables import Starts
from weft.ir.rewrite import over
from weft.lazy_dataclass import dataclass
from weft.scheduler.kernelize.uses import find_uses


@dataclass(frozen=True, slots=True)
class Part:
    """A kept node in a step: what the change reaches of it, what the results need, and what is computed."""

    dirty: Region
    needed: Region
    computed: Region
    left: Region
    """The region that counts as stale afterwards: all that is reached, or written, and not needed, in boxes as large as
    they can be beside what is needed, so that steps that follow each other leave the same."""

    @staticmethod
    def of(dirty: Region, needed: Region, done: Region, starts: Starts, shape: Shape) -> Part:
        """The part of a kept node of this shape, of which these boxes are computed."""
        touched = Region(tuple(_apart((*dirty.boxes, *map(starts.plain, done.boxes)))))
        left = [_grown(b, needed, shape) for b in (touched - Region(needed.boxes)).boxes]
        return Part(dirty, needed, done, Region.of(left))

    @property
    def is_whole(self) -> bool:
        """True where nothing becomes stale."""
        return self.left.is_empty


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """The graph for a class of changes: `new` nodes for some kept ones, by these; `parts` of all kept ones."""

    new: Mapping[Node, Node]
    parts: Mapping[Node, Part]
    starts: Starts
    """The starts of boxes that no expression says."""
    reached: Reached
    """The regions of results that the changes reach."""


def leaf_for(n: Node, device: str) -> Node:
    """A leaf that stands for the value of a node."""
    return graph.buffer(n.shape, n.dtype, device, None)


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """A class of changes of a graph: the nodes `here` in which runtime variables are what they follow; what the changes
    reach, and what of it the results need, of nodes that are kept, for each start."""

    here: Mapping[Node, Node]
    results: tuple[Node, ...]
    dirty: Reached
    needed: Mapping[Node, Region]
    both: Reached

    @staticmethod
    def of(
        order: Sequence[Node],
        results: Sequence[Node],
        kept: Sequence[Node],
        changed: Mapping[Node, Region],
        follows: Mapping[Var, Int],
    ) -> Change:
        """The regions that changed ones of nodes reach. `order`: all nodes, in the order of computation, `kept` ones
        among them; `follows`: what runtime variables of the function are."""
        here = _with_variables(order, follows)
        nodes, wanted = [here[n] for n in order], {here[n]: Region.whole(n.shape) for n in results}
        uses = find_uses(nodes, frozenset(wanted))
        reach = Reach(nodes, uses)
        dirty, tables = reach.dirty({here[n]: r for n, r in changed.items()}), reach.needed(wanted)
        inside = {here[k]: tables.region(here[k]) for k in kept}
        if not all(r.exact for r in inside.values()):  # they say what is right after a step, and no more
            found = needed(wanted, uses)
            inside = {k: found.get(k, NOTHING) for k in inside}
            tables = reach.tables(inside)
        return Change(here, tuple(results), dirty, inside, dirty & tables)

    def computed(self, nodes: Iterable[Node]) -> dict[Node, Region]:
        """The regions of kept nodes that the changes reach and the results need."""
        return {n: self.both.region(self.here[n]) for n in nodes}

    def bounds_at(self, at: Mapping[str, int]) -> dict[str, tuple[int, int]]:
        """Bounds of the variables that changes move with, around these values, in which a class wastes little work."""
        return self.both.bounds_at(at, self.needed)


def step_graph(
    change: Change,
    kept: Sequence[Node],
    old: Mapping[Node, Node],
    restored: Collection[Node] = (),
) -> StepGraph:
    """The graph for a class of changes, from the leaves that stand for the `old` values of kept nodes. Those `restored`
    have none, and are computed whole: what results do not need of them counts as stale."""
    here, placed = change.here, change.both.placed(nodes=change.needed)
    parts: dict[Node, Part] = {}
    same: dict[Part, Part] = {}
    for k in kept:
        if k in restored:
            dirty = done = Region.whole(k.shape)
        else:
            dirty = change.dirty.region(here[k])
            done = Region(placed.boxes.get(here[k], ()), exact=False)
        part = Part.of(dirty, change.needed[here[k]], done, placed.starts, k.shape)
        parts[k] = same.setdefault(part, part)
    new = _updated({here[k]: old[k] for k in kept}, {here[k]: p.computed for k, p in parts.items()})
    reached = {n: change.dirty.boxes[here[n]] for n in change.results if here[n] in change.dirty.boxes}
    results = Reached(reached, change.dirty.sides)
    return StepGraph({k: new[here[k]] for k in kept if here[k] in new}, parts, placed.starts, results)


def _updated(old: Mapping[Node, Node], computed: Mapping[Node, Region]) -> dict[Node, Node]:
    """The new values of kept nodes of which some regions are computed, from the leaves that stand for the old ones of
    all; in the order of computation."""
    now: dict[Node, Node] = {}
    made: dict[Place, Node] = {}
    parts = PartsOf()

    def taken(node: Node, box: IndexBox) -> Node | None:
        if node in now:
            return shrunk(now[node], bx.full(node.shape), box)
        return shrunk(node, bx.full(node.shape), box) if node.op is Op.BUFFER else None

    for k, before in old.items():
        value = before
        for box in computed.get(k, NOTHING).boxes:
            part = pulled(k, box, taken, made, parts)
            at = Box(tuple([i.lo for i in box]), (1,) * len(box))
            value = _stored(part) if part.shape == k.shape else apply(Op.UPDATE, (value, part), at)
        now[k] = value
    return {k: n for k, n in now.items() if n is not old[k]}


def _stored(n: Node) -> Node:
    """The value of a node in memory of its own."""
    return apply(Op.CONTIGUOUS, (n,)) if n.op is Op.BUFFER else n


def _apart(boxes: Iterable[IndexBox]) -> list[IndexBox]:
    """Few boxes that hold all elements of these, of which none holds another."""
    left: list[IndexBox] = []
    for b in dict.fromkeys(boxes):
        if not any(bx.holds(a, b) for a in left):
            left = [*(a for a in left if not bx.holds(b, a)), b]
    while len(left) > 1:
        around, a, b = min(((bx.enclosing(p), *p) for p in combinations(left, 2)), key=lambda e: _added(*e))
        if len(left) <= MAX_BOXES and _added(around, a, b) > 0:
            break
        left = [*(c for c in left if c is not a and c is not b and not bx.holds(around, c)), around]
    return left


def _added(around: IndexBox, a: IndexBox, b: IndexBox) -> int:
    """The elements that a box around two has more than they have, for variables in the middle of their bounds."""
    return _middling(around) - _middling(a) - _middling(b) + _middling(bx.meet(a, b))


def _middling(box: IndexBox) -> int:
    found = {v for i in box for end in i if not isinstance(end, int) for v in variables(end)}
    return high(bx.volume(bx.at(box, {v.name: (v.lo + v.hi) // 2 for v in found})))


def _grown(box: IndexBox, needed: Region, shape: Shape) -> IndexBox:
    """A box, along all axes along which it may be whole and stay apart from what is needed."""
    for k, n in enumerate(shape):
        wider = (*box[:k], Interval(0, n), *box[k + 1 :])
        if all(bx.are_apart(wider, b) for b in needed.boxes):
            box = wider
    return box


def varying(order: Sequence[Node]) -> dict[Node, frozenset[Var]]:
    """The nodes that say where elements are by runtime variables, and by which."""
    found = {n: frozenset(v for i in _indices(n) for v in variables(i)) for n in order}
    return {n: v for n, v in found.items() if v}


def _indices(n: Node) -> list[Int]:
    match n.attrs:
        case Box():
            return [i for i in n.attrs.start if isinstance(i, Index)]
        case Padding():
            return [i for i in (*n.attrs.low, *n.attrs.high) if isinstance(i, Index)]
        case _:
            return []


def _with_variables(order: Sequence[Node], follows: Mapping[Var, Int]) -> dict[Node, Node]:
    """The nodes with runtime variables replaced, by the nodes."""
    if not follows:
        return {n: n for n in order}
    here: dict[Node, Node] = {}

    def rule(n: Node, inputs: tuple[Node, ...]) -> Node:
        attrs = n.attrs
        if _indices(n):
            assert isinstance(attrs, Box | Padding)
            if isinstance(attrs, Box):
                attrs = replace(attrs, start=tuple([substitute(i, follows) for i in attrs.start]))
            else:
                low, top = ([substitute(i, follows) for i in ends] for ends in (attrs.low, attrs.high))
                attrs = replace(attrs, low=tuple(low), high=tuple(top))
            return graph.intern(n.op, inputs, attrs, n.shape, n.dtype, graph.device_over(n, inputs))
        return over(n, inputs)

    for n in order:
        here[n] = rule(n, tuple([here[i] for i in n.inputs])) if n.inputs else n
    return here
