"""Strides that torch's views would have: weft has none, but torch copies where they do not allow a view."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.core.execute import run
from weft.ir.graph import Along, Axes, Box, Node, Padding, Shape, Window, elements
from weft.ir.index import low
from weft.ir.ops import Op


def copies(shape: Shape, route: Sequence[Node], wanted: Shape, dense: bool) -> bool:
    """True where torch copies to give `wanted`, in the same order, or with `dense` one after the other in
    memory, to what movement ops make of elements in row-major order of shape `shape`."""
    known = layout(shape, route)  # which takes a tenth of the time
    found = strides_of(shape, route) if known is None or 0 in known[1] else known[1:]
    if found is None:
        return True
    sizes, strides = found
    if dense:
        return any(a != b and n != 1 for a, b, n in zip(strides, _row_major(sizes), sizes, strict=True))
    return _reshaped(sizes, strides, wanted) is None


def overlaps(shape: Shape, route: Sequence[Node]) -> bool:
    """True where movement ops may show one element of `shape` at several places, or where that is unknown."""
    for k, node in enumerate(route):
        if _is_scattered(node):
            if _twice(node.inputs[1]) or overlaps(shape, route[:k]):
                return True
            return overlaps(node.shape, route[k + 1 :])
    found = strides_of(shape, route)
    if found is None:
        return True
    reach = 0
    for stride, n in sorted((abs(s), n) for n, s in zip(*found, strict=True) if n > 1):
        if stride <= reach:
            return _overlap_somewhere(*found)
        reach += stride * (n - 1)
    return False


def _overlap_somewhere(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    if any(s == 0 and n > 1 for n, s in zip(sizes, strides, strict=True)):
        return True
    at = np.zeros((), np.int64)
    for n, s in zip(sizes, strides, strict=True):
        at = at[..., None] + np.arange(n) * s
    return len(np.unique(at)) < at.size


def _is_scattered(node: Node) -> bool:
    return node.op is Op.GATHER and not picks_one(node)


def _twice(index: Node) -> bool:
    """True where an index along the only axis picks an element twice."""
    while index.op in (Op.RESHAPE, Op.EXPAND):
        index = index.inputs[0]
    at = run.to_numpy(index)
    return len(np.unique(at)) < at.size


def picks_one(node: Node) -> bool:
    """True where a GATHER picks one position of an axis, the same for all others."""
    index = node.inputs[1]
    if index.op is Op.EXPAND:
        index = index.inputs[0]
    return index.op is Op.CONST or elements(index.shape) == 1


def strides_of(shape: Shape, route: Sequence[Node]) -> tuple[list[int], list[int]] | None:
    """Sizes and strides of what the ops make of it; None where sizes are known at run time only."""
    every = (shape, *(n.shape for n in route))
    if not all(isinstance(n, int) for s in every for n in s) or any(map(_is_scattered, route)):
        return None
    sizes = _known(every[-1])
    if 0 in sizes:
        return sizes, _row_major(sizes)
    origin = _position(shape, route, [0] * len(sizes))
    unit = ([int(j == k) for j in range(len(sizes))] for k in range(len(sizes)))
    return sizes, [
        _position(shape, route, e) - origin if n > 1 else 1 for e, n in zip(unit, sizes, strict=True)
    ]


def layout(shape: Shape, route: Sequence[Node]) -> tuple[int, list[int], list[int]] | None:
    """Offset, sizes and strides by which torch would show what the ops make of elements in row-major order of `shape`;
    None where there are none: positions that are no multiples of steps, or not known now."""
    if not all(isinstance(n, int) for s in (shape, *(n.shape for n in route)) for n in s):
        return None
    offset, sizes = 0, _known(shape)
    strides = _row_major(sizes)
    for node in route:
        match node.op, node.attrs:
            case Op.RESHAPE, _:
                found = _reshaped(sizes, strides, node.shape)
                if found is None:
                    return None
                strides = found
            case Op.PERMUTE, Axes(order):
                strides = [strides[k] for k in order]
            case Op.EXPAND, _:
                strides = [0 if m != n else s for m, n, s in zip(sizes, node.shape, strides, strict=True)]
            case Op.SHRINK, Box(start, step):
                begin = [a for a in start if isinstance(a, int)]
                if len(begin) != len(sizes):
                    return None
                offset += _dot(begin, strides)
                strides = [s * k for s, k in zip(strides, step, strict=True)]
            case _:
                return None
        sizes = _known(node.shape)
    return offset, sizes, strides


def _known(shape: Shape) -> list[int]:
    return [n for n in shape if isinstance(n, int)]


def offset_of(shape: Shape, route: Sequence[Node]) -> int:
    """The row-major position of the element of `shape` that comes first in what movement ops make of them."""
    ends = route[-1].shape if route else shape
    return _position(shape, route, [0] * len(ends), picked=True)


def _position(shape: Shape, route: Sequence[Node], index: list[int], picked: bool = False) -> int:
    """The row-major position of the element seen at `index`; with `picked`, whichever a GATHER picks."""
    for node in reversed(route):
        source = _known(node.inputs[0].shape)
        match node.op, node.attrs:
            case Op.RESHAPE, _:
                flat = _dot(index, _row_major(_known(node.shape)))
                index = [flat // s % n for s, n in zip(_row_major(source), source, strict=True)]
            case Op.PERMUTE, Axes(order):
                index = [index[order.index(k)] for k in range(len(order))]
            case Op.SHRINK, Box(start, step):  # wherever it starts, it is the same steps from there
                index = [low(a) + s * i for a, s, i in zip(start, step, index, strict=True)]
            case Op.PAD, Padding(before):
                index = [i - low(a) for i, a in zip(index, before, strict=True)]
            case Op.FLIP, Axes(axes):
                index = [
                    n - 1 - i if k in axes else i for k, (i, n) in enumerate(zip(index, source, strict=True))
                ]
            case Op.GATHER, Along(axis):  # for strides, which one is picked does not matter
                at = 0
                if picked:
                    found = run.to_numpy(node.inputs[1])
                    at = int(found[tuple(index)]) if found.ndim == len(index) else int(found.reshape(-1)[0])
                index = [at % max(source[axis], 1) if k == axis else i for k, i in enumerate(index)]
            case Op.SHEAR, Window(axis, window, stride, dilation):
                moved = index[axis] * stride + index[window] * dilation
                index = [moved if k == axis else i for k, i in enumerate(index)]
            case Op.EXPAND, _:
                index = [i if n > 1 else 0 for i, n in zip(index, source, strict=True)]
            case _:
                pass
    return _dot(index, _row_major(_known(shape)))


def _dot(a: Sequence[int], b: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


def _row_major(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for k in range(len(shape) - 1, 0, -1):
        strides[k - 1] = strides[k] * max(shape[k], 1)
    return strides


def _reshaped(shape: Sequence[int], strides: Sequence[int], wanted: Shape) -> list[int] | None:
    """The strides of the same elements, in row-major order, in shape `wanted`; None where there are none."""
    if not all(isinstance(n, int) for n in wanted):
        return None
    sizes = _known(wanted)
    if 0 in sizes:
        return _row_major(sizes)
    runs: list[tuple[int, int]] = []  # (how many elements, the step between them) of axes that are as one
    for n, s in zip(shape, strides, strict=True):
        if n == 1:
            continue
        if runs and runs[-1][1] == s * n:
            runs[-1] = (runs[-1][0] * n, s)
        else:
            runs.append((n, s))
    out = [1] * len(sizes)
    left, step = runs.pop() if runs else (1, 1)
    for k in range(len(sizes) - 1, -1, -1):
        if sizes[k] == 1:
            continue
        if left == 1 and runs:
            left, step = runs.pop()
        if left % sizes[k]:
            return None
        out[k] = step
        left, step = left // sizes[k], step * sizes[k]
    return out
