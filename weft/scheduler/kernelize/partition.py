"""Which kernel computes which nodes: one walk from the outputs to the leaves.

When a node is visited, all that reads it is known: its sites, each in a group (a kernel to be). It is then either
computed at its sites (fused into the groups that read it), or stored: by one of those groups, by a group that computes
something alike, or by a new group; the other sites load it. Consumers come first, so every decision sees all
consequences downstream, and one walk is enough. Groups never form a cycle: a group that stores a node for others must
not consume what these others store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weft.ir import dtypes
from weft.ir import expr as ex
from weft.ir.graph import Along, Axes, Box, Combine, Fill, Node, apply, elements, toposort
from weft.ir.index import (
    NEVER,
    Guard,
    Index,
    Int,
    Opaque,
    Var,
    both,
    floordiv,
    high,
    in_range,
    mod,
    variables,
)
from weft.ir.movement import reshape_index, source
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import covers, one_to_one
from weft.scheduler.kernelize.contraction import products
from weft.scheduler.kernelize.facts import Big, Facts, gather_facts, is_leaf, leaf_bytes
from weft.scheduler.kernelize.groups import Frame, Group, Kind, Site, Store, markers_in
from weft.scheduler.kernelize.online import online_members
from weft.scheduler.kernelize.place import refusal

_EMPTY_VALUE = "empty"


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a node is stored; `join` when a group that reads it may store it."""

    why: str
    join: bool = True


