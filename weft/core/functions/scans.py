"""Running sums, products, maxima: each element combined with all before it along a dimension.

A scan is done in blocks of 32. Inside a block each element is reduced over those before it, which is one kernel of 32
steps per element; the totals of the blocks are scanned in the same way, and added to what follows them.
"""
# Tests: tests/core/test_surface.py, tests/core/composed/test_halves.py

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from weft.autograd.value import Value, apply, composed
from weft.core.args import broadcast as bc
from weft.core.args.axes import axis, is_int
from weft.core.args.handle import Handle, Number, value_of, wrap
from weft.core.args.requirements import needs, no_bools
from weft.core.composed.autocast import widens_on_gpus
from weft.core.composed.composite import composite
from weft.core.composed.precision import rounded_once, widened
from weft.core.composed.smooth import float_input
from weft.core.layout.movement import box, cat, narrow, pad_value, positions
from weft.core.pointwise.elementwise import eq, logical_or, ne, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType, bool_, int32, int64, uint8
from weft.ir.graph import Axes
from weft.ir.ops import COMBINE, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weft.core.tensor.tensor import Tensor

_BLOCK = 32


class Running(NamedTuple):
    """The result of cummax and cummin: the extremum so far, and where it was last found."""

    values: Tensor
    indices: Tensor


def _last_axis(op: str, v: Value, dim: int) -> tuple[int, int]:
    k = axis(op, dim, v.shape)
    n = v.shape[k] if v.shape else 1
    if not isinstance(n, int):
        raise ShapeError(f"{op}: the size {n} of dimension {dim} must be known")
    return k, n


def _moved(v: Value, k: int) -> tuple[Value, tuple[int, ...] | None]:
    """`v` with axis k last, and the order that brings it back."""
    rank = len(v.shape)
    if k == rank - 1:
        return v, None
    order = (*range(k), *range(k + 1, rank), k)
    back = (*range(k), rank - 1, *range(k, rank - 1))
    return apply(Op.PERMUTE, (v,), Axes(order)), back


def _restored(v: Value, back: tuple[int, ...] | None) -> Value:
    return v if back is None else apply(Op.PERMUTE, (v,), Axes(back))


