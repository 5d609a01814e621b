"""One rule per op: the shape and dtype of its result, or an IRError. Plus the trivial simplifications.

The graph is strict: elementwise inputs have equal shapes and, but for shifts and WHERE's condition, equal dtypes;
broadcasting and promotion are made explicit by `weft.core` (EXPAND, CAST).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeVar

from weft.ir import dtypes, template
from weft.ir.dtypes import DType
from weft.ir.errors import IRError
from weft.ir.graph import (
    Along,
    Attrs,
    Axes,
    Box,
    Fill,
    Node,
    Padding,
    Result,
    ScatterCombine,
    Shape,
    ShapeRule,
    Target,
    Window,
    apply,
    const,
    elements,
    set_rules,
)  # fmt: skip
from weft.ir.index import Int, at_least, high, low
from weft.ir.loop_body import LoopNode
from weft.ir.numerics import pinned
from weft.ir.ops import BINARY, COMPARE, MOVEMENT, REDUCE, UNARY, Op, kind_error

_T = TypeVar("_T")


def _bad(op: Op, why: str) -> IRError:
    return IRError(f"{op.symbol}: {why}")


def _check_kind(op: Op, d: DType) -> None:
    why = kind_error(op, d)
    if why is not None:
        raise _bad(op, why)


def _unary(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    (x,) = inputs
    if op is Op.CAST or op is Op.BITCAST:
        if dtype is None:
            raise _bad(op, "needs a dtype")
        if op is Op.BITCAST and dtype.itemsize != x.dtype.itemsize:
            raise _bad(op, f"{x.dtype.name} and {dtype.name} differ in width")
        return x.shape, dtype
    _check_kind(op, x.dtype)
    return x.shape, x.dtype


def _binary(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    a, b = inputs
    if a.shape != b.shape:
        raise _bad(op, f"shapes {a.shape} and {b.shape} differ")
    if a.dtype is not b.dtype:
        raise _bad(op, f"dtypes {a.dtype.name} and {b.dtype.name} differ")
    _check_kind(op, a.dtype)
    return a.shape, (dtypes.bool_ if op in COMPARE else a.dtype)


def _where(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    c, a, b = inputs
    if not (c.shape == a.shape == b.shape) or c.dtype is not dtypes.bool_ or a.dtype is not b.dtype:
        raise _bad(op, f"got {c!r}, {a!r}, {b!r}")
    return a.shape, a.dtype


def _threefry(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    first = inputs[0]
    if len(inputs) != 3 or any(i.shape != first.shape or i.dtype is not dtypes.uint32 for i in inputs):
        raise _bad(op, f"needs three uint32 tensors of one shape, got {inputs}")
    return first.shape, dtypes.uint32


def _reduce(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    (x,) = inputs
    axes = _attrs(op, attrs, Axes).axes
    rank, before = len(x.shape), -1
    for a in axes:
        if not before < a < rank:
            raise _bad(op, f"axes {axes} do not fit rank {rank}")
        before = a
    if op in _EXTREMA and any(low(x.shape[a]) == 0 for a in axes):
        raise _bad(op, f"axes {axes} of shape {x.shape} may be empty, which has no maximum")
    _check_kind(op, x.dtype)
    return tuple([n for k, n in enumerate(x.shape) if k not in axes]), x.dtype


_EXTREMA = frozenset({Op.REDUCE_MAX, Op.REDUCE_MIN})


def _reshape(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    (x,) = inputs
    if shape is None or (shape != x.shape and not equally_many(shape, x.shape)):
        raise _bad(op, f"{x.shape} does not have the elements of {shape}")
    return shape, x.dtype


@lru_cache(4096)
def equally_many(a: Shape, b: Shape) -> bool:
    """True where two shapes have equally many elements."""
    return bool(elements(a) == elements(b))


def _expand(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    (x,) = inputs
    if shape is None or len(shape) != len(x.shape):
        raise _bad(op, f"{x.shape} to {shape}: the ranks differ")
    if not expands(x.shape, shape):
        raise _bad(op, f"{x.shape} to {shape}: only axes of size 1 expand")
    return shape, x.dtype


@lru_cache(4096)
def expands(have: Shape, shape: Shape) -> bool:
    """True where only axes of size 1 are stretched."""
    return len(have) == len(shape) and all(a in (1, b) for a, b in zip(have, shape, strict=True))


def _permute(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    (x,) = inputs
    axes = _attrs(op, attrs, Axes).axes
    if sorted(axes) != list(range(len(x.shape))):
        raise _bad(op, f"{axes} is no permutation of the axes of {x.shape}")
    return tuple(x.shape[a] for a in axes), x.dtype


def _pad(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None) -> Result:
    (x,) = inputs
    p = _attrs(op, attrs, Padding)
    if not len(p.low) == len(p.high) == len(p.interior) == len(x.shape):
        raise _bad(op, f"{p} does not fit rank {len(x.shape)}")
    if any(at_least(v) < 0 for v in (*p.low, *p.high, *p.interior)):
        raise _bad(op, f"negative padding {p}")
    return tuple(
        lo + hi + n + (n - 1 if low(n) > 0 else 0) * gap if gap else lo + hi + n
        for n, lo, hi, gap in zip(x.shape, p.low, p.high, p.interior, strict=True)
    ), x.dtype


def _shrink(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    (x,) = inputs
    _check_box(op, x.shape, _attrs(op, attrs, Box), shape)
    assert shape is not None
    return shape, x.dtype


def _check_box(op: Op, whole: Shape, box: Box, part: Shape | None) -> None:
    if part is None or not len(box.start) == len(box.step) == len(part) == len(whole):
        raise _bad(op, f"{box} of size {part} does not fit shape {whole}")
    for n, first, step, size in zip(whole, box.start, box.step, part, strict=True):
        end = first + (size - 1) * step
        if isinstance(end, int) and isinstance(n, int) and isinstance(first, int) and isinstance(size, int):
            if step < 1 or first < 0 or (size > 0 and end >= n):
                raise _bad(op, f"{box} of size {part} leaves shape {whole}")
        elif step < 1 or at_least(first) < 0 or (high(size) > 0 and high(end - n) >= 0 and low(end - n) >= 0):
            raise _bad(op, f"{box} of size {part} leaves shape {whole}")


def _flip(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None) -> Result:
    (x,) = inputs
    if any(not 0 <= a < len(x.shape) for a in _attrs(op, attrs, Axes).axes):
        raise _bad(op, f"{attrs} does not fit rank {len(x.shape)}")
    return x.shape, x.dtype


def _shear(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    """SHEAR: `shape` gives the number of positions on `axis`. UNSHEAR: the size of the axis that was slid over."""
    (x,) = inputs
    w = _attrs(op, attrs, Window)
    if shape is None or len(shape) != len(x.shape) or w.axis == w.window or w.stride < 1 or w.dilation < 1:
        raise _bad(op, f"{w} does not fit {x.shape} -> {shape}")
    if any(a != b for k, (a, b) in enumerate(zip(x.shape, shape, strict=True)) if k != w.axis):
        raise _bad(op, f"{x.shape} -> {shape} changes more than axis {w.axis}")
    small, large = (shape, x.shape) if op is Op.SHEAR else (x.shape, shape)
    last = (small[w.axis] - 1) * w.stride + (x.shape[w.window] - 1) * w.dilation
    if high(small[w.axis]) > 0 and high(x.shape[w.window]) > 0 and low(last - large[w.axis]) >= 0:
        raise _bad(op, f"{w}: {small[w.axis]} windows do not fit in {large[w.axis]}")
    return shape, x.dtype


def _gather(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    x, index = inputs
    axis = _attrs(op, attrs, Along).axis
    _check_along(op, x, index, axis)
    if high(elements(index.shape)) > 0 and low(x.shape[axis]) == 0:
        raise _bad(op, f"axis {axis} of {x.shape} may be empty")
    return index.shape, x.dtype


def _check_along(op: Op, x: Node, index: Node, axis: int) -> None:
    if not index.dtype.is_int or len(index.shape) != len(x.shape) or not 0 <= axis < len(x.shape):
        raise _bad(op, f"{x!r} at {index!r} along axis {axis}")
    if any(a != b for k, (a, b) in enumerate(zip(x.shape, index.shape, strict=True)) if k != axis):
        raise _bad(op, f"{x!r} and {index!r} differ beside axis {axis}")


def _scatter(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    x, index, src = inputs
    a = _attrs(op, attrs, ScatterCombine)
    _check_along(op, x, index, a.axis)
    if src.shape != index.shape or src.dtype is not x.dtype:
        raise _bad(op, f"{src!r} does not fit {index!r} and {x!r}")
    if a.op not in (None, Op.ADD, Op.MUL, Op.MAX, Op.MIN):
        raise _bad(op, f"cannot combine by {a.op}")
    return x.shape, x.dtype


def _concat(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    axis = _attrs(op, attrs, Along).axis
    first = inputs[0]
    total: Int = 0
    for x in inputs:
        if x.dtype is not first.dtype or len(x.shape) != len(first.shape):
            raise _bad(op, f"{x!r} does not fit {first!r}")
        if x.shape != first.shape and any(
            a != b for k, (a, b) in enumerate(zip(x.shape, first.shape, strict=True)) if k != axis
        ):
            raise _bad(op, f"{x!r} and {first!r} differ beside axis {axis}")
        total = total + x.shape[axis]
    return (*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype


def _update(
    op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None
) -> Result:
    x, src = inputs
    if src.dtype is not x.dtype:
        raise _bad(op, f"dtypes {x.dtype.name} and {src.dtype.name} differ")
    _check_box(op, x.shape, _attrs(op, attrs, Box), src.shape)
    return x.shape, x.dtype


def _same(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None) -> Result:
    (x,) = inputs
    if op is Op.COPY:
        _attrs(op, attrs, Target)
    return x.shape, x.dtype


def _loop(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None) -> Result:
    loop = _attrs(op, attrs, LoopNode)
    b = loop.body
    wanted = (*b.carries, *b.slices, *b.fixed)
    if len(wanted) != len(inputs) or low(b.length) < 1:
        raise _bad(op, f"{b.length} steps of a body with {len(wanted)} inputs, got {len(inputs)}")
    rows = [None] * len(b.carries) + list(b.offsets) + [None] * len(b.fixed)
    for x, p, at in zip(inputs, wanted, rows, strict=True):
        fits = x.shape == p.shape if at is None else x.shape[1:] == p.shape and at >= 0
        if at is not None and low(x.shape[0] - at - b.length) < 0:
            fits = False
        if not fits or x.dtype is not p.dtype or x.op in (Op.CONST, Op.RANGE):
            raise _bad(op, f"the body takes {p!r}, got {x!r}")
    for carry, after in zip(b.carries, b.nexts, strict=True):
        if carry.shape != after.shape or carry.dtype is not after.dtype:
            raise _bad(op, f"a carry starts as {carry!r} and goes on as {after!r}")
    return b.result(loop.part, loop.number)


def _call(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape | None, dtype: DType | None) -> Result:
    graph = _attrs(op, attrs, template.GraphTemplate)
    given = tuple([(i.shape, i.dtype) for i in inputs])
    if given != graph.placeholders or len(graph.results) != 1:
        raise _bad(op, f"one result of a graph on {graph.placeholders}, got {given}")
    (result,) = graph.results
    row = graph.rows[result - len(given)]
    return row.shape, row.dtype


def _attrs(op: Op, attrs: Attrs, kind: type[_T]) -> _T:
    if not isinstance(attrs, kind):
        raise _bad(op, f"needs {kind.__name__}, got {attrs!r}")
    return attrs


RULES: dict[Op, ShapeRule] = {
    **dict.fromkeys(UNARY, _unary),
    **dict.fromkeys(BINARY, _binary),
    Op.WHERE: _where,
    Op.THREEFRY: _threefry,
    **dict.fromkeys(REDUCE, _reduce),
    Op.RESHAPE: _reshape,
    Op.PERMUTE: _permute,
    Op.EXPAND: _expand,
    Op.PAD: _pad,
    Op.SHRINK: _shrink,
    Op.FLIP: _flip,
    Op.SHEAR: _shear,
    Op.UNSHEAR: _shear,
    Op.GATHER: _gather,
    Op.SCATTER: _scatter,
    Op.CONCAT: _concat,
    Op.UPDATE: _update,
    Op.CONTIGUOUS: _same,
    Op.COPY: _same,
    Op.LOOP: _loop,
    Op.CALL: _call,
}


def simplify(op: Op, inputs: tuple[Node, ...], attrs: Attrs, shape: Shape, dtype: DType) -> Node | None:
    """A simpler node with the same value, for the cases that are free to see; None when there is none."""
    if op in BINARY:
        a, b = inputs
        constant = a.attrs.__class__ is Fill and b.attrs.__class__ is Fill
        return _fold(op, inputs, shape, dtype) if constant else None
    if op in MOVEMENT:
        return _simplify_movement(op, inputs[0], attrs, shape)
    if op in UNARY:
        (x,) = inputs
        if x.dtype is dtype and op is Op.CAST:
            return x
        return _fold(op, inputs, shape, dtype) if isinstance(x.attrs, Fill) else None
    if op in REDUCE:
        if not _axes(attrs):
            return inputs[0]
        constant = isinstance(inputs[0].attrs, Fill)
        return _reduce_constant(op, inputs[0], attrs, shape, dtype) if constant else None
    if op is Op.CONCAT and len(inputs) == 1:
        return inputs[0]
    if op is Op.UPDATE and inputs[0].shape == inputs[1].shape:
        return inputs[1]
    if op is Op.COPY and attrs == Target(inputs[0].device or ""):
        return inputs[0]  # not where a layout is asked for
    return None


def _axes(attrs: Attrs) -> tuple[int, ...]:
    return attrs.axes if isinstance(attrs, Axes) else ()


def _reduce_constant(op: Op, x: Node, attrs: Attrs, shape: Shape, dtype: DType) -> Node | None:
    """The sum of n equal numbers is n times that number, without adding it n times."""
    from weft.ir.fold import rounded

    sizes = [x.shape[a] for a in _axes(attrs)]
    count = math.prod(n for n in sizes if isinstance(n, int))
    if not isinstance(x.attrs, Fill) or count == 0 or not all(isinstance(n, int) for n in sizes):
        return None
    value = x.attrs.value
    match op:
        case Op.REDUCE_MAX | Op.REDUCE_MIN:
            return const(value, dtype, shape)
        case Op.PROD if value in (0, 1):
            return const(value, dtype, shape)
        case Op.SUM if dtype.is_float and pinned() and not _adds_exactly(float(value), count, dtype):
            return None
        case Op.SUM if dtype.is_float:
            first = 0.0 if count > 1 else -0.0  # as kernels do: a sum of several begins with 0
            return const(rounded(dtype, float(value) * count + first), dtype, shape)
        case Op.SUM if dtype.is_int:
            return const(rounded(dtype, int(value) * count), dtype, shape)
        case _:
            return None


def _adds_exactly(value: float, count: int, dtype: DType) -> bool:
    """True where no sum of up to `count` such terms is rounded, so that their order does not show."""
    if value == 0 or not math.isfinite(value):
        return True
    mantissa = int(abs(math.frexp(value)[0]) * 2**53)
    digits = mantissa // (mantissa & -mantissa)
    return digits * count < 1 << (52 if dtype is dtypes.float64 else 23) and abs(value) * count < 2.0**127


def _fold(op: Op, inputs: tuple[Node, ...], shape: Shape, dtype: DType) -> Node | None:
    from weft.ir.expr import Const
    from weft.ir.fold import fold

    fills = [i.attrs for i in inputs]
    args = tuple(Const(i.dtype, f.value) for i, f in zip(inputs, fills, strict=True) if isinstance(f, Fill))
    value = fold(op, dtype, args)
    return None if value is None else const(value, dtype, shape)


_RESHAPE, _RANGE = Op.RESHAPE, Op.RANGE  # to load a member takes ten times as long

SIMPLIFIED_OVER = frozenset({Op.CONST, Op.RANGE, Op.RESHAPE})
"""The ops of inputs that movements are simplified by. Over others they depend on shapes and attributes alone."""


def _simplify_movement(op: Op, x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    if isinstance(x.attrs, Fill) and op in _ALSO_CONSTANT:
        return const(x.attrs.value, x.dtype, shape)
    simpler = _MOVEMENTS.get(op)
    return None if simpler is None else simpler(x, attrs, shape)


_ALSO_CONSTANT = frozenset({Op.RESHAPE, Op.PERMUTE, Op.EXPAND, Op.SHRINK, Op.FLIP, Op.SHEAR})
"""Movements of a constant that are a constant."""


def _reshaped(x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    if x.shape == shape:
        return x
    return apply(x.op, x.inputs, None, shape) if x.op is _RESHAPE and x.storage is None else None


def _expanded(x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    return x if x.shape == shape else None


def _permuted(x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    return x if _axes(attrs) == tuple(range(len(shape))) else None


def _shrunk(x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    if x.shape == shape:  # whole axes can only start at 0 with step 1 (or have one element)
        return x
    if x.op is _RANGE and shape == (1,) and isinstance(attrs, Box):
        first = attrs.start[0]
        return const(first, x.dtype, shape) if isinstance(first, int) else None
    return None


def _flipped(x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    return x if all(shape[a] == 1 for a in _axes(attrs)) else None


def _padded(x: Node, attrs: Attrs, shape: Shape) -> Node | None:
    whole = isinstance(attrs, Padding) and shape == x.shape and not any((*attrs.low, *attrs.high))
    return x if whole else None


_MOVEMENTS: Mapping[Op, Callable[[Node, Attrs, Shape], Node | None]] = {
    Op.RESHAPE: _reshaped,
    Op.EXPAND: _expanded,
    Op.PERMUTE: _permuted,
    Op.SHRINK: _shrunk,
    Op.FLIP: _flipped,
    Op.PAD: _padded,
}
"""Simpler nodes in place of a movement of x, where there are any."""


set_rules(RULES, simplify)
