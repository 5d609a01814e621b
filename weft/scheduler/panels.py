"""Weights of products, laid out in panels once: as the contraction rule would pack them in each launch.

    w: (n, k), read by sum k: x[i, k] * w[j, k]        p: (n / width, k, width), contiguous
                                                       w[j, k] = p[j // width, k, j % width]

A panel is what a tile's lanes read, step by step, so that nothing is left to pack (`operands.is_packed`). The fewer
rows of results, the larger a part of a product is packing; from `MAX_ROWS` on it is none, and below `MIN_ROWS` each
weight is read once, as it lies. The steps of a convolution's sum are in the order in which its image lies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import graph, movement
from weft.ir.dtypes import DType
from weft.ir.graph import Axes, Node, elements
from weft.ir.index import Int, Var, ceildiv, coefficient, variables
from weft.ir.loops import LoopKind
from weft.ir.ops import MOVEMENT, Op
from weft.ir.rewrite import rebuilt
from weft.lazy_dataclass import dataclass
from weft.scheduler.tiles import most_rows, tile_cycles

MIN_ROWS, MAX_ROWS = 8, 16384
"""Rows of results for which a weight is laid out: with 4,096, packing takes 5 % of a convolution (decision 174)."""

MIN_BYTES = 1 << 14
"""Weights smaller than this stay as they are."""

MIN_FULL = 0.7
"""The share of lanes that have results, at least, where channels are to lie innermost."""

WIDTHS = (4, 3, 2, 1)
"""Vectors of a panel's width, the preferred first of those that take the same time."""

