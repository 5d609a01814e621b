"""Fusion of a node into the groups that read it, or a cut: the reason why it is stored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from weft.ir.dtypes import int32
from weft.ir.graph import Node
from weft.ir.index import Var, high, variables
from weft.ir.ops import MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.bijection import divided
from weft.scheduler.kernelize.contraction import of_matrices, sums_bytes
from weft.scheduler.kernelize.cost import Comparison
from weft.scheduler.kernelize.decisions import Cut, FuseInto
from weft.scheduler.kernelize.facts import Facts, leaf_bytes
from weft.scheduler.kernelize.groups import Frame, Group, Site
from weft.scheduler.kernelize.place import WAITS, refusal
from weft.scheduler.kernelize.view import View


def fuse(view: View, node: Node, sites: Sequence[Site]) -> FuseInto | Cut:
    """The decision to compute the node at its sites; else why it is stored."""
    why = view.prepared.forced.get(id(node))
    if why is not None:
        return Cut(why, forced=True, in_reader=not view.prepared.in_own_kernel(node))
    found = _fuse(view, node, view.facts[id(node)], sites)
    limited = view.max_buffers != cost.NO_LIMIT and isinstance(found, FuseInto)
    if limited and not all(view.has_room(g, node) for g in dict.fromkeys(s.group for s in sites)):
        why = f"a kernel has at most {view.max_buffers} buffers on this device"
        return Cut(why, forced=True, in_reader=False, ends_online=True)
    return found


def _fuse(view: View, node: Node, f: Facts, sites: Sequence[Site]) -> FuseInto | Cut:
    """The decision on a device that binds any number of buffers."""
    if id(node) in view.prepared.terms:
        return FuseInto(sites)
    if node.op in REDUCE:
        return _reduction(node, f, sites) or FuseInto(sites)
    if id(node) in view.prepared.replaced_by:
        return FuseInto(sites)
    if node.op in MOVEMENT:
        return _layout(view, node, f, sites) or FuseInto(sites)
    if node.op is Op.CONCAT and len(node.inputs) > cost.MAX_SELECTED_PIECES:
        why = "choosing among so many pieces for each element costs more than storing them"
        return Cut(why, forced=False, in_reader=False)
    groups = dict.fromkeys([s.group for s in sites])
    member = any(id(node) in g.online for g in groups)
    if not member and _widens(node):
        return _widened(view, node, sites)
    costs: list[Comparison] = []
    for found in _elementwise(view, node, f, sites, groups, member):
        if isinstance(found, Cut):
            return found
        if found is not None:
            costs.append(found)
    if member:
        return FuseInto(sites, (), costs)
    staging = [s.group for s in sites if s.in_contraction and s.group.staged.get(node) is not False]
    return FuseInto(sites, tuple(dict.fromkeys(staging)), costs)


def _reduction(node: Node, f: Facts, sites: Sequence[Site]) -> Cut | None:
    """The cut of a reduction: it is computed once, fused if it is read at one place and fits into the loops there."""
    count = len({s.group for s in sites})
    if count > 1:
        forced = len(sites) > count or any(refusal(node, f, s) is not None for s in sites)
        return Cut(f"{count} kernels use it, and computing it again would repeat a reduction", forced)
    if len(sites) > 1:
        why = "it is read in several ways, and computing it again would repeat a reduction"
        return Cut(why, forced=True, in_reader=False)
    return refusal(node, f, sites[0]) or _scattered(node, f, sites[0])


def _scattered(node: Node, f: Facts, site: Site) -> Cut | None:
    """The cut of a reduction of which each element is for one place that a scatter goes to: these are visited one by
    one, without lanes. What is computed of it, in whatever shape, is computed there."""
    if node.op not in REDUCE:
        return None
    for frame in site.group.frames_of(site.frames):
        if any(store.combine is not None for store in frame.stores) and f.size >= prod(
            v.hi + 1 for v in frame.axes
        ):
            costs = cost.scattered(prod(map(high, f.reduced)), f.nbytes)
            if not costs.pays:
                return Cut("what is scattered is found by lanes before", False, False, costs)
    return None


def _layout(view: View, node: Node, f: Facts, sites: Sequence[Site]) -> Cut | None:
    """The cut of a transposed tensor: in the order in which a product reads it, where the product would otherwise have
    to divide. It is stored so if it is stored anyway, or is used often enough to pay for a copy."""
    if node.op is not Op.PERMUTE:
        return None
    if f.big is None:
        return _ordered(f, sites)
    below = node.inputs[0]
    while below.op in (Op.RESHAPE, Op.PERMUTE) and view.facts[id(below)].consumers == 1:
        below = below.inputs[0]
    if view.facts[id(below)].consumers != 1 or below.op in MOVEMENT:
        return None
    if any(s.in_contraction and any(divided(i) for i in s.index) for s in sites):
        return Cut("a product reads it in this order", forced=False, in_reader=False)
    return None


def _ordered(f: Facts, sites: Sequence[Site]) -> Cut | None:
    """The cut of a transposed tensor that is in memory, or easily computed, in another order: where a product's sum
    runs over axes that lie apart. Rows that do are found once for all steps of it."""
    for s in sites:
        products = s.frames & s.group.contractions
        summed = {v for frame in products for v in frame.reduced}
        if any(not summed.isdisjoint(divided(i)) for i in s.index):
            costs = cost.divided_reads(f.size, f.nbytes, max(_points(products) // max(f.size, 1), 1))
            if not costs.pays:
                return Cut("a product reads it in this order again and again", False, costs=costs)
    return None


def _points(frames: Collection[Frame]) -> int:
    """The steps of all loops of these frames."""
    return sum(prod(v.hi + 1 for v in (*frame.axes, *frame.reduced)) for frame in frames)


def _elementwise(
    view: View, node: Node, f: Facts, sites: Sequence[Site], groups: Mapping[Group, None], member: bool
) -> Iterator[Cut | Comparison | None]:
    """The checks of a node that is computed element by element, in order: each a cut, or what it compared. A `member`
    of an attention in one pass stays in its kernel."""
    if not member:
        for s in sites:
            if s.in_contraction:
                yield from _prologue(view, node, f, s)
        if f.big is not None:
            yield _reduction(node, f, sites)
    if len(groups) > 1:
        costs = cost.recompute(len(groups), f.nbytes, f.ops, f.size, _more_bytes(view, f, groups))
        yield _by_cost(
            costs, f"{len(groups)} kernels use it, and reading it is cheaper than computing it again"
        )
    trivial = f.ops <= cost.MAX_PROLOGUE_OPS and f.leaves is not None and len(f.leaves) <= 1
    if not trivial and any(
        g.ops >= cost.MAX_KERNEL_OPS or len(g.read) >= cost.MAX_KERNEL_READS for g in groups
    ):
        yield Cut("kernel size limit", forced=False, in_reader=False)
    if not member:
        yield _repeated(node, f, sites, len(groups))


def _by_cost(costs: Comparison, why: str, in_reader: bool = True) -> Cut | Comparison:
    """The comparison where fusing pays, else a cut."""
    return costs if costs.pays else Cut(why, False, in_reader, costs)


def _widens(node: Node) -> bool:
    """A conversion of a 16-bit float or an 8-bit integer to a wider one: exact, and nearly free wherever it is read."""
    if node.op is not Op.CAST:
        return False
    below = node.inputs[0].dtype
    if node.dtype.is_float:
        return below.is_float and below.bits == 16 and node.dtype.bits > 16
    return node.dtype is int32 and below.is_int and below.bits == 8


def _widened(view: View, node: Node, sites: Sequence[Site]) -> FuseInto:
    """A conversion fused, since what it widens is stored, if anything is: in half the bytes. In a prologue that is
    computed there too, unless many rows would have it computed for each tile of them."""
    below = view.facts[id(node.inputs[0])]
    costs = {
        s.group: cost.tile_prologue(below.ops, below.size, below.nbytes, _rows(s))
        for s in sites
        if below.ops and s.group.staged.get(node)
    }
    fitting = {g: c for g, c in costs.items() if c.pays}
    return FuseInto(sites, tuple(fitting), [*fitting.values()])


def _rows(site: Site) -> int:
    """Results of the group's products that read the same element of the site."""
    named = {v for i in site.index for v in variables(i)}
    frames = site.frames & site.group.contractions
    return max(prod(v.hi + 1 for v in f.axes if v not in named) for f in frames) if frames else 1


