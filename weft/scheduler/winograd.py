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

The gradient of the weight is a sum over tiles, too, of products of 4 x 4 elements of the image and 2 x 2 of the
results' gradient (`TiledGradient`): with the same B, the transposed G of two rows for G, and 3 rows of A'.

A result is of the elements that its taps reach, and no others. Factors are up to four times as large as these, and
each has roundings of its own: errors are up to three times those of the sum of all taps, far below its bound
(decision 175), and an infinity gives NaN where it would have given an infinity. Larger tiles take fewer products, and
are ten times less accurate.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

from weft.ir import graph
from weft.ir.dtypes import float64, int32
from weft.ir.graph import Along, Axes, Box, Node, Padding
from weft.ir.index import Int, ceildiv
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass

TAPS, TILE = 3, 2
"""Taps of a row, and results of a row of a tile."""

SPAN = TAPS + TILE - 1
"""Elements of the image that a row of a tile takes; also the products of one."""

Channels: TypeAlias = tuple[tuple[int, ...], int, int, int]
"""A value's axes in the order batch, rows, columns, channels."""


@dataclass(frozen=True, slots=True)
class Line:
    """Results along an axis: `results` of the `whole`, from number `first` on, that are asked for. The first of these
    is of the image's elements from `start` on, zeros where there are none; `back`: by the last tap first."""

    results: int
    whole: int
    first: int
    start: int
    back: bool

    @property
    def tiles(self) -> int:
        return ceildiv(self.results, TILE)


