"""Weights of products, laid out in panels once: as the contraction rule would pack them in each launch.

    w: (n, k), read by sum k: x[i, k] * w[j, k]        p: (n / width, k, width), contiguous
                                                       w[j, k] = p[j // width, k, j % width]

A panel is what a tile's lanes read, step by step, so that nothing is left to pack (`contraction.is_packed`). With few
rows of results packing is a good part of a product; from `MAX_ROWS` on it is not, and below `MIN_ROWS` each weight is
read once, as it lies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from weft.backends.protocol import DeviceInfo
from weft.ir import graph, movement
from weft.ir.graph import Axes, Node, elements
from weft.ir.index import Int, Var, variables
from weft.ir.loops import LoopKind
from weft.ir.ops import MOVEMENT, Op

MIN_ROWS, MAX_ROWS = 8, 512
"""Rows of results for which a weight is laid out: with 512, packing takes some 3 % of a product (Zen 4, float32)."""

MIN_BYTES = 1 << 14
"""Weights smaller than this stay as they are."""

WIDTHS = (4, 3, 2, 1)
"""Vectors of a panel's width, the preferred first: tiles of four or two vectors are the best for most sizes."""


@dataclass(frozen=True, slots=True)
class Panels:
    """A factor of a product that is a view of the leaf `weight`, whose axis number `axis` runs along lanes."""

    factor: Node
    weight: Node
    axis: int
    width: int

    def laid_out(self) -> Node:
        """The weight in panels."""
        w, a, n = self.weight, self.axis, self.weight.shape[self.axis]
        assert isinstance(n, int)
        cut = graph.apply(
            Op.RESHAPE, (w,), shape=(*w.shape[:a], n // self.width, self.width, *w.shape[a + 1 :])
        )
        rest = [k for k in range(len(cut.shape)) if k not in (a, a + 1)]
        turned = graph.apply(Op.PERMUTE, (cut,), Axes((a, *rest, a + 1)))
        return graph.apply(Op.CONTIGUOUS, (turned,))

    def weight_in(self, panels: Node) -> Node:
        """The weight, as a view of its panels."""
        rank, a = len(panels.shape), self.axis
        order = [*range(1, rank - 1)]
        order[a:a] = [0, rank - 1]
        back = graph.apply(Op.PERMUTE, (panels,), Axes(tuple(order)))
        return graph.apply(Op.RESHAPE, (back,), shape=self.weight.shape)


def panels(order: Sequence[Node], weights: Collection[Node], info: DeviceInfo) -> Iterator[Panels]:
    """The factors of products among the nodes `order` that are `weights` to be laid out."""
    if info.task_kind is not LoopKind.PARALLEL:
        return
    for n in order:
        if n.op is Op.SUM and n.inputs[0].op is Op.MUL:
            a, b = n.inputs[0].inputs
            for factor, other in ((a, b), (b, a)):
                found = _of_product(n, factor, other, weights, info)
                if found is not None:
                    yield found


def _of_product(
    total: Node, factor: Node, other: Node, weights: Collection[Node], info: DeviceInfo
) -> Panels | None:
    """The panels for one factor of a sum of products; None where it is no such weight."""
    axes = total.attrs
    shape = [n for n in factor.shape if isinstance(n, int)]
    if not isinstance(axes, Axes) or len(shape) != len(factor.shape) or 0 in shape:
        return None
    at = tuple([Var(f"i{k}", 0, max(n - 1, 0)) for k, n in enumerate(shape)])
    found = _weight_behind(factor, at)
    if found is None or found[0] not in weights or found[0].dtype is not total.dtype:
        return None
    weight, index = found
    used = {v for i in index for v in variables(i)}
    lanes = [k for k, v in enumerate(at) if v in used and k not in axes.axes and shape[k] > 1]
    if len(lanes) != 1 or not _is_free_of(other, at, at[lanes[0]]):
        return None
    (lane,) = lanes
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
    width = next((w for v in WIDTHS if n % (w := v * info.lanes(weight.dtype)) == 0), None)
    return Panels(factor, weight, dims[0], width) if width and MIN_ROWS <= rows <= MAX_ROWS else None


def _weight_behind(n: Node, index: tuple[Int, ...]) -> tuple[Node, tuple[Int, ...]] | None:
    """The leaf of which `n` is a view, and the index of its element there; None for what is more than a view."""
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if source.guard:
            return None
        n, index = n.inputs[0], source.index
    return n, index


def _is_free_of(n: Node, index: tuple[Int, ...], axis: Var) -> bool:
    """The element of `n` at an index is the same along an axis."""
    while n.op in MOVEMENT and n.storage is None:
        source = movement.source(n, index)
        if any(axis in variables(bound.value) for bound in source.guard):
            return False
        n, index = n.inputs[0], source.index
    return all(axis not in variables(i) for i in index)
