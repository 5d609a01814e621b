"""Layouts for a graph on a mesh, chosen by cost: no rule per op, and nobody has to annotate anything.

    y = relu(x @ w) @ v         x, v: leaves        cuts: x, w, v, both sums, y
    x @ w                       options: rows, columns, or all of it; or terms of blocks of the inner axis, added up
    edge w -> x @ w             by regions: what each device needs of w beside what it has, over the link between

A cut gets a layout: leaves, results, and what combines terms (sums, gathers, scatters). What is between cuts is
computed by each device as far as it needs it, so work, bytes and exchanges of an option follow from the boxes that it
pulls (`weft.ir.regions.parts`). The choice is that of `search.py`, for `weft.scheduler.sharding.lower`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.errors import ArgumentError
from weft.ir.graph import Node, toposort
from weft.ir.ops import ELEMENTWISE, REDUCE, Op
from weft.ir.placement import Layout, Mesh, Placement, Replicate, Shard, boxes
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox
from weft.ir.regions.parts import Parts, PartsOf, Place
from weft.scheduler.placing.clusters import solve_alike
from weft.scheduler.placing.links import NOTHING, Collective, Links, Way, fastest, slowest
from weft.scheduler.placing.problem import Array, Block, Choice, Counts, Edge, Problem, prices
from weft.scheduler.placing.routes import Routes, block_ends
from weft.scheduler.placing.search import solve
from weft.scheduler.placing.shares import bounds, shares
from weft.scheduler.sharding.lower import Split
from weft.scheduler.sharding.terms import contraction, term_dtype, term_of

MAX_BLOCKS_APART = 200
"""Cuts up to which each is decided by itself; beyond, equal ones are decided alike."""

MAX_DEVICES_LOOKED_AT = 8
"""Devices whose boxes are pulled: of larger meshes some of them, the first and the last included."""

HOLDING_NS_PER_BYTE = 1e-6
"""The price of memory, so that of layouts that are equally fast the smaller one is taken: a microsecond per GB."""


@dataclass(frozen=True, slots=True)
class Rates:
    """A device's speed: operations and bytes per second, and what a kernel takes to begin."""

    flops: float
    bandwidth: float
    launch_ns: float = 1000.0


@dataclass(frozen=True, slots=True)
class Form:
    """An option of a cut: its layout, and how its operand is split into terms."""

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


@dataclass(frozen=True, slots=True)
class _Pull:
    """What a device computes and needs for its part of a cut."""

    operations: float
    nbytes: float
    needs: Mapping[Node, tuple[IndexBox, ...]]