def _scan_last(
    v: Value, inside: Callable[[Value], Value], combine: Callable[[Value, Value], Value], neutral: Number
) -> Value:
    """The scan along the last axis: `inside` scans a short one, `combine` adds what came before."""
    n = v.shape[-1]
    assert isinstance(n, int)
    if n <= _BLOCK:
        return inside(v)
    count = -(-n // _BLOCK)
    lead = v.shape[:-1]
    none = [0] * len(lead)
    whole = pad_value(v, [*none, 0], [*none, count * _BLOCK - n], neutral)
    blocks = apply(Op.CONTIGUOUS, (inside(bc.reshape(whole, (*lead, count, _BLOCK))),))
    last = box(blocks, (*none, 0, _BLOCK - 1), (*lead, count, 1))
    totals = _scan_last(bc.reshape(last, (*lead, count)), inside, combine, neutral)
    if count <= _BLOCK:  # one kernel more, instead of a reduction wherever they are used
        totals = apply(Op.CONTIGUOUS, (totals,))
    before = box(pad_value(totals, [*none, 1], [*none, 0], neutral), (*none, 0), (*lead, count))
    out = combine(blocks, bc.expand(bc.reshape(before, (*lead, count, 1)), blocks.shape))
    return box(bc.reshape(out, (*lead, count * _BLOCK)), (*none, 0), v.shape)


def _earlier(v: Value, neutral: Number) -> Value:
    """out[.., i, j] = v[.., j] for j <= i, else neutral."""
    n = v.shape[-1]
    wide = bc.expand(bc.reshape(v, (*v.shape[:-1], 1, n)), (*v.shape[:-1], n, n))
    row, column = wrap(positions((n, n), 0, int32)), wrap(positions((n, n), 1, int32))
    keep = bc.expand((column <= row).value, wide.shape)
    return apply(Op.WHERE, (keep, wide, bc.scalar(neutral, v.dtype, wide.shape)))


def _reduced(reduction: Op, v: Value, neutral: Number) -> Value:
    """The scan of a whole axis by `reduction`."""

    def inside(x: Value) -> Value:
        return apply(reduction, (_earlier(x, neutral),), Axes((len(x.shape),)))

    return _scan_last(v, inside, lambda a, b: apply(COMBINE[reduction], (a, b)), neutral)


def _accumulated(v: Value, dtype: DType | None) -> Value:
    return bc.cast(v, dtype if dtype is not None else v.dtype if v.dtype.is_float else int64)


@composite(autocast=widens_on_gpus)
def cumsum(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running sums along dim. Bools and integers give int64 unless dtype says otherwise."""
    v = _accumulated(value_of("cumsum", input), dtype)
    k, n = _last_axis("cumsum", v, dim)
    if n < 2 or not v.shape:
        return wrap(v)
    if v.dtype is bool_:
        return wrap(bc.cast(cumsum(wrap(v), dim, dtype=int64).value, bool_))
    return wrap(_cumsum(v, k))


def _cumsum(v: Value, k: int) -> Value:
    wide = widened(v)
    last, back = _moved(Value(wide.node), k)
    out = _restored(_reduced(Op.SUM, last, 0), back)

    def rule(g: Value, result: Value, x: Value) -> tuple[Value | None, ...]:
        turned = Axes((k,))
        return (apply(Op.FLIP, (_cumsum(apply(Op.FLIP, (g,), turned), k),), turned),)

    return bc.cast(composed(out.node, (wide,), rule), v.dtype)


@composite(autocast=widens_on_gpus)
def cumprod(input: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
    """Running products along dim. Bools and integers give int64 unless dtype says otherwise."""
    v = _accumulated(value_of("cumprod", input), dtype)
    k, n = _last_axis("cumprod", v, dim)
    if n < 2 or not v.shape:
        return wrap(v)
    if v.dtype is bool_:
        return wrap(bc.cast(cumprod(wrap(v), dim, dtype=int64).value, bool_))
    wide = widened(v)
    if not wide.needs_grad:
        last, back = _moved(wide, k)
        return wrap(bc.cast(_restored(_reduced(Op.PROD, last, 1), back), v.dtype))
    # in log2(n) steps of products, whose gradients are right where factors are zero
    step = 1
    while step < n:
        low = [step if i == k else 0 for i in range(len(v.shape))]
        shifted = box(pad_value(wide, low, [0] * len(low), 1), (0,) * len(low), wide.shape)
        wide = apply(Op.MUL, (wide, shifted))
        step *= 2
    return wrap(bc.cast(wide, v.dtype))


def cummax(input: Tensor, dim: int) -> Running:
    """The maximum so far along dim and its last index; NaN from the first NaN on."""
    return _extremum("cummax", input, dim)


def cummin(input: Tensor, dim: int) -> Running:
    """The minimum so far along dim and its last index; NaN from the first NaN on."""
    return _extremum("cummin", input, dim)


@composite(rounds_once=False)
def _extremum(op: str, input: Tensor, dim: int) -> Running:
    reduction = Op.REDUCE_MAX if op == "cummax" else Op.REDUCE_MIN
    v = value_of(op, input)
    k, _ = _last_axis(op, v, dim)
    if not v.shape:
        return Running(input, wrap(bc.scalar(0, int64, ())))
    if 0 in v.shape:
        return Running(input, wrap(bc.scalar(0, int64, v.shape)))
    plain = Value(v.node) if v.dtype is not bool_ else bc.cast(Value(v.node), uint8)
    last, back = _moved(plain, k)
    neutral = last.dtype.min if reduction is Op.REDUCE_MAX else last.dtype.max
    best = wrap(_reduced(reduction, last, neutral))
    x = wrap(last)
    record = eq(x, best)
    if v.dtype.is_float:
        record = logical_or(record, ne(x, x))
    at = where(record, wrap(positions(last.shape, len(last.shape) - 1, int32)), wrap(bc.scalar(0, int32, ())))
    found = _restored(_reduced(Op.REDUCE_MAX, at.value, 0), back)
    indices = wrap(bc.cast(found, int64))
    from weft.core.layout.gather import gather

    return Running(gather(input, k, indices), indices)


@composite
def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """Running logsumexp along dim, each with its own maximum taken out."""
    from weft.core.functions.reductions import logsumexp
    from weft.core.pointwise.special_functions import logaddexp

    given = value_of("logcumsumexp", input)
    if not given.dtype.is_float:
        raise DTypeError(
            f"logcumsumexp: needs a float tensor, got {given.dtype.name}; convert it with .float()"
        )
    v = widened(float_input("logcumsumexp", input))
    k, n = _last_axis("logcumsumexp", v, dim)
    if not v.shape or n == 0:
        return wrap(given)
    last, back = _moved(v, k)
    out = _scan_last(
        last,
        lambda x: logsumexp(wrap(_earlier(x, -math.inf)), -1).value,
        lambda a, b: logaddexp(wrap(a), wrap(b)).value,
        -math.inf,
    )
    return wrap(bc.cast(_restored(out, back), given.dtype))


# ---------------------------------------------------------------------------------------------- differences, integrals


@composite
def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The n-th difference of neighbours along dim, after joining prepend and append."""
    v = value_of("diff", input)
    if not v.shape:
        raise ShapeError("diff: needs a tensor of at least 1 dimension")
    if not is_int(n) or n < 0:
        raise ArgumentError(f"diff: the order n must be a non-negative int, got {n}")
    k = axis("diff", dim, v.shape)
    for x in (prepend, append):
        if x is not None:
            _as_slice(x, v, k)
    if n == 0:
        return wrap(v)
    parts = [x for x in (prepend, input, append) if x is not None]
    x = cat([_as_slice(p, v, k) for p in parts], k) if len(parts) > 1 else input
    for _ in range(n):
        size = x.value.shape[k]
        if size == 0:
            return x
        after, before = narrow(x, k, 1, size - 1), narrow(x, k, 0, size - 1)
        x = ne(after, before) if x.value.dtype is bool_ else after - before
    return x


def _as_slice(x: Tensor, like: Value, k: int) -> Tensor:
    if len(value_of("diff", x).shape) != len(like.shape):
        raise ShapeError("diff: prepend and append must have as many dimensions as the input")
    return x


def _spacing(
    op: str, y: Tensor, x: Tensor | None, dx: Number | None, dim: int
) -> tuple[Tensor | Number, int]:
    """The distances between neighbours along dim, shaped to multiply what lies between them."""
    v = value_of(op, y)
    k = axis(op, dim, v.shape)
    if x is None:
        return (1 if dx is None else dx), k
    if dx is not None:
        raise ArgumentError(f"{op}: give x or dx, not both")
    u = value_of(op, x)
    if len(u.shape) == 1:
        if u.shape[0] != v.shape[k]:
            raise ShapeError(
                f"{op}: there are {u.shape[0]} points x for {v.shape[k]} values along dimension {dim}"
            )
        steps = diff(x)
        return steps.reshape((-1,) + (1,) * (len(v.shape) - k - 1)), k
    if len(u.shape) < len(v.shape):
        return diff(x.reshape((1,) * (len(v.shape) - len(u.shape)) + tuple(u.shape)), dim=k), k
    return diff(x, dim=dim), k


def _panels(op: str, y: Tensor, x: Tensor | None, dx: Number | None, dim: int) -> tuple[Tensor, int]:
    steps, k = _spacing(op, y, x, dx, dim)
    n = y.value.shape[k]
    if n == 0:
        return y, k
    pairs = narrow(y, k, 1, n - 1) + narrow(y, k, 0, n - 1)
    return pairs * steps / 2.0, k


@composite
@needs(no_bools("y", "x"))
def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: Number | None = None, dim: int = -1) -> Tensor:
    """The integral along dim by the trapezoidal rule, over points x or at distances dx (1 by default)."""
    from weft.core.functions.reductions import sum

    panels, k = _panels("trapezoid", y, x, dx, dim)
    return sum(panels, k)


@composite
def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: Number | None = None, dim: int = -1
) -> Tensor:
    """The running integral along dim by the trapezoidal rule."""
    panels, k = _panels("cumulative_trapezoid", y, x, dx, dim)
    return cumsum(panels, k)


