"""Small builders on values, as strict as the graph: equal shapes and dtypes, no broadcasting, no promotion."""
# Tests: tests/autograd/test_vjp.py

from __future__ import annotations

from functools import lru_cache

from weft.autograd.value import PLAIN_FLOATS, Value, apply, apply_fitting, constant, record
from weft.ir import graph
from weft.ir.dtypes import DType, int64
from weft.ir.expr import Scalar
from weft.ir.graph import Along, Axes, Box, Fill, Padding, ScatterCombine, Shape
from weft.ir.index import Int
from weft.ir.ops import Op

_ADD, _SUB, _MUL, _DIV, _SUM, _RESHAPE = Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.SUM, Op.RESHAPE  # loaded once


def neg(x: Value) -> Value:
    """-x"""
    return apply(Op.NEG, (x,))


def exp(x: Value) -> Value:
    """e ** x"""
    return apply(Op.EXP, (x,))


def log(x: Value) -> Value:
    """The natural logarithm."""
    return apply(Op.LOG, (x,))


def sin(x: Value) -> Value:
    """The sine."""
    return apply(Op.SIN, (x,))


def cos(x: Value) -> Value:
    """The cosine."""
    return apply(Op.COS, (x,))


def trunc(x: Value) -> Value:
    """x rounded toward zero."""
    return apply(Op.TRUNC, (x,))


def cast(x: Value, dtype: DType) -> Value:
    """x as `dtype`."""
    return apply(Op.CAST, (x,), dtype=dtype)


def add(x: Value, y: Value) -> Value:
    """x + y"""
    return apply_fitting(_ADD, x, y)


def sub(x: Value, y: Value) -> Value:
    """x - y"""
    return apply_fitting(_SUB, x, y)


def mul(x: Value, y: Value) -> Value:
    """x * y"""
    return apply_fitting(_MUL, x, y)


def scale(x: Value, factor: Scalar) -> Value:
    """x times a number."""
    return apply_fitting(_MUL, x, constant(factor, x))


def div(x: Value, y: Value) -> Value:
    """x / y"""
    return apply_fitting(_DIV, x, y)


def pow_(x: Value, y: Value) -> Value:
    """x ** y"""
    return apply(Op.POW, (x, y))


def eq(x: Value, y: Value) -> Value:
    """True where x == y."""
    return apply(Op.EQ, (x, y))


def lt(x: Value, y: Value) -> Value:
    """True where x < y."""
    return apply(Op.LT, (x, y))


def le(x: Value, y: Value) -> Value:
    """True where x <= y."""
    return apply(Op.LE, (x, y))


def both(x: Value, y: Value) -> Value:
    """True where both are true."""
    return apply(Op.AND, (x, y))


def where(condition: Value, x: Value, y: Value) -> Value:
    """x where the condition holds, else y."""
    fill = condition.node.attrs
    if isinstance(fill, Fill):
        return x if fill.value else y
    return apply(Op.WHERE, (condition, x, y))


def zeros(like: Value) -> Value:
    """Zeros of the shape and dtype of `like`."""
    return constant(0, like)


def full(value: Scalar, shape: Shape, dtype: DType) -> Value:
    """`value` in every element."""
    return Value(graph.const(value, dtype, shape))


def reshape(x: Value, shape: Shape) -> Value:
    """The elements of x in another shape, in row-major order."""
    return apply(Op.RESHAPE, (x,), None, shape)


def permute(x: Value, axes: tuple[int, ...]) -> Value:
    """x with axis `axes[k]` as its k-th."""
    return apply(Op.PERMUTE, (x,), Axes(axes))


def expand(x: Value, shape: Shape) -> Value:
    """x with axes of size 1 repeated to `shape`."""
    return apply(Op.EXPAND, (x,), None, shape)


def shrink(x: Value, start: tuple[Int, ...], step: tuple[int, ...], size: Shape) -> Value:
    """The strided box of x."""
    return apply(Op.SHRINK, (x,), Box(start, step), size)


def pad(
    x: Value, low: tuple[Int, ...], high: tuple[Int, ...], interior: tuple[int, ...], fill: Scalar = 0
) -> Value:
    """x with elements of value `fill` before, after and between its own."""
    return apply(Op.PAD, (x,), Padding(low, high, interior, fill))


def sum_(x: Value, axes: tuple[int, ...]) -> Value:
    """The sum over `axes`, which the result lacks."""
    return apply(Op.SUM, (x,), Axes(axes))


def sum_to(x: Value, shape: Shape) -> Value:
    """The sum over the axes on which `shape` has size 1 and x has not: the transpose of `expand`."""
    node = x.node
    axes, between = _summed(node.shape, shape)
    if not axes.axes:
        return x
    device, dtype = node.device, node.dtype
    if device is None or dtype not in PLAIN_FLOATS:
        return reshape(apply(Op.SUM, (x,), axes), shape)
    summed = record(graph.intern(_SUM, (node,), axes, between, dtype, device), _SUM, axes, (x,))
    return record(
        graph.intern(_RESHAPE, (summed.node,), None, shape, dtype, device), _RESHAPE, None, (summed,)
    )


@lru_cache(4096)
def _summed(have: Shape, shape: Shape) -> tuple[Axes, Shape]:
    """The axes that are summed over, and the shape without them."""
    axes = tuple([k for k, (n, m) in enumerate(zip(have, shape, strict=True)) if m == 1 and n != 1])
    return Axes(axes), tuple([n for k, n in enumerate(have) if k not in axes])


def spread(x: Value, axes: tuple[int, ...], shape: Shape) -> Value:
    """x repeated along `axes`, which it lacks, to `shape`: the transpose of `sum_`."""
    kept = tuple([1 if k in axes else n for k, n in enumerate(shape)])
    return expand(reshape(x, kept), shape)


def arange_along(axis: int, shape: Shape) -> Value:
    """Each element's position along `axis`, as int64."""
    ones = tuple(n if k == axis else 1 for k, n in enumerate(shape))
    return expand(reshape(Value(graph.arange(shape[axis], int64)), ones), shape)


def gather(x: Value, index: Value, axis: int) -> Value:
    """out[.., j, ..] = x[.., index[.., j, ..], ..], the index clamped into range."""
    return apply(Op.GATHER, (x, index), Along(axis))


def scatter(x: Value, index: Value, src: Value, axis: int, op: Op | None) -> Value:
    """x with src combined in at index along `axis`; an index out of range is skipped."""
    return apply(Op.SCATTER, (x, index, src), ScatterCombine(axis, op))