class Partition:
    """The groups of a graph. `why` gives the reason behind each stored node, by id."""

    def __init__(self, outputs: Sequence[Node]) -> None:
        # the largest results are visited first: their kernels can store smaller ones along the way
        self.order = list(toposort(sorted(outputs, key=lambda n: high(elements(n.shape)))))
        self.forced: dict[int, str] = {}
        self.alias: dict[int, Node] = {}
        self.expand_halves()
        for n in outputs:
            if not is_leaf(n):
                self.forced[id(n)] = "it is a result"
        for n in self.order:
            if not is_leaf(n):
                self.require_buffers(n)
        self.facts: dict[int, Facts] = gather_facts(self.order, self.forced)
        self.groups: list[Group] = []
        self.copies: list[Node] = []
        self.home: dict[int, Group] = {}
        self.why: dict[int, str] = {}
        self.sites: dict[int, dict[tuple[int, tuple[Int, ...]], Site]] = {}
        self.twins: dict[tuple[object, ...], list[Group]] = {}
        self.based: dict[int, list[Group]] = {}  # id of a node -> the groups that update a copy of it in place
        for n in reversed(self.order):
            if not is_leaf(n):
                self.visit(n)

    # before the walk -------------------------------------------------------------------------------------------------

    def expand_halves(self) -> None:
        """A scatter that combines 16-bit floats does so in f32: memory accumulates no narrower floats."""
        order: list[Node] = []
        for n in self.order:
            how = n.attrs
            if n.op is Op.SCATTER and isinstance(how, Combine) and how.op is not None and _half(n) and not is_leaf(n):
                x, index, src = n.inputs
                wide = [apply(Op.CAST, (i,), dtype=dtypes.float32) for i in (x, src)]
                total = apply(Op.SCATTER, (wide[0], index, wide[1]), how)
                narrow = apply(Op.CAST, (total,), dtype=n.dtype)
                order.extend(m for m in (*wide, total, narrow) if m not in order[-4:])
                self.alias[id(n)] = narrow
            order.append(n)
        self.order = list(dict.fromkeys(order))

    def require_buffers(self, n: Node) -> None:
        """Mark what must be stored whatever it costs."""
        match n.op:
            case Op.CONTIGUOUS:
                self.forced.setdefault(id(n), "contiguous() asks for it")
            case Op.COPY:
                self.forced.setdefault(id(n), "it is copied to another device")
                self.force(n.inputs[0], "it is copied to another device")
            case Op.SCATTER if id(n) not in self.alias and not _single(n):
                self.forced.setdefault(id(n), "scattered writes need memory")
                if n.inputs[0].op is not Op.CONST:
                    self.force(n.inputs[0], "it is updated in place")
            case Op.UPDATE if n.inputs[0].op is Op.UPDATE:
                self.force(n.inputs[0], "it is updated in place")
                self.forced.setdefault(id(n), "it is updated in place")
            case _:
                pass

    def force(self, n: Node, why: str) -> None:
        """Have `n` stored, unless it is in memory already."""
        if not is_leaf(n):
            self.forced.setdefault(id(n), why)

    # sites -----------------------------------------------------------------------------------------------------------

    def need(self, node: Node, group: Group, index: tuple[Int, ...], frames: int) -> Site:
        """The site of `node` at `index` in `group`, now also needed by `frames`."""
        if node.op is Op.CONST and node.storage is None:
            index = ()
        known = self.sites.get(id(node))
        if known is None:
            known = self.sites[id(node)] = {}
        key = (group.number, index)
        site = known.get(key)
        if site is not None:
            site.frames |= frames
            return site
        site = known[key] = Site(node, group, index, frames, Kind.OPEN)
        if is_leaf(node):
            self.load(site)
        elif node.op is Op.CONST:
            site.kind = Kind.CONST
        elif node.op is Op.RANGE:
            site.kind = Kind.RANGE
            self.depend(site)
        if self.facts[id(node)].size == 0:
            site.kind, site.extra = Kind.CONST, 0
        return site

    def load(self, site: Site) -> None:
        """The site reads the node's buffer."""
        site.kind = Kind.LOAD
        if self.facts[id(site.node)].size:
            site.group.loads.append(site)
            site.group.read.add(id(site.node))
            self.depend(site, keep=False)

    def depend(self, site: Site, keep: bool = True) -> None:
        """The site's value depends on its index itself, and on the computed indices in it."""
        if keep:
            site.group.others.append(site)
        if site.group.markers:
            guard = site.extra[0] if site.kind is Kind.MOVE else ()
            at = () if site.kind is Kind.MOVE else site.index
            site.inputs.extend(site.group.markers[m][0] for m in markers_in(at, guard))

    # the walk --------------------------------------------------------------------------------------------------------

    def visit(self, node: Node) -> None:
        f = self.facts[id(node)]
        if f.size == 0:
            return
        forced = self.forced.get(id(node))
        sites = [s for s in self.sites.get(id(node), {}).values() if s.kind is Kind.OPEN]
        if forced is None:
            cut = self.decide(node, f, sites) if sites else None
            if cut is None:
                for s in sites:
                    self.compute(s)
                return
        else:
            cut = Cut(forced, not self.alone(node))
        self.store(node, f, sites, cut)

    def alone(self, node: Node) -> bool:
        """The node is stored by a kernel of its own kind, never computed inside another."""
        match node.op:
            case Op.CONTIGUOUS | Op.COPY:
                return True
            case Op.SCATTER:
                return id(node) not in self.alias and not _single(node)
            case Op.UPDATE:
                return self.in_place(node)
            case _:
                return False

    def compute(self, site: Site) -> None:
        """Compute the node at this site, from sites of its inputs."""
        node, group, index, frames = site.node, site.group, site.index, site.frames
        replaced = self.alias.get(id(node))
        if replaced is not None:
            site.kind = Kind.SAME
            site.inputs = [self.need(replaced, group, index, frames)]
            return
        if node.op in ELEMENTWISE:
            site.kind = Kind.CALL
            need = self.need
            site.inputs = [need(i, group, index, frames) for i in node.inputs]
            group.ops += frames.bit_count()
            return
        if node.op in MOVEMENT:
            self.move(site)
            return
        _COMPUTE[node.op](self, site)

    def move(self, site: Site) -> None:
        node = site.node
        s = source(node, site.index)
        if s.guard == NEVER:
            site.kind, site.extra = Kind.CONST, s.fill
            return
        site.kind = Kind.MOVE if s.guard else Kind.SAME
        site.extra = (s.guard, s.fill)
        site.inputs = [self.need(node.inputs[0], site.group, s.index, site.frames)]
        if s.guard:
            self.depend(site)

    def gather(self, site: Site) -> None:
        """out[i, j, k] = x[i, clamp(index[i, j, k]), k]."""
        x, index = site.node.inputs
        assert isinstance(site.node.attrs, Along)
        axis, group = site.node.attrs.axis, site.group
        site.kind = Kind.SAME
        at = self.need(index, group, site.index, site.frames)
        n = high(x.shape[axis])
        if n == 1:
            marker: Int = 0
        else:
            marker = self.marker(group, at, x.shape[axis])
        where = (*site.index[:axis], marker, *site.index[axis + 1 :])
        site.inputs = [self.need(x, group, where, site.frames), at]

    def marker(self, group: Group, at: Site, size: Int | None) -> Opaque:
        """Stands for the value of site `at` as an index, clamped into 0 .. size - 1 if given, until it is computed."""
        for known, (site, limit) in group.markers.items():
            if site is at and limit == size:
                return known
        lo, hi = (0, high(size) - 1) if size is not None else (-(1 << 63), (1 << 63) - 1)
        mark = Opaque(ex.Temp(dtypes.int64, f"index{len(group.markers)}"), lo, hi)
        group.markers[mark] = (at, size)
        return mark

    def concat(self, site: Site) -> None:
        """The input whose range holds the index along the axis."""
        node, group = site.node, site.group
        assert isinstance(node.attrs, Along)
        axis = node.attrs.axis
        start: Int = 0
        guards: list[Guard] = []
        for x in node.inputs:
            n = x.shape[axis]
            at = site.index[axis] - start
            guard = in_range(at, 0, n)
            start = start + n
            if guard == NEVER or self.facts[id(x)].size == 0:
                continue
            guards.append(guard)
            where = (*site.index[:axis], at, *site.index[axis + 1 :])
            site.inputs.append(self.need(x, group, where, site.frames))
        site.kind, site.extra = Kind.PICK, guards
        group.ops += len(guards)
        self.guarded(site, guards)

    def guarded(self, site: Site, guards: Sequence[Guard]) -> None:
        """The site's value depends on indices in guards."""
        site.group.others.append(site)
        if site.group.markers:
            known = site.group.markers
            site.inputs.extend(known[m][0] for g in guards for m in markers_in((), g))

    def update(self, site: Site) -> None:
        """src inside the box, x outside."""
        x, src = site.node.inputs
        box = site.node.attrs
        assert isinstance(box, Box)
        guard: Guard = ()
        where: list[Int] = []
        for i, first, step, n in zip(site.index, box.start, box.step, src.shape, strict=True):
            at = i - first
            if step > 1:
                guard = both(guard, in_range(mod(at, step), 0, 1))
                at = floordiv(at, step)
            guard = both(guard, in_range(at, 0, n))
            where.append(at)
        if guard == NEVER or self.facts[id(src)].size == 0:
            site.kind = Kind.SAME
            site.inputs = [self.need(x, site.group, site.index, site.frames)]
            return
        site.kind, site.extra = Kind.PICK, [guard, ()]
        site.inputs = [
            self.need(src, site.group, tuple(where), site.frames),
            self.need(x, site.group, site.index, site.frames),
        ]
        site.group.ops += 1
        self.guarded(site, [guard])

    def scatter(self, site: Site) -> None:
        """Of one element per row: out[i, j] = x[i, j] combined with src[i, 0] where index[i, 0] is j, else x[i, j]."""
        x, index, src = site.node.inputs
        assert isinstance(site.node.attrs, Combine)
        axis, group = site.node.attrs.axis, site.group
        row = (*site.index[:axis], 0, *site.index[axis + 1 :])
        site.kind, site.extra = Kind.ONE, axis
        site.inputs = [
            self.need(index, group, row, site.frames),
            self.need(x, group, site.index, site.frames),
            self.need(src, group, row, site.frames),
        ]
        group.ops += 3
        self.depend(site)

    def reduce(self, site: Site) -> None:
        """A frame of its own, over the coordinates that the site's index depends on."""
        node, group = site.node, site.group
        assert isinstance(node.attrs, Axes)
        x, axes = node.inputs[0], node.attrs.axes
        if self.facts[id(x)].size == 0:
            site.kind, site.extra = Kind.CONST, _EMPTY_VALUE
            return
        own = {v for i in site.index for v in variables(i)}
        mine = tuple(v for v in group.extents if v in own)
        reduced: list[Var] = []
        index: list[Int] = []
        kept = iter(site.index)
        for k, n in enumerate(x.shape):
            if k not in axes:
                index.append(next(kept))
            elif n == 1:
                index.append(0)
            else:
                index.append(self.reduced_coordinate(site, own, reduced, n))
        if not reduced:
            site.kind = Kind.SAME
            site.inputs = [self.need(x, group, tuple(index), site.frames)]
            return
        frame = Frame(len(group.frames), mine, node, tuple(reduced), site)
        frame.settle(group.frames_of(site.frames))
        group.frames.append(frame)
        site.kind, site.extra = Kind.VALUE, frame
        if self.facts[id(node)].big is Big.CONTRACTION:
            group.staged |= products(node)
            if not group.online:
                members = online_members(node, tuple(index), self.facts, self.forced)
                group.online = members
            group.contraction |= frame.bit
        site.inputs = []
        frame.stores = [Store(node, (), self.need(x, group, tuple(index), frame.bit))]
        group.ops += 1

    def reduced_coordinate(self, site: Site, own: set[Var], taken: list[Var], n: Int) -> Var:
        """A coordinate to reduce over: one that readers already run over, so that what both need is one site."""
        group = site.group
        readers = group.frames_of(site.frames)
        for frame in reversed(readers):
            for v in (*frame.reduced, *frame.axes):
                if v not in own and v not in taken and group.extents[v] == n:
                    taken.append(v)
                    return v
        new = group.coordinate("r", n)
        taken.append(new)
        return new

    # decisions -------------------------------------------------------------------------------------------------------

    def decide(self, node: Node, f: Facts, sites: list[Site]) -> Cut | None:
        """None to compute the node at its sites; else why it is stored."""
        if node.op in ELEMENTWISE:
            return self.decide_elementwise(node, f, sites)
        if node.op in REDUCE:
            return self.decide_reduction(node, f, sites)
        if node.op in MOVEMENT or id(node) in self.alias:
            return None
        if node.op is Op.CONCAT and len(node.inputs) > cost.MAX_CONCAT:
            return Cut("choosing among so many pieces for each element would cost more than storing", False)
        return self.decide_elementwise(node, f, sites)

    def decide_reduction(self, node: Node, f: Facts, sites: list[Site]) -> Cut | None:
        groups = {s.group for s in sites}
        if len(groups) > 1:
            return Cut(f"{len(groups)} kernels use it, and computing it again would repeat a reduction")
        if len(sites) > 1:
            return Cut("one kernel reads it in several ways, and computing it again would repeat a reduction", False)
        why = refusal(node, f, sites[0])
        return None if why is None else Cut(why)

    def decide_elementwise(self, node: Node, f: Facts, sites: list[Site]) -> Cut | None:
        groups = {s.group: None for s in sites}
        member = any(id(node) in g.online for g in groups)
        if not member:
            for s in sites:
                if s.group.contraction & s.frames:
                    why = self.prologue(node, f, s)
                    if why is not None:
                        return Cut(why)
            if f.big is not None:
                if len(groups) > 1:
                    return Cut(f"{len(groups)} kernels use it, and computing it again would repeat a reduction")
                if len(sites) > 1:
                    return Cut("one kernel reads it in several ways, and computing it again would repeat a reduction", False)
                why = refusal(node, f, sites[0])
                if why is not None:
                    return Cut(why)
        if len(groups) > 1:
            if not cost.recompute(len(groups), f.nbytes, f.ops, f.size, self.more_bytes(f, groups)):
                return Cut(f"{len(groups)} kernels use it, and reading it is cheaper than computing it again")
        trivial = f.ops <= cost.PROLOGUE and f.leaves is not None and len(f.leaves) <= 1
        if not trivial and any(g.ops >= cost.MAX_OPS or len(g.read) >= cost.MAX_READS for g in groups):
            return Cut("kernel size limit", False)
        if not member:
            times = sum(s.frames.bit_count() for s in sites)
            if times > 1 and (
                len(sites) > cost.MAX_SITES * len(groups)
                or not cost.repeat(times // len(groups), f.ops, node.dtype.itemsize, f.size)
            ):
                return Cut("one kernel would compute it several times over", False)
        return None

    def more_bytes(self, f: Facts, groups: Iterable[Group]) -> int | None:
        """What all groups but the busiest would read beyond what they read anyway, to compute a node; None: too much."""
        if f.leaves is None:
            return None
        known = {k: {at for at, _ in self.sites.get(k, ())} for k in f.leaves}
        each = sorted(sum(self.facts[k].nbytes for k in f.leaves if g.number not in known[k]) for g in groups)
        return sum(each[:-1])

    def prologue(self, node: Node, f: Facts, site: Site) -> str | None:
        """Why a function of a product's operand is not computed while the product runs; None if it is."""
        if node in site.group.staged:
            if not site.group.staged[node]:
                return None  # the product itself
            if f.reduces:
                return "a product's operand may not wait for a reduction"
            self.stage(node, site.group)
            return None
        if f.reduces:
            return "a product's operand may not wait for a reduction"
        points = 1
        for frame in site.group.frames_of(site.frames & site.group.contraction):
            for v in (*frame.axes, *frame.reduced):
                points *= v.hi + 1
        if f.ops * points <= cost.LAUNCH:
            return None
        if f.ops > cost.PROLOGUE:
            return "a product uses each element again and again, and computing it every time costs more than storing it"
        read = leaf_bytes(f.leaves, self.facts)
        if read is None or read > cost.PROLOGUE_BYTES * f.nbytes:
            return "a product uses each element again and again, and what it is computed from is larger"
        self.stage(node, site.group)
        return None

    def stage(self, node: Node, group: Group) -> None:
        """What an accepted prologue computes is accepted with it, but for reductions."""
        for i in node.inputs:
            while i.op in MOVEMENT and not is_leaf(i):
                i = i.inputs[0]
            if i.op in ELEMENTWISE and i not in group.staged:
                group.staged[i] = True

    # stored nodes ----------------------------------------------------------------------------------------------------

    def store(self, node: Node, f: Facts, sites: list[Site], cut: Cut) -> None:
        self.why[id(node)] = cut.why
        if node.op is Op.COPY:
            self.copies.append(node)
            self.readers_load(node, sites, None)
            return
        if cut.join:
            for group in sorted({s.group for s in sites}, key=lambda g: g.number):
                if self.join(node, f, group, sites):
                    return
        if cut.join and self.adopt(node, f, sites):
            return
        group = self.twin(node, f, sites)
        if group is None:
            group = Group(len(self.groups))
            self.groups.append(group)
            self.remember(node, f, group)
            self.readers_load(node, sites, group)
            self.root(node, group)
        else:
            self.readers_load(node, sites, group)
            frame = group.outputs()[0]
            axes = iter(frame.axes)
            index: tuple[Int, ...] = tuple(0 if n == 1 else next(axes) for n in node.shape)
            self.add_store(node, group, frame, index)

    def readers_load(self, node: Node, sites: list[Site], home: Group | None) -> None:
        """All sites outside `home` load the node."""
        for s in sites:
            if s.group is not home:
                self.load(s)
                if home is not None:
                    home.consumers[s.group] = None
        if home is not None:
            self.home[id(node)] = home
            home.stored[id(node)] = node
            for g in self.based.get(id(node), ()):
                home.consumers[g] = None

    def add_store(self, node: Node, group: Group, frame: Frame, index: tuple[Int, ...]) -> None:
        """Store the node, computed at `index`, in the loops of `frame`."""
        site = self.need(node, group, index, frame.bit)
        frame.stores.append(Store(node, index, site))
        if site.kind is Kind.OPEN:
            self.compute(site)
        f = self.facts[id(node)]
        group.bases |= f.bases

    def join(self, node: Node, f: Facts, group: Group, sites: list[Site]) -> bool:
        """Have `group`, which reads the node, store it for the others; False where it cannot."""
        mine = [s for s in sites if s.group is group]
        others = {s.group: None for s in sites if s.group is not group}
        based = self.based.get(id(node), [])
        others.update(dict.fromkeys(based))
        if len(mine) != 1 or group in based:
            return False
        (site,) = mine
        axes = one_to_one(site.index, node.shape, group.extents)
        if axes is None or not covers(axes, node.shape, group.extents):
            return False
        outputs = [o for o in group.outputs() if axes <= frozenset(o.axes)]
        if not outputs:
            return False
        frame = outputs[0]
        whole = axes == frozenset(frame.axes)
        if not whole and (group.contraction or not f.reduced or len(group.outputs()) > 1 + len(frame.carries)):
            return False
        if f.big is not None and (refusal(node, f, site) is not None):
            return False
        if group.contraction & site.frames or (id(node) in group.online):
            return False
        if any(other.reaches(group) for other in others):
            return False
        self.readers_load(node, sites, group)
        if not whole:
            carried = group.output(tuple(v for v in frame.axes if v in axes))
            frame.carries.append(carried)
            frame = carried
        site.frames |= frame.bit
        frame.stores.append(Store(node, site.index, site))
        group.bases |= f.bases
        self.compute(site)
        return True

    def adopt(self, node: Node, f: Facts, sites: list[Site]) -> bool:
        """Have a group that computes a reduction store a function of it, of the same shape; False where none can."""
        below = node
        while not is_leaf(below) and (below.op in ELEMENTWISE or below.op is Op.RESHAPE):
            large = [i for i in below.inputs if i.inputs and self.facts[id(i)].size == f.size]
            if len(large) != 1:
                return False
            below = large[0]
        if below is node or below.op not in REDUCE or is_leaf(below):
            return False
        users = {s.group for s in sites}
        for (_, index), at in list(self.sites.get(id(below), {}).items()):
            if at.group in users or at.kind is not Kind.OPEN:
                continue
            used = (i for i, n in zip(index, below.shape, strict=True) if n != 1)
            if [n for n in below.shape if n != 1] != [n for n in node.shape if n != 1]:
                return False
            here: tuple[Int, ...] = tuple(0 if n == 1 else next(used) for n in node.shape)
            mine = self.need(node, at.group, here, 0)
            if self.join(node, f, at.group, [*sites, mine]):
                return True
            del self.sites[id(node)][at.group.number, here]
        return False

    def remember(self, node: Node, f: Facts, group: Group) -> None:
        if f.bases and f.big is not Big.CONTRACTION and self.plain(node):
            self.twins.setdefault(self.twin_key(node, f), []).append(group)

    def plain(self, node: Node) -> bool:
        return node.op in ELEMENTWISE or node.op in REDUCE

    def twin_key(self, node: Node, f: Facts) -> tuple[object, ...]:
        return (tuple(n for n in node.shape if n != 1), f.reduced)

    def twin(self, node: Node, f: Facts, sites: list[Site]) -> Group | None:
        """A group over the same domain that reads the same large tensor, independent of this node."""
        if not f.bases or f.big is Big.CONTRACTION or not self.plain(node):
            return None
        users = {s.group: None for s in sites}
        users.update(dict.fromkeys(self.based.get(id(node), [])))
        for group in reversed(self.twins.get(self.twin_key(node, f), [])[-4:]):
            if group in users or group.contraction or group.ops + f.ops > cost.MAX_OPS or len(group.outputs()) != 1:
                continue
            shared = group.bases & f.bases
            if not any(self.facts[k].size >= f.size for k in shared):
                continue
            if any(g.reaches(group) for g in users):
                continue
            return group
        return None

    def root(self, node: Node, group: Group) -> None:
        """A new group's output that stores `node`."""
        if node.op in _ROOTS and (node.op is Op.CONCAT or self.alone(node)):
            _ROOTS[node.op](self, node, group)
            return
        core, chain = node, list[Node]()
        while core.op in (Op.RESHAPE, Op.PERMUTE) and not is_leaf(core):
            chain.append(core)
            core = core.inputs[0]
        if is_leaf(core) or core.op in (Op.CONST, Op.RANGE):
            core, chain = node, []
        frame, index = group.domain(core.shape)
        at = index
        for moved in reversed(chain):
            at = _forward(moved, at)
        if all(isinstance(i, Var | int) for i in at):
            frame.axes = tuple(i for i in at if isinstance(i, Var))
        site = self.need(core, group, index, frame.bit)
        if core is node and site.kind is Kind.OPEN:
            self.compute(site)
        frame.stores.append(Store(node, at, site))
        group.bases |= self.facts[id(node)].bases

    def root_same(self, node: Node, group: Group) -> None:
        """The first input as it is."""
        frame, index = group.domain(node.shape)
        frame.stores.append(Store(node, index, self.need(node.inputs[0], group, index, frame.bit)))

    def root_concat(self, node: Node, group: Group) -> None:
        """One output per input, each over its own domain."""
        assert isinstance(node.attrs, Along)
        axis = node.attrs.axis
        start: Int = 0
        for x in node.inputs:
            if self.facts[id(x)].size:
                frame, index = group.domain(x.shape)
                at = (*index[:axis], index[axis] + start, *index[axis + 1 :])
                frame.stores.append(Store(node, at, self.need(x, group, index, frame.bit)))
            start = start + x.shape[axis]

    def in_place(self, node: Node) -> bool:
        """An UPDATE whose base is in memory: only the box is written."""
        base = node.inputs[0]
        return is_leaf(base) or base.op in (Op.UPDATE, Op.SCATTER)

    def root_update(self, node: Node, group: Group) -> None:
        base, src = node.inputs
        if self.facts[id(src)].size == 0:
            self.root_same(node, group)
            return
        self.on_top_of(node, base, group)
        box = node.attrs
        assert isinstance(box, Box)
        frame, index = group.domain(src.shape)
        at = tuple(i * step + first for i, step, first in zip(index, box.step, box.start, strict=True))
        frame.stores.append(Store(node, at, self.need(src, group, index, frame.bit)))

    def on_top_of(self, node: Node, base: Node, group: Group) -> None:
        """The node's buffer starts as a copy of the base's."""
        group.inplace[id(node)] = base
        if not is_leaf(base):
            self.based.setdefault(id(base), []).append(group)

    def root_scatter(self, node: Node, group: Group) -> None:
        base, index_node, src = node.inputs
        how = node.attrs
        assert isinstance(how, Combine)
        if self.facts[id(src)].size == 0:
            self.root_same(node, group)
            return
        if base.op is Op.CONST and base.storage is None:
            frame, index = group.domain(node.shape)
            frame.stores.append(Store(node, index, self.need(base, group, index, frame.bit)))
        else:
            self.on_top_of(node, base, group)
        frame, index = group.domain(src.shape)
        at = self.need(index_node, group, index, frame.bit)
        n = node.shape[how.axis]
        raw = self.marker(group, at, None)
        inside = self.marker(group, at, n) if high(n) > 1 else 0
        where = (*index[: how.axis], inside, *index[how.axis + 1 :])
        value = self.need(src, group, index, frame.bit)
        frame.stores.append(Store(node, where, value, in_range(raw, 0, n), how.op))


def _half(n: Node) -> bool:
    return n.dtype is dtypes.float16 or n.dtype is dtypes.bfloat16


def _single(n: Node) -> bool:
    """A scatter of one element per row: it can be chosen by comparison, without writing out of order."""
    return isinstance(n.attrs, Combine) and n.inputs[1].shape[n.attrs.axis] == 1


def _forward(moved: Node, index: tuple[Int, ...]) -> tuple[Int, ...]:
    """Where RESHAPE or PERMUTE puts the element of its input at `index`."""
    if moved.op is Op.RESHAPE:
        return reshape_index(index, moved.inputs[0].shape, moved.shape)
    assert isinstance(moved.attrs, Axes)
    return tuple(index[a] for a in moved.attrs.axes)


_COMPUTE: dict[Op, Callable[[Partition, Site], None]] = {
    **dict.fromkeys(REDUCE, Partition.reduce),
    Op.GATHER: Partition.gather,
    Op.CONCAT: Partition.concat,
    Op.UPDATE: Partition.update,
    Op.SCATTER: Partition.scatter,
}

_ROOTS: dict[Op, Callable[[Partition, Node, Group], None]] = {
    Op.CONTIGUOUS: Partition.root_same,
    Op.CONCAT: Partition.root_concat,
    Op.UPDATE: Partition.root_update,
    Op.SCATTER: Partition.root_scatter,
}

_ = (Fill, Index)