@rounded_once
def gradient(
    input: Tensor,
    *,
    spacing: Number | Sequence[Number] | Sequence[Tensor] | Tensor | None = 1,
    dim: int | Sequence[int] | None = None,
    edge_order: int = 1,
) -> tuple[Tensor, ...]:
    """The derivative along each dim by differences of second order inside, of `edge_order` at both ends."""
    v = value_of("gradient", input)
    given = tuple(range(len(v.shape))) if dim is None else (dim,) if isinstance(dim, int) else tuple(dim)
    dims = [axis("gradient", d, v.shape) for d in given]
    if len(set(dims)) != len(dims):
        raise ArgumentError(f"gradient: a dimension appears twice in {given}")
    if edge_order not in (1, 2):
        raise ArgumentError(f"gradient: edge_order must be 1 or 2, got {edge_order}")
    if spacing is None:
        spacing = 1
    if isinstance(spacing, (int, float)):
        steps: list[Number | Tensor] = [spacing] * len(dims)
    elif isinstance(spacing, Handle):
        steps = [wrap(spacing.value)]
    else:
        steps = list(spacing)
    if len(steps) != len(dims):
        raise ArgumentError(f"gradient: needs a spacing for each of {len(dims)} dimensions, got {len(steps)}")
    return tuple(_derivative(input, k, h, edge_order) for k, h in zip(dims, steps, strict=True))