SAME_TIME = 0.01
"""The share of it by which times may differ that are taken for the same, so that few sizes need panels of their own."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A factor of a product that is a view of the leaf `weight`, whose axis number `axis` runs along lanes. `steps`:
    its other axes, the outermost of a panel first."""

    factor: Node
    weight: Node
    axis: int
    width: int
    steps: tuple[int, ...]

    def laid_out(self) -> Node:
        """The weight in panels."""
        w, a, n = self.weight, self.axis, self.weight.shape[self.axis]
        assert isinstance(n, int)
        cut = graph.apply(
            Op.RESHAPE, (w,), shape=(*w.shape[:a], n // self.width, self.width, *w.shape[a + 1 :])
        )
        rest = [k + (k > a) for k in self.steps]
        turned = graph.apply(Op.PERMUTE, (cut,), Axes((a, *rest, a + 1)))
        return graph.apply(Op.CONTIGUOUS, (turned,))

    def weight_in(self, panels: Node) -> Node:
        """The weight, as a view of its panels."""
        rank, a = len(panels.shape), self.axis
        order = [1 + self.steps.index(k) for k in range(rank - 1) if k != a]
        order[a:a] = [0, rank - 1]
        back = graph.apply(Op.PERMUTE, (panels,), Axes(tuple(order)))
        return graph.apply(Op.RESHAPE, (back,), shape=self.weight.shape)

    def factor_in(self, panels: Node) -> Node:
        """The factor, as a view of the weight's panels."""
        return rebuilt([self.factor], {self.weight: self.weight_in(panels)})[0]


def panels(
    order: Sequence[Node], weights: Collection[Node], info: DeviceInfo, rows: int = MIN_ROWS
) -> Iterator[Panels]:
    """The factors of products among the nodes `order` that are `weights` to be laid out, where results have so many
    rows at least."""
    if info.task_kind is not LoopKind.PARALLEL:
        return
    for n in order:
        if n.op is Op.SUM and n.inputs[0].op is Op.MUL:
            a, b = n.inputs[0].inputs
            for factor, other in ((a, b), (b, a)):
                found = _of_product(n, factor, other, weights, info, rows)
                if found is not None:
                    yield found


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor that is a view of a weight: the index of an element there for one of the factor, and the only axis of
    the results that this names, which the other factor does not."""

    weight: Node
    index: tuple[Int, ...]
    at: tuple[Var, ...]
    lane: int


def image_lane(total: Node, weights: Collection[Node], info: DeviceInfo) -> int | None:
    """The axis of a convolution's results along which its weight lies, where places in an image come after it; None for
    other nodes, and where lanes along it would not be full."""
    if total.op is not Op.SUM or total.inputs[0].op is not Op.MUL or not isinstance(total.attrs, Axes):
        return None
    a, b = total.inputs[0].inputs
    for factor, other in ((a, b), (b, a)):
        found = weight_factor(total, factor, other, weights)
        if found is None:
            continue
        shape, free = factor.shape, [k for k in range(len(factor.shape)) if k not in total.attrs.axes]
        places = any(shape[k] != 1 for k in free if k > found.lane)
        lanes, size = info.lanes(total.dtype), shape[found.lane]
        full = isinstance(size, int) and size >= MIN_FULL * lanes * ceildiv(size, lanes)
        return free.index(found.lane) if places and full else None
    return None


def weight_factor(total: Node, factor: Node, other: Node, weights: Collection[Node]) -> Factor | None:
    """The factor of a sum of products as a view of a weight; None where it is none."""
    axes, leaf = total.attrs, _viewed(factor)
    if leaf not in weights or leaf.dtype is not total.dtype:  # most: before anything is said of elements
        return None
    shape = [n for n in factor.shape if isinstance(n, int)]
    if not isinstance(axes, Axes) or len(shape) != len(factor.shape) or 0 in shape:
        return None
    at = tuple([Var(f"i{k}", 0, max(n - 1, 0)) for k, n in enumerate(shape)])
    found = _weight_behind(factor, at)
    if found is None:
        return None
    weight, index = found
    used = {v for i in index for v in variables(i)}
    lanes = [k for k, v in enumerate(at) if v in used and k not in axes.axes and shape[k] > 1]
    if len(lanes) != 1 or not _is_free_of(other, at, at[lanes[0]]):
        return None
    return Factor(weight, index, at, lanes[0])


def _of_product(
    total: Node, factor: Node, other: Node, weights: Collection[Node], info: DeviceInfo, least: int
) -> Panels | None:
    """The panels for one factor of a sum of products; None where it is no such weight."""
    found, axes = weight_factor(total, factor, other, weights), total.attrs
    if found is None or not isinstance(axes, Axes):
        return None
    weight, index, at, lane = found.weight, found.index, found.at, found.lane
    shape = [v.hi + 1 for v in at]
    if any(shape[k] > 1 for k in range(lane + 1, len(shape)) if k not in axes.axes):
        return None  # images: results do not lie along lanes, and pixels are as good lanes as channels
    dims = [d for d, i in enumerate(index) if at[lane] in variables(i)]
    n = shape[lane]
    summed = prod(shape[k] for k in axes.axes)
    rows = prod(s for k, s in enumerate(shape) if k not in axes.axes and k != lane)
    if len(dims) != 1 or index[dims[0]] is not at[lane] or weight.shape[dims[0]] != n:
        return None
    if summed * n != elements(weight.shape) or summed * n * weight.dtype.itemsize < MIN_BYTES:
        return None
    if not least <= rows <= MAX_ROWS:
        return None
    tiled = _tiled(other, at, axes.axes, lane)
    large = tiled == rows and rows * summed * weight.dtype.itemsize > info.l2_bytes
    width = panel_width(n, tiled, info, weight.dtype, large)
    return Panels(factor, weight, dims[0], width, _steps(found, dims[0], other)) if width else None


def _tiled(other: Node, at: tuple[Var, ...], summed: tuple[int, ...], lane: int) -> int:
    """The rows of results side by side in one axis: those of an image that windows slide over, or whose places are
    apart, or else all."""
    sizes = [v.hi + 1 for k, v in enumerate(at) if k not in summed and k != lane and v.hi > 0]
    _, index = _stored_behind(other, at)
    steps = {at[k] for k in summed}
    for i in index:
        on = {v for v in variables(i) if v.hi > 0}
        places = on - steps
        if places and (on & steps or any(coefficient(i, v) is None for v in places)):
            return sizes[-1]
        if len(places) == 1 and coefficient(i, *places) != 1:
            return sizes[-1]
    return prod(sizes)


def panel_width(n: int, rows: int, info: DeviceInfo, dtype: DType, large: bool = False) -> int | None:
    """The width of panels that divides `n` with whose best tiles so many rows take the least time. `large`: they do
    not stay in the second cache, and are read for each panel."""
    lanes, costs = info.lanes(dtype), info.costs
    line = costs.line_bytes / dtype.itemsize
    row = (costs.hidden_far_line_cycles if large else costs.hidden_line_cycles) / line
    found = {
        v: min(
            ceildiv(rows, r) * tile_cycles(r, v, v * lanes / line, r * row, costs) / v
            for r in range(1, min(rows, most_rows(v, info)) + 1)
        )
        for v in WIDTHS
        if n % (v * lanes) == 0
    }
    near = (1 + SAME_TIME) * min(found.values(), default=0.0)
    return next((v * lanes for v, cycles in found.items() if cycles <= near), None)


def _steps(found: Factor, axis: int, other: Node) -> tuple[int, ...]:
    """The weight's other axes in the order in which the other factor lies in memory."""
    source, index = _stored_behind(other, found.at)
    strides = graph.strides(source.shape)

    def apart(d: int) -> int:
        on = variables(found.index[d])
        steps = [
            abs(int(c) * s)
            for i, s in zip(index, strides, strict=True)
            if isinstance(s, int) and len(on) == 1 and (c := coefficient(i, *on)) is not None
        ]
        return -sum(steps)

    return tuple(sorted((d for d in range(len(found.weight.shape)) if d != axis), key=apart))


def _viewed(n: Node) -> Node:
    """The value that `n` is a view of, edges aside."""
    while n.op in MOVEMENT and n.storage is None:
        n = n.inputs[0]
    return n


def _weight_behind(n: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]] | None:
    """The leaf of which `n` is a view, and the index of its element there; None for what is more than a view."""
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if source.guard:
            return None
        n, index = n.inputs[0], source.index
    return n, index


def _stored_behind(n: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]]:
    """The value that `n` is a view of, edges aside, and the index of its element there."""
    while n.op in MOVEMENT and n.storage is None:
        n, index = n.inputs[0], movement.source(n, index).index
    return n, index


def _is_free_of(n: Node, index: tuple[Int, ...], axis: Var) -> bool:
    """The element of `n` at an index is the same along an axis."""
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if any(axis in variables(bound.value) for bound in source.guard):
            return False
        n, index = n.inputs[0], source.index
    return all(axis not in variables(i) for i in index)
