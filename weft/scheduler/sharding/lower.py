"""Local graphs: a global graph on a mesh, with layouts of its cuts, as one ordinary graph over the mesh's devices.

    y = (x @ w).relu()      x: Shard(0), w: Shard(0), two devices
    device 0                y[0:4] = (x[0:4] @ concat(w[0:8], copy of w[8:16])).relu()
    device 1                y[4:8] = (x[4:8] @ concat(copy of w[0:8], w[8:16])).relu()

A *cut* is a node with a layout: each device has the box that the layout says. What is between cuts is computed by each
device as far as its cuts need it, box by box (`regions.parts`): halos, uneven shards and reshapes follow. What a device
lacks of a cut it fetches from one that has it, once. A `split` of a sum says which blocks of its operand the devices
add up: their terms are combined in the order of the devices, by each that needs the sum, or, where several need the
same large box, each a part of it that it then gives to the others (an all-reduce). An addition's split is Partial where
it takes terms as they are: `terms.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import reduce
from itertools import groupby
from typing import TypeAlias

from weft.ir.errors import IRError
from weft.ir.graph import Along, Node, Target, apply, const, device_over, intern, toposort
from weft.ir.loop_body import LoopNode
from weft.ir.ops import Op
from weft.ir.placement import Layout, Mesh, Partial, Replicate, Shard, box_at, boxes, check
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.loop_parts import loop_parts
from weft.ir.regions.parts import Parts, PartsOf, Place, Taken, pulled, shrunk, size_of
from weft.lazy_dataclass import dataclass
from weft.scheduler.sharding.online import Online, Running, States, online
from weft.scheduler.sharding.terms import (
    ADDITIONS,
    TermParts,
    contraction,
    is_ordered,
    is_summand,
    neutral,
    term_dtype,
    term_of,
    term_places,
    wide,
)

OneSplit: TypeAlias = Shard | Partial | Running | None
Split: TypeAlias = tuple[OneSplit, ...]
"""Per axis of the mesh, the axis of a contraction's operand that it parts in blocks, each of which has a term; of an
addition, Partial: what it adds is in terms along this axis, and so is its sum; of an online sum, Running."""

SHARED_BYTES = 1 << 14
"""The size of a sum from which on devices that need it whole combine a part each: before, latency is all."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """A box of a cut, or of its term, that one device copies from another. `reader`: the first node that needs it."""

    node: Node
    box: IndexBox
    source: str
    target: str
    is_term: bool
    reader: Node

    @property
    def nbytes(self) -> int:
        dtype = term_dtype(self.node) if self.is_term else self.node.dtype
        return count(self.box) * dtype.itemsize


@dataclass(frozen=True, slots=True)
class Lowered:
    """`locals`: of each cut on the mesh, its node on each device, in their order: the box that the layout gives it; of
    a partial result the term. `others`: nodes on single devices, over what they read of the mesh. `fetches`: what is
    copied, in the order in which it is computed."""

    locals: Mapping[Node, tuple[Node, ...]]
    others: Mapping[Node, Node]
    fetches: tuple[Fetch, ...]

    @property
    def moved_bytes(self) -> int:
        return sum(f.nbytes for f in self.fetches)


def lower(
    nodes: Sequence[Node],
    mesh: Mesh,
    layouts: Mapping[Node, Layout],
    shards: Mapping[Node, Sequence[Node]],
    splits: Mapping[Node, Split] | None = None,
) -> Lowered:
    """The local nodes of `nodes`, which have no calls inside.

    `layouts` has those of all stored nodes on the mesh, of `nodes`, and of what is copied from the mesh; others only
    where a node is to be a cut. `shards` are the stored nodes' own: a local node per device. `splits`: of contractions
    whose operand is cut along what they reduce over. Where a layout is Partial, and the node has a split, terms are
    kept as they are; who needs the value combines them.
    """
    return _Lowering(mesh, layouts, shards, splits or {}).lowered(nodes)


def count(box: IndexBox) -> int:
    """The number of elements; of an axis whose size is known at run time only, at most."""
    found = 1
    for lo, hi in box:
        if lo.__class__ is not int or hi.__class__ is not int:
            size = bx.volume(box)
            return size if isinstance(size, int) else size.hi
        found *= max(hi - lo, 0)  # pyright: ignore[reportOperatorIssue, reportArgumentType, reportAssignmentType]
    return found


def is_partial(layout: Layout) -> bool:
    """True where devices hold terms."""
    return any(isinstance(p, Partial) for p in layout)


def adds_terms(split: Split) -> bool:
    """True of an addition that takes terms as they are."""
    return any(isinstance(s, Partial) for s in split)


def is_running(split: Split) -> bool:
    """True of an online sum that is taken in blocks."""
    return any(isinstance(s, Running) for s in split)


def check_split(node: Node, layout: Layout, split: Split) -> None:
    """Raise an IRError where a node has no terms as a layout and a split say."""
    if adds_terms(split):
        if node.op not in ADDITIONS or is_ordered(node) or any(s not in (None, Partial()) for s in split):
            raise IRError(f"{node!r} adds up no terms as they are: it has no split {split}")
    elif is_running(split):
        of = online(node)
        if (
            of is None
            or any(s is not None and not isinstance(s, Running) for s in split)
            or is_partial(layout)
        ):
            raise IRError(f"{node!r} is no sum weighted by a maximum, of which blocks have a state: {split}")
    elif split and (contraction(node) is None or node.storage is not None):
        raise IRError(f"{node!r} is no sum of terms: it has no split")
    if is_partial(layout) and node.storage is None and not any(split):
        raise IRError(f"{node!r} is to be kept in terms, but has no split")


def combining(node: Node, layout: Layout, split: Split) -> Op:
    """The op that combines the terms of a node with this layout and split."""
    found = contraction(node)
    if found is not None and any(split):
        return found.op
    (op,) = {p.op for p in (*layout, *split) if isinstance(p, Partial)}
    return op


def summed_axes(layout: Layout, split: Split) -> tuple[int, ...]:
    """The axes of the mesh along which devices have terms, before they are combined."""
    return tuple(
        [m for m, p in enumerate(layout) if isinstance(p, Partial) or (bool(split) and has_terms(split[m]))]
    )


def has_terms(s: OneSplit) -> bool:
    """True where a split has devices along an axis of the mesh compute a part each of what is summed."""
    return s is not None and not (isinstance(s, Running) and s.in_turns)


def turns(split: Split, mesh: Mesh, number: int) -> list[int]:
    """The devices whose blocks of an online sum a device takes: its own first, then, from one to the next along each
    axis of the mesh, those of others."""
    found = [0]
    for m, (n, at) in enumerate(zip(mesh.shape, mesh.coordinates(number), strict=True)):
        s = split[m]
        steps = range(n) if isinstance(s, Running) and s.in_turns else (0,)
        found = [k * n + (at + t) % n for k in found for t in steps]
    return found


def block_of(split: Split, of: Online, mesh: Mesh, number: int) -> Interval:
    """The block of an online sum's axis that is a device's own."""
    shards = tuple([Shard(s.dim) if isinstance(s, Running) else Replicate() for s in split])
    return box_at(shards, of.node.inputs[0].shape, mesh, number)[of.axis]


@dataclass(slots=True)
class _Cut:
    """A node with a layout. `terms`: the box of which each device computes a term, or the value where there is no
    split; `finals`: the box that it has of the value; None: none, as nobody asks it for any. `takes`: of an addition,
    the cuts whose terms it takes as they are; `is_taken`: it is one of those."""

    node: Node
    layout: Layout
    split: Split
    terms: list[IndexBox]
    finals: dict[str, IndexBox]
    is_wanted: bool = False
    is_taken: bool = False
    takes: set[Node] = field(default_factory=set[Node])
    demands: dict[str, list[IndexBox]] = field(default_factory=dict[str, list[IndexBox]])
    values: dict[str, Node] = field(default_factory=dict[str, Node])  # of finals
    own: list[Node] = field(default_factory=list[Node])  # of terms
    online: Online | None = None
    states: list[tuple[Node, ...]] = field(default_factory=list[tuple[Node, ...]])  # in place of terms

    @property
    def has_terms(self) -> bool:
        return is_partial(self.layout) or any(has_terms(s) for s in self.split)


class _Parts(PartsOf):
    """A COPY to the mesh is where its input is computed: who has it on a device of the mesh has copied it. Loops are
    parted where their steps keep axes apart."""

    def __missing__(self, key: Place) -> Parts:
        n, box = key
        if n.op is Op.COPY:
            found = self[key] = Parts((box,), lambda xs: xs[0])
        elif n.op is Op.LOOP:
            found = self[key] = loop_parts(n, box, {})
        else:
            found = super().__missing__(key)
        return found


def local_parts() -> PartsOf:
    """Parts of nodes on a mesh, as its devices make them."""
    return _Parts()


def first_parts(node: Node, box: IndexBox, split: Split, mesh: Mesh, k: int, parts: PartsOf) -> Parts:
    """The parts that device number k makes a box of a cut from, or of its term."""
    found = contraction(node)
    if found is None or not any(split):
        return parts[node, box]
    of = node.inputs[found.number]
    block = box_at(tuple([s if isinstance(s, Shard) else Replicate() for s in split]), of.shape, mesh, k)
    first = all(i == 0 for i, s in zip(mesh.coordinates(k), split, strict=True) if s is not None)
    return term_of(node, box, block, first)


def term_boxes(node: Node, layout: Layout, split: Split, mesh: Mesh) -> list[IndexBox]:
    """The box of which each device computes a term: what those that it shares the sum with have of the value."""
    own = boxes(layout, node.shape, mesh)
    if not summed_axes(layout, split):
        return own
    found: dict[tuple[int, ...], IndexBox] = {}
    for k in range(len(own)):
        group = sharing(mesh, layout, split, k)
        if group not in found:
            found[group] = term_box([own[g] for g in group])
    return [found[sharing(mesh, layout, split, k)] for k in range(len(own))]


def term_box(held: Sequence[IndexBox]) -> IndexBox:
    """The box of which devices that share a sum, and have these boxes of it, each compute a term."""
    return bx.enclosing([b for b in held if count(b)] or held)


def sharing(mesh: Mesh, layout: Layout, split: Split, number: int) -> tuple[int, ...]:
    """The devices whose terms a device's value is a combination of, in the order in which they are combined."""
    found, summed = [0], summed_axes(layout, split)
    for m, (n, at) in enumerate(zip(mesh.shape, mesh.coordinates(number), strict=True)):
        found = [k * n + here for k in found for here in (range(n) if m in summed else (at,))]
    return tuple(found)


