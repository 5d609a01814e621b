"""Convolutions by 3 x 3 taps in tiles of 2 x 2 results, each of 16 products where the sum has 36.

    Y = A' [(G w G') * (B' X B)] A      X: 4 x 4 elements of the image, w: 3 x 3 taps, Y: 2 x 2 results, A' the
                                        transpose of A, * elementwise

        G = 1   0   0      B' = 1  0 -1  0     A' = 1 1  1  0
            .5  .5  .5          0  1  1  0          0 1 -1 -1
            .5 -.5  .5          0 -1  1  0
            0   0   1           0  1  0 -1

What is summed over channels stands between the brackets, so that a convolution is 16 products of matrices, tiles x
channels by channels x channels. The weight's side (`TiledConvolution.weight`) is computed once; the image's and the
results' are additions. Source: Winograd, Arithmetic Complexity of Computations (1980); Lavin and Gray, Fast Algorithms
for Convolutional Neural Networks (2016).

A result is of the elements that its taps reach, and no others. Factors are up to four times as large as these, and
each has roundings of its own: errors are up to three times those of the sum of all taps, far below its bound
(decision 175), and an infinity gives NaN where it would have given an infinity. Larger tiles take fewer products, and
are ten times less accurate.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import graph, movement
from weft.ir.dtypes import float32, float64, int32
from weft.ir.graph import Along, Axes, Box, Node, Padding, toposort
from weft.ir.index import Int, Var, ceildiv, variables
from weft.ir.loops import LoopKind
from weft.ir.numerics import pinned
from weft.ir.ops import MOVEMENT, Op
from weft.lazy_dataclass import dataclass
from weft.scheduler.panels import image_lane, panel_width, weight_factor

TAPS, TILE = 3, 2
"""Taps of a row, and results of a row of a tile."""

SPAN = TAPS + TILE - 1
"""Elements of the image that a row of a tile takes; also the products of one."""

IMAGE_CYCLES, RESULT_CYCLES, PRODUCT_CYCLES = 22.0, 67.0, 1.2
"""Cycles for a vector of the image's side, one of results, and one of products (decision 175)."""

STORED_LINE_CYCLES = 12.0
"""Cycles to write a line and to read it again, where all of them do not stay in the second cache (decision 175)."""

WEIGHT_LINE_CYCLES = 16.0
"""Cycles to read a line of a weight, at least (decision 175)."""

GAIN = 0.9
"""The share of the sum's cycles that tiles may take at most to be worth it."""