def _derivative(y: Tensor, k: int, h: Number | Tensor, edge_order: int) -> Tensor:
    n = y.value.shape[k]
    if not isinstance(n, int) or n < edge_order + 1:
        raise ShapeError(f"gradient: dimension {k} of size {n} needs at least {edge_order + 1} elements")
    tail = (1,) * (len(y.value.shape) - k - 1)

    def part(start: int, size: int) -> Tensor:
        return narrow(y, k, start, size)

    if isinstance(h, Handle):
        points = wrap(h.value)
        if points.value.shape != (n,):
            raise ShapeError(
                f"gradient: dimension {k} of size {n} needs as many points, got {tuple(points.value.shape)}"
            )
        steps = diff(points)

        def step(start: int, size: int) -> Tensor:
            return narrow(steps, 0, start, size).reshape((-1, *tail))

        if n > 2:
            a, b = step(0, n - 2), step(1, n - 2)
            inside = (
                part(0, n - 2) * (-b / (a * (a + b)))
                + part(1, n - 2) * ((b - a) / (a * b))
                + part(2, n - 2) * (a / (b * (a + b)))
            )
        else:
            inside = part(0, 0)
        if edge_order == 1:
            first = (part(1, 1) - part(0, 1)) / step(0, 1)
            last = (part(n - 1, 1) - part(n - 2, 1)) / step(n - 2, 1)
        else:
            a, b = step(0, 1), step(1, 1)
            first = (
                part(0, 1) * (-(a * 2 + b) / (a * (a + b)))
                + part(1, 1) * ((a + b) / (a * b))
                - part(2, 1) * (a / (b * (a + b)))
            )
            a, b = step(n - 3, 1), step(n - 2, 1)
            last = (
                part(n - 3, 1) * (b / (a * (a + b)))
                - part(n - 2, 1) * ((a + b) / (a * b))
                + part(n - 1, 1) * ((b * 2 + a) / (b * (a + b)))
            )
        return cat([first, inside, last], k)
    inside = (part(2, n - 2) - part(0, n - 2)) / (2 * h) if n > 2 else part(0, 0) / h
    if edge_order == 1:
        first, last = (part(1, 1) - part(0, 1)) / h, (part(n - 1, 1) - part(n - 2, 1)) / h
    else:
        first = (part(0, 1) * -1.5 + part(1, 1) * 2 - part(2, 1) * 0.5) / h
        last = (part(n - 1, 1) * 1.5 - part(n - 2, 1) * 2 + part(n - 3, 1) * 0.5) / h
    return cat([first, inside, last], k)
