"""Layouts for a graph on a mesh, chosen by cost: no rule per op, and nobody has to annotate anything.

    y = relu(x @ w) @ v         x, v: leaves        cuts: x, w, v, both sums, y
    x @ w                       options: rows, columns, or all of it; or terms of blocks of the inner axis, added up
    edge w -> x @ w             by regions: what each device needs of w beside what it has, over the link between

A cut gets a layout: leaves, results, what combines terms (sums, gathers, scatters), and what joins several cuts. Sums
that one addition alone reads may stay in terms, which it adds up as they are (`sharding/terms.py`) and combines once.
What is between cuts is computed by each device as far as it needs it, so work, bytes and exchanges of an option follow
from the boxes that it pulls (`weft.ir.regions.parts`). The choice is that of `search.py`, for `sharding.lower`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from weft.backends.links import links
from weft.backends.protocol import Device
from weft.errors import ArgumentError
from weft.ir.graph import Node, Target, toposort
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.ir.placement import Layout, Mesh, Partial, Placement, Replicate, Shard
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.parts import Parts, PartsOf
from weft.lazy_dataclass import dataclass
from weft.scheduler.placing.clusters import solve_alike
from weft.scheduler.placing.links import Collective, Links, fastest
from weft.scheduler.placing.problem import Array, Block, Choice, Counts, Edge, Problem, prices
from weft.scheduler.placing.routes import Routes, block_ends
from weft.scheduler.placing.search import solve
from weft.scheduler.placing.shares import bounds, grouped
from weft.scheduler.sharding.lower import OneSplit, Split, has_terms, is_partial, local_parts
from weft.scheduler.sharding.online import Online, Running, taken_in_blocks
from weft.scheduler.sharding.propagate import CUT_OPS
from weft.scheduler.sharding.terms import additions, combination, contraction, term_dtype, term_of

MAX_BLOCKS_APART = 200
"""Cuts up to which each is decided by itself; beyond, equal ones are decided alike."""

MAX_DEVICES_LOOKED_AT = 4
"""Devices whose boxes are pulled: of larger meshes some of them, the first and the last included."""

HOLDING_NS_PER_BYTE = 1e-6
"""The price of memory, so that of layouts that are equally fast the smaller one is taken: a microsecond per GB."""


@dataclass(frozen=True, slots=True)
class Rates:
    """A device's speed: operations and bytes per second, and what a kernel takes to begin."""

    flops: float
    bandwidth: float
    launch_ns: float = 1000.0


def described(devices: Sequence[Device], slower: Sequence[float] = ()) -> tuple[list[Rates], Links]:
    """The rates of devices and the links between them: stated, or measured once for each pair on this machine.
    `slower`: the times by which each device is slower than stated."""
    both = zip([d.info for d in devices], slower or (1.0,) * len(devices), strict=True)
    rates = [Rates(i.flops / times, i.bandwidth / times, i.launch_ns) for i, times in both]
    latency, per_byte = np.zeros((2, len(devices), len(devices)))
    for (i, a), (j, b) in itertools.permutations(enumerate(devices), 2):
        link = links(a, b)
        latency[i, j], per_byte[i, j] = 1e9 * link.alpha_s, 1e9 / link.bytes_per_second
    return rates, Links(latency, per_byte)