@dataclass(frozen=True, slots=True)
class TiledConvolution:
    """A convolution in tiles. `image`: a view of what it reads, and of that the axes in the order batch, rows, columns,
    channels (`axes`). `taps`: the axes of `leaf`, a weight, in the order rows, columns, channels, results. `batch`:
    images; `results`: rows and columns of one's; `width`: results of a panel."""

    image: Node
    axes: tuple[tuple[int, ...], int, int, int]
    leaf: Node
    taps: tuple[int, int, int, int]
    batch: int
    results: tuple[int, int]
    width: int

    @property
    def tiles(self) -> tuple[int, int]:
        """TiledConvolution of an image: down, and across."""
        down, across = self.results
        return ceildiv(down, TILE), ceildiv(across, TILE)

    @property
    def channels(self) -> tuple[int, int]:
        """Channels that are summed over, and of the results."""
        _, _, summed, of = (_size(self.leaf, a) for a in self.taps)
        return summed, of

    @property
    def nbytes(self) -> int:
        """The memory that `weight()` takes."""
        return SPAN * SPAN * prod(self.channels) * self.leaf.dtype.itemsize

    def weight(self) -> Node:
        """G w G' in panels, from the weight.   -> (16, results / width, channels, width)"""
        summed, of = self.channels
        w = _apply(Op.PERMUTE, graph.apply(Op.CAST, (self.leaf,), dtype=float64), Axes(self.taps))
        made = graph.apply(Op.CAST, (_of_taps(_of_taps(w, 0), 1),), dtype=self.leaf.dtype)
        cut = _shaped(made, (SPAN * SPAN, summed, of // self.width, self.width))
        return _apply(Op.CONTIGUOUS, _apply(Op.PERMUTE, cut, Axes((0, 2, 1, 3))))

    def convolved(self, image: Node, weight: Node) -> Node:
        """The results, of an image in the place of `image` and what stands for `weight()`.
        -> (batch, rows, columns, channels)"""
        (down, across), (summed, of), count = self.tiles, self.channels, SPAN * SPAN
        every = self.batch * down * across
        spread = _spread(self._padded(image), (down, across))
        panels = _shaped(_apply(Op.PERMUTE, weight, Axes((0, 1, 3, 2))), (count, 1, of, summed))
        whole = (count, every, of, summed)
        factors = [
            graph.apply(Op.EXPAND, (x,), shape=whole)
            for x in (_shaped(spread, (count, every, 1, summed)), panels)
        ]
        product = _apply(Op.SUM, graph.apply(Op.MUL, tuple(factors)), Axes((3,)))
        m = _shaped(_apply(Op.CONTIGUOUS, product), (SPAN, SPAN, self.batch, down, across, of))
        tiled = _apply(Op.PERMUTE, _of_products(_of_products(m, 0), 1), Axes((2, 3, 0, 4, 1, 5)))
        made = _shaped(tiled, (self.batch, TILE * down, TILE * across, of))
        return _part(made, (self.batch, *self.results, of))

    def _padded(self, image: Node) -> Node:
        """Elements of the image that the tiles read, zeros where they go beyond the last results.
        -> (batch, rows, columns, channels)"""
        batch, rows, columns, channels = self.axes
        x = _apply(Op.PERMUTE, image, Axes((*batch, rows, columns, channels)))
        x = _shaped(x, (self.batch, *(_size(image, a) for a in (rows, columns, channels))))
        read = [n + TAPS - 1 for n in self.results]
        x = _part(x, (self.batch, *read, _size(image, channels)))
        more = [TILE * t - n for t, n in zip(self.tiles, self.results, strict=True)]
        return _apply(Op.PAD, x, Padding((0,) * 4, (0, *more, 0), (0,) * 4)) if any(more) else x


def convolutions(
    outputs: Sequence[Node], weights: Collection[Node], info: DeviceInfo
) -> Iterator[tuple[Node, TiledConvolution]]:
    """The sums of products below `outputs` that are to be computed in tiles."""
    if info.task_kind is LoopKind.PARALLEL and not pinned():
        for n in toposort(outputs):
            if image_lane(n, weights, info) is not None and (tiles := tiles_of(n, weights, info)) is not None:
                yield n, tiles


def tiles_of(total: Node, weights: Collection[Node], info: DeviceInfo) -> TiledConvolution | None:
    """A sum of products as a convolution in tiles; None where it is no convolution by 3 x 3 taps one after the other
    with one of `weights`, or the sum of all taps is as fast."""
    if total.op is not Op.SUM or total.inputs[0].op is not Op.MUL:
        return None
    if type(total.attrs) is not Axes or total.dtype is not float32:
        return None
    a, b = total.inputs[0].inputs
    for factor, other in ((a, b), (b, a)):
        found = _recognised(total, factor, other, weights, info)
        if found is not None:
            return found if _pays(found, info) else None
    return None


def _recognised(
    total: Node, factor: Node, other: Node, weights: Collection[Node], info: DeviceInfo
) -> TiledConvolution | None:
    """The convolution by `factor`."""
    found, axes = weight_factor(total, factor, other, weights), total.attrs
    if found is None or not isinstance(axes, Axes) or len(found.weight.shape) != 4:
        return None
    place = {i: d for d, i in enumerate(found.index) if isinstance(i, Var)}
    summed = [found.at[k] for k in axes.axes if found.at[k].hi > 0]
    taps = [v for v in summed if v.hi == TAPS - 1]
    if len(place) != 4 or set(place) != {found.at[found.lane], *summed}:
        return None
    free = [v for k, v in enumerate(found.at) if k not in axes.axes and k != found.lane and v.hi > 0]
    seen = _image(other, found.at, free, summed)
    if seen is None:
        return None
    image, of_axis = seen
    slides = {i: d for d, i in of_axis.items() if len(variables(i)) > 1}
    rows, columns = free[-2:]
    reads = [next(((slides[v + t], t) for t in taps if v + t in slides), None) for v in (rows, columns)]
    if reads[0] is None or reads[1] is None:
        return None
    (row_axis, down), (column_axis, across) = reads[0], reads[1]
    (channel,) = [v for v in summed if v not in (down, across)] or [None]
    if channel is None or down is across or len(summed) != 3 or len(slides) != 2:
        return None
    channels = next((d for d, i in of_axis.items() if i is channel), None)
    batch = tuple([d for d in sorted(of_axis) if d not in (row_axis, column_axis, channels)])
    whole = {
        d: i.hi + 1 if isinstance(i, Var) else 1 for d, i in of_axis.items() if d in batch or d == channels
    }
    if channels is None or [i for d in batch if (i := of_axis[d]) != 0] != free[:-2]:
        return None
    if any(image.shape[d] != n for d, n in whole.items()):
        return None
    of = found.at[found.lane].hi + 1
    results = rows.hi + 1, columns.hi + 1
    count = prod(v.hi + 1 for v in free[:-2])
    every = count * prod(ceildiv(n, TILE) for n in results)
    width = panel_width(of, every, info, total.dtype)
    if width is None:
        return None
    order = place[down], place[across], place[channel], place[found.at[found.lane]]
    axis_of = (batch, row_axis, column_axis, channels)
    return TiledConvolution(image, axis_of, found.weight, order, count, results, width)


def _image(
    other: Node, at: tuple[Var, ...], free: Sequence[Var], summed: Sequence[Var]
) -> tuple[Node, dict[int, Int]] | None:
    """The image of which `other` is a view with windows that slide over rows and columns, and the index into it."""
    n, index = other, tuple[Int, ...](at)
    used = {*free, *summed}
    if len(free) < 2:
        return None
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if source.guard or not all(isinstance(x, int) for x in n.inputs[0].shape):
            return None
        n, index = n.inputs[0], source.index
        names = [v for i in index for v in variables(i)]
        slides = sum(len(variables(i)) > 1 for i in index) == 2  # rows with taps, and columns with taps
        if slides and len(names) == len(used) and set(names) == used:
            return n, dict(enumerate(index))
    return None


def _pays(t: TiledConvolution, info: DeviceInfo) -> bool:
    """The tiles take less time than the sum of all taps."""
    (summed, of), lanes, itemsize = t.channels, info.lanes(t.leaf.dtype), t.leaf.dtype.itemsize
    line = info.costs.line_bytes / itemsize

    def product(rows: float, weight: int) -> float:
        lines = weight / line if weight * itemsize > info.l2_bytes else 0.0
        return max(PRODUCT_CYCLES * rows * summed * of / lanes, lines * WEIGHT_LINE_CYCLES)

    def stored(count: int) -> float:
        return count / line * STORED_LINE_CYCLES if count * itemsize > info.l2_bytes else 0.0

    every, results = t.batch * prod(t.tiles), t.batch * prod(t.results)
    sums = product(results * TAPS * TAPS, summed * of * TAPS * TAPS)
    products = product(every * SPAN * SPAN, summed * of * SPAN * SPAN)
    spread, made = every * SPAN * SPAN * summed, every * SPAN * SPAN * of
    around = (IMAGE_CYCLES * spread + RESULT_CYCLES * results * of) / lanes
    return products + around + stored(spread) + stored(made) < GAIN * sums


def _of_taps(w: Node, axis: int) -> Node:
    """G w along an axis, whose row k is (4 - k) // 2, k (3 - k) / 2 (3 - 2 k) and (k + 1) // 2, halved: one expression
    for all rows is a quarter of the code.   -> as w, 4 along the axis"""
    shape = (*w.shape[:axis], SPAN, *w.shape[axis + 1 :])
    k = graph.arange(SPAN, int32)

    def number(n: int) -> Node:
        return graph.const(n, int32, (SPAN,))

    def halved(n: Node) -> Node:
        return graph.apply(Op.FLOORDIV, (n, number(2)))

    middle = _times(halved(_times(k, _sub(number(3), k))), _sub(number(3), _add(k, k)))
    rows = halved(_sub(number(4), k)), middle, halved(_add(k, number(1)))
    terms = [
        _times(
            _along(axis, graph.apply(Op.CAST, (r,), dtype=w.dtype), shape),
            graph.apply(Op.EXPAND, (x,), shape=shape),
        )
        for r, x in zip(rows, _lines(w, axis, TAPS, 1), strict=True)
    ]
    return _times(graph.const(0.5, w.dtype, shape), _add(_add(terms[0], terms[2]), terms[1]))


def _of_image(x: Sequence[Node]) -> list[Node]:
    """B' x."""
    return [_sub(x[0], x[2]), _add(x[1], x[2]), _sub(x[2], x[1]), _sub(x[1], x[3])]


def _of_products(m: Node, axis: int) -> Node:
    """A' m along an axis: m[1] + s (m[2] + m[3 u]) with s = 1 - 2 u for the result u, whose elements are each read
    where they lie.   -> as m, 2 along the axis"""
    shape = (*m.shape[:axis], TILE, *m.shape[axis + 1 :])
    at, step = (tuple([n if a == axis else k for a in range(len(shape))]) for n, k in ((0, 0), (SPAN - 1, 1)))
    ends = graph.apply(Op.SHRINK, (m,), Box(at, step), shape=shape)
    first, second = (graph.apply(Op.EXPAND, (n,), shape=shape) for n in _lines(m, axis, SPAN, 1)[1:3])
    which = graph.apply(Op.CAST, (graph.arange(TILE, int32),), dtype=m.dtype)
    sign = _sub(graph.const(1.0, m.dtype, (TILE,)), _add(which, which))
    return _add(first, _times(_along(axis, sign, shape), _add(second, ends)))


def _along(axis: int, x: Node, shape: tuple[Int, ...]) -> Node:
    """The elements of `x` along an axis, each in all of the others."""
    spread = _shaped(x, [n if a == axis else 1 for a, n in enumerate(shape)])
    return graph.apply(Op.EXPAND, (spread,), shape=shape)


def _spread(x: Node, tiles: tuple[int, int]) -> Node:
    """B' x B of each tile of an image.   -> (16, batch, down, across, channels)"""
    rows = _of_image(_lines(x, 1, SPAN, tiles[0]))
    made = [n for r in rows for n in _of_image(_lines(r, 2, SPAN, tiles[1]))]
    return graph.apply(Op.CONCAT, tuple([_shaped(n, (1, *n.shape)) for n in made]), Along(0))


def _lines(x: Node, axis: int, count: int, size: int) -> list[Node]:
    """The first, second, ... elements of each tile along an axis of so many tiles."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    start = [tuple(k if a == axis else 0 for a in range(len(shape))) for k in range(count)]
    step = tuple(TILE if a == axis else 1 for a in range(len(shape)))
    return [graph.apply(Op.SHRINK, (x,), Box(s, step), shape=shape) for s in start]


def _part(x: Node, shape: tuple[int, ...]) -> Node:
    return graph.apply(Op.SHRINK, (x,), Box((0,) * len(shape), (1,) * len(shape)), shape=shape)


def _shaped(x: Node, shape: Sequence[Int]) -> Node:
    return graph.apply(Op.RESHAPE, (x,), shape=tuple(shape))


def _apply(op: Op, x: Node, attrs: Axes | Padding | None = None) -> Node:
    return graph.apply(op, (x,), attrs)


def _add(a: Node, b: Node) -> Node:
    return graph.apply(Op.ADD, (a, b))


def _sub(a: Node, b: Node) -> Node:
    return graph.apply(Op.SUB, (a, b))


def _times(a: Node, b: Node) -> Node:
    return graph.apply(Op.MUL, (a, b))


def _size(n: Node, axis: int) -> int:
    size = n.shape[axis]
    assert isinstance(size, int)
    return size