@dataclass(slots=True)
class _Lowering:
    mesh: Mesh
    layouts: Mapping[Node, Layout]
    shards: Mapping[Node, Sequence[Node]]
    splits: Mapping[Node, Split]
    cuts: dict[Node, _Cut] = field(default_factory=dict[Node, _Cut])
    singles: dict[Node, Node] = field(default_factory=dict[Node, Node])
    fetches: dict[Node, Fetch] = field(default_factory=dict[Node, Fetch])
    parts: PartsOf = field(default_factory=local_parts)
    term_parts: PartsOf = field(init=False)
    loops: dict[tuple[Node, int], Parts] = field(default_factory=dict[tuple[Node, int], Parts])
    made: dict[str, dict[Place, Node]] = field(default_factory=dict[str, dict[Place, Node]])
    reader: Node = field(init=False)

    def __post_init__(self) -> None:
        self.term_parts = TermParts(self.parts)

    def lowered(self, nodes: Sequence[Node]) -> Lowered:
        order = toposort(nodes)
        for n in order:
            if n in self.layouts:
                self.cuts[n] = self._cut(n)
            elif self._is_single(n):
                pass
            elif n.storage is not None or (n in nodes and n.device is not None):
                raise IRError(f"{n!r} on {self.mesh.name} has no layout")
        for n in reversed(order):
            if n in self.cuts:
                self._settle(self.cuts[n], n in nodes)
            elif self._is_single(n) and n.storage is None:
                for i in n.inputs:
                    if i in self.cuts and n.device is not None:
                        self._demand(i, bx.full(i.shape), n.device)
        for n in order:
            self.reader = n
            if n in self.cuts:
                self._compute(self.cuts[n])
            elif self._is_single(n):
                self.singles[n] = self._single(n)
        local = {n: tuple(c.own) for n, c in self.cuts.items() if c.own}
        others = {n: self.singles.get(n, n) for n in nodes if n not in self.cuts}
        asked = [*(made for n in nodes for made in local.get(n, ())), *others.values()]
        return Lowered(local, others, tuple([self.fetches[n] for n in toposort(asked) if n in self.fetches]))

    def _is_single(self, n: Node) -> bool:
        """True for a node on another device, or in a file."""
        return n.device != self.mesh.name and (n.device is not None or n.op is Op.BUFFER)

    def _cut(self, n: Node) -> _Cut:
        layout, split = self.layouts[n], self.splits.get(n, ())
        check(layout, n.shape, self.mesh)
        check_split(n, layout, split)
        found = _Cut(n, layout, split, term_boxes(n, layout, split, self.mesh), {})
        found.online = online(n) if is_running(split) else None
        return found

    # what each device needs ---------------------------------------------------------------------------------

    def _demand(self, n: Node, box: IndexBox, device: str) -> None:
        if count(box):
            wanted = self.cuts[n].demands.setdefault(device, [])
            if box not in wanted:
                wanted.append(box)

    def _settle(self, cut: _Cut, is_root: bool) -> None:
        """Decide which box of the value each device has, and ask for what its computation needs."""
        devices = self.mesh.devices
        cut.is_wanted = is_root or bool(cut.demands) or cut.is_taken
        if not cut.is_wanted:
            return
        at = dict(zip(devices, cut.terms, strict=True))
        held = all(d in at and all(bx.holds(at[d], b) for b in of) for d, of in cut.demands.items())
        if is_partial(cut.layout) and held:
            cut.finals = {d: bx.enclosing(of) for d, of in cut.demands.items()}
        else:
            cut.finals = dict(zip(devices, boxes(cut.layout, cut.node.shape, self.mesh), strict=True))
        if cut.node.storage is not None:
            return
        if adds_terms(cut.split):
            self._settle_addition(cut)
            return
        if cut.online is not None:
            self._settle_online(cut, cut.online)
            return
        for k, device in enumerate(devices):
            self._demand_below(self._first(cut, k).places(cut.node), device)

    def _settle_addition(self, cut: _Cut) -> None:
        """Ask for the terms that it adds up, and on the first device for what it counts once."""
        read = [term_places(cut.node, box, self.cuts, self.parts) for box in cut.terms]
        for n in dict.fromkeys([n for of in read for n, _ in of if n in self.cuts]):
            own = self.cuts[n]
            boxes_of = [(k, b) for k, of in enumerate(read) for m, b in of if m is n]
            if (
                is_partial(own.layout)
                and summed_axes(own.layout, own.split) == summed_axes(cut.layout, cut.split)
                and _combining(own) is Op.ADD
                and all(bx.holds(own.terms[k], b) for k, b in boxes_of)
            ):
                cut.takes.add(n)
                own.is_taken = True
        for k, device in enumerate(self.mesh.devices):
            if self._is_first(cut, k):
                self._demand_below([(n, b) for n, b in read[k] if n not in cut.takes], device)

    def _settle_online(self, cut: _Cut, of: Online) -> None:
        """Ask for what each device makes states of: block by block, so that it arrives so."""
        for k, device in enumerate(self.mesh.devices):
            if not count(cut.terms[k]):
                continue
            states = States(of, cut.terms[k], self.parts)
            for turn in turns(cut.split, self.mesh, k):
                block = block_of(cut.split, of, self.mesh, turn)
                for n, box in states.needs(block, lambda n: n in self.cuts or self._is_single(n)):
                    if n in self.cuts:
                        self._demand(n, box, device)

    def _is_first(self, cut: _Cut, k: int) -> bool:
        """True for the device of those that share a sum that counts what is in no terms."""
        return all(self.mesh.coordinates(k)[m] == 0 for m in summed_axes(cut.layout, cut.split))

    def _demand_below(self, first: Sequence[Place], device: str) -> None:
        """Ask for what boxes are made from on a device."""
        for n, box in self.parts.ends(first, lambda n, _: n in self.cuts or self._is_single(n)):
            if n in self.cuts:
                self._demand(n, box, device)

    def _first(self, cut: _Cut, k: int) -> Parts:
        """The parts that device number k makes its term from, or its box."""
        if cut.node.op is Op.LOOP:
            return self._loop_parts(cut, k)
        return first_parts(cut.node, cut.terms[k], cut.split, self.mesh, k, self.parts)

    def _loop_parts(self, cut: _Cut, k: int) -> Parts:
        """The parts of a loop that makes all of its results that are cuts."""
        n, key = cut.node, (cut.node, k)
        if key not in self.loops:
            beside = {
                c.node: c.terms[k]
                for c in self.cuts.values()
                if isinstance(c.node.attrs, LoopNode)
                and isinstance(n.attrs, LoopNode)
                and (c.node.attrs.body, c.node.inputs) == (n.attrs.body, n.inputs)
            }
            self.loops[key] = loop_parts(n, cut.terms[k], beside)
        return self.loops[key]

    # local nodes --------------------------------------------------------------------------------------------

    def _compute(self, cut: _Cut) -> None:
        if not cut.is_wanted:
            return
        n = cut.node
        if n.storage is not None:
            cut.own = list(self.shards[n])
        elif cut.online is not None:
            self._compute_online(cut, cut.online)
            return
        else:
            local = self._added if adds_terms(cut.split) else self._local
            cut.own = [local(cut, k) for k in range(len(self.mesh.devices))]
        if not cut.has_terms:
            cut.values = dict(zip(self.mesh.devices, cut.own, strict=True))
            return
        cut.values = {d: self._combined(cut, d) for d in cut.finals}
        if not is_partial(cut.layout):
            cut.own = [cut.values[d] for d in self.mesh.devices]

    def _compute_online(self, cut: _Cut, of: Online) -> None:
        """The states of all devices, and their boxes of the value."""
        devices = self.mesh.devices
        for k, device in enumerate(devices):
            if not count(cut.terms[k]):
                cut.states.append(())
                continue
            states = States(of, cut.terms[k], self.parts)
            blocks = [block_of(cut.split, of, self.mesh, turn) for turn in turns(cut.split, self.mesh, k)]
            found = [states.made(b, self._taken_on(device)) for b in dict.fromkeys(blocks) if b.hi != b.lo]
            if not found:  # a device whose block is empty has nothing to say
                found = [states.made(blocks[0], self._taken_on(device))]
            cut.states.append(tuple([self._on(n, device) for n in reduce(states.combined, found)]))
        if cut.has_terms:
            cut.values = {d: self._combined(cut, d) for d in cut.finals}
        else:
            nothing = const(0, cut.node.dtype, cut.node.shape)
            cut.values = {
                d: self._on(
                    States(of, box, self.parts).result(state)
                    if state
                    else shrunk(nothing, bx.full(nothing.shape), box),
                    d,
                )
                for d, box, state in zip(devices, cut.terms, cut.states, strict=True)
            }
        cut.own = [cut.values[d] for d in devices]

    def _local(self, cut: _Cut, k: int) -> Node:
        """A device's term, or its box where there are none."""
        device, of = self.mesh.devices[k], self._first(cut, k)
        return self._on(of.make([self._pulled(i, b, device) for i, b in of.places(cut.node)]), device)

    def _added(self, cut: _Cut, k: int) -> Node:
        """A device's term of an addition of terms."""
        device, first = self.mesh.devices[k], self._is_first(cut, k)

        def taken(n: Node, box: IndexBox) -> Node | None:
            dtype = wide(n.dtype)
            if not count(box):
                return const(0, dtype, size_of(box))
            if n is cut.node or not is_summand(n, self.cuts):
                return None
            if n in cut.takes:
                term = shrunk(self.cuts[n].own[k], self.cuts[n].terms[k], box)
            elif first:
                term = self._pulled(n, box, device)
            else:
                return const(neutral(Op.ADD, dtype), dtype, size_of(box))
            return apply(Op.CAST, (term,), None, None, dtype)

        return self._on(pulled(cut.node, cut.terms[k], taken, {}, self.term_parts), device)

    def _pulled(self, node: Node, box: IndexBox, device: str) -> Node:
        """A box of a value, computed on a device from what this has of cuts, or fetches."""
        made = self.made.setdefault(device, {})
        return pulled(node, box, self._taken_on(device), made, self.parts)

    def _taken_on(self, device: str) -> Taken:
        """The boxes of cuts and of other devices' nodes that a device has, or fetches."""

        def taken(n: Node, box: IndexBox) -> Node | None:
            if not count(box):
                return const(0, n.dtype, size_of(box))
            if n in self.cuts:
                return self._value(n, box, device)
            if self._is_single(n):
                return self._from_single(n, box, device)
            return None

        return taken

    def _on(self, n: Node, device: str) -> Node:
        """The node on a device: what is made of constants is at home nowhere."""
        return apply(Op.COPY, (n,), Target(device)) if n.device is None else n

    def _single(self, n: Node) -> Node:
        """A node on one device, with what it reads of the mesh."""
        if n.storage is not None or not n.inputs:
            return n
        assert n.device is not None
        if n.op is Op.COPY and n.inputs[0] in self.cuts:
            (x,) = n.inputs
            value = self._value(x, bx.full(x.shape), n.device)
            return value if value.device == n.device else apply(Op.COPY, (value,), Target(n.device))
        inputs = tuple([self.singles.get(i, i) for i in n.inputs])
        return (
            n
            if inputs == n.inputs
            else intern(n.op, inputs, n.attrs, n.shape, n.dtype, device_over(n, inputs))
        )

    def _from_single(self, n: Node, box: IndexBox, device: str) -> Node:
        """A box of a node on a single device."""
        part = shrunk(self.singles[n], bx.full(n.shape), box)
        return self._fetched(n, part, box, device, n.device or "disk")

    def _fetched(
        self, n: Node, part: Node, box: IndexBox, device: str, source: str, is_term: bool = False
    ) -> Node:
        if source == device:
            return part
        copied = apply(Op.COPY, (part,), Target(device))
        self.fetches.setdefault(copied, Fetch(n, box, source, device, is_term, self.reader))
        return copied

    def _value(self, n: Node, box: IndexBox, device: str) -> Node:
        """A box of a cut on a device: its own, or put together from what it has and fetches."""
        if not count(box):
            return const(0, n.dtype, size_of(box))
        cut = self.cuts[n]
        own = cut.finals.get(device)
        if own is not None and bx.holds(own, box):
            return shrunk(cut.values[device], own, box)
        pieces: list[tuple[IndexBox, Node]] = []
        for cell, holders in self._cells(cut):
            here = bx.meet(cell, box)
            if count(here):
                source = self._nearest(holders, device)
                around = here if source == device else self._wanted(cut, cell, here, device)
                part = shrunk(cut.values[source], cell, around)
                pieces.append((here, shrunk(self._fetched(n, part, around, device, source), around, here)))
        return _put_together(pieces, 0)

    def _wanted(self, cut: _Cut, cell: IndexBox, box: IndexBox, device: str) -> IndexBox:
        """All that a device wants of a cell and that overlaps with this: so nothing is fetched twice."""
        wanted = [bx.meet(cell, b) for b in cut.demands.get(device, ())]
        grown, last = box, None
        while grown != last:
            last = grown
            grown = bx.enclosing([grown, *(b for b in wanted if count(bx.meet(b, grown)))])
        return grown

    def _cells(self, cut: _Cut) -> Iterable[tuple[IndexBox, list[str]]]:
        """The different boxes that devices have, with those that have them."""
        found: dict[IndexBox, list[str]] = {}
        for d, box in cut.finals.items():
            if count(box):
                found.setdefault(box, []).append(d)
        return found.items()

    def _nearest(self, holders: Sequence[str], device: str) -> str:
        """The device, of those that hold the same, that differs in the fewest places of the mesh; of several, the next
        one, so that not all ask the same."""
        if device in holders or device not in self.mesh.devices:
            return device if device in holders else holders[0]
        me, count = self.mesh.devices.index(device), len(self.mesh.devices)
        here = self.mesh.coordinates(me)

        def far(d: str) -> tuple[int, int]:
            k = self.mesh.devices.index(d)
            apart = sum(a != b for a, b in zip(self.mesh.coordinates(k), here, strict=True))
            return apart, (k - me) % count

        return min(holders, key=far)

    # sums ---------------------------------------------------------------------------------------------------

    def _combined(self, cut: _Cut, device: str) -> Node:
        """The box of the value that a device has, from all terms of it."""
        box = cut.finals[device]
        if not count(box):
            return self._on(const(0, cut.node.dtype, size_of(box)), device)
        group = sharing(self.mesh, cut.layout, cut.split, self.mesh.devices.index(device))
        sharers = [self.mesh.devices[k] for k in group if cut.finals.get(self.mesh.devices[k]) == box]
        sizes = [n for n in size_of(box) if isinstance(n, int)]
        axis = max(range(len(sizes)), key=lambda k: sizes[k], default=None)
        large = count(box) * term_dtype(cut.node).itemsize >= SHARED_BYTES
        if len(sharers) < 2 or not large or axis is None or sizes[axis] < len(sharers):
            return self._summed(cut, group, box, device)
        pieces: list[tuple[IndexBox, Node]] = []
        for owner, part in zip(sharers, bx.cut(box, axis, len(sharers)), strict=True):
            if count(part):
                summed = self._summed(cut, group, part, owner)
                pieces.append((part, self._fetched(cut.node, summed, part, device, owner)))
        return _put_together(pieces, 0)

    def _summed(self, cut: _Cut, group: Sequence[int], box: IndexBox, device: str) -> Node:
        if cut.online is not None:
            return self._finished(cut, cut.online, group, box, device)
        terms: list[Node] = []
        for k in group:
            part = shrunk(cut.own[k], cut.terms[k], box)
            terms.append(self._fetched(cut.node, part, box, device, self.mesh.devices[k], is_term=True))
        op = _combining(cut)
        return self._on(apply(Op.CAST, (reduce(_applied(op), terms),), None, None, cut.node.dtype), device)

    def _finished(self, cut: _Cut, of: Online, group: Sequence[int], box: IndexBox, device: str) -> Node:
        """A box of an online sum, of the states of a group."""
        wanted = States(of, box, self.parts)
        states: list[tuple[Node, ...]] = []
        for k in group:
            part = States(of, cut.terms[k], self.parts).part(cut.states[k], wanted)
            states.append(
                tuple(
                    [
                        self._fetched(m, n, wanted.boxes[m], device, self.mesh.devices[k], is_term=True)
                        for m, n in zip(of.state, part, strict=True)
                    ]
                )
            )
        return self._on(wanted.result(reduce(wanted.combined, states)), device)


def _applied(op: Op) -> Callable[[Node, Node], Node]:
    return lambda a, b: apply(op, (a, b))


def _combining(cut: _Cut) -> Op:
    return combining(cut.node, cut.layout, cut.split)


def _put_together(pieces: Sequence[tuple[IndexBox, Node]], axis: int) -> Node:
    """One node of the pieces, which are the cells of a grid."""
    if len(pieces) == 1:
        return pieces[0][1]
    ordered = sorted(pieces, key=lambda p: _lo(p[0][axis]))
    slabs = [list(of) for _, of in groupby(ordered, key=lambda p: _lo(p[0][axis]))]
    inner = [_put_together(slab, axis + 1) for slab in slabs]
    return inner[0] if len(inner) == 1 else apply(Op.CONCAT, tuple(inner), Along(axis))


def _lo(i: Interval) -> int:
    assert isinstance(i.lo, int)
    return i.lo