def _repeated(node: Node, f: Facts, sites: Sequence[Site], groups: int) -> Cut | Comparison | None:
    """The cut of a node that one kernel reads at several places, in several passes, or in windows that overlap."""
    times = sum(_times(f, s) for s in sites) // groups
    if times == 1:
        return None
    why = "one kernel would compute it several times over"
    if len(sites) > cost.MAX_SITES * groups:
        return Cut(why, forced=False, in_reader=False)
    costs = cost.repeat(times, f.ops, node.dtype.itemsize, f.size)
    return _by_cost(costs, why, in_reader=False)


def _times(f: Facts, site: Site) -> int:
    """Number of times that a site's frames name each element: in windows, as often as they overlap."""
    group = site.group
    times = len(site.frames)
    on = {v for i in site.index for v in variables(i)}
    if len(on) > len(site.index):
        for frame in site.frames - group.contractions:
            points = prod(v.hi + 1 for v in (*frame.axes, *frame.reduced) if v in on)
            times += max(round(points / f.size), 1) - 1
    return times


def _more_bytes(view: View, f: Facts, groups: Iterable[Group]) -> int | None:
    """Bytes that all groups but the busiest would read beyond those they read anyway; None: more than are counted."""
    if f.leaves is None:
        return None
    known = {k: frozenset(view.groups_with(k)) for k in f.leaves}
    each = sorted(sum(view.facts[k].nbytes for k in f.leaves if g.number not in known[k]) for g in groups)
    return sum(each[:-1])


