"""The order in which values between kernels lie: the channels of convolutions innermost.

    y[c, i, j] = sum k, r, s: x[k, i + r, j + s] * w[c, k, r, s]        y'[i, j, c], a view of which is y
    z[c, i, j] = max(y[c, i, j] + b[c], 0)                              z'[i, j, c], and so on

Lanes along channels are full whatever the size of an image, a weight that stays is laid out for them once
(`panels.py`), and a pixel's channels, over which the next sum runs, lie side by side. A chain keeps the order from the
first convolution on: the axis of channels is followed through the indices by which a value is read. Nothing is copied:
a value is computed in its order, and what needs another one reads a view.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from weft.backends.protocol import DeviceInfo
from weft.ir import graph, movement
from weft.ir.graph import Along, Axes, Node, toposort
from weft.ir.index import Int, Var, high, variables
from weft.ir.loops import LoopKind
from weft.ir.numerics import pinned
from weft.ir.ops import ELEMENTWISE, MOVEMENT, REDUCE, Op
from weft.ir.rewrite import over
from weft.lazy_dataclass import dataclass
from weft.scheduler.convolutions import convolutions, gradients, saved, saved_by_gradient
from weft.scheduler.panels import image_lane
from weft.scheduler.winograd import TiledConvolution, TiledGradient


def laid_out(outputs: Sequence[Node], info: DeviceInfo) -> Sequence[Node]:
    """The graph of `outputs`, without calls, with convolutions by weights that it changes, as a training step does, in
    tiles, and channels innermost; the nodes themselves where that does not pay."""
    if info.task_kind is not LoopKind.PARALLEL or pinned():
        return outputs
    weights = frozenset(_changed(outputs))
    if not weights:
        return outputs
    tiles = dict(convolutions(outputs, weights, info, stay=False))
    of_weights = dict(gradients(outputs, info)) if tiles else {}
    gain = sum(saved(t, info) for t in tiles.values())
    gain += sum(saved_by_gradient(t, info) for t in of_weights.values())
    gain += _read_along(outputs, weights, info)
    if gain <= _read_again(outputs, info):
        return outputs
    in_tiles = {n: (t, t.weight()) for n, t in tiles.items()}
    return channels_innermost(outputs, weights, info, {**in_tiles, **of_weights})


def _read_again(outputs: Sequence[Node], info: DeviceInfo) -> float:
    """The cycles that channels innermost cost where all that is of a channel is reduced: these values are in the second
    cache channel by channel, where they lie so, and else are read again for what is computed of the results. Not where
    channels are the last axis as it is."""
    found = 0.0
    for n in toposort(outputs):
        if n.op in REDUCE and len(n.inputs[0].shape) >= 4:
            assert isinstance(n.attrs, Axes)
            size = high(graph.elements(n.inputs[0].shape)) * n.dtype.itemsize
            shape = n.inputs[0].shape
            kept = [a for a, x in enumerate(shape) if a not in n.attrs.axes and x != 1]
            if len(kept) <= 1 and kept != [len(shape) - 1] and size > info.l2_bytes:
                found += size / info.costs.line_bytes * COLUMN_LINE_CYCLES
    return found


def _read_along(outputs: Sequence[Node], weights: Collection[Node], info: DeviceInfo) -> float:
    """The cycles that channels innermost save where the channels of a place are reduced, as norms of places do, and
    would be as far apart as a channel is large."""
    order = toposort(outputs)
    along = {n: size for n in order if (size := _far_reduced(n)) > info.l1_bytes}
    if not along:
        return 0.0
    first, lane, found = _first(order, weights, info), dict[Node, int](), 0.0
    for n in order:
        if n in along:
            at = _places(n.inputs[0])
            read = None if at is None else _read(n.inputs[0], at, lane)
            assert isinstance(n.attrs, Axes)
            if at is not None and read is not None and read[1] in [at[a] for a in n.attrs.axes]:
                if lane[read[0]] != len(read[0].shape) - 1:  # else they lie side by side as it is
                    found += along[n] / info.costs.line_bytes * COLUMN_LINE_CYCLES
        innermost = _lane(n, first, lane)
        if innermost is not None:
            lane[n] = innermost
    return found


def _far_reduced(n: Node) -> int:
    """The bytes of the places whose elements along one axis, and no more, are reduced; 0 for other nodes, and for
    products."""
    # Here, since a process that finds its plans on disk kernelizes nothing.
    from weft.scheduler.kernelize.contraction import contraction

    if n.op not in REDUCE or not isinstance(n.attrs, Axes) or n.storage is not None:
        return 0
    shape = n.inputs[0].shape
    if len(shape) < 4 or len([a for a in n.attrs.axes if shape[a] != 1]) != 1 or contraction(n):
        return 0
    return high(graph.elements(shape)) * n.dtype.itemsize


def _first(order: Sequence[Node], weights: Collection[Node], info: DeviceInfo) -> dict[Node, int]:
    """The convolutions by these weights, each with the axis of its results that is to be innermost."""
    return {n: a for n in order if (a := image_lane(n, weights, info)) is not None}


def _changed(outputs: Sequence[Node]) -> Iterator[Node]:
    """The leaves of four axes that have new values among `outputs`: each of these is of the old one and of others,
    element by element."""
    for n in outputs:
        if len(n.shape) != 4:
            continue
        stack, seen = [n], {n}
        while stack:
            x = stack.pop()
            if not x.inputs or x.storage is not None:
                if x is not n:
                    yield x
            elif x.op in ELEMENTWISE:
                stack += [i for i in x.inputs if i not in seen]
                seen.update(x.inputs)


COLUMN_LINE_CYCLES = 20.0
"""Cycles for a line of a value that is read again for all channels (decision 181)."""

InTiles: TypeAlias = tuple[TiledConvolution, Node] | TiledGradient
"""A convolution in tiles with what stands for its weight, or the gradient of a weight."""

_FOLLOWING = ELEMENTWISE | REDUCE | {Op.CONCAT}


@dataclass(frozen=True, slots=True)
class _Turned:
    """The graph so far: what takes a node's place, and, of values that lie so, the axis that is innermost. `stored`:
    the nodes that are to be stored as they are."""

    made: dict[Node, Node]
    lane: dict[Node, int]
    stored: frozenset[Node]
    in_tiles: Mapping[Node, InTiles]


def channels_innermost(
    outputs: Sequence[Node],
    weights: Collection[Node],
    info: DeviceInfo,
    in_tiles: Mapping[Node, InTiles] = MappingProxyType({}),
) -> Sequence[Node]:
    """The graph of `outputs`, values from convolutions by `weights` on with channels innermost, on devices whose lanes
    run along what is contiguous; the nodes themselves where there are no such convolutions. `in_tiles`: convolutions to
    compute in tiles, with what stands for their weights."""
    if info.task_kind is not LoopKind.PARALLEL:
        return outputs
    order = toposort(outputs)
    first = _first(order, weights, info)
    if not first:
        return outputs
    turned = _Turned({}, {}, frozenset(s for n in first for s in _images(n)), in_tiles)
    for n in order:
        turned.made[n] = _in_its_place(n, first, turned)
    return [turned.made[n] for n in outputs]


def _in_its_place(n: Node, first: Mapping[Node, int], turned: _Turned) -> Node:
    """The node that takes the place of one whose inputs have been replaced."""
    if not n.inputs or n.storage is not None:
        return n
    inputs = tuple([turned.made[i] for i in n.inputs])
    lane = _lane(n, first, turned.lane)
    if lane is None:
        return over(n, inputs)
    turned.lane[n] = lane
    taps = () if n in first else _taps(n)
    order = (*taps, *(a for a in range(len(n.shape)) if a != lane and a not in taps), lane)
    if n in turned.in_tiles:
        results = _computed_in_tiles(turned.in_tiles[n], turned.made, order)
        made = graph.apply(Op.RESHAPE, (results,), shape=tuple([n.shape[a] for a in order]))
    else:
        made = _reduced(n, inputs, order, turned) if n.op in REDUCE else _each(n, inputs, order)
    if n in turned.stored or taps:
        made = graph.apply(Op.CONTIGUOUS, (made,))
    back = tuple([order.index(a) for a in range(len(order))])
    return graph.apply(Op.PERMUTE, (made,), Axes(back))


def _lane(n: Node, first: Mapping[Node, int], lane: Mapping[Node, int]) -> int | None:
    """The axis of a value that is to be innermost, by those of the values before it; None where it keeps its order."""
    if not n.inputs or n.storage is not None or n.op not in _FOLLOWING:
        return None
    if not all(isinstance(x, int) for x in n.shape):
        return None
    return first[n] if n in first else _followed(n, lane)


def _computed_in_tiles(in_tiles: InTiles, made: Mapping[Node, Node], order: Sequence[int]) -> Node:
    """The results of what is in tiles, but for axes of size 1, with their axes in this order."""
    if isinstance(in_tiles, TiledGradient):
        t, turned = in_tiles, order[-1] == in_tiles.channel
        results = t.summed(made[t.image], made[t.results], turned)
        axes = (*t.taps, *((t.of, t.channel) if turned else (t.channel, t.of)))
        return graph.apply(Op.PERMUTE, (results,), Axes(tuple([axes.index(a) for a in order if a in axes])))
    tiles, weight = in_tiles
    return tiles.convolved(made[tiles.image], weight)


def _images(total: Node) -> Iterator[Node]:
    """The image that a convolution reads, where it is computed of a reduction element by element: it is to be part of
    that one's kernel, computed once and not wherever tiles read it."""
    for n in total.inputs[0].inputs:
        while n.op in MOVEMENT and n.storage is None:
            n = n.inputs[0]
        if n.op in ELEMENTWISE and n.storage is None and _follows_reduction(n):
            yield n


