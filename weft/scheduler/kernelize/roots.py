"""The outputs of a new group: the domain over which a node is stored, and where its elements go."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.graph import Along, Axes, Box, Node, ScatterCombine, Shape
from weft.ir.index import Int, Var, high, in_range
from weft.ir.movement import reshape_index
from weft.ir.ops import ELEMENTWISE, MOVEMENT, Op
from weft.scheduler.kernelize import cost
from weft.scheduler.kernelize.compute import compute
from weft.scheduler.kernelize.facts import is_leaf
from weft.scheduler.kernelize.groups import Frame, Group, GroupStore, Kind
from weft.scheduler.kernelize.sites import Sites


def root(sites: Sites, node: Node, group: Group) -> None:
    """Add the outputs of a new group, which store `node`."""
    prepared = sites.prepared
    if (
        node.op in _ROOTS
        and id(node) not in prepared.replaced_by
        and (node.op is Op.CONCAT or prepared.in_own_kernel(node))
    ):
        _ROOTS[node.op](sites, node, group)
        return
    core, chain = _core(node)
    index = group.coordinates(core.shape)
    at = index
    for moved in reversed(chain):
        at = _forward(moved, at)
    plain = all(isinstance(i, Var | int) for i in at)
    loops = at if plain else index  # in the order of memory
    frame = group.output(tuple([i for i in loops if isinstance(i, Var)]))
    site = sites.need(core, group, index, frame.alone)
    if core is node and site.kind is Kind.OPEN:
        compute(sites, site)
    frame.stores.append(GroupStore(node, at, site))
    group.bases |= sites.facts[id(node)].bases


def _core(node: Node) -> tuple[Node, list[Node]]:
    """The node whose elements a chain of reshapes and permutations stores elsewhere, and that chain: the domain is best
    that of what computes."""
    core, chain = node, list[Node]()
    while core.op in (Op.RESHAPE, Op.PERMUTE) and not is_leaf(core):
        chain.append(core)
        core = core.inputs[0]
    if is_leaf(core) or core.op in (Op.CONST, Op.RANGE):
        return node, []
    return core, chain


def _forward(moved: Node, index: tuple[Int, ...]) -> tuple[Int, ...]:
    """The index at which RESHAPE or PERMUTE puts the element of its input at `index`."""
    if moved.op is Op.RESHAPE:
        return reshape_index(index, moved.inputs[0].shape, moved.shape)
    assert isinstance(moved.attrs, Axes)
    return tuple(index[a] for a in moved.attrs.axes)


def _same(sites: Sites, node: Node, group: Group) -> None:
    """Store the first input as it is."""
    frame, index = group.domain(node.shape)
    frame.stores.append(GroupStore(node, index, sites.need(node.inputs[0], group, index, frame.alone)))


def _contiguous(sites: Sites, node: Node, group: Group) -> None:
    """Store the input as it is; the pieces of a concatenation that are computed, each over its own domain."""
    core, chain = _core(node.inputs[0])
    if core.op is Op.CONCAT and all(map(_is_computed, core.inputs)) and _is_for(node, [core, *chain], sites):
        _pieces(sites, node, group, core, chain)
        return
    _same(sites, node, group)


def _concat(sites: Sites, node: Node, group: Group) -> None:
    """Store one output per input, each over its own domain."""
    _pieces(sites, node, group, node, [])


def _pieces(sites: Sites, node: Node, group: Group, concat: Node, chain: Sequence[Node]) -> None:
    """Store the inputs of a concatenation, of which a chain of reshapes and permutations makes `node`: those that are
    computed over one domain, where they have the same shape, since most are of the same elements."""
    assert isinstance(concat.attrs, Along)
    axis = concat.attrs.axis
    start: Int = 0
    computed: dict[Shape, tuple[Frame, tuple[Int, ...]]] = {}
    for x in concat.inputs:
        if sites.facts[id(x)].size:
            known = computed.get(x.shape) if _is_computed(x) else None
            if known is None or len(known[0].stores) == cost.MAX_PIECES_TOGETHER:
                known = group.domain(x.shape)
            frame, index = known
            if _is_computed(x):
                computed[x.shape] = known
            at = (*index[:axis], index[axis] + start, *index[axis + 1 :])
            for moved in reversed(chain):
                at = _forward(moved, at)
            frame.stores.append(GroupStore(node, at, sites.need(x, group, index, frame.alone)))
        start = start + x.shape[axis]


def _is_for(node: Node, inputs: Sequence[Node], sites: Sites) -> bool:
    """These are computed for `node` alone, one for the other."""
    within = frozenset(inputs)
    return not any(
        id(n) in sites.prepared.forced if n in within else n is not node and not within.isdisjoint(n.inputs)
        for n in sites.prepared.order
    )


def _is_computed(x: Node) -> bool:
    """The elements are computed, not those of another value in other places."""
    while x.op in MOVEMENT and not is_leaf(x):
        x = x.inputs[0]
    return x.op in ELEMENTWISE and not is_leaf(x)


def _update(sites: Sites, node: Node, group: Group) -> None:
    """Store the box, on top of the base."""
    base, src = node.inputs
    if sites.facts[id(src)].size == 0:
        _same(sites, node, group)
        return
    sites.update(node, base, group)
    box = node.attrs
    assert isinstance(box, Box)
    frame, index = group.domain(src.shape)
    at = tuple(i * step + first for i, step, first in zip(index, box.step, box.start, strict=True))
    frame.stores.append(GroupStore(node, at, sites.need(src, group, index, frame.alone)))


def _scatter(sites: Sites, node: Node, group: Group) -> None:
    """Store each element of the source at its computed index, on top of the base (or a fill)."""
    base, index_node, src = node.inputs
    how = node.attrs
    assert isinstance(how, ScatterCombine)
    if sites.facts[id(src)].size == 0:
        _same(sites, node, group)
        return
    if base.op is Op.CONST and not is_leaf(base):
        frame, index = group.domain(node.shape)
        frame.stores.append(GroupStore(node, index, sites.need(base, group, index, frame.alone)))
    else:
        sites.update(node, base, group)
    frame, index = group.domain(src.shape)
    at = sites.need(index_node, group, index, frame.alone)
    n = node.shape[how.axis]
    inside: Int = group.marker(at, n) if high(n) > 1 else 0
    where = (*index[: how.axis], inside, *index[how.axis + 1 :])
    guard = in_range(group.marker(at, None), 0, n)
    frame.stores.append(GroupStore(node, where, sites.need(src, group, index, frame.alone), guard, how.op))


_ROOTS: dict[Op, Callable[[Sites, Node, Group], None]] = {
    Op.CONTIGUOUS: _contiguous,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.SCATTER: _scatter,
}