@dataclass(slots=True)
class _Chooser:
    mesh: Mesh
    rates: Sequence[Rates]
    routes: Routes
    given: Mapping[Node, Layout]
    reassociates: bool
    cuts: dict[Node, list[Form]] = field(default_factory=dict[Node, list[Form]])
    parts: PartsOf = field(default_factory=PartsOf)
    looked_at: list[int] = field(default_factory=list[int])
    boxes: dict[tuple[Layout, tuple[int, ...]], list[IndexBox]] = field(
        default_factory=dict[tuple[Layout, tuple[int, ...]], list[IndexBox]]
    )

    def __post_init__(self) -> None:
        count = len(self.mesh.devices)
        some = np.linspace(0, count - 1, min(count, MAX_DEVICES_LOOKED_AT)).astype(int)
        self.looked_at = sorted({int(k) for k in some})

    def box(self, layout: Layout, n: Node, k: int) -> IndexBox:
        """The box of device number k."""
        key = layout, tuple(_sizes(n))
        if key not in self.boxes:
            self.boxes[key] = boxes(layout, key[1], self.mesh)
        return self.boxes[key][k]

    def forms(self, n: Node) -> list[Form]:
        """The options of a cut."""
        if n in self.given:
            return [Form(self.given[n])]
        sizes = _sizes(n)
        per_axis = [self._along(n, sizes, i) for i in range(len(self.mesh.shape))]
        found: list[Form] = []
        for some in itertools.product(*per_axis):
            layout = tuple(p for p, _ in some)
            split = tuple(s for _, s in some)
            if self._fits(n, sizes, layout, split):
                found.append(Form(layout, split if any(split) else ()))
        return found

    def _along(self, n: Node, sizes: Sequence[int], axis: int) -> list[tuple[Placement, Shard | None]]:
        """What the devices along an axis of the mesh can do: hold all, parts of the result, or add terms."""
        shards = self._shards(sizes, range(len(sizes)), axis)
        found: list[tuple[Placement, Shard | None]] = [(p, None) for p in (Replicate(), *shards)]
        terms = contraction(n) if n.storage is None else None
        if terms is None or (not self.reassociates and n.dtype.is_float and terms.op in (Op.ADD, Op.MUL)):
            return found
        operand = _sizes(n.inputs[terms.number])
        for part in self._shards(operand, terms.axes, axis):
            found += [(p, part) for p in (Replicate(), *shards)]
        return found

    def _shards(self, sizes: Sequence[int], dims: Iterable[int], axis: int) -> list[Shard]:
        """Shards in even blocks; where devices are unequal, also in blocks by their speed."""
        count = self.mesh.shape[axis]
        dims = [d for d in dims if sizes[d] >= count > 1]
        speeds = [r.flops for r in self.rates]
        found = [Shard(d) for d in dims]
        if len(self.mesh.shape) == 1 and min(speeds) < max(speeds):
            found += [Shard(d, bounds(shares(sizes[d], [1e9 / s for s in speeds]))) for d in dims]
        return found

    def _fits(self, n: Node, sizes: Sequence[int], layout: Layout, split: Split) -> bool:
        """True unless an axis is parted into more blocks than it has elements, or terms are nested with shards."""
        for i, s in enumerate(split):
            p = layout[i]
            if s is not None and isinstance(p, Shard):
                if any(j != i and isinstance(q, Shard) and q.dim == p.dim for j, q in enumerate(layout)):
                    return False
        for d, size in enumerate(sizes):
            parted = math.prod(
                k for k, p in zip(self.mesh.shape, layout, strict=True) if isinstance(p, Shard) and p.dim == d
            )
            if parted > size:
                return False
        return True

    def pull(self, n: Node, form: Form, k: int) -> _Pull:
        """The work of device number k."""
        if n.storage is not None:
            return _Pull(0.0, 0.0, {})
        of, box = self._first(n, form, k)
        operations = float(bx.volume(box)) if n.op in ELEMENTWISE else 0.0  # pyright: ignore[reportArgumentType]
        needed: dict[Node, dict[IndexBox, None]] = {}
        seen: set[Place] = set()
        inputs = list(zip(n.inputs, of.inputs, strict=True))
        if contraction(n) is not None:
            operations += sum(_volume(b) for _, b in inputs if b is not None)
        stack = [(i, b) for i, b in inputs if b is not None]
        while stack:
            place = stack.pop()
            if place in seen or not _volume(place[1]):
                continue
            seen.add(place)
            node, part = place
            if node in self.cuts:
                needed.setdefault(node, {})[part] = None
            elif node.device is None or node.device == self.mesh.name:
                operations += _volume(part) if node.op in ELEMENTWISE or node.op in REDUCE else 0.0
                stack += [
                    (i, b)
                    for i, b in zip(node.inputs, self.parts[place].inputs, strict=True)
                    if b is not None
                ]
        moved = _volume(box) * n.dtype.itemsize
        moved += sum(_volume(b) * m.dtype.itemsize for m, some in needed.items() for b in some)
        return _Pull(operations, moved, {m: tuple(some) for m, some in needed.items()})

    def _first(self, n: Node, form: Form, k: int) -> tuple[Parts, IndexBox]:
        if not form.split:
            box = self.box(form.layout, n, k)
            return self.parts[n, box], box
        whole = tuple(p if s is None else Replicate() for p, s in zip(form.layout, form.split, strict=True))
        box = self.box(whole, n, k)
        terms = contraction(n)
        assert terms is not None
        block = self.box(tuple(s or Replicate() for s in form.split), n.inputs[terms.number], k)
        at = self.mesh.coordinates(k)
        first = all(i == 0 for i, s in zip(at, form.split, strict=True) if s is not None)
        return term_of(n, box, block, first), box

    def combine_ns(self, n: Node, form: Form) -> float:
        """The time in which terms are added up."""
        if not form.split:
            return 0.0
        whole = tuple(p if s is None else Replicate() for p, s in zip(form.layout, form.split, strict=True))
        nbytes = max(_volume(self.box(whole, n, k)) for k in self.looked_at) * term_dtype(n).itemsize
        summed = [i for i, s in enumerate(form.split) if s is not None]
        alike = tuple(i for i in summed if isinstance(form.layout[i], Replicate))
        total = fastest(self.routes.ways(Collective.ALL_REDUCE, alike), nbytes).ns(nbytes) if alike else 0.0
        for i in summed:
            if i not in alike:
                total += fastest(self.routes.ways(Collective.REDUCE_SCATTER, (i,)), nbytes).ns(nbytes)
        return total

    def ns(self, n: Node, form: Form, pulls: Sequence[_Pull]) -> float:
        """The time of a form by itself: of the slowest device, and of adding terms."""
        if n.storage is not None:
            return 0.0
        slow = 0.0
        for k, p in zip(self.looked_at, pulls, strict=True):
            r = self.rates[k]
            slow = max(slow, r.launch_ns + 1e9 * max(p.operations / r.flops, p.nbytes / r.bandwidth))
        return slow + self.combine_ns(n, form)

    def exchange_ns(self, source: Node, some: Sequence[Sequence[_Pull]]) -> Array:
        """The time in which devices fetch what they lack of a cut: by its form, and by the form of who needs it."""
        forms = self.cuts[source]
        sizes = _sizes(source)
        held = np.stack([block_ends(f.layout, sizes, self.mesh.shape)[self.looked_at] for f in forms])
        table = np.zeros((len(forms), len(some)))
        ways = [self._fetch(f) for f in forms]
        for column, pulls in enumerate(some):
            lacking = np.zeros((len(forms), len(self.looked_at)))
            for k, p in enumerate(pulls):
                for box in p.needs.get(source, ()):
                    ends = np.array([[_end(i.lo), _end(i.hi)] for i in box], np.int64).reshape(len(sizes), 2)
                    first = np.maximum(held[:, k, :, 0], ends[:, 0])
                    last = np.minimum(held[:, k, :, 1], ends[:, 1])
                    lacking[:, k] += _volume(box) - np.maximum(last - first, 0).prod(-1)
            most = lacking.max(axis=1) * source.dtype.itemsize
            table[:, column] = [w.ns(float(n)) if n else 0.0 for w, n in zip(ways, most, strict=True)]
        return table

    def _fetch(self, form: Form) -> Way:
        """A message from a device that holds another part."""
        axes = tuple(i for i, p in enumerate(form.layout) if isinstance(p, Shard))
        return slowest(self.routes.links, self.routes.groups(axes)) if axes else NOTHING