def _follows_reduction(n: Node) -> bool:
    """The elementwise value takes the results of a reduction one by one."""
    stack, seen = [n], set[Node]()
    while stack:
        x = stack.pop()
        if x in seen or x.storage is not None:
            continue
        seen.add(x)
        if x.op in REDUCE and graph.elements(x.shape) == graph.elements(n.shape):
            return True
        if x.op in ELEMENTWISE or x.op in MOVEMENT:
            stack += x.inputs
    return False


def _each(n: Node, inputs: Sequence[Node], order: tuple[int, ...]) -> Node:
    """The values of an elementwise op or of a concatenation, with their axes in another order."""
    moved = tuple([graph.apply(Op.PERMUTE, (i,), Axes(order)) for i in inputs])
    attrs = Along(order.index(n.attrs.axis)) if isinstance(n.attrs, Along) else n.attrs
    shape = tuple([n.shape[a] for a in order])
    return graph.intern(n.op, moved, attrs, shape, n.dtype, graph.device_over(n, moved))


def _reduced(n: Node, inputs: Sequence[Node], order: tuple[int, ...], turned: _Turned) -> Node:
    """The reduction with the axes of its results in another order."""
    assert isinstance(n.attrs, Axes)
    (part,), axes, rank = inputs, n.attrs.axes, len(n.inputs[0].shape)
    free = [a for a in range(rank) if a not in axes]
    whole = (*(free[a] for a in order), *axes)
    x = n.inputs[0]
    if x.op is Op.MUL and x.storage is None:
        part = _each(x, [turned.made[i] for i in x.inputs], whole)
    else:
        part = graph.apply(Op.PERMUTE, (part,), Axes(whole))
    summed = type(n.attrs)(tuple(range(len(free), rank)))
    return graph.apply(n.op, (part,), summed)