_REUSED = "a product uses each element again and again, and "


def _prologue(view: View, node: Node, f: Facts, site: Site) -> Iterator[Cut | Comparison]:
    """The checks of a prologue: a function of a product's operand that is computed while the product stages it."""
    group = site.group
    staged = group.staged.get(node)
    if staged is False:  # the product itself
        return
    if f.reduces:
        yield Cut(WAITS, forced=True)
    if staged:
        return
    points = 1
    frames = site.frames & group.contractions
    for frame in frames:
        points *= prod(v.hi + 1 for v in (*frame.axes, *frame.reduced))
    cheap = [cost.small_prologue(f.ops, points)]
    if len(frames) == 1 and all(frame.node is not None and sums_bytes(frame.node) for frame in frames):
        cheap.append(cost.tile_prologue(f.ops, f.size, f.nbytes, max(points // f.size, 1)))
    found = next((c for c in cheap if c.pays), None)
    if found is not None:
        yield found
        return
    read = leaf_bytes(f.leaves, view.facts)
    yield _by_cost(
        cost.prologue(f.ops, f.size, f.nbytes, read),
        _REUSED + "computing it every time costs more than storing it",
    )
    yield _by_cost(cost.prologue_reads(f.nbytes, read), _REUSED + "what it is computed from is larger")
    columns = _columns(site, frames)
    if columns > 1 and read is not None and read >= f.nbytes:
        yield _by_cost(
            cost.row_prologue(f.ops, f.size, f.nbytes, columns),
            _REUSED + "computing it for each panel of the other costs more than storing it",
        )


def _columns(site: Site, frames: Collection[Frame]) -> int:
    """The results of a row for which a product of matrices uses an element that it reads row by row; 1 for other
    products, and where lanes run along the operand."""
    named = {v for i in site.index for v in variables(i)}
    if len(frames) != 1 or any(not isinstance(i, int | Var) for i in site.index):
        return 1
    (frame,) = frames
    if frame.node is None or not of_matrices(frame.node):
        return 1
    axes = [v for v in frame.axes if v.hi > 0]
    if not axes or axes[-1] in named:
        return 1
    return prod(v.hi + 1 for v in axes if v not in named)
