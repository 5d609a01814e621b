"""Strides that torch's views would have: weft has none, but torch copies where they do not allow a view."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.graph import Axes, Box, Node, Padding, Shape
from weft.ir.ops import Op


def copies(shape: Shape, route: Sequence[Node], wanted: Shape, dense: bool) -> bool:
    """Whether torch makes a copy to give `wanted`, in the same order, or with `dense` one after the other in memory, to
    what movement ops make of elements in row-major order of shape `shape`."""
    found = strides_of(shape, route)
    if found is None:
        return True
    sizes, strides = found
    if dense:
        return any(a != b and n != 1 for a, b, n in zip(strides, _row_major(sizes), sizes, strict=True))
    return _reshaped(sizes, strides, wanted) is None


def strides_of(shape: Shape, route: Sequence[Node]) -> tuple[list[int], list[int]] | None:
    """Sizes and strides of what the ops make of it; None where sizes are known at run time only."""
    every = (shape, *(n.shape for n in route))
    if not all(isinstance(n, int) for s in every for n in s):
        return None
    sizes = _known(every[-1])
    if 0 in sizes:
        return sizes, _row_major(sizes)
    origin = _position(shape, route, [0] * len(sizes))
    unit = ([int(j == k) for j in range(len(sizes))] for k in range(len(sizes)))
    return sizes, [
        _position(shape, route, e) - origin if n > 1 else 1 for e, n in zip(unit, sizes, strict=True)
    ]


def _known(shape: Shape) -> list[int]:
    return [n for n in shape if isinstance(n, int)]


def _position(shape: Shape, route: Sequence[Node], index: list[int]) -> int:
    """Which of the elements, in row-major order, is seen at `index`."""
    for node in reversed(route):
        source = _known(node.inputs[0].shape)
        match node.op, node.attrs:
            case Op.RESHAPE, _:
                flat = _dot(index, _row_major(_known(node.shape)))
                index = [flat // s % n for s, n in zip(_row_major(source), source, strict=True)]
            case Op.PERMUTE, Axes(order):
                index = [index[order.index(k)] for k in range(len(order))]
            case Op.SHRINK, Box(start, step):
                index = [int(str(a)) + s * i for a, s, i in zip(start, step, index, strict=True)]
            case Op.PAD, Padding(low):
                index = [i - int(str(a)) for i, a in zip(index, low, strict=True)]
            case Op.FLIP, Axes(axes):
                index = [
                    n - 1 - i if k in axes else i for k, (i, n) in enumerate(zip(index, source, strict=True))
                ]
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