def _followed(n: Node, lane: Mapping[Node, int]) -> int | None:
    """The axis of a value along which it reads the innermost axis of the largest value that it is computed from; None
    where none of these lies so, or it is read in another way."""
    free = list(range(len(n.inputs[0].shape)))
    if n.op in REDUCE:
        assert isinstance(n.attrs, Axes)
        free = [a for a in free if a not in n.attrs.axes]
    found: tuple[int, int] | None = None
    for i in n.inputs:
        at = _places(i)
        if at is None:
            return None
        read = _read(i, at, lane)
        if read is None:
            continue
        size = graph.elements(read[0].shape)
        axis = next((k for k, a in enumerate(free) if at[a] is read[1]), None)
        if axis is not None and isinstance(size, int) and (found is None or size > found[0]):
            found = size, axis
    return None if found is None else found[1]


def _taps(n: Node) -> tuple[int, ...]:
    """The axes of a sum's results that are places of a window, which slides over what is summed."""
    if n.op is not Op.SUM or n.inputs[0].op is not Op.MUL or type(n.attrs) is not Axes:
        return ()
    product, axes = n.inputs[0], n.attrs.axes
    at = _places(product)
    if at is None:
        return ()
    summed = [at[k] for k in axes]
    free = [v for k, v in enumerate(at) if k not in axes]
    found: set[int] = set()
    for f in product.inputs:
        index = at
        while f.op in MOVEMENT and f.storage is None:
            index, f = movement.source(f, index).index, f.inputs[0]
            for i in index:
                on = variables(i)
                over_ = [v.hi for v in on if v in summed]
                found.update(k for k, v in enumerate(free) if over_ and v in on and 0 < v.hi < max(over_))
    return tuple(sorted(found))


def _places(n: Node) -> tuple[Var, ...] | None:
    """A variable for each axis of a value; None where its size is not known."""
    at = [Var(f"i{k}", 0, max(x - 1, 0)) for k, x in enumerate(n.shape) if isinstance(x, int)]
    return tuple(at) if len(at) == len(n.shape) else None


def _read(n: Node, index: tuple[Int, ...], lane: Mapping[Node, int]) -> tuple[Node, Int] | None:
    """The value of which `n` is a view, and the index on the axis of it that is innermost; None where it does not lie
    so."""
    while n not in lane:
        if n.op not in MOVEMENT or n.storage is not None:
            return None
        index, n = movement.source(n, index).index, n.inputs[0]
    return n, index[lane[n]]
