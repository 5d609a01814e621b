"""The graph of any device of a mesh: a global graph, with layouts of its cuts, over a device's coordinates.

    y = (x @ w).relu()      x: Shard(0), w: Shard(0), four devices
    device i                y[2*i : 2*i + 2] = (x[2*i : 2*i + 2] @ moved(w[2*i : 2*i + 2] -> [0:8])).relu()

The same walk as `sharding/lower.py`, once for all devices: boxes begin where coordinates say, and have one size. What a
device lacks of a cut is moved to it as a whole box (`parts/moves.py`). Terms of sums are added axis after axis of the
mesh, inner ones first, so that slow links between islands carry sums: each device adds up a part, and where all are to
have the sum, parts are gathered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import reduce

from weft.ir.dtypes import int64
from weft.ir.graph import (
    Along,
    Axes,
    Node,
    ScatterCombine,
    Target,
    apply,
    arange,
    buffer,
    const,
    intern,
    toposort,
)
from weft.ir.index import Int, minimum, mod, variables
from weft.ir.ops import COMBINE, ELEMENTWISE, Op
from weft.ir.placement import Layout, Mesh, Replicate, Shard, check
from weft.ir.regions import boxes as bx
from weft.ir.regions.boxes import IndexBox, Interval
from weft.ir.regions.moving import moving_parts
from weft.ir.regions.parts import (
    Parts,
    PartsOf,
    Place,
    counted_from,
    placed_axes,
    pulled,
    shrunk,
    taken_at,
)
from weft.lazy_dataclass import dataclass
from weft.scheduler.parts.moves import Moved, coordinates, sizes
from weft.scheduler.sharding.lower import (
    SHARED_BYTES,
    Split,
    adds_terms,
    check_split,
    combining,
    is_partial,
    is_running,
    local_parts,
    summed_axes,
)
from weft.scheduler.sharding.online import Online, Running, States, online
from weft.scheduler.sharding.terms import (
    Contraction,
    TermParts,
    contraction,
    is_summand,
    neutral,
    term_dtype,
    term_of,
    term_places,
    wide,
)

FOLDED = 16
"""Terms up to which they are added one by one, in the order of devices; of more, by a sum over them."""

_REDUCTION = {op: r for r, op in COMBINE.items()}


class UnlikeError(Exception):
    """Devices would have graphs that differ in more than numbers."""


@dataclass(frozen=True, slots=True)
class Alike:
    """The graph of any device. `locals`: of each cut that is asked for, the node of its box; `leaves`: of stored nodes
    the node of what a device has of them; themselves, where they are on one device. `moves`: the global node of which
    each move moves boxes, and the first that needs them."""

    mesh: Mesh
    locals: Mapping[Node, Node]
    leaves: Mapping[Node, Node]
    moves: Mapping[Node, tuple[Node, Node]]


def lower_alike(
    nodes: Sequence[Node],
    mesh: Mesh,
    layouts: Mapping[Node, Layout],
    splits: Mapping[Node, Split] | None = None,
) -> Alike:
    """The graph of any device for `nodes`, with layouts as `sharding.lower` takes them. UnlikeError where devices
    would compute something else each."""
    return _Lowering(mesh, layouts, splits or {}).lowered(nodes)


def block_over(layout: Layout, shape: Sequence[Int], grid: Sequence[int]) -> IndexBox:
    """The box of a device, over its coordinates. UnlikeError where blocks are not equal."""
    lows: list[Int] = [0] * len(shape)
    ends = [_number(n) for n in shape]
    for p, count, at in zip(layout, grid, coordinates(grid), strict=True):
        if not isinstance(p, Shard) or count == 1:
            continue
        each, rest = divmod(ends[p.dim], count)
        even = tuple([each * (k + 1) for k in range(count)])
        if rest or not each or p.bounds not in (None, even):
            raise UnlikeError(f"{shape[p.dim]} elements in {count} blocks that are not equal")
        lows[p.dim], ends[p.dim] = lows[p.dim] + at * each, each
    return tuple([Interval(lo, lo + n) for lo, n in zip(lows, ends, strict=True)])


@dataclass(slots=True)
class _Cut:
    """A node with a layout: the box of which a device computes a term, or the value, and the box that it has of the
    value. `local`, `value`: the nodes of these. `takes`: of an addition, the cuts whose terms it takes as they are;
    `is_taken`: it is one of those."""

    node: Node
    layout: Layout
    split: Split
    term: IndexBox
    final: IndexBox
    summed: tuple[int, ...]
    demands: list[IndexBox] = field(default_factory=list[IndexBox])
    is_wanted: bool = False
    is_taken: bool = False
    takes: set[Node] = field(default_factory=set[Node])
    local: Node | None = None
    value: Node | None = None
    online: Online | None = None


class _Parts(PartsOf):
    """Parts of boxes that begin where coordinates say. UnlikeError where one would need more than on some device."""

    def __init__(self) -> None:
        super().__init__()
        self._known = local_parts()

    def __missing__(self, key: Place) -> Parts:
        n, box = key
        if not bx.is_known(box) and n.op not in ELEMENTWISE and n.inputs and n.op is not Op.COPY:
            axes = placed_axes(n)
            if n.op is Op.LOOP or n.op is Op.CALL:
                raise UnlikeError(f"{n!r} is parted by devices' own rules")
            if axes is None and moving_parts(n, box) is None:
                raise UnlikeError(f"{n!r} has no parts that begin where a coordinate says")
            moves = [k for k in axes or () if not bx.is_known((box[k],))]
            if moves and moving_parts(n, box) is None:
                raise UnlikeError(f"{n!r} is parted along axis {moves[0]}, where places matter to it")
        found = self[key] = self._known[key]
        for part in found.inputs:
            if part is not None and any(not isinstance(i.hi - i.lo, int) for i in part):
                raise UnlikeError(f"{n!r} needs boxes that differ in size")
        return found


@dataclass(slots=True)
class _Lowering:
    mesh: Mesh
    layouts: Mapping[Node, Layout]
    splits: Mapping[Node, Split]
    cuts: dict[Node, _Cut] = field(default_factory=dict[Node, _Cut])
    leaves: dict[Node, Node] = field(default_factory=dict[Node, Node])
    parts: PartsOf = field(default_factory=_Parts)
    term_parts: PartsOf = field(init=False)
    made: dict[Place, Node] = field(default_factory=dict[Place, Node])
    moves: dict[Node, tuple[Node, Node]] = field(default_factory=dict[Node, tuple[Node, Node]])
    reader: Node = field(init=False)

    def __post_init__(self) -> None:
        self.term_parts = TermParts(self.parts)

    @property
    def home(self) -> str:
        """The device that stands for all."""
        return self.mesh.devices[0]

    def lowered(self, nodes: Sequence[Node]) -> Alike:
        order = toposort(nodes)
        for n in order:
            if n.device not in (None, self.mesh.name) and n.op is Op.BUFFER:
                self.leaves[n] = n
            elif n.device not in (None, self.mesh.name) or (n.op is Op.BUFFER and n.device is None):
                raise UnlikeError(f"{n!r} is computed on one device")
            elif n in self.layouts:
                self.cuts[n] = self._cut(n)
            elif n.storage is not None or (n in nodes and n.device is not None):
                raise UnlikeError(f"{n!r} has no layout")
            elif n in nodes:
                raise UnlikeError(f"{n!r} is a constant")
        asked = set(nodes)
        for n in reversed(order):
            if n in self.cuts:
                self._settle(self.cuts[n], n in asked)
        for n in order:
            self.reader = n
            if n in self.leaves and n in asked:
                raise UnlikeError(f"{n!r} is on one device")
            if n in self.cuts and self.cuts[n].is_wanted:
                self._compute(self.cuts[n])
        own: dict[Node, Node] = {}
        for n in dict.fromkeys(nodes):
            self.reader = n
            own[n] = self._own(self.cuts[n])
        return Alike(self.mesh, own, self.leaves, self.moves)

    def _cut(self, n: Node) -> _Cut:
        layout, split = self.layouts[n], self.splits.get(n, ())
        check(layout, n.shape, self.mesh)
        check_split(n, layout, split)
        summed = summed_axes(layout, split)
        dims = [p.dim for m, p in enumerate(layout) if isinstance(p, Shard) and m in summed]
        others = [p.dim for m, p in enumerate(layout) if isinstance(p, Shard) and m not in summed]
        if set(dims) & set(others):
            raise UnlikeError(f"{n!r} is parted along one axis by terms and by blocks")
        final = block_over(layout, n.shape, self.mesh.shape)
        found = _Cut(n, layout, split, self._box_with(layout, n, summed), final, summed)
        found.online = online(n) if is_running(split) else None
        return found

    def _box_with(self, layout: Layout, n: Node, summed: Sequence[int]) -> IndexBox:
        """The box of a device where the axes that are still to be summed part nothing."""
        kept = tuple([Replicate() if m in summed else p for m, p in enumerate(layout)])
        return block_over(kept, n.shape, self.mesh.shape)

    # what a device needs ------------------------------------------------------------------------------------

    def _settle(self, cut: _Cut, is_root: bool) -> None:
        cut.is_wanted = is_root or bool(cut.demands) or cut.is_taken
        if not cut.is_wanted:
            return
        if is_partial(cut.layout) and cut.demands:
            around = bx.enclosing(cut.demands)
            known = all(isinstance(i.hi - i.lo, int) for i in around)
            if known and bx.holds(cut.term, around):
                cut.final = around
        if cut.node.storage is not None or self._is_from_one(cut.node):
            return
        if adds_terms(cut.split):
            first = self._taken_by(cut)
        elif cut.online is not None:
            states = States(cut.online, cut.term, self.parts)
            blocks = self._blocks(cut, cut.online)
            first = [p for b in blocks for p in states.needs(b, lambda n: n in self.cuts or n in self.leaves)]
        else:
            of = self._first(cut)
            first = of.places(cut.node)
        for n, box in self.parts.ends(first, lambda n, _: n in self.cuts or not n.inputs):
            if n in self.cuts and box not in self.cuts[n].demands:
                self.cuts[n].demands.append(box)

    def _blocks(self, cut: _Cut, of: Online) -> list[Interval]:
        """The blocks of an online sum's axis that a device takes, its own first, then from one to the next."""
        grid = self.mesh.shape
        whole = _number(cut.node.inputs[0].shape[of.axis])
        found = [(0, whole)]
        for s, count, at in zip(cut.split, grid, coordinates(grid), strict=True):
            if not isinstance(s, Running):
                continue
            each, rest = divmod(found[0][1], count)
            if rest or not each:
                raise UnlikeError(f"{whole} elements in blocks that are not equal")
            steps = range(count) if s.in_turns else (0,)
            found = [(lo + mod(at + t, count) * each, each) for lo, _ in found for t in steps]
        return [Interval(lo, lo + n) for lo, n in found]

    def _compute_online(self, cut: _Cut, of: Online) -> None:
        """A device's state, and its box of the value, of the states of those that share the sum."""
        states = States(of, cut.term, self.parts)
        state = reduce(states.combined, [states.made(b, self._taken) for b in self._blocks(cut, of)])
        if not cut.summed:
            cut.local = cut.value = self._on(states.result(state))
            return
        wanted = States(of, cut.final, self.parts)
        count = math.prod(self.mesh.shape[m] for m in cut.summed)
        rows: list[list[Node]] = [[] for _ in range(count)]
        for m, n in zip(of.state, state, strict=True):
            box = wanted.boxes[m]
            stack = self._moved(m, self._on(n), states.boxes[m], box, cut.summed, stacked=True)
            for k, row in enumerate(rows):
                row.append(_row(stack, k))
        cut.local = cut.value = self._on(wanted.result(reduce(wanted.combined, rows)))

    def _taken_by(self, cut: _Cut) -> list[Place]:
        """Decide whose terms an addition takes as they are; what it reads beside them."""
        read = term_places(cut.node, cut.term, self.cuts, self.parts)
        for n in dict.fromkeys([n for n, _ in read if n in self.cuts]):
            own = self.cuts[n]
            if (
                is_partial(own.layout)
                and own.summed == cut.summed
                and _combining(own) is Op.ADD
                and all(bx.holds(own.term, b) for m, b in read if m is n)
            ):
                cut.takes.add(n)
                own.is_taken = True
        return [(n, b) for n, b in read if n not in cut.takes]

    def _is_from_one(self, n: Node) -> bool:
        return n.op is Op.COPY and n.inputs[0] in self.leaves and n.inputs[0] not in self.cuts

    def _first(self, cut: _Cut) -> Parts:
        """The parts of a device's term, or of its box."""
        n, found = cut.node, contraction(cut.node)
        if not any(cut.split):
            return self.parts[n, cut.term]
        if found is None:
            raise UnlikeError(f"{n!r} is no sum of terms")
        of = n.inputs[found.number]
        block = block_over(
            tuple([s if isinstance(s, Shard) else Replicate() for s in cut.split]), of.shape, self.mesh.shape
        )
        return self._term(n, found, cut.term, block, [m for m, s in enumerate(cut.split) if s is not None])

    def _term(self, n: Node, of: Contraction, box: IndexBox, block: IndexBox, split: Sequence[int]) -> Parts:
        if n.op is Op.GATHER:
            return _gathered(n, box, block)
        found = term_of(n, box, block, True)
        if n.op is not Op.SCATTER:
            return found
        grid = self.mesh.shape

        def make(xs: Sequence[Node]) -> Node:
            """The term, of the first device with what is scattered into."""
            x, dtype = xs[0], term_dtype(n)
            nothing = const(neutral(of.op, dtype), dtype, x.shape)
            wide = apply(Op.CAST, (x,), None, None, dtype)
            kept = apply(Op.WHERE, (_is_first(grid, split, x.shape), wide, nothing))
            return _scattered(n, box, (kept, *xs[1:]))

        return Parts(found.inputs, make)

    # the device's nodes -------------------------------------------------------------------------------------

    def _compute(self, cut: _Cut) -> None:
        n = cut.node
        if n.storage is not None:
            cut.local = self.leaves[n] = buffer(sizes(cut.term), n.dtype, self.home, None)
        elif self._is_from_one(n):
            cut.local = self._from_one(n.inputs[0], cut.term)
        elif cut.online is not None:
            self._compute_online(cut, cut.online)
            return
        elif adds_terms(cut.split):
            cut.local = self._on(self._added(cut))
        else:
            of = self._first(cut)
            xs = [pulled(i, b, self._taken, self.made, self.parts) for i, b in of.places(n)]
            cut.local = self._on(of.make(xs))
        if not cut.summed:
            cut.value = cut.local
        elif cut.demands or not is_partial(cut.layout):
            cut.value = self._combined(cut, cut.local)

    def _added(self, cut: _Cut) -> Node:
        """A device's term of an addition of terms; what is in none is counted by the first device."""

        def taken(n: Node, box: IndexBox) -> Node | None:
            if n is cut.node or not is_summand(n, self.cuts):
                return None
            of, dtype = self.cuts.get(n), wide(n.dtype)
            if of is not None and n in cut.takes:
                assert of.local is not None
                return apply(Op.CAST, (shrunk(of.local, of.term, box),), None, None, dtype)
            value = pulled(n, box, self._taken, self.made, self.parts)
            value = apply(Op.CAST, (value,), None, None, dtype)
            nothing = const(neutral(Op.ADD, dtype), dtype, value.shape)
            return apply(Op.WHERE, (_is_first(self.mesh.shape, cut.summed, value.shape), value, nothing))

        return pulled(cut.node, cut.term, taken, {}, self.term_parts)

    def _own(self, cut: _Cut) -> Node:
        found = cut.local if is_partial(cut.layout) else cut.value
        assert found is not None
        return found

    def _taken(self, n: Node, box: IndexBox) -> Node | None:
        if n not in self.cuts:
            return self._from_one(n, box) if n in self.leaves else None
        cut = self.cuts[n]
        assert cut.value is not None
        if bx.holds(cut.final, box):
            return shrunk(cut.value, cut.final, box)
        around = max([b for b in cut.demands if bx.holds(b, box)], key=_count)
        lacking = [h for h, b in zip(cut.final, around, strict=True) if not bx.holds((h,), (b,))]
        axes = tuple([m for m, v in enumerate(coordinates(self.mesh.shape)) if _depends(lacking, v)])
        return shrunk(self._moved(n, cut.value, cut.final, around, axes), around, box)

    def _from_one(self, leaf: Node, wanted: IndexBox) -> Node:
        """A box of a leaf that is on one device."""
        whole = bx.full(leaf.shape)
        move = Moved(self.home, grid=self.mesh.shape, held=whole, wanted=wanted, origin=leaf.device)
        return self._noted(leaf, intern(Op.COPY, (leaf,), move, sizes(wanted), leaf.dtype, self.home))

    def _noted(self, of: Node, moved: Node) -> Node:
        self.moves.setdefault(moved, (of, self.reader))
        return moved

    def _moved(
        self,
        of: Node,
        value: Node,
        held: IndexBox,
        wanted: IndexBox,
        axes: tuple[int, ...],
        stacked: bool = False,
    ) -> Node:
        """The wanted box of what all devices along some axes have; of terms, a row of each."""
        grid, shape = self.mesh.shape, sizes(wanted)
        move = Moved(self.home, grid=grid, held=held, wanted=wanted, axes=axes, stacked=stacked)
        if stacked:
            shape = (math.prod(grid[a] for a in axes), *shape)
        return self._noted(of, intern(Op.COPY, (value,), move, shape, value.dtype, self.home))

    def _on(self, n: Node) -> Node:
        return apply(Op.COPY, (n,), Target(self.home)) if n.device is None else n

    # sums ---------------------------------------------------------------------------------------------------

    def _combined(self, cut: _Cut, term: Node) -> Node:
        """The sum of all terms, of the box that a device has of the value."""
        n, op, grid, at = cut.node, _combining(cut), self.mesh.shape, coordinates(self.mesh.shape)
        box, final = cut.term, cut.final
        own = [m for m in cut.summed if grid[m] > 1 and _depends(final, at[m])]
        shared = [m for m in cut.summed if grid[m] > 1 and m not in own]
        if own:
            as_laid = final == block_over(cut.layout, cut.node.shape, grid)
            dims = [p.dim for m in own if isinstance(p := cut.layout[m], Shard)]
            if not as_laid or len(dims) < len(own):  # where readers need parts of what is kept in terms
                term, box, own, shared = self._summed(n, term, box, final, (*own, *shared), op), final, [], []
            # blocks of blocks have to be found from the outer ones on
            left = own if len(set(dims)) < len(dims) else own[::-1]
            while left:
                m, *left = left
                unsummed = {*left, *[s for s in shared if isinstance(cut.layout[s], Shard)]}
                around = self._box_with(cut.layout, cut.node, [*unsummed])
                term, box = self._summed(n, term, box, around, (m,), op), around
        parted: list[tuple[int, IndexBox]] = []
        box_of = final
        if box != final:
            term = shrunk(term, box, final)
        for m in reversed(shared):
            part = self._part(box_of, m, term.dtype.itemsize)
            term = self._summed(n, term, box_of, part or box_of, (m,), op)
            if part is not None:
                parted.append((m, box_of))
                box_of = part
        term = self._on(apply(Op.CAST, (term,), None, None, cut.node.dtype))
        for m, around in reversed(parted):
            term, box_of = self._moved(n, term, box_of, around, (m,)), around
        return term

    def _part(self, box: IndexBox, axis: int, itemsize: int) -> IndexBox | None:
        """The part of a box that a device adds up for those along an axis of the mesh; None where it adds up all.
        Blocks that do not come out even overlap, with equal sums where they do."""
        count, at = self.mesh.shape[axis], coordinates(self.mesh.shape)[axis]
        ns = sizes(box)
        d = max(range(len(ns)), key=lambda k: (ns[k] % count == 0 and ns[k] > 0, ns[k]), default=None)
        if d is None or ns[d] < count or _count(box) * itemsize < SHARED_BYTES:
            return None
        each = -(-ns[d] // count)
        lo = box[d].lo + minimum(at * each, ns[d] - each)
        return (*box[:d], Interval(lo, lo + each), *box[d + 1 :])

    def _summed(
        self, of: Node, term: Node, box: IndexBox, wanted: IndexBox, axes: tuple[int, ...], op: Op
    ) -> Node:
        """The wanted box of the sum over the devices along some axes."""
        stack = self._moved(of, self._on(term), box, wanted, axes, stacked=True)
        count = stack.shape[0]
        assert isinstance(count, int)
        if count > FOLDED:
            return apply(_REDUCTION[op], (stack,), Axes((0,)))
        return reduce(lambda a, b: apply(op, (a, b)), [_row(stack, k) for k in range(count)])


def _row(stack: Node, k: int) -> Node:
    """The part that came from device number k of those that share a sum."""
    _, *shape = stack.shape
    part = taken_at(stack, (k, *[0] * len(shape)), (1, *shape))
    return apply(Op.RESHAPE, (part,), None, tuple(shape))


def _combining(cut: _Cut) -> Op:
    return combining(cut.node, cut.layout, cut.split)


def _depends(box: Sequence[Interval], at: Int) -> bool:
    return not isinstance(at, int) and any(at in variables(i.lo) for i in box)


def _count(box: IndexBox) -> int:
    return math.prod(sizes(box))


def _number(n: Int) -> int:
    if not isinstance(n, int):
        raise UnlikeError(f"a size {n!r} is known when it runs only")
    return n


def _is_first(grid: Sequence[int], split: Sequence[int], shape: Sequence[Int]) -> Node:
    """True on the devices whose coordinates along the axes of a split are 0."""
    at: Int = 0
    for m in split:
        at = at + coordinates(grid)[m]
    most = sum(grid[m] - 1 for m in split)
    here = taken_at(arange(most + 1), [at], (1,))
    first = apply(Op.LE, (here, const(0, int64, (1,))))
    one = apply(Op.RESHAPE, (first,), None, (1,) * len(shape))
    return apply(Op.EXPAND, (one,), None, tuple(shape))


def _scattered(n: Node, box: IndexBox, xs: Sequence[Node]) -> Node:
    assert isinstance(n.attrs, ScatterCombine)
    x, index, src = xs
    wide = apply(Op.CAST, (src,), None, None, term_dtype(n))
    return apply(Op.SCATTER, (x, counted_from(index, box[n.attrs.axis].lo), wide), n.attrs)


def _gathered(n: Node, box: IndexBox, block: IndexBox) -> Parts:
    """Rows of the block; an index out of range counts as the first row of all, or the last."""
    assert isinstance(n.attrs, Along)
    axis, (values, _) = n.attrs.axis, n.inputs
    lo, size = block[axis].lo, _number(block[axis].hi - block[axis].lo)
    most = _number(values.shape[axis]) - 1

    def make(xs: Sequence[Node]) -> Node:
        x, index = xs
        shape = index.shape
        at = apply(Op.CAST, (index,), None, None, int64)
        at = apply(Op.MIN, (apply(Op.MAX, (at, const(0, int64, shape))), const(most, int64, shape)))
        at = counted_from(at, lo)
        inside = apply(
            Op.AND,
            (
                apply(Op.LE, (const(0, int64, shape), at)),
                apply(Op.LT, (at, const(size, int64, shape))),
            ),
        )
        rows = apply(Op.GATHER, (x, at), n.attrs)
        of = contraction(n)
        assert of is not None
        return apply(Op.WHERE, (inside, rows, const(neutral(of.op, n.dtype), n.dtype, rows.shape)))

    part = tuple([block[k] if k == axis else i for k, i in enumerate(box)])
    return Parts((part, box), make)
