"""Layouts of all cuts of a graph on a mesh, from the layouts of leaves and from wishes: what moves the fewest bytes.

    x: Shard(0), w: Replicate()        x @ w: Shard(0), 0 bytes;         Replicate() would move all of x
    x: Shard(1), w: Shard(0)           x @ w: Partial(), terms are combined where somebody needs the sum

A cut is a node whose value may be laid out in its own way: leaves, copies, results of contractions and loops, and what
is asked for. What a layout costs is what the devices lack of the boxes that it makes them need, which regions tell
(`regions.parts`): all axes of the mesh are decided together, one cut after the other in the order of computation. What
is wished is kept, whatever it costs; two wishes for one node are an error that names both.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from weft.errors import ArgumentError
from weft.ir.errors import IRError
from weft.ir.graph import Node, Shape, Target, toposort
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard, blocks, box_at, check
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.graphs import reached
from weft.ir.regions.parts import PartsOf, Place
from weft.ir.regions.region import NOTHING, Region
from weft.lazy_dataclass import dataclass
from weft.scheduler.sharding.lower import (
    Split,
    count,
    first_parts,
    is_partial,
    local_parts,
    sharing,
    term_box,
)
from weft.scheduler.sharding.terms import contraction

SAMPLED_DEVICES = 4
"""The devices of a larger mesh that are asked what they would fetch; the others are taken to be like them."""

CUT_OPS = REDUCE | {Op.GATHER, Op.SCATTER, Op.LOOP, Op.CONTIGUOUS}
"""The ops whose results are cuts: what is dear to compute twice, or was asked to be in memory."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to compute and keep a cut: the bytes that all devices together fetch for it, and the elements that the
    busiest one computes, of the operand of a contraction. `strays`: the axes of the mesh along which it is cut though
    nothing is that it is computed from."""

    layout: Layout
    split: Split
    moved_bytes: int
    work: int
    strays: int

    @property
    def rank(self) -> tuple[int, int, int]:
        """The better the smaller."""
        return self.moved_bytes, self.strays, self.work


@dataclass(frozen=True, slots=True)
class Choice:
    """The candidate that was taken, and the best one with another layout."""

    chosen: Candidate
    next_best: Candidate | None


@dataclass(frozen=True, slots=True)
class Placed:
    """The layouts and splits for `lower`, and why they are so: `choices` are of the cuts that were decided by cost."""

    layouts: Mapping[Node, Layout]
    splits: Mapping[Node, Split]
    choices: Mapping[Node, Choice]


def propagate(
    nodes: Sequence[Node],
    mesh: Mesh,
    leaves: Mapping[Node, Layout],
    wishes: Mapping[Node, Layout] | None = None,
) -> Placed:
    """Layouts of all cuts under `nodes`. `leaves` are those of stored nodes on the mesh; a COPY with a layout is a
    wish, as are `wishes` for other nodes. ArgumentError for what is asked for and cannot be."""
    order = toposort(nodes)
    fixed = _fixed(order, mesh, leaves, wishes or {})
    layouts, splits, choices = dict[Node, Layout](), dict[Node, Split](), dict[Node, Choice]()
    state = Propagation(mesh, layouts)
    roots, next_wishes = set(nodes), _wishes_after(order, fixed)
    joins = _joins(order, {n for n in order if n in fixed or n in roots or n.op in CUT_OPS})
    read_off_mesh = {i for n in order if n.device != mesh.name for i in n.inputs}
    for n in order:
        if n in leaves or (n in fixed and contraction(n) is None and not is_partial(fixed[n])):
            layouts[n] = fixed[n]
        elif n.device == mesh.name and (
            n in read_off_mesh or n in joins or n in roots or n in fixed or n.op in CUT_OPS
        ):
            whole = n in roots or n in read_off_mesh or n in fixed
            found = state.candidates(n, whole, fixed.get(n), next_wishes.get(n, ()))
            if not found:
                raise ArgumentError(f"{n!r} is no sum of terms as {_text(fixed[n])} has them")
            best = min(found, key=lambda c: c.rank)
            others = [c for c in found if c.layout != best.layout]
            choices[n] = Choice(best, min(others, key=lambda c: c.rank, default=None))
            layouts[n] = best.layout
            if any(best.split):
                splits[n] = best.split
    return Placed(layouts, splits, choices)


def _joins(order: Sequence[Node], cuts: Collection[Node]) -> set[Node]:
    """The elementwise nodes that several others read and several cuts have a part in, as sums along a network's
    residual stream: cuts as well, or what lies between cuts would grow with the network."""
    readers = Counter(i for n in order for i in set(n.inputs))
    found: set[Node] = set()
    below: dict[Node, frozenset[Node]] = {}
    for n in order:
        reads = frozenset[Node]().union(*(below[i] for i in n.inputs))
        if n in cuts or not n.inputs or n.storage is not None:
            reads = frozenset((n,)) if n.device is not None else reads
        elif n.op in ELEMENTWISE and readers[n] > 1 and len(reads) > 1:
            found.add(n)
            reads = frozenset((n,))
        below[n] = reads
    return found


def _fixed(
    order: Sequence[Node], mesh: Mesh, leaves: Mapping[Node, Layout], wishes: Mapping[Node, Layout]
) -> dict[Node, Layout]:
    """The layouts that are said of nodes: by leaves, by copies, by wishes; each once."""
    found: dict[Node, Layout] = {}
    for n in order:
        own = n.attrs.layout if isinstance(n.attrs, Target) and n.device == mesh.name else None
        said = [
            (how, of)
            for how, of in (("is", leaves.get(n)), ("is", own), ("is asked to be", wishes.get(n)))
            if of
        ]
        if len({of for _, of in said}) > 1:
            (a, x), (b, y) = said[0], said[-1]
            raise ArgumentError(f"{n!r} {a} laid out as {_text(x)} on {mesh.name}, and {b} {_text(y)}")
        if said:
            found[n] = said[0][1]
            try:
                check(found[n], n.shape, mesh)
            except IRError as error:
                raise ArgumentError(f"{n!r} cannot be laid out as {_text(found[n])}: {error}") from error
        elif n.storage is not None and n.device == mesh.name:
            raise ArgumentError(f"{n!r} is on {mesh.name}, but nothing says how it is laid out")
    return found


def _text(layout: Layout) -> str:
    return f"({', '.join(map(repr, layout))})"


def _wishes_after(order: Iterable[Node], fixed: Mapping[Node, Layout]) -> dict[Node, list[Layout]]:
    """The layouts in which copies right after a node want it."""
    found: dict[Node, list[Layout]] = {}
    for n in order:
        if n.op is Op.COPY and n in fixed and n.storage is None:
            found.setdefault(n.inputs[0], []).append(fixed[n])
    return found


_Block: TypeAlias = tuple[Node, Node, int, int]
_Held: TypeAlias = tuple[Layout, Shape, int]


@dataclass(slots=True)
class Propagation:
    """The layouts of cuts that are decided, and what others would cost on top of them."""

    mesh: Mesh
    layouts: Mapping[Node, Layout]
    parts: PartsOf = field(default_factory=local_parts)
    _reaches: dict[_Block, IndexBox | None] = field(default_factory=dict["_Block", "IndexBox | None"])
    _orders: dict[Node, list[Node]] = field(default_factory=dict[Node, "list[Node]"])
    _made: dict[_Held, IndexBox] = field(default_factory=dict["_Held", IndexBox])
    _alike: dict[Hashable, list[Candidate]] = field(default_factory=dict[Hashable, "list[Candidate]"])
    _wanted: dict[tuple[Place, ...], list[Place]] = field(
        default_factory=dict["tuple[Place, ...]", "list[Place]"]
    )

    def candidates(
        self,
        node: Node,
        is_whole: bool = False,
        layout: Layout | None = None,
        wanted: Sequence[Layout] = (),
    ) -> list[Candidate]:
        """The layouts that a cut may have, and their costs. `is_whole`: it is not kept in terms. `layout`: the only
        one. `wanted`: those of copies that read it next, whose cost counts. Cuts that are made alike of what lies
        alike, as in the layers of a network, have the same candidates."""
        structure, below = self._cone(node)
        key = structure, is_whole, layout, tuple(wanted)
        if key not in self._alike:
            self._alike[key] = self._candidates(node, below, is_whole, layout, wanted)
        return self._alike[key]

    def _candidates(
        self,
        node: Node,
        below: Sequence[Node],
        is_whole: bool,
        layout: Layout | None,
        wanted: Sequence[Layout],
    ) -> list[Candidate]:
        follows = [any(self._cuts(n, m) for n in below) for m in range(len(self.mesh.shape))]
        per_axis = [self._options(node, m, is_whole, below, layout) for m in range(len(self.mesh.shape))]
        found: list[Candidate] = []
        for options in itertools.product(*per_axis):
            kept, split = tuple([p for p, _ in options]), tuple([s for _, s in options])
            strays = sum(
                not ok and (isinstance(p, Shard) or s is not None)
                for (p, s), ok in zip(options, follows, strict=True)
            )
            try:
                found.append(self._costed(node, kept, split, wanted, strays))
            except IRError:
                continue  # bounds of one axis do not fit what another leaves of it
        return found

    def _cuts(self, n: Node, m: int) -> bool:
        return n in self.layouts and not isinstance(self.layouts[n][m], Replicate)

    def _cone(self, node: Node) -> tuple[Hashable, list[Node]]:
        """The graph from the cuts that a node is computed from to the node, as rows in which leaves and nodes have
        numbers, and these cuts."""
        number: dict[Node, int] = {}
        below, inner = list[Node](), list[Node]()
        rows: list[Hashable] = []
        stack = [node]
        while stack:
            n = stack.pop()
            if n in number:
                continue
            number[n] = len(number)
            if n is not node and n in self.layouts:
                below.append(n)
                rows.append((n.dtype, n.shape, self.layouts[n]))
            elif n is not node and (n.storage is not None or n.device not in (self.mesh.name, None)):
                rows.append((n.dtype, n.shape))
            else:
                inner.append(n)
                rows.append((n.op, n.attrs, n.dtype, n.shape, len(n.inputs)))
                stack.extend(reversed(n.inputs))
        edges = tuple([number[i] for n in inner for i in n.inputs])
        return (tuple(rows), edges), below

    def _options(
        self, node: Node, m: int, is_whole: bool, below: Sequence[Node], layout: Layout | None
    ) -> list[tuple[Placement, Shard | None]]:
        """The options of an axis of the mesh: to do nothing, cut an axis of the result, or one that is reduced over."""
        kept: list[Placement] = [Replicate()]
        for dim, n in enumerate(node.shape):
            if isinstance(n, int) and n > 1:
                kept += self._shards(node, dim, m, below)
        if layout is not None:
            kept = [layout[m]]
        found: list[tuple[Placement, Shard | None]] = [(p, None) for p in kept if not isinstance(p, Partial)]
        terms = contraction(node)
        if terms is not None:
            for axis in terms.axes:
                n = node.inputs[terms.number].shape[axis]
                if isinstance(n, int) and n > 1:
                    for s in self._shards(node.inputs[terms.number], axis, m, below):
                        own = kept if is_whole else [Partial(terms.op)]
                        found += [(p, s) for p in own if not isinstance(p, Partial) or p.op is terms.op]
        return found

    def _shards(self, node: Node, dim: int, m: int, below: Sequence[Node]) -> list[Shard]:
        """Equal blocks of an axis, and those that blocks of inputs have a part in."""
        found = dict.fromkeys([Shard(dim)])
        size = node.shape[dim]
        assert isinstance(size, int)
        equal = blocks(Shard(dim), size, self.mesh.shape[m])
        for n in below:
            shard, same = self.layouts[n][m], [p.dim for p in self.layouts[n] if isinstance(p, Shard)]
            if not isinstance(shard, Shard) or same.count(shard.dim) > 1:
                continue
            first = self._reached(node, n, m, 0, dim)
            if first == (0, size) or (first == equal[0] and shard.bounds is None):
                continue  # most often, and the first block tells
            sides = [self._reached(node, n, m, k, dim) for k in range(self.mesh.shape[m])]
            ends = _ends(sides, size)
            if ends is not None and ends != tuple([i.hi for i in equal]):
                found[Shard(dim, ends)] = None
        return list(found)

    def _reached(self, node: Node, of: Node, m: int, k: int, dim: int) -> Interval | None:
        """The elements of an axis of a node in which block k of a cut, along an axis of the mesh, has a part."""
        key = (node, of, m, k)
        if key not in self._reaches:
            shard, full = self.layouts[of][m], bx.full(of.shape)
            assert isinstance(shard, Shard)
            size = of.shape[shard.dim]
            assert isinstance(size, int)
            block = blocks(shard, size, self.mesh.shape[m])[k]
            box = (*full[: shard.dim], block, *full[shard.dim + 1 :])
            region = Region.of([box])
            if node is not of:
                if node not in self._orders:
                    self._orders[node] = toposort([node], known=self._cone(node)[1])
                region = reached({of: region}, self._orders[node]).get(node, NOTHING)
            self._reaches[key] = None if region.is_empty else region.enclosing
        box = self._reaches[key]
        return None if box is None else box[dim]

    def _box(self, layout: Layout, shape: Shape, k: int) -> IndexBox:
        """The box that a device has of a tensor that is laid out so."""
        key = (layout, shape, k)
        if key not in self._made:
            self._made[key] = box_at(layout, shape, self.mesh, k)
        return self._made[key]

    # costs ----------------------------------------------------------------------------------------------------------

    def _costed(
        self, node: Node, layout: Layout, split: Split, wanted: Sequence[Layout], strays: int
    ) -> Candidate:
        mesh, size = self.mesh, len(self.mesh.devices)
        group = _in_group(mesh, layout, split)
        item, moved, work = node.dtype.itemsize, 0, 0
        sampled = _sampled(size)
        for k in sampled:
            final = term = self._box(layout, node.shape, k)
            if group > 1:
                held = [self._box(layout, node.shape, g) for g in sharing(mesh, layout, split, k)]
                term = held[0] if held.count(held[0]) == len(held) else term_box(held)
            of = first_parts(node, term, split, mesh, k, self.parts)
            inputs = tuple(of.places(node))
            moved += self._lacking(k, inputs)
            work = max([work, count(term), *(count(b) for _, b in inputs)])
            if is_partial(layout):
                moved += item * count(term) * (group - 1) // group  # to combine them takes that at least
            elif any(split):
                moved += _combining_bytes(count(final), count(term), group) * item
            for wish in wanted:
                need = self._box(wish, node.shape, k)
                if is_partial(layout):
                    more = _combining_bytes(count(need), count(term), group)
                    moved += item * max(0, more - count(term) * (group - 1) // group)
                else:
                    moved += item * (count(need) - count(bx.meet(need, final)))
        return Candidate(layout, split, moved * size // len(sampled), work, strays)

    def _lacking(self, k: int, inputs: tuple[Place, ...]) -> int:
        """The bytes that a device has to fetch of all cuts, for these boxes."""
        if inputs not in self._wanted:
            self._wanted[inputs] = self._pulled(inputs)
        found = 0
        for n, around in self._wanted[inputs]:
            item = n.dtype.itemsize
            if n not in self.layouts:
                found += count(around) * item
            elif is_partial(self.layouts[n]):
                group, term = _in_group(self.mesh, self.layouts[n], ()), bx.full(n.shape)
                found += item * _combining_bytes(count(around), count(term), group)
            else:
                own = self._box(self.layouts[n], n.shape, k)
                found += item * (count(around) - count(bx.meet(around, own)))
        return found

    def _pulled(self, inputs: Iterable[Place]) -> list[Place]:
        """The box of each cut that these boxes are made from."""
        wanted: dict[Node, list[IndexBox]] = {}

        def is_end(n: Node, box: IndexBox) -> bool:
            elsewhere = n.device is not None and n.device != self.mesh.name
            return n in self.layouts or elsewhere or not count(box)

        for n, box in self.parts.ends(inputs, is_end):
            if count(box):
                wanted.setdefault(n, []).append(box)
        return [(n, bx.enclosing(of)) for n, of in wanted.items()]


def _ends(sides: Sequence[Interval | None], size: int) -> tuple[int, ...] | None:
    """The ends of intervals that follow each other and make up an axis; None where these do not."""
    ends = [0]
    for side in sides:
        if side is not None and (side.lo != ends[-1] or not isinstance(side.hi, int)):
            return None
        ends.append(ends[-1] if side is None or not isinstance(side.hi, int) else side.hi)
    return tuple(ends[1:]) if sides and ends[-1] == size else None


def _sampled(count: int) -> list[int]:
    """Some devices, of every row and column of a mesh if they suffice."""
    few = min(count, SAMPLED_DEVICES)
    return [(k * count // few + k) % count for k in range(few)] if few < count else list(range(count))


def _combining_bytes(need: int, term: int, group: int) -> int:
    """Elements that a device fetches to have `need` elements of a sum: terms of them, or, where all need all, terms of
    a part and the other parts."""
    direct = need * (group - 1)
    return direct if need < term else 2 * need * (group - 1) // group


def _in_group(mesh: Mesh, layout: Layout, split: Split) -> int:
    """The number of devices that have terms of the same elements."""
    found = 1
    for m, n in enumerate(mesh.shape):
        if isinstance(layout[m], Partial) or (split and split[m] is not None):
            found *= n
    return found