@dataclass(frozen=True, slots=True)
class TiledConvolution:
    """A convolution in tiles. `image`: a view of what it reads, and of that the axes in the order batch, rows, columns,
    channels (`axes`). `taps`: the axes of `leaf`, a weight, in the order rows, columns, channels, results. `batch`:
    images; `rows` and `columns` of one's results; `width`: results of a panel. `stays`: the weight does, from call to
    call."""

    image: Node
    axes: Channels
    leaf: Node
    taps: tuple[int, int, int, int]
    batch: int
    rows: Line
    columns: Line
    width: int
    stays: bool

    @property
    def results(self) -> tuple[int, int]:
        """The rows and columns of an image's results."""
        return self.rows.results, self.columns.results

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of an image: down, and across."""
        return self.rows.tiles, self.columns.tiles

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
        """G w G' in panels, from the weight.   -> (results / width, 16, channels, width)"""
        summed, of = self.channels
        rows, columns, channels, results = self.taps
        back = self.rows.back, self.columns.back
        if not self.stays:
            w = _apply(Op.CONTIGUOUS, _apply(Op.PERMUTE, self.leaf, Axes((channels, rows, columns, results))))
            w = _shaped(w, (summed, TAPS, TAPS, of // self.width, self.width))
            w = _apply(Op.PERMUTE, w, Axes((1, 2, 3, 0, 4)))
            made = [n for r in _of_taps(w, 0, back[0]) for n in _of_taps(r, 1, back[1])]
            return _joined([_shaped(n, (of // self.width, 1, summed, self.width)) for n in made], 1)
        wide = graph.apply(Op.CAST, (self.leaf,), dtype=float64)
        w = _apply(Op.PERMUTE, wide, Axes(self.taps))
        made = _of_all_taps(_of_all_taps(w, 0, back[0]), 1, back[1])
        made = graph.apply(Op.CAST, (made,), dtype=self.leaf.dtype)
        cut = _shaped(made, (SPAN * SPAN, summed, of // self.width, self.width))
        return _apply(Op.CONTIGUOUS, _apply(Op.PERMUTE, cut, Axes((2, 0, 1, 3))))

    def convolved(self, image: Node, weight: Node) -> Node:
        """The results, of an image in the place of `image` and what stands for `weight()`.
        -> (batch, rows, columns, channels)"""
        (down, across), (summed, of), count = self.tiles, self.channels, SPAN * SPAN
        every = self.batch * down * across
        read = _read(image, self.axes, self.batch, self.rows, self.columns)
        spread = _joined([_shaped(n, (1, *n.shape)) for n in _spread(read, (down, across))], 0)
        panels = _shaped(_apply(Op.PERMUTE, weight, Axes((1, 0, 3, 2))), (count, 1, of, summed))
        whole = (count, every, of, summed)
        factors = [
            graph.apply(Op.EXPAND, (x,), shape=whole)
            for x in (_shaped(spread, (count, every, 1, summed)), panels)
        ]
        product = _apply(Op.SUM, graph.apply(Op.MUL, tuple(factors)), Axes((3,)))
        m = _shaped(_apply(Op.CONTIGUOUS, product), (SPAN, SPAN, self.batch, down, across, of))
        if self.stays:
            made = _of_all_products(_of_all_products(m, 0), 1)
        else:
            pieces = [_shaped(n, n.shape[1:]) for r in _of_products(m, 0) for n in _of_products(r, 1)]
            made = _shaped(_joined(pieces, 0), (TILE, TILE, self.batch, down, across, of))
        made = _apply(Op.PERMUTE, made, Axes((2, 3, 0, 4, 1, 5)))
        made = _shaped(made, (self.batch, TILE * down, TILE * across, of))
        made = _part(made if self.stays else _apply(Op.CONTIGUOUS, made), (self.batch, *self.results, of))
        lines = self.rows, self.columns
        after = [x.whole - x.first - x.results for x in lines]
        return _padded(made, (0, *(x.first for x in lines), 0), (0, *after, 0))


@dataclass(frozen=True, slots=True)
class TiledGradient:
    """The gradient of a convolution's weight, in tiles. `image`: a view of what the convolution reads; `results`: one
    of the gradient of its results; each with its axes in the order batch, rows, columns, channels. `rows`, `columns`:
    the convolution's. `taps`, `channel`, `of`: the gradient's axes of taps, and of both values' channels."""

    image: Node
    axes: Channels
    results: Node
    result_axes: Channels
    batch: int
    rows: Line
    columns: Line
    taps: tuple[int, int]
    channel: int
    of: int

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles of an image: down, and across."""
        return self.rows.tiles, self.columns.tiles

    @property
    def channels(self) -> tuple[int, int]:
        """Channels of the image, and of the results."""
        return _size(self.image, self.axes[3]), _size(self.results, self.result_axes[3])

    def summed(self, image: Node, results: Node, turned: bool) -> Node:
        """The gradient, of values in the places of `image` and `results`; the image's channels last where it is
        `turned`.   -> (3, 3, channels, channels)"""
        (down, across), count = self.tiles, SPAN * SPAN
        read = _read(image, self.axes, self.batch, self.rows, self.columns)
        seen = _in_order(results, self.result_axes, self.batch)
        seen = _padded(
            seen, (0,) * 4, (0, *(t * TILE - n for t, n in zip(self.tiles, _inner(seen), strict=True)), 0)
        )
        rows = _of_results(_lines(seen, 1, TILE, down))
        pieces = [n for r in rows for n in _of_results(_lines(r, 2, TILE, across))]
        # backwards, so that this is not what the convolution made of the image: that would be kept for long
        factors = [
            _joined([_shaped(n, (1, *n.shape)) for n in made[::-1]], 0)
            for made in (_spread(read, self.tiles), pieces)
        ]
        every = self.batch * down * across
        a, b = [_shaped(x, (count, every, x.shape[-1])) for x in (factors[::-1] if turned else factors)]
        n, k = a.shape[-1], b.shape[-1]
        product = graph.apply(
            Op.MUL,
            (
                graph.apply(Op.EXPAND, (_shaped(a, (count, every, n, 1)),), shape=(count, every, n, k)),
                graph.apply(Op.EXPAND, (_shaped(b, (count, every, 1, k)),), shape=(count, every, n, k)),
            ),
        )
        m = _shaped(_apply(Op.CONTIGUOUS, _apply(Op.SUM, product, Axes((1,)))), (SPAN, SPAN, n, k))
        taps = [_shaped(t, (1, n, k)) for r in _of_tap_products(m, 0) for t in _of_tap_products(r, 1)]
        return _shaped(_joined(taps, 0), (TAPS, TAPS, n, k))


def _in_order(x: Node, axes: Channels, batch: int) -> Node:
    """-> (batch, rows, columns, channels)"""
    first, *others = axes
    return _shaped(_apply(Op.PERMUTE, x, Axes((*first, *others))), (batch, *(_size(x, a) for a in others)))


def _inner(x: Node) -> tuple[int, int]:
    """The sizes of a value's rows and columns, its second and third axis."""
    return _size(x, 1), _size(x, 2)


def _read(image: Node, axes: Channels, batch: int, rows: Line, columns: Line) -> Node:
    """Elements of the image that the tiles read, zeros where they go beyond the last results.
    -> (batch, rows, columns, channels)"""
    x = _in_order(image, axes, batch)
    lines = tuple(zip((rows, columns), _inner(x), strict=True))
    there = [(max(n.start, 0), min(n.start + n.results + TAPS - 1, size)) for n, size in lines]
    before = [max(-n.start, 0) for n, _ in lines]
    spans = [TILE * n.tiles + TAPS - 1 for n, _ in lines]
    after = [m - b - (end - at) for m, b, (at, end) in zip(spans, before, there, strict=True)]
    sizes = (batch, *(end - at for at, end in there), _size(x, 3))
    return _padded(_part(x, sizes, (0, *(at for at, _ in there), 0)), (0, *before, 0), (0, *after, 0))


def _of_all_taps(w: Node, axis: int, back: bool) -> Node:
    """G w along an axis, the last tap first where `back` says so. Row k of G is (4 - k) // 2, k (3 - k) / 2 (3 - 2 k)
    and (k + 1) // 2, halved: one expression for all rows is a quarter of the code.   -> as w, 4 along the axis"""
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
        for r, x in zip(rows, _lines(w, axis, TAPS, 1)[:: -1 if back else 1], strict=True)
    ]
    return _times(graph.const(0.5, w.dtype, shape), _add(_add(terms[0], terms[2]), terms[1]))


def _of_image(x: Sequence[Node]) -> list[Node]:
    """B' x."""
    return [_sub(x[0], x[2]), _add(x[1], x[2]), _sub(x[2], x[1]), _sub(x[1], x[3])]


def _of_all_products(m: Node, axis: int) -> Node:
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


def _spread(x: Node, tiles: tuple[int, int]) -> list[Node]:
    """B' x B of each tile of an image, element by element.   -> each (batch, down, across, channels)"""
    rows = _of_image(_lines(x, 1, SPAN, tiles[0]))
    return [n for r in rows for n in _of_image(_lines(r, 2, SPAN, tiles[1]))]


def _of_results(y: Sequence[Node]) -> list[Node]:
    """The transposed G of a weight's gradient, times the results."""
    half = graph.const(0.5, y[0].dtype, y[0].shape)
    return [y[0], _times(half, _add(y[0], y[1])), _times(half, _sub(y[0], y[1])), y[1]]


def _of_tap_products(m: Node, axis: int) -> list[Node]:
    """A' m of a weight's gradient along an axis, backwards, row by row.   -> each as m, 1 along the axis"""
    d, c, b, a = _lines(m, axis, SPAN, 1)
    both = _add(b, c)
    return [_add(a, both), _sub(b, c), _sub(both, d)]


def _of_taps(w: Node, axis: int, back: bool) -> list[Node]:
    """G w along an axis, row by row, the last tap first where `back` says so.   -> each as w, 1 along the axis"""
    a, b, c = _lines(w, axis, TAPS, 1)[:: -1 if back else 1]
    half = graph.const(0.5, w.dtype, a.shape)
    ends = _add(a, c)
    return [a, _times(half, _add(ends, b)), _times(half, _sub(ends, b)), c]


def _of_products(m: Node, axis: int) -> list[Node]:
    """A' m along an axis, row by row.   -> each as m, 1 along the axis"""
    a, b, c, d = _lines(m, axis, SPAN, 1)
    return [_add(a, _add(b, c)), _sub(_sub(b, c), d)]


def _joined(pieces: Sequence[Node], axis: int) -> Node:
    return graph.apply(Op.CONCAT, tuple(pieces), Along(axis))


def _lines(x: Node, axis: int, count: int, size: int) -> list[Node]:
    """The first, second, ... elements of each tile along an axis of so many tiles."""
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    start = [tuple(k if a == axis else 0 for a in range(len(shape))) for k in range(count)]
    step = tuple(TILE if a == axis else 1 for a in range(len(shape)))
    return [graph.apply(Op.SHRINK, (x,), Box(s, step), shape=shape) for s in start]


def _part(x: Node, shape: tuple[int, ...], start: tuple[int, ...] | None = None) -> Node:
    return graph.apply(Op.SHRINK, (x,), Box(start or (0,) * len(shape), (1,) * len(shape)), shape=shape)


def _padded(x: Node, before: tuple[int, ...], after: tuple[int, ...]) -> Node:
    """Zeros around a value; the value itself where there are to be none."""
    return _apply(Op.PAD, x, Padding(before, after, (0,) * len(before))) if any((*before, *after)) else x


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
