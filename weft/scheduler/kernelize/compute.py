"""Computing a node at a site: how it gets its value, and the sites of its inputs that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.graph import Along, Axes, Box, ScatterCombine
from weft.ir.index import NEVER, Guard, Int, Var, both, floordiv, high, in_range, mod, variables
from weft.ir.movement import source
from weft.ir.numerics import pinned
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize.contraction import products
from weft.scheduler.kernelize.facts import Big
from weft.scheduler.kernelize.groups import EMPTY, GroupStore, Kind, Site, markers_in
from weft.scheduler.kernelize.sites import Sites


def compute(sites: Sites, site: Site) -> None:
    """Compute the node of `site` there, from sites of its inputs."""
    node, group = site.node, site.group
    group.pending.discard(id(node))
    other = sites.prepared.replaced_by.get(id(node))
    if other is not None:
        site.kind = Kind.FORWARD
        site.inputs = [sites.need(other, group, site.index, site.frames)]
    elif node.op in ELEMENTWISE:
        site.kind = Kind.CALL
        site.inputs = [sites.need(i, group, site.index, site.frames) for i in node.inputs]
        group.ops += len(site.frames) * node.op.info.cost
    else:
        _COMPUTE[node.op](sites, site)


def _move(sites: Sites, site: Site) -> None:
    s = source(site.node, site.index)
    if s.guard == NEVER:
        site.kind, site.fill = Kind.CONST, s.fill
        return
    site.kind = Kind.PAD if s.guard else Kind.FORWARD
    site.inputs = [sites.need(site.node.inputs[0], site.group, s.index, site.frames)]
    if s.guard:
        site.fill = s.fill
        _guarded(site, [s.guard])


def _gather(sites: Sites, site: Site) -> None:
    """out[i, j, k] = x[i, clamp(index[i, j, k]), k]."""
    x, index = site.node.inputs
    assert isinstance(site.node.attrs, Along)
    axis = site.node.attrs.axis
    at = sites.need(index, site.group, site.index, site.frames)
    n = x.shape[axis]
    chosen: Int = 0 if high(n) == 1 else site.group.marker(at, n)
    where = (*site.index[:axis], chosen, *site.index[axis + 1 :])
    site.kind = Kind.FORWARD
    site.inputs = [sites.need(x, site.group, where, site.frames), at]


def _concat(sites: Sites, site: Site) -> None:
    """Select the input whose range holds the index along the axis."""
    assert isinstance(site.node.attrs, Along)
    axis = site.node.attrs.axis
    start: Int = 0
    guards: list[Guard] = []
    for x in site.node.inputs:
        at = site.index[axis] - start
        guard = in_range(at, 0, x.shape[axis])
        start = start + x.shape[axis]
        if guard == NEVER or sites.facts[id(x)].size == 0:
            continue
        guards.append(guard)
        where = (*site.index[:axis], at, *site.index[axis + 1 :])
        site.inputs.append(sites.need(x, site.group, where, site.frames))
    site.kind = Kind.SELECT
    site.group.ops += len(guards)
    _guarded(site, guards)


def _update(sites: Sites, site: Site) -> None:
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
    outside = sites.need(x, site.group, site.index, site.frames)
    if guard == NEVER or sites.facts[id(src)].size == 0:
        site.kind, site.inputs = Kind.FORWARD, [outside]
        return
    site.kind = Kind.SELECT
    site.inputs = [sites.need(src, site.group, tuple(where), site.frames), outside]
    site.group.ops += 1
    _guarded(site, [guard, ()])


def _scatter(sites: Sites, site: Site) -> None:
    """Scatter one element per row: x[i, j] combined with src[i, 0] where index[i, 0] is j, else x[i, j]."""
    x, index, src = site.node.inputs
    assert isinstance(site.node.attrs, ScatterCombine)
    axis, group = site.node.attrs.axis, site.group
    row = (*site.index[:axis], 0, *site.index[axis + 1 :])
    site.kind, site.axis = Kind.ONE_HOT, axis
    site.inputs = [
        sites.need(index, group, row, site.frames),
        sites.need(x, group, site.index, site.frames),
        sites.need(src, group, row, site.frames),
    ]
    group.ops += 3
    sites.depend(site)


def _reduce(sites: Sites, site: Site) -> None:
    """Reduce in a frame of its own, over the coordinates that the site's index depends on."""
    node, group = site.node, site.group
    assert isinstance(node.attrs, Axes)
    x, axes = node.inputs[0], node.attrs.axes
    if sites.facts[id(x)].size == 0:
        site.kind, site.fill = Kind.CONST, EMPTY
        return
    own = {v for i in site.index for v in variables(i)}
    reduced: list[Var] = []
    index: list[Int] = []
    kept = iter(site.index)
    for k, n in enumerate(x.shape):
        if k not in axes:
            index.append(next(kept))
        elif n == 1:
            index.append(0)
        else:
            index.append(_reduced_coordinate(site, own, reduced, n))
    if not reduced:
        site.kind = Kind.FORWARD
        site.inputs = [sites.need(x, group, tuple(index), site.frames)]
        return
    mine = tuple(v for v in group.extents if v in own)
    frame = group.reduction(site, mine, tuple(reduced))
    group.ops += 1
    site.kind, site.frame = Kind.REDUCTION, frame
    if sites.facts[id(node)].big is Big.CONTRACTION:
        group.staged |= products(node)
        group.contractions |= frame.alone
        if not group.online and not pinned():
            group.online = sites.prepared.online.held.get(node, frozenset())
    frame.stores.append(GroupStore(node, (), sites.need(x, group, tuple(index), frame.alone)))


def _reduced_coordinate(site: Site, own: set[Var], taken: list[Var], n: Int) -> Var:
    """A coordinate to reduce over: one that readers already run over, so that both share sites."""
    group = site.group
    # a sum beside a product is read by nobody who runs over its columns, but the product does
    frames = group.frames if id(site.node) in group.online else group.frames_of(site.frames)
    for frame in reversed(frames):
        for v in (*frame.reduced, *frame.axes):
            if v not in own and v not in taken and group.extents[v] == n:
                taken.append(v)
                return v
    taken.append(group.coordinate("r", n))
    return taken[-1]


def _guarded(site: Site, guards: Sequence[Guard]) -> None:
    """Record guards on which the site's value depends, one per input."""
    site.guards.extend(guards)
    site.group.index_dependent.append(site)
    if site.group.markers:
        known = site.group.markers
        site.inputs.extend(known[m][0] for g in guards for m in markers_in((), g))


_COMPUTE: dict[Op, Callable[[Sites, Site], None]] = {
    **dict.fromkeys(MOVEMENT, _move),
    **dict.fromkeys(REDUCE, _reduce),
    Op.GATHER: _gather,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.SCATTER: _scatter,
}
