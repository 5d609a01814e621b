"""How a node is computed at a site: which sites of its inputs it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.ir.graph import Along, Axes, Box, Combine
from weft.ir.index import NEVER, Guard, Int, Var, both, floordiv, high, in_range, mod, variables
from weft.ir.movement import source
from weft.ir.ops import MOVEMENT, REDUCE, Op
from weft.scheduler.kernelize.contraction import products
from weft.scheduler.kernelize.facts import Big
from weft.scheduler.kernelize.groups import EMPTY, Frame, Kind, Site, Store, markers_in
from weft.scheduler.kernelize.online import online_members

if TYPE_CHECKING:
    from weft.scheduler.kernelize.partition import Partition


def _move(p: Partition, site: Site) -> None:
    s = source(site.node, site.index)
    if s.guard == NEVER:
        site.kind, site.fill = Kind.CONST, s.fill
        return
    site.kind = Kind.MOVE if s.guard else Kind.SAME
    site.inputs = [p.need(site.node.inputs[0], site.group, s.index, site.frames)]
    if s.guard:
        site.fill = s.fill
        _guarded(site, [s.guard])


def _gather(p: Partition, site: Site) -> None:
    """out[i, j, k] = x[i, clamp(index[i, j, k]), k]."""
    x, index = site.node.inputs
    assert isinstance(site.node.attrs, Along)
    axis = site.node.attrs.axis
    at = p.need(index, site.group, site.index, site.frames)
    n = x.shape[axis]
    chosen: Int = 0 if high(n) == 1 else site.group.marker(at, n)
    where = (*site.index[:axis], chosen, *site.index[axis + 1 :])
    site.kind = Kind.SAME
    site.inputs = [p.need(x, site.group, where, site.frames), at]


def _concat(p: Partition, site: Site) -> None:
    """The input whose range holds the index along the axis."""
    assert isinstance(site.node.attrs, Along)
    axis = site.node.attrs.axis
    start: Int = 0
    guards: list[Guard] = []
    for x in site.node.inputs:
        at = site.index[axis] - start
        guard = in_range(at, 0, x.shape[axis])
        start = start + x.shape[axis]
        if guard == NEVER or p.facts[id(x)].size == 0:
            continue
        guards.append(guard)
        where = (*site.index[:axis], at, *site.index[axis + 1 :])
        site.inputs.append(p.need(x, site.group, where, site.frames))
    site.kind = Kind.PICK
    site.group.ops += len(guards)
    _guarded(site, guards)


def _update(p: Partition, site: Site) -> None:
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
    outside = p.need(x, site.group, site.index, site.frames)
    if guard == NEVER or p.facts[id(src)].size == 0:
        site.kind, site.inputs = Kind.SAME, [outside]
        return
    site.kind = Kind.PICK
    site.inputs = [p.need(src, site.group, tuple(where), site.frames), outside]
    site.group.ops += 1
    _guarded(site, [guard, ()])


def _scatter(p: Partition, site: Site) -> None:
    """Of one element per row: out[i, j] = x[i, j] combined with src[i, 0] where index[i, 0] is j, else x[i, j]."""
    x, index, src = site.node.inputs
    assert isinstance(site.node.attrs, Combine)
    axis, group = site.node.attrs.axis, site.group
    row = (*site.index[:axis], 0, *site.index[axis + 1 :])
    site.kind, site.axis = Kind.ONE, axis
    site.inputs = [
        p.need(index, group, row, site.frames),
        p.need(x, group, site.index, site.frames),
        p.need(src, group, row, site.frames),
    ]
    group.ops += 3
    p.depend(site)


def _reduce(p: Partition, site: Site) -> None:
    """A frame of its own, over the coordinates that the site's index depends on."""
    node, group = site.node, site.group
    assert isinstance(node.attrs, Axes)
    x, axes = node.inputs[0], node.attrs.axes
    if p.facts[id(x)].size == 0:
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
        site.kind = Kind.SAME
        site.inputs = [p.need(x, group, tuple(index), site.frames)]
        return
    mine = tuple(v for v in group.extents if v in own)
    frame = Frame(len(group.frames), mine, node, tuple(reduced), site)
    frame.settle(group.frames_of(site.frames))
    group.frames.append(frame)
    group.ops += 1
    site.kind, site.frame = Kind.VALUE, frame
    if p.facts[id(node)].big is Big.CONTRACTION:
        group.staged |= products(node)
        group.contraction |= frame.bit
        if not group.online:
            group.online = online_members(node, tuple(index), p.facts, p.forced)
    frame.stores = [Store(node, (), p.need(x, group, tuple(index), frame.bit))]


def _reduced_coordinate(site: Site, own: set[Var], taken: list[Var], n: Int) -> Var:
    """A coordinate to reduce over: one that readers already run over, so that what both need is one site."""
    group = site.group
    for frame in reversed(group.frames_of(site.frames)):
        for v in (*frame.reduced, *frame.axes):
            if v not in own and v not in taken and group.extents[v] == n:
                taken.append(v)
                return v
    taken.append(group.coordinate("r", n))
    return taken[-1]


def _guarded(site: Site, guards: Sequence[Guard]) -> None:
    """The site's value depends on guards, one per input."""
    site.guards.extend(guards)
    site.group.others.append(site)
    if site.group.markers:
        known = site.group.markers
        site.inputs.extend(known[m][0] for g in guards for m in markers_in((), g))


COMPUTE: dict[Op, Callable[[Partition, Site], None]] = {
    **dict.fromkeys(MOVEMENT, _move),
    **dict.fromkeys(REDUCE, _reduce),
    Op.GATHER: _gather,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.SCATTER: _scatter,
}
