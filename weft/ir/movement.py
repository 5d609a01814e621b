"""Movement ops as functions from an output index to an input index: the one definition that fusion, sharding,
slicing and incremental sessions read."""

from __future__ import annotations

from functools import lru_cache

from weft.ir.expr import Scalar
from weft.ir.graph import Axes, Box, Node, Padding, Shape, Window
from weft.ir.index import Guard, Int, both, bounds, flatten, floordiv, in_range, mod, unflatten
from weft.ir.ops import Op
from weft.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """The source of an element: the input's element at `index` where the guard holds, else `fill`."""

    index: tuple[Int, ...]
    guard: Guard = ()
    fill: Scalar = 0


def source(node: Node, index: tuple[Int, ...]) -> Source:
    """The source of element `index` of the movement node `node`."""
    shape = node.inputs[0].shape
    match node.op, node.attrs:
        case Op.RESHAPE, _:
            return Source(reshape_index(index, node.shape, shape))
        case Op.PERMUTE, Axes(axes):
            out: list[Int] = [0] * len(axes)
            for i, a in zip(index, axes, strict=True):
                out[a] = i
            return Source(tuple(out))
        case Op.EXPAND, _:
            return Source(tuple([0 if n == 1 else i for i, n in zip(index, shape, strict=True)]))
        case Op.PAD, Padding():
            return _pad(node.attrs, index, shape)
        case Op.SHRINK, Box():
            axes_ = zip(index, node.attrs.start, node.attrs.step, strict=True)
            return Source(tuple([i * step + start for i, start, step in axes_]))
        case Op.FLIP, Axes(axes):
            flipped = zip(index, shape, strict=True)
            return Source(tuple(n - 1 - i if k in axes else i for k, (i, n) in enumerate(flipped)))
        case Op.SHEAR, Window():
            w = node.attrs
            moved = index[w.axis] * w.stride + index[w.window] * w.dilation
            return Source((*index[: w.axis], moved, *index[w.axis + 1 :]))
        case Op.UNSHEAR, Window():
            w = node.attrs
            back = index[w.axis] - index[w.window] * w.dilation
            at = floordiv(back, w.stride)
            guard = both(in_range(mod(back, w.stride), 0, 1), in_range(at, 0, shape[w.axis]))
            return Source((*index[: w.axis], at, *index[w.axis + 1 :]), guard)
        case _:
            raise ValueError(f"{node!r} moves nothing")


def _pad(p: Padding, index: tuple[Int, ...], shape: Shape) -> Source:
    out: list[Int] = []
    guard: Guard = ()
    for i, n, low, high, gap in zip(index, shape, p.low, p.high, p.interior, strict=True):
        if (
            low == high == gap == 0
        ):  # inside, which bounds do not show where the size is only known at run time
            out.append(i)
            continue
        at = i - low
        if gap:
            guard = both(guard, in_range(mod(at, gap + 1), 0, 1))
            at = floordiv(at, gap + 1)
        guard = both(guard, in_range(at, 0, n))
        out.append(at)
    return Source(tuple(out), guard, p.fill)


@lru_cache(4096)  # kernels of repeated layers ask for the same ones
def reshape_index(index: tuple[Int, ...], shape: Shape, to: Shape) -> tuple[Int, ...]:
    """The index in shape `to` of the element at `index` in `shape` (both row-major, equally many elements).

    Axes are taken in the smallest groups of equal size, so that runtime sizes pass through unchanged ones.
    """
    if 0 in to:  # there is no such element
        return (0,) * len(to)
    out: list[Int] = []
    i = j = 0
    while i < len(shape) or j < len(to):
        a: Int = 1
        b: Int = 1
        first_i, first_j = i, j
        while True:
            if i < len(shape) and (i == first_i or _behind(a, b)):
                a, i = a * shape[i], i + 1
            elif j < len(to):
                b, j = b * to[j], j + 1
            elif i < len(shape):
                a, i = a * shape[i], i + 1
            if (a == b and j > first_j) or (i == len(shape) and j == len(to)):
                break
        if j == first_j:  # trailing axes of size 1 that `to` does not have
            continue
        group, target = shape[first_i:i], to[first_j:j]
        if [n for n in group if n != 1] == [n for n in target if n != 1]:
            inside = (x for x, n in zip(index[first_i:i], group, strict=True) if n != 1)
            out.extend(0 if n == 1 else next(inside) for n in target)
        else:
            out.extend(unflatten(flatten(index[first_i:i], group), target))
    return tuple(out)


def _behind(a: Int, b: Int) -> bool:
    """More axes of size `a` may make up `b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return a != b and bounds(a)[0] > 0 and floordiv(b, a) * a == b