def choose(
    nodes: Sequence[Node],
    mesh: Mesh,
    rates: Sequence[Rates],
    links: Links,
    given: Mapping[Node, Layout] | None = None,
    limit: int | None = None,
    updates: Sequence[tuple[Node, Node]] = (),
    reassociates: bool = True,
) -> Chosen:
    """The layouts with which `nodes`, on a mesh, are computed soonest; `rates` and `links` of its devices.

    `given`: layouts that are kept. `limit`: bytes of each device, for all cuts together. `updates`: pairs of a result
    and the leaf that it replaces, so that the next step finds it where this one did. Without `reassociates` no sum of
    floats is split.

    Source: the problem is Alpa's of layouts inside of operators (Zheng et al. 2022), with the tables from regions.
    """
    if len(rates) != len(mesh.devices) or links.count != len(mesh.devices):
        raise ArgumentError(
            f"{mesh.name} has {len(mesh.devices)} devices, {len(rates)} rates, {links.count} links"
        )
    chooser = _Chooser(mesh, rates, Routes(mesh, links), given or {}, reassociates)
    for n in _cuts(nodes, mesh, chooser.given):
        chooser.cuts[n] = chooser.forms(n)
    index = {n: k for k, n in enumerate(chooser.cuts)}
    blocks: list[Block] = []
    edges: list[Edge] = []
    for n, forms in chooser.cuts.items():
        pulls = [[chooser.pull(n, f, k) for k in chooser.looked_at] for f in forms]
        ns = np.array([chooser.ns(n, f, p) for f, p in zip(forms, pulls, strict=True)])
        nbytes = _stored(n, forms, mesh)
        ns += nbytes * HOLDING_NS_PER_BYTE
        pools = nbytes[:, None] if limit is not None else np.zeros((len(forms), 0), np.int64)
        blocks.append(Block(repr(n), ns, pools, (n.op, n.shape, n.dtype)))
        sources = dict.fromkeys(m for of in pulls for p in of for m in p.needs)
        edges += [Edge(index[m], index[n], chooser.exchange_ns(m, pulls)) for m in sources]
    for new, leaf in updates:
        some = [[f.layout for f in chooser.cuts[n]] for n in (new, leaf)]
        table = chooser.routes.distances(_sizes(leaf), leaf.dtype.itemsize, some[0], some[1])
        edges.append(Edge(index[new], index[leaf], table))
    problem = Problem(tuple(blocks), tuple(edges), () if limit is None else (limit,))
    choice = solve(problem) if len(blocks) <= MAX_BLOCKS_APART else solve_alike(problem)
    forms = {n: some[k] for (n, some), k in zip(chooser.cuts.items(), choice.options, strict=True)}
    return Chosen(
        {n: f.layout for n, f in forms.items()},
        {n: f.split for n, f in forms.items() if f.split},
        tuple(_decisions(chooser, problem, choice)),
        choice,
    )