@dataclass(frozen=True, slots=True)
class Form:
    """An option of a cut: its layout, and how its operand is split into terms; an addition may take those it reads."""

    layout: Layout
    split: Split = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """The form of a cut, what it takes by itself, and what each other form would add to the whole, least first."""

    node: Node
    form: Form
    ns: float
    others: tuple[tuple[Form, float], ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Layouts and splits of all cuts, as `lower` takes them; the decisions, and the certificate of the whole."""

    layouts: Mapping[Node, Layout]
    splits: Mapping[Node, Split]
    decisions: tuple[Decision, ...]
    choice: Choice


_Side: TypeAlias = tuple[bool, int, int, int]
"""Along one axis a part only: is it of what is reduced (else of the result), the axis, the part's first and its end."""


@dataclass(slots=True)
class _Cone:
    """The nodes between a cut and the cuts that it reads, those included, with the box of each that a part of the cut
    needs: of a part along one axis by regions; of one along several axes, what all of these need.

    Boxes of all nodes stand below each other as rows (first, end); a node without axes has one row.
    """

    cut: Node
    nodes: list[Node]
    inner: frozenset[Node]
    parts: PartsOf
    online: Online | None = None
    starts: Counts = field(init=False)
    weights: Array = field(init=False)
    known: dict[_Side | None, Counts] = field(default_factory=dict[_Side | None, Counts])

    def __post_init__(self) -> None:
        ranks = [max(1, len(n.shape)) for n in self.nodes]
        self.starts = np.cumsum([0, *ranks])[:-1]
        own = self.cut.inputs if combination(self.cut) is not None else ()
        self.weights = np.array(
            [
                own.count(n) + (n in self.inner and (n.op in ELEMENTWISE or n.op in REDUCE))
                for n in self.nodes
            ],
            np.float64,
        )

    def needs(self, sides: Iterable[_Side]) -> Counts:
        """The rows for a part that is cut along these axes."""
        found = self._along(None)
        for side in sides:
            other = self._along(side)
            found = np.stack(
                [np.maximum(found[:, 0], other[:, 0]), np.minimum(found[:, 1], other[:, 1])], axis=1
            )
        return found

    def volumes(self, rows: Counts) -> Array:
        """The elements of each node's box."""
        if not len(self.nodes):
            return np.zeros(0)
        return np.multiply.reduceat(np.maximum(rows[:, 1] - rows[:, 0], 0).astype(np.float64), self.starts)

    def _along(self, side: _Side | None) -> Counts:
        if side not in self.known:
            self.known[side] = self._pulled(side)
        return self.known[side]

    def _pulled(self, side: _Side | None) -> Counts:
        n = self.cut
        box = bx.full(_sizes(n))
        if side is None:
            of = self.parts[n, box]
        else:
            of_terms, axis, lo, hi = side
            if of_terms:
                terms = contraction(n)
                assert terms is not None
                of = term_of(n, box, _with_side(bx.full(_sizes(n.inputs[terms.number])), axis, lo, hi), True)
            else:
                of = self.parts[n, _with_side(box, axis, lo, hi)]
        boxes_of: dict[Node, IndexBox] = {}
        _demand(boxes_of, n, of)
        for node in self.nodes:
            if node in self.inner and node in boxes_of:
                _demand(boxes_of, node, self._parts(node, boxes_of[node], side))
        rows: list[tuple[int, int]] = []
        for node in self.nodes:
            found = boxes_of.get(node)
            if found is None:
                rows += [(0, 0)] * max(1, len(node.shape))
            else:
                rows += [(_end(i.lo), _end(i.hi)) for i in found] or [(0, 1)]
        return np.array(rows, np.int64).reshape(len(rows), 2)

    def _parts(self, n: Node, box: IndexBox, side: _Side | None) -> Parts:
        """The parts of an inner node; of the state of a block, those of the block."""
        if self.online is None or side is None or not side[0] or n not in self.online.state:
            return self.parts[n, box]
        whole = bx.full(_sizes(n.inputs[0]))
        return term_of(n, box, _with_side(whole, self.online.axis_of(n), side[2], side[3]), True)


@dataclass(frozen=True, slots=True)
class _Study:
    """The forms of a cut, the time of each by itself, and the box that each needs of each source on each device.
    `beside_ns`: the time that exchanges may take beside computing, of blocks taken in turns, and of each source whether
    it is in blocks."""

    forms: list[Form]
    ns: Array
    rows: list[Counts]  # per source: (forms, devices, axes, first and end)
    beside_ns: Array | None = None
    in_blocks: tuple[bool, ...] = ()


@dataclass(slots=True)
class _Chooser:
    mesh: Mesh
    rates: Sequence[Rates]
    routes: Routes
    given: Mapping[Node, Layout]
    reassociates: bool
    additions: Mapping[Node, tuple[Node, ...]] = field(default_factory=dict[Node, tuple[Node, ...]])
    added: set[Node] = field(default_factory=set[Node])
    online: Mapping[Node, Online] = field(default_factory=dict[Node, Online])
    cuts: dict[Node, None] = field(default_factory=dict[Node, None])
    position: dict[Node, int] = field(default_factory=dict[Node, int])
    studies: dict[Hashable, _Study] = field(default_factory=dict[Hashable, _Study])
    parts: PartsOf = field(default_factory=local_parts)
    looked_at: list[int] = field(default_factory=list[int])
    ends: dict[tuple[Layout, tuple[int, ...]], Counts] = field(
        default_factory=dict[tuple[Layout, tuple[int, ...]], Counts]
    )

    def __post_init__(self) -> None:
        count = len(self.mesh.devices)
        some = np.linspace(0, count - 1, min(count, MAX_DEVICES_LOOKED_AT)).astype(int)
        self.looked_at = sorted({int(k) for k in some})

    def blocks(self, layout: Layout, n: Node) -> Counts:
        """The boxes of the devices that are looked at: (devices, axes, first and end)."""
        key = layout, tuple(_sizes(n))
        if key not in self.ends:
            self.ends[key] = block_ends(layout, key[1], self.mesh.shape)[self.looked_at]
        return self.ends[key]

    def forms(self, n: Node) -> list[Form]:
        """The options of a cut."""
        sizes = _sizes(n)
        per_axis = [self._along(n, sizes, i) for i in range(len(self.mesh.shape))]
        if n in self.given:
            kept = self.given[n]
            splits = [{s for _, s in some if s is not None} for some in per_axis]
            whole = [() if isinstance(p, Partial) and n.storage is None else (None,) for p in kept]
            per_axis = [[(p, s) for s in (*w, *some)] for p, w, some in zip(kept, whole, splits, strict=True)]
        found: list[Form] = []
        for some in itertools.product(*per_axis):
            layout = tuple(p for p, _ in some)
            split = tuple(s for _, s in some)
            if n in self.given or self._fits(n, sizes, layout, split):
                found.append(Form(layout, split if any(split) else ()))
        if not found:
            raise ArgumentError(f"{n!r} is no sum of terms as {self.given[n]} has them")
        return found

    def _along(self, n: Node, sizes: Sequence[int], axis: int) -> list[tuple[Placement, OneSplit]]:
        """The uses of an axis of the mesh: its devices hold all, have parts of the result each, or add terms."""
        shards = self._shards(sizes, range(len(sizes)), axis)
        uses: list[Placement] = [Replicate(), *shards]
        found: list[tuple[Placement, OneSplit]] = [(p, None) for p in uses]
        if n in self.additions:
            return found + [(p, Partial()) for p in uses]
        if n in self.online:
            of = self.online[n]
            count = self.mesh.shape[axis]
            if count > 1 and _sizes(n.inputs[0])[of.axis] >= count:
                found += [(p, Running(of.axis, in_turns=False)) for p in uses]
                found += [(p, Running(of.axis, in_turns=True)) for p in shards]
            return found
        terms = contraction(n) if n.storage is None else None
        if terms is None or (not self.reassociates and n.dtype.is_float and terms.op in (Op.ADD, Op.MUL)):
            return found
        operand = _sizes(n.inputs[terms.number])
        for part in self._shards(operand, terms.axes, axis):
            found += [(p, part) for p in uses]
            if n in self.added:
                found.append((Partial(), part))
        return found

    def _shards(self, sizes: Sequence[int], dims: Iterable[int], axis: int) -> list[Shard]:
        """Shards in even blocks; where devices are unequal, also in blocks by their speed."""
        count = self.mesh.shape[axis]
        dims = [d for d in dims if sizes[d] >= count > 1]
        speeds = [r.flops for r in self.rates]
        found = [Shard(d) for d in dims]
        if len(self.mesh.shape) == 1 and min(speeds) < max(speeds):
            found += [Shard(d, bounds(grouped(sizes[d], [1e9 / s for s in speeds]))) for d in dims]
        return found

    def _fits(self, n: Node, sizes: Sequence[int], layout: Layout, split: Split) -> bool:
        """True unless an axis is parted into more blocks than it has elements, terms are nested with shards, or some of
        them kept and others combined."""
        if is_partial(layout) and any(
            s is not None and not isinstance(p, Partial) for s, p in zip(split, layout, strict=True)
        ):
            return False
        for i, s in enumerate(split):
            p = layout[i]
            if has_terms(s) and isinstance(p, Shard):
                if any(j != i and isinstance(q, Shard) and q.dim == p.dim for j, q in enumerate(layout)):
                    return False
        for d, size in enumerate(sizes):
            parted = math.prod(
                k for k, p in zip(self.mesh.shape, layout, strict=True) if isinstance(p, Shard) and p.dim == d
            )
            if parted > max(1, size):
                return False
        return True

    def study(self, n: Node) -> tuple[_Study, list[Node]]:
        """A cut's forms and what they need, the same for all cuts of one structure; and the cuts that it reads."""
        inner, nodes = self._reached(n)
        sources = [m for m in nodes if m in self.cuts]
        number = {m: k for k, m in enumerate(nodes)}
        structure = tuple(
            (m.op, m.attrs, m.shape, m.dtype, tuple(number[i] for i in m.inputs if i in number))
            if m in inner
            else (m.shape, m.dtype, m in self.cuts)
            for m in nodes
        )
        own = n.storage is None, n.op, n.attrs, n.shape, n.dtype, tuple(number.get(i) for i in n.inputs)
        key = own, structure, self.given.get(n), n in self.additions, n in self.added, n in self.online
        if key not in self.studies:
            self.studies[key] = self._study(n, inner, nodes, sources)
        return self.studies[key], sources

    def _reached(self, n: Node) -> tuple[frozenset[Node], list[Node]]:
        """Nodes between a cut and the cuts that it reads; these and those, readers first."""
        inner: set[Node] = set()
        found: set[Node] = set()
        stack = list(n.inputs) if n.storage is None else []
        while stack:
            m = stack.pop()
            if m in found:
                continue
            found.add(m)
            if m not in self.cuts and m.device in (None, self.mesh.name):
                inner.add(m)
                stack += m.inputs
        return frozenset(inner), sorted(found, key=self.position.__getitem__, reverse=True)

    def _study(self, n: Node, inner: frozenset[Node], nodes: list[Node], sources: Sequence[Node]) -> _Study:
        forms = self.forms(n)
        if n.storage is not None:
            return _Study(forms, np.zeros(len(forms)), [])
        of = self.online.get(n)
        cone = _Cone(n, nodes, inner, self.parts, of)
        ns = np.zeros(len(forms))
        where = [(k, max(1, len(m.shape))) for k, m in enumerate(nodes) if m in self.cuts]
        rows = [np.zeros((len(forms), len(self.looked_at), rank, 2), np.int64) for _, rank in where]
        widths = np.array([m.dtype.itemsize if m in self.cuts else 0 for m in nodes], np.float64)
        seen: dict[tuple[_Side, ...], tuple[Counts, float, float]] = {}
        for f, form in enumerate(forms):
            for d, (sides, size) in enumerate(self._sides(n, form)):
                if sides not in seen:
                    needed = cone.needs(sides)
                    volumes = cone.volumes(needed)
                    seen[sides] = needed, float(volumes @ cone.weights), float(volumes @ widths)
                needed, operations, nbytes = seen[sides]
                operations += size if n.op in ELEMENTWISE else 0.0
                nbytes += size * n.dtype.itemsize
                r = self.rates[self.looked_at[d]]
                busy = r.launch_ns + 1e9 * max(operations / r.flops, nbytes / r.bandwidth)
                ns[f] = max(ns[f], busy if size else 0.0)
                for (node, rank), table in zip(where, rows, strict=True):
                    table[f, d] = needed[cone.starts[node] : cone.starts[node] + rank]
        if of is None:
            ns += [self.combine_ns(n, form) for form in forms]
            return _Study(forms, ns, rows)
        first = cone.needs([(True, of.axis, 0, 1)])
        whole = cone.needs([])
        apart = [
            (first[(at := cone.starts[k]) : at + rank] != whole[at : at + rank]).any() for k, rank in where
        ]
        beside = np.array([self._beside_ns(form, float(t)) for form, t in zip(forms, ns, strict=True)])
        ns += [self.combine_ns(n, form) + self._turns_ns(n, of, form) for form in forms]
        return _Study(forms, ns, rows, beside, tuple([bool(a) for a in apart]))

    def _turns(self, form: Form) -> int:
        """The blocks of a sum that a device takes one after the other."""
        split = zip(self.mesh.shape, form.split or (None,) * len(self.mesh.shape), strict=True)
        return math.prod(k for k, s in split if isinstance(s, Running) and s.in_turns)

    def _beside_ns(self, form: Form, ns: float) -> float:
        """The time of all blocks but the first, while which the others may travel."""
        count = self._turns(form)
        return ns * (count - 1) / count

    def _turns_ns(self, n: Node, of: Online, form: Form) -> float:
        """The time that states take beyond one pass: kernels to begin, and sums that each block reads and writes."""
        own = self.blocks(form.layout, n)
        nbytes = float((own[..., 1] - own[..., 0]).prod(-1).max()) * of.nbytes_per_element
        slowest = max(r.launch_ns + 1e9 * 3 * nbytes / r.bandwidth for r in self.rates)
        return (self._turns(form) - 1) * slowest

    def _sides(self, n: Node, form: Form) -> Iterable[tuple[tuple[_Side, ...], float]]:
        """For each device the axes along which it has a part only, and the size of its part."""
        whole = form.layout
        if form.split:
            whole = tuple(Replicate() if has_terms(s) else p for p, s in zip(whole, form.split, strict=True))
        own = self.blocks(whole, n)
        dims = sorted({p.dim for p in whole if isinstance(p, Shard)})
        terms = contraction(n) if form.split else None
        split = tuple([_part_of(s) for s in form.split])
        axes = sorted({s.dim for s in split if isinstance(s, Shard)})
        block = own if terms is None else self.blocks(split, n.inputs[terms.number])
        sizes = (own[..., 1] - own[..., 0]).prod(-1).tolist()
        for mine, theirs, size in zip(own.tolist(), block.tolist(), sizes, strict=True):
            of_result = [(False, d, mine[d][0], mine[d][1]) for d in dims]
            yield (*of_result, *((True, a, theirs[a][0], theirs[a][1]) for a in axes)), float(size)

    def combine_ns(self, n: Node, form: Form) -> float:
        """The time in which terms are added up; of those that are kept, none."""
        if not form.split:
            return 0.0
        whole = tuple(
            Replicate() if has_terms(s) else p for p, s in zip(form.layout, form.split, strict=True)
        )
        own = self.blocks(whole, n)
        each = self.online[n].nbytes_per_element if n in self.online else term_dtype(n).itemsize
        nbytes = int(int((own[..., 1] - own[..., 0]).prod(-1).max()) * each)
        kept = [isinstance(p, Partial) for p in form.layout]
        summed = [i for i, s in enumerate(form.split) if has_terms(s) and not kept[i]]
        alike = tuple(i for i in summed if isinstance(form.layout[i], Replicate))
        total = fastest(self.routes.ways(Collective.ALL_REDUCE, alike), nbytes).ns(nbytes) if alike else 0.0
        for i in summed:
            if i not in alike:
                total += fastest(self.routes.ways(Collective.REDUCE_SCATTER, (i,)), nbytes).ns(nbytes)
        return total

    def exchange_ns(
        self, source: Node, forms: Sequence[Form], needed: Counts, readers: Sequence[Form]
    ) -> Array:
        """The time in which devices fetch what they lack of a cut: by its form, and by the form of who needs it.

        What several readers fetch alike counts for each of them. Terms are free for an addition that takes them as they
        lie; all others wait until they are combined.
        """
        wanted = np.maximum(needed[..., 1] - needed[..., 0], 0).prod(-1)
        found = self._fetch_ns(source, forms, needed, wanted)
        nbytes = (wanted.max(axis=-1) * term_dtype(source).itemsize).tolist()
        takes = [_partial_axes(f.split) for f in readers]
        for f, form in enumerate(forms):
            kept = _partial_axes(form.layout)
            ways = self.routes.ways(Collective.ALL_REDUCE, kept) if kept else ()
            for r, size in enumerate(nbytes if kept else ()):
                if size and (takes[r] != kept or found[f, r] > 0):
                    found[f, r] += fastest(ways, size).ns(size)
        return found

    def _fetch_ns(self, source: Node, forms: Sequence[Form], needed: Counts, wanted: Counts) -> Array:
        sizes = _sizes(source)
        if not sizes:
            return np.zeros((len(forms), len(needed)))
        held = np.stack([self.blocks(f.layout, source) for f in forms])
        first = np.maximum(held[:, None, ..., 0], needed[None, ..., 0])
        last = np.minimum(held[:, None, ..., 1], needed[None, ..., 1])
        lacking = (wanted[None] - np.maximum(last - first, 0).prod(-1)).max(axis=-1) * source.dtype.itemsize
        axes = [tuple(i for i, p in enumerate(f.layout) if isinstance(p, Shard)) for f in forms]
        some = [self.routes.slowest(a) for a in axes]  # another part is along one of these
        fixed, each = (
            np.array(x)[:, None] for x in ([w.fixed_ns for w in some], [w.ns_per_byte for w in some])
        )
        return np.where(lacking > 0, fixed + lacking * each, 0.0)


def choose(
    nodes: Sequence[Node],
    mesh: Mesh,
    rates: Sequence[Rates],
    between: Links,
    given: Mapping[Node, Layout] | None = None,
    limit: int | None = None,
    updates: Sequence[tuple[Node, Node]] = (),
    reassociates: bool = True,
) -> Chosen:
    """The layouts with which `nodes`, on a mesh, are computed soonest; `rates` of its devices, and links
    `between` them.

    `given`: layouts that are kept, as are those that copies ask for. `limit`: bytes of each device, for all cuts
    together. `updates`: pairs of a result and the leaf that it replaces, so that the next step finds it where this one
    did. Without `reassociates` no sum of floats is split.

    Source: the problem is Alpa's of layouts inside of operators (Zheng et al. 2022), with the tables from regions.
    """
    if len(rates) != len(mesh.devices) or between.count != len(mesh.devices):
        raise ArgumentError(
            f"{mesh.name} has {len(mesh.devices)} devices, {len(rates)} rates, {between.count} links"
        )
    order = toposort(nodes)
    asked = {
        n: n.attrs.layout
        for n in order
        if isinstance(n.attrs, Target) and n.attrs.layout and n.device == mesh.name
    }
    chooser = _Chooser(mesh, rates, Routes(mesh, between), {**asked, **(given or {})}, reassociates)
    chooser.position = {n: k for k, n in enumerate(order)}
    fixed = _fixed(order, nodes, mesh, chooser.given)
    chooser.additions = {
        n: of
        for n, of in additions(order, fixed).items()
        if n.device == mesh.name and (reassociates or not n.dtype.is_float)
    }
    chooser.added = {s for of in chooser.additions.values() for s in of}
    within: set[Node] = set()
    if reassociates:
        chooser.online, within = taken_in_blocks(order, fixed, mesh.name)
        chooser.added -= chooser.online.keys()
    chooser.cuts = dict.fromkeys(_cuts(order, {*fixed, *chooser.additions}, mesh, within))
    index = {n: k for k, n in enumerate(chooser.cuts)}
    blocks: list[Block] = []
    edges: list[Edge] = []
    forms: list[list[Form]] = []
    own: dict[int, tuple[Array, Counts]] = {}
    exchanges: dict[tuple[int, int, int], Array] = {}
    for n in chooser.cuts:
        study, sources = chooser.study(n)
        if id(study) not in own:
            # what a tensor is laid out as where it stays, its elements are already
            is_moved = n.op is Op.COPY and n.inputs[0] in index
            nbytes = np.zeros(len(study.forms), np.int64) if is_moved else _stored(n, study.forms, mesh)
            pools = nbytes[:, None] if limit is not None else np.zeros((len(study.forms), 0), np.int64)
            own[id(study)] = study.ns + nbytes * HOLDING_NS_PER_BYTE, pools
        blocks.append(Block(repr(n), *own[id(study)], (n.op, n.shape, n.dtype)))
        forms.append(study.forms)
        for k, m in enumerate(sources):
            theirs = forms[index[m]]
            key = id(study), k, id(theirs)
            if key not in exchanges:
                exchanges[key] = _beside(chooser.exchange_ns(m, theirs, study.rows[k], study.forms), study, k)
            edges.append(Edge(index[m], index[n], exchanges[key]))
    for new, leaf in updates:
        some = [[f.layout for f in forms[index[n]]] for n in (new, leaf)]
        table = chooser.routes.distances(_sizes(leaf), leaf.dtype.itemsize, some[0], some[1])
        edges.append(Edge(index[new], index[leaf], table))
    problem = Problem(tuple(blocks), tuple(edges), () if limit is None else (limit,))
    choice = solve(problem) if len(blocks) <= MAX_BLOCKS_APART else solve_alike(problem)
    taken = {n: some[k] for n, some, k in zip(chooser.cuts, forms, choice.options, strict=True)}
    return Chosen(
        {n: f.layout for n, f in taken.items()},
        {n: f.split for n, f in taken.items() if f.split},
        tuple(_decisions(list(chooser.cuts), forms, problem, choice)),
        choice,
    )


def _decisions(
    cuts: Sequence[Node], forms: Sequence[Sequence[Form]], problem: Problem, choice: Choice
) -> Iterable[Decision]:
    both = zip(cuts, forms, problem.blocks, prices(problem, choice), choice.options, strict=True)
    for n, some, block, more, k in both:
        others = sorted((float(more[j]), j) for j in range(len(some)) if j != k)
        yield Decision(n, some[k], float(block.ns[k]), tuple((some[j], ns) for ns, j in others))


def _fixed(
    order: Sequence[Node], nodes: Sequence[Node], mesh: Mesh, given: Mapping[Node, Layout]
) -> set[Node]:
    """Nodes that others than those of the mesh read, or that are laid out as somebody asks."""
    away = {i for n in order if n.device not in (None, mesh.name) and n.storage is None for i in n.inputs}
    return {*nodes, *away, *given}


def _beside(ns: Array, study: _Study, source: int) -> Array:
    """The times of exchanges of a source that are not hidden beside computing: what is taken in turns arrives while
    others of its blocks are computed, and shares that time with the other sources by bytes."""
    if study.beside_ns is None or not study.in_blocks[source]:
        return ns
    sizes = np.array([
        (r[..., 1] - r[..., 0]).prod(-1).max() if apart else 0
        for r, apart in zip(study.rows, study.in_blocks, strict=True)
    ])  # fmt: skip
    return np.maximum(ns - study.beside_ns * float(sizes[source] / sizes.sum()), 0.0)


def _part_of(s: OneSplit) -> Placement:
    """The blocks that a split has devices compute a part each of: as a placement of what is summed."""
    if isinstance(s, Running):
        return Replicate() if s.in_turns else Shard(s.dim)
    return s or Replicate()


def _cuts(
    order: Sequence[Node], fixed: Collection[Node], mesh: Mesh, within: Collection[Node]
) -> Iterable[Node]:
    """Nodes that get a layout: what is stored, combinations of terms, what is fixed; and what joins several of these
    for several readers, so that what lies between cuts does not grow with the graph, or to be laid out in another way:
    each device may then compute a part, and fetch the rest. Not what is `within` others."""
    readers = Counter(i for n in order for i in set(n.inputs))
    laid_out = {n.inputs[0] for n in order if n.op is Op.COPY and n.device == mesh.name}
    reads: dict[Node, frozenset[Node]] = {}
    for n in order:
        below = frozenset[Node]().union(*(reads.get(i, frozenset[Node]()) for i in n.inputs))
        leaf = n.storage is not None or n.op is Op.BUFFER
        decided = leaf or n in fixed or n.op in CUT_OPS or n.op is Op.COPY
        joins = n.op in ELEMENTWISE and (readers[n] > 1 or n in laid_out) and len(below) > 1
        if n.device == mesh.name and (decided or joins) and n not in within:
            yield n
            below = frozenset((n,))
        reads[n] = below


def _demand(boxes_of: dict[Node, IndexBox], n: Node, of: Parts) -> None:
    """Add the boxes that a part is made of: of what is needed several times, the box around all."""
    for i, b in of.places(n):
        boxes_of[i] = bx.enclosing([boxes_of[i], b]) if i in boxes_of else b


def _partial_axes(layout: Layout | Split) -> tuple[int, ...]:
    return tuple([i for i, p in enumerate(layout) if isinstance(p, Partial)])


def _with_side(box: IndexBox, axis: int, lo: int, hi: int) -> IndexBox:
    return tuple(Interval(lo, hi) if k == axis else i for k, i in enumerate(box))


def _stored(n: Node, forms: Sequence[Form], mesh: Mesh) -> Counts:
    """The bytes of the largest block of each form."""
    ends = [block_ends(f.layout, _sizes(n), mesh.shape) for f in forms]
    return np.array([int((e[..., 1] - e[..., 0]).prod(-1).max()) * n.dtype.itemsize for e in ends], np.int64)


def _sizes(n: Node) -> list[int]:
    return [s if isinstance(s, int) else s.hi for s in n.shape]


def _end(i: object) -> int:
    assert isinstance(i, int)
    return i