def _decisions(chooser: _Chooser, problem: Problem, choice: Choice) -> Iterable[Decision]:
    both = zip(chooser.cuts.items(), problem.blocks, prices(problem, choice), choice.options, strict=True)
    for (n, forms), block, more, k in both:
        others = sorted((float(more[j]), j) for j in range(len(forms)) if j != k)
        yield Decision(n, forms[k], float(block.ns[k]), tuple((forms[j], ns) for ns, j in others))


def _cuts(nodes: Sequence[Node], mesh: Mesh, given: Mapping[Node, Layout]) -> list[Node]:
    """Nodes that get a layout: what is stored, results, combinations of terms, what is copied away, and wishes."""
    found: dict[Node, None] = {}
    roots = set(nodes)
    order = toposort(nodes)
    away = {i for n in order if n.device not in (None, mesh.name) and n.storage is None for i in n.inputs}
    for n in order:
        if n.device == mesh.name:
            combines = contraction(n) is not None
            if n.storage is not None or n in roots or combines or n in away or n in given:
                found[n] = None
    return list(found)


def _stored(n: Node, forms: Sequence[Form], mesh: Mesh) -> Counts:
    """The bytes of the largest block of each form."""
    ends = [block_ends(f.layout, _sizes(n), mesh.shape) for f in forms]
    return np.array([int((e[..., 1] - e[..., 0]).prod(-1).max()) * n.dtype.itemsize for e in ends], np.int64)


def _sizes(n: Node) -> list[int]:
    return [s if isinstance(s, int) else s.hi for s in n.shape]


def _end(i: object) -> int:
    assert isinstance(i, int)
    return i


def _volume(box: IndexBox) -> float:
    found = bx.volume(box)
    return float(found if isinstance(found, int) else found.hi)
