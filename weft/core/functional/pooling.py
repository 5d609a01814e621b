"""Pooling: the maximum or mean of windows."""
# Tests: tests/nn/test_functional.py, tests/nn/test_ceil_mode.py, tests/core/functional/test_pooling_ends.py

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np

from weft.autograd.value import Value, apply, composed, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import is_int, known_sizes
from weft.core.args.handle import value_of, wrap
from weft.core.args.requirements import filled, floats, needs, no_bools
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functional.activations import relu
from weft.core.functional.convolution import PerAxis, per_axis
from weft.core.functions.random import rand
from weft.core.layout.creation import tensor
from weft.core.layout.gather import check_range, index_value, rows
from weft.core.layout.movement import box, pad_value, positions
from weft.core.pointwise.elementwise import (
    abs,
    div,
    eq,
    isnan,
    pow,
    sign,
    trunc,
    where,
    with_gradient_of,
)
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import int64
from weft.ir.graph import Along, Axes, ScatterCombine, Shape, Window, arange, elements
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

Sizes: TypeAlias = int | Sequence[int | None] | None


def _slide(
    op: str, rank: int, v: Value, kernel: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], ceil_mode: bool, fill: float,
) -> Value:  # fmt: skip
    """(..., *sizes) -> (..., *windows, *kernel), padded with `fill`."""
    lead, sizes = v.shape[: len(v.shape) - rank], v.shape[len(v.shape) - rank :]
    counts: list[Int] = []
    high: list[Int] = []
    for n, k, s, p, d in zip(sizes, kernel, stride, padding, dilation, strict=True):
        if 2 * p > d * (k - 1) + 1:
            raise ArgumentError(f"{op}: padding {p} may be at most half the kernel, {k} elements {d} apart")
        room = n + 2 * p - d * (k - 1) - 1
        if isinstance(room, int) and room < 0 and (not ceil_mode or room <= -s):
            raise ShapeError(
                f"{op}: kernel {kernel} with dilation {dilation} exceeds the padded input of shape {tuple(v.shape)}"
            )
        count = -(-room // s) + 1 if ceil_mode else room // s + 1
        if ceil_mode and isinstance(n, int) and isinstance(count, int) and (count - 1) * s >= n + p:
            count = count - 1  # the last window must start inside the input or its left padding
        counts.append(count)
        needed = (count - 1) * s + d * (k - 1) + 1 - n - p
        high.append(needed if isinstance(needed, int) and needed > p else p)
    padded = pad_value(v, [*(0 for _ in lead), *padding], [*(0 for _ in lead), *high], fill)
    wide = bc.reshape(padded, (*padded.shape, *(1 for _ in kernel)))
    out = apply(Op.EXPAND, (wide,), None, (*padded.shape, *kernel))
    for i in range(rank):
        a, w = len(lead) + i, len(lead) + rank + i
        shape = (*out.shape[:a], counts[i], *out.shape[a + 1 :])
        out = apply(Op.SHEAR, (out,), Window(a, w, stride[i], dilation[i]), shape)
    return out


def _input(op: str, rank: int, input: Tensor) -> Value:
    v = value_of(op, input)
    if len(v.shape) not in (rank + 1, rank + 2):
        raise ShapeError(
            f"{op}: needs input (n, channels, {rank} sizes) or (channels, {rank} sizes), got shape {tuple(v.shape)}"
        )
    return v


def _filled(op: str, rank: int, v: Value) -> Value:
    """`v`, of which only the first dimension of batches may be empty."""
    if 0 in v.shape[len(v.shape) - rank - 1 :]:
        raise ShapeError(f"{op}: channels and sizes must not be empty, got shape {tuple(v.shape)}")
    return v


_NOWHERE = (1 << 63) - 1
"""The position of padding, behind all others."""


def _first_largest(windows: Value, place: Value, rank: int) -> tuple[Value, Value]:
    """The maximum of each window over the last `rank` axes, and the position where it stands first; without a gradient.

    A NaN is larger than everything, and the last one is taken, as in torch. `place` are the positions, broadcast to the
    windows.
    """
    over = Axes(tuple(range(len(windows.shape) - rank, len(windows.shape))))
    plain, wide = Value(windows.node), wrap(bc.expand(place, windows.shape))
    top = apply(Op.REDUCE_MAX, (plain,), over)
    spread = bc.expand(bc.reshape(top, (*top.shape, *(1 for _ in range(rank)))), windows.shape)
    found = where(eq(wrap(plain), wrap(spread)), wide, _NOWHERE)
    if not windows.dtype.is_float:
        return top, apply(Op.REDUCE_MIN, (found.value,), over)
    found = where(isnan(wrap(plain)), -1 - wide, found)  # below all others, the last the lowest
    first = wrap(apply(Op.REDUCE_MIN, (found.value,), over))
    return top, where(first < 0, -1 - first, first).value


def _taken_from(x: Value, top: Value, place: Value, rank: int) -> Value:
    """`top` with the gradient of the elements of x that stand at `place`, row-major in its last `rank` sizes.

    As in torch, the first of equal maxima alone gets the gradient of a window. What overlapping windows give is added
    up where each says, which touches an element as often as it is a maximum, not as often as it is in a window.
    """
    if not x.needs_grad:
        return top
    lead, sizes = x.shape[: len(x.shape) - rank], x.shape[len(x.shape) - rank :]
    flat = bc.reshape(x, (*lead, elements(sizes)))
    line = bc.reshape(place, (*lead, elements(place.shape[len(lead) :])))
    taken = apply(Op.GATHER, (flat, line), Along(len(lead)))
    return with_gradient_of(wrap(top), wrap(bc.reshape(taken, top.shape))).value


def _flat_positions(sizes: Shape) -> Value:
    """The row-major index of each element, as int64."""
    return bc.reshape(Value(arange(elements(sizes), int64)), sizes)


@composite(rounds_once=False)
def _max_pool(
    op: str, rank: int, input: Tensor, kernel_size: PerAxis, stride: PerAxis | None, padding: PerAxis,
    dilation: PerAxis, ceil_mode: bool, return_indices: bool,
) -> Any:  # fmt: skip
    no_bools("input")(op, {"input": input})
    v = _filled(op, rank, _input(op, rank, input))
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    steps = _strides(op, stride, kernel)
    pads, dilations = per_axis(op, "padding", padding, rank), per_axis(op, "dilation", dilation, rank, 1)
    out = _slide(op, rank, v, kernel, steps, pads, dilations, ceil_mode, v.dtype.min)
    last = len(out.shape)
    if not return_indices and not out.needs_grad:
        return wrap(apply(Op.REDUCE_MAX, (out,), Axes(tuple(range(last - rank, last)))))
    line = _flat_positions(v.shape[len(v.shape) - rank :])
    place = _slide(op, rank, line, kernel, steps, pads, dilations, ceil_mode, _NOWHERE)
    top, first = _first_largest(out, place, rank)
    top = _taken_from(v, top, first, rank)
    return (wrap(top), wrap(first)) if return_indices else wrap(top)


def _strides(op: str, stride: PerAxis | None, kernel: tuple[int, ...]) -> tuple[int, ...]:
    """The stride given, the kernel where there is none (None, or an empty list as in torch)."""
    if stride is None or (not isinstance(stride, int) and not len(stride)):
        return kernel
    return per_axis(op, "stride", stride, len(kernel), 1)


@composite
def _avg_pool(
    op: str, rank: int, input: Tensor, kernel_size: PerAxis, stride: PerAxis | None, padding: PerAxis,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    filled("input", rank)(op, {"input": input})
    v = _input(op, rank, input)
    if not v.dtype.is_float and v.dtype is not int64:
        raise DTypeError(f"{op}: needs a float or int64 tensor, got {v.dtype.name}; convert it with .float()")
    rounding = None if v.dtype.is_float else "trunc"
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    steps = _strides(op, stride, kernel)
    pads, ones = per_axis(op, "padding", padding, rank), (1,) * rank
    x = widened(v) if v.dtype.is_float else v
    out = _slide(op, rank, x, kernel, steps, pads, ones, ceil_mode, 0)
    over = Axes(tuple(range(len(out.shape) - rank, len(out.shape))))
    total = wrap(apply(Op.SUM, (out,), over))
    if divisor_override is not None:
        if divisor_override == 0:
            raise ArgumentError(f"{op}: divisor_override must not be 0")
        mean = div(total, divisor_override, rounding_mode=rounding)
    elif (count_include_pad or not any(pads)) and not ceil_mode:
        taps = 1
        for k in kernel:
            taps *= k
        mean = div(total, taps, rounding_mode=rounding)
    else:
        inside = bc.scalar(1, x.dtype, v.shape[len(v.shape) - rank :])
        if count_include_pad:
            inside = pad_value(inside, pads, pads, 1)
            pads = (0,) * rank
        hits = _slide(op, rank, inside, kernel, steps, pads, ones, ceil_mode, 0)
        taps = apply(Op.SUM, (hits,), Axes(tuple(range(rank, 2 * rank))))
        # where the padding counts, a last window that starts in it is there too
        counted = wrap(box(taps, (0,) * rank, total.value.shape[-rank:]))
        mean = div(total, counted, rounding_mode=rounding)
    return wrap(bc.cast(mean.value, v.dtype))


@overload
def max_pool1d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...
@overload
def max_pool1d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool1d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of windows of (n, c, L); stride is kernel_size unless given.

    The first of equal maxima gets the gradient. return_indices: also where each
    stands in the flattened sizes, as max_unpool1d takes it.
    """
    return _max_pool(
        "max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


@overload
def max_pool2d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...
@overload
def max_pool2d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool2d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of windows of (n, c, H, W); stride is kernel_size unless given.

    The first of equal maxima gets the gradient. return_indices: also where each
    stands in the flattened sizes, as max_unpool2d takes it.
    """
    return _max_pool(
        "max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


@overload
def max_pool3d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: Literal[False] = False,
) -> Tensor: ...
@overload
def max_pool3d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    *,
    return_indices: Literal[True],
) -> tuple[Tensor, Tensor]: ...
def max_pool3d(
    input: Tensor,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    padding: PerAxis = 0,
    dilation: PerAxis = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The maximum of windows of (n, c, D, H, W); stride is kernel_size unless given.

    The first of equal maxima gets the gradient. return_indices: also where each
    stands in the flattened sizes, as max_unpool3d takes it.
    """
    return _max_pool(
        "max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
    )


def avg_pool1d(
    input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0, ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:  # fmt: skip
    """The mean of windows of (n, c, L); stride is kernel_size unless given."""
    return _avg_pool("avg_pool1d", 1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of windows of (n, c, H, W); stride is kernel_size unless given."""
    return _avg_pool(
        "avg_pool2d", 2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> Tensor:  # fmt: skip
    """The mean of windows of (n, c, D, H, W); stride is kernel_size unless given."""
    return _avg_pool(
        "avg_pool3d", 3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


# ---------------------------------------------------------------------------------------------- other means


@composite
def _lp_pool(
    op: str,
    rank: int,
    input: Tensor,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None,
    ceil_mode: bool,
) -> Tensor:
    if norm_type == 0:
        raise ArgumentError(f"{op}: norm_type must not be 0")
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    mean = _avg_pool(op, rank, pow(input, norm_type), kernel, stride, 0, ceil_mode, True, None)
    total = sign(mean) * relu(abs(mean)) * math.prod(kernel)
    if norm_type == 1:
        return total
    none = eq(total, 0)  # where the root has no derivative
    return where(none, 0.0 * total, pow(where(none, 1.0, total), 1.0 / norm_type))


def lp_pool1d(
    input: Tensor,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum x**p) ** (1/p) over windows of (n, c, L); stride is kernel_size unless given."""
    return _lp_pool("lp_pool1d", 1, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool2d(
    input: Tensor,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum x**p) ** (1/p) over windows of (n, c, H, W); stride is kernel_size unless given."""
    return _lp_pool("lp_pool2d", 2, input, norm_type, kernel_size, stride, ceil_mode)


def lp_pool3d(
    input: Tensor,
    norm_type: float,
    kernel_size: PerAxis,
    stride: PerAxis | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """(sum x**p) ** (1/p) over windows of (n, c, D, H, W); stride is kernel_size unless given."""
    return _lp_pool("lp_pool3d", 3, input, norm_type, kernel_size, stride, ceil_mode)


# ---------------------------------------------------------------------------------------------- the way back


def _unpool(
    op: str, rank: int, input: Tensor, indices: Tensor, kernel_size: PerAxis, stride: PerAxis | None,
    padding: PerAxis, output_size: Sequence[int] | None,
) -> Tensor:  # fmt: skip
    v, at = _input(op, rank, input), index_value(op, indices)
    if at.shape != v.shape:
        raise ShapeError(
            f"{op}: indices of shape {tuple(at.shape)} must have the shape of input, {tuple(v.shape)}"
        )
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    steps, pads = _strides(op, stride, kernel), per_axis(op, "padding", padding, rank)
    lead, sizes = v.shape[: len(v.shape) - rank], known_sizes(op, v.shape[len(v.shape) - rank :])
    usual = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(sizes, steps, pads, kernel, strict=True)]
    wanted = usual if output_size is None else list(output_size)[-rank:]
    if output_size is not None and len(output_size) not in (rank, len(v.shape)):
        raise ArgumentError(
            f"{op}: output_size must be {rank} or {len(v.shape)} ints, got {tuple(output_size)}"
        )
    if len(wanted) != rank or any(
        not u - s < m < u + s for u, s, m in zip(usual, steps, wanted, strict=True)
    ):
        raise ShapeError(f"{op}: output_size {output_size} is not within one stride {steps} of {usual}")
    count = math.prod(wanted)
    flat = check_range(op, bc.reshape(at, (*lead, math.prod(sizes))), count, -1, negative=False)
    zeros = bc.scalar(0, v.dtype, (*lead, count))
    along = len(lead)
    plain = Value(bc.reshape(v, flat.shape).node)
    out = apply(Op.SCATTER, (zeros, flat, plain), ScatterCombine(along, None))

    def rule(g: Value, _out: Value, _x: Value, flat: Value) -> tuple[Value, None]:
        """The VJP: where several maxima were one element, each gets its whole gradient, as in torch."""
        return bc.reshape(apply(Op.GATHER, (bc.reshape(g, out.shape), flat), Along(along)), v.shape), None

    return wrap(composed(bc.reshape(out, (*lead, *wanted)).node, (v, flat), rule))


@needs(floats("input"))
def max_unpool1d(
    input: Tensor, indices: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Maxima put back where max_pool1d with return_indices found them, zeros elsewhere.

    output_size says which of the sizes that pool to this one is meant.
    """
    return _unpool("max_unpool1d", 1, input, indices, kernel_size, stride, padding, output_size)


@needs(floats("input"))
def max_unpool2d(
    input: Tensor, indices: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Maxima put back where max_pool2d with return_indices found them, zeros elsewhere.

    output_size says which of the sizes that pool to this one is meant.
    """
    return _unpool("max_unpool2d", 2, input, indices, kernel_size, stride, padding, output_size)


@needs(floats("input"))
def max_unpool3d(
    input: Tensor, indices: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """Maxima put back where max_pool3d with return_indices found them, zeros elsewhere.

    output_size says which of the sizes that pool to this one is meant.
    """
    return _unpool("max_unpool3d", 3, input, indices, kernel_size, stride, padding, output_size)


# ---------------------------------------------------------------------------------------------- adaptive


def _sizes(op: str, rank: int, v: Value, output_size: Sizes) -> list[tuple[int, int, int]]:
    """(axis, input size, output size) of each spatial dimension; None keeps a size."""
    wanted = list(output_size) if isinstance(output_size, Sequence) else [output_size] * rank
    if not all(m is None or is_int(m) for m in wanted):
        raise DTypeError(f"{op}: output_size must be an int or {rank} ints or None, got {output_size}")
    if len(wanted) != rank or any(m is not None and m < 0 for m in wanted):
        raise ArgumentError(f"{op}: output_size must be {rank} nonnegative ints or None, got {output_size}")
    first = len(v.shape) - rank
    known = known_sizes(op, v.shape[first:])
    return [(first + i, n, n if m is None else m) for i, (n, m) in enumerate(zip(known, wanted, strict=True))]


def _member(n: int, m: int, rank: int, k: int) -> Tensor:
    """For output i and input j: true where floor(i n / m) <= j < ceil((i + 1) n / m), on axes k and k + 1."""
    i, j = wrap(positions((m, n), 0)), wrap(positions((m, n), 1))
    inside = ((i * n) // m <= j) & (j < ((i + 1) * n + m - 1) // m)
    return wrap(bc.reshape(inside.value, (*(1 for _ in range(k)), m, n, *(1 for _ in range(rank - k - 1)))))


def adaptive_mean(op: str, rank: int, input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of windows that divide the last `rank` dimensions into output_size parts."""
    v = _input(op, rank, input)
    if not v.dtype.is_float:
        raise DTypeError(f"{op}: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    sizes = _sizes(op, rank, v, output_size)
    if any(m == 0 for _, _, m in sizes):
        return wrap(zero_gradient(bc.scalar(0, v.dtype, _pooled_shape(op, rank, v, output_size)), v))
    alike = all(n % m == 0 for _, n, m in sizes)  # few nodes: a call would save nothing
    return (_means if alike else _recorded_means)(input, *(i for axis in sizes for i in axis))


def _means(input: Tensor, *sizes: int) -> Tensor:
    """The mean of parts of axes, each given by the axis, its size and the number of parts."""
    v = input.value
    x = wrap(widened(v))
    for k, n, m in zip(sizes[::3], sizes[1::3], sizes[2::3], strict=True):
        shape = x.value.shape
        if n % m == 0:
            picked, size = wrap(bc.reshape(x.value, (*shape[:k], m, n // m, *shape[k + 1 :]))), n // m
        else:
            wide = wrap(bc.reshape(x.value, (*shape[:k], 1, n, *shape[k + 1 :])))
            member = _member(n, m, len(shape), k)
            picked = where(member, wide, 0)
            size = wrap(apply(Op.SUM, (bc.cast(member.value, x.value.dtype),), Axes((k + 1,))))
        x = wrap(apply(Op.SUM, (picked.value,), Axes((k + 1,)))) / size
    return wrap(bc.cast(x.value, v.dtype))


_recorded_means = composite(rounds_once=False)(_means)


def _pooled_shape(op: str, rank: int, v: Value, output_size: Sizes) -> Shape:
    return (*v.shape[: len(v.shape) - rank], *(m for _, _, m in _sizes(op, rank, v, output_size)))


def _adaptive_max(op: str, rank: int, input: Tensor, output_size: Sizes, return_indices: bool) -> Any:
    v = _input(op, rank, input)
    sizes = _sizes(op, rank, v, output_size)
    first, last = len(v.shape) - rank, len(v.shape)
    place, home = _flat_positions(v.shape[first:]), v.node.device
    if any(m == 0 for _, _, m in sizes):
        shape = _pooled_shape(op, rank, v, output_size)
        none = wrap(zero_gradient(bc.scalar(0, v.dtype, shape), v)), wrap(bc.scalar(0, int64, shape))
        return none if return_indices else none[0]
    parts = v
    for i, (_, n, m) in enumerate(sizes):
        parts = _parts(parts, first + i, n, m, v.dtype.min, home)
        place = _parts(place, i, n, m, _NOWHERE, home)
        # the part's own axis goes behind those that came before
        parts = apply(Op.PERMUTE, (parts,), Axes(_behind(len(parts.shape), first + i + 1)))
        place = apply(Op.PERMUTE, (place,), Axes(_behind(len(place.shape), i + 1)))
    assert len(parts.shape) == last + rank
    if not return_indices and not v.needs_grad:
        return wrap(apply(Op.REDUCE_MAX, (parts,), Axes(tuple(range(last, last + rank)))))
    top, at = _first_largest(parts, place, rank)
    top = _taken_from(v, top, at, rank)
    return (wrap(top), wrap(at)) if return_indices else wrap(top)


def _behind(rank: int, k: int) -> tuple[int, ...]:
    return (*(j for j in range(rank) if j != k), k)


def _parts(v: Value, k: int, n: int, m: int, fill: float, home: str | None) -> Value:
    """Axis k of n elements as two: m windows, from floor(i n / m) to ceil((i + 1) n / m), filled up at their ends.

    `home`: the device of what it is computed with, where v may be a constant."""
    shape = v.shape
    if n % m == 0:
        return bc.reshape(v, (*shape[:k], m, n // m, *shape[k + 1 :]))
    start = np.arange(m) * n // m
    size = -(-(np.arange(m) + 1) * n // m) - start
    most = int(size.max())
    at = np.minimum(start[:, None] + np.arange(most), n - 1)
    inside = np.arange(most) < size[:, None]
    taken = bc.reshape(
        rows(v, k, tensor(at.reshape(-1), device=home).value), (*shape[:k], m, most, *shape[k + 1 :])
    )
    keep = tensor(inside.reshape((m, most, *(1 for _ in shape[k + 1 :]))), device=home)
    return where(keep, wrap(taken), wrap(bc.scalar(fill, v.dtype, ()))).value


@needs(filled("input", 1))
def adaptive_avg_pool1d(input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of windows that divide (n, c, L) into output_size parts; None keeps a size."""
    return adaptive_mean("adaptive_avg_pool1d", 1, input, output_size)


@needs(filled("input", 2))
def adaptive_avg_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of windows that divide (n, c, H, W) into output_size parts; None keeps a size."""
    return adaptive_mean("adaptive_avg_pool2d", 2, input, output_size)


@needs(filled("input", 3))
def adaptive_avg_pool3d(input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of windows that divide (n, c, D, H, W) into output_size parts; None keeps a size."""
    return adaptive_mean("adaptive_avg_pool3d", 3, input, output_size)


@needs(floats("input"), filled("input", 1))
def adaptive_max_pool1d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """The maximum of windows that divide (n, c, L) into output_size parts; also its place if asked."""
    return _adaptive_max("adaptive_max_pool1d", 1, input, output_size, return_indices)


@needs(floats("input"), filled("input", 2))
def adaptive_max_pool2d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """The maximum of windows that divide (n, c, H, W) into output_size parts; also its place if asked."""
    return _adaptive_max("adaptive_max_pool2d", 2, input, output_size, return_indices)


@needs(floats("input"), filled("input", 3))
def adaptive_max_pool3d(input: Tensor, output_size: Sizes, return_indices: bool = False) -> Any:
    """The maximum of windows that divide (n, c, D, H, W) into output_size parts; also its place if asked."""
    return _adaptive_max("adaptive_max_pool3d", 3, input, output_size, return_indices)


# ---------------------------------------------------------------------------------------------- fractional


def _fractional(
    op: str, rank: int, input: Tensor, kernel_size: PerAxis, output_size: PerAxis | None,
    output_ratio: float | Sequence[float] | None, return_indices: bool, samples: Tensor | None,
) -> Any:  # fmt: skip
    v = _input(op, rank, input)
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    sizes = known_sizes(op, v.shape[len(v.shape) - rank :])
    if (output_size is None) == (output_ratio is None):
        raise ArgumentError(f"{op}: give output_size or output_ratio")
    if output_size is not None:
        wanted = per_axis(op, "output_size", output_size, rank, 1)
    else:
        ratios = [output_ratio] * rank if isinstance(output_ratio, (int, float)) else list(output_ratio or ())
        if len(ratios) != rank or not all(0 < r < 1 for r in ratios):
            raise ArgumentError(
                f"{op}: output_ratio must be {rank} numbers between 0 and 1, got {output_ratio}"
            )
        wanted = tuple(int(n * r) for n, r in zip(sizes, ratios, strict=True))
    if any(m + k - 1 > n for n, m, k in zip(sizes, wanted, kernel, strict=True)):
        raise ShapeError(f"{op}: {wanted} windows of {kernel} do not fit sizes {tuple(sizes)}")
    single = len(v.shape) == rank + 1
    x = bc.reshape(v, (1, *v.shape)) if single else v
    n, c = x.shape[:2]
    drawn = v.dtype if v.dtype.is_float else None
    u = rand(n, c, rank, dtype=drawn, device=v.node.device) if samples is None else samples
    if u.value.shape != (n, c, rank):
        raise ShapeError(f"{op}: _random_samples must have shape {(n, c, rank)}, got {tuple(u.value.shape)}")
    at: Tensor | None = None
    for i in range(rank):
        # torch draws for the last size first in two dimensions, and in order in three
        which = rank - 1 - i if rank == 2 else i
        index = _fractional_index(u[:, :, which], sizes[i], wanted[i], kernel[i])
        shape = [n, c, *(1 for _ in range(2 * rank))]
        shape[2 + i], shape[2 + rank + i] = wanted[i], kernel[i]
        index = wrap(bc.reshape(index.value, tuple(shape)))
        at = index if at is None else at * sizes[i] + index
    assert at is not None
    place = at.value
    count = math.prod(wanted) * math.prod(kernel)
    flat = bc.reshape(x, (n, c, math.prod(sizes)))
    windows = apply(Op.GATHER, (flat, bc.reshape(place, (n, c, count))), Along(2))
    top, first = _first_largest(bc.reshape(windows, place.shape), place, rank)
    top = _taken_from(x, top, first, rank)
    if single:
        top, first = (bc.reshape(t, t.shape[1:]) for t in (top, first))
    return (wrap(top), wrap(first)) if return_indices else wrap(top)


def _fractional_index(u: Tensor, n: int, m: int, k: int) -> Tensor:
    """(batch, channels, m, k): which elements the m windows of k of a dimension of n hold, for samples u in [0, 1)."""
    if m == 1:
        start = bc.scalar(n - k, int64, (*u.value.shape, 1))
    else:
        step = (n - k) / (m - 1)
        i = wrap(bc.cast(Value(arange(m, int64)), u.value.dtype))
        line = trunc((i + u.unsqueeze(-1)) * step) - trunc(u.unsqueeze(-1) * step)
        last = wrap(positions(line.value.shape, 2, int64)) == m - 1
        start = where(last, n - k, line.to(int64)).value
    return wrap(start).unsqueeze(-1) + wrap(Value(arange(k, int64)))


@needs(floats("input"), filled("input", 2))
def fractional_max_pool2d(
    input: Tensor, kernel_size: PerAxis, output_size: PerAxis | None = None,
    output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """The maximum of windows of (n, c, H, W) whose steps are random. Source: Graham 2014, arXiv:1412.6071."""
    return _fractional(
        "fractional_max_pool2d",
        2,
        input,
        kernel_size,
        output_size,
        output_ratio,
        return_indices,
        _random_samples,
    )


@needs(floats("input"), filled("input", 3))
def fractional_max_pool3d(
    input: Tensor, kernel_size: PerAxis, output_size: PerAxis | None = None,
    output_ratio: float | Sequence[float] | None = None, return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:  # fmt: skip
    """The maximum of windows of (n, c, D, H, W) whose steps are random; as fractional_max_pool2d."""
    return _fractional(
        "fractional_max_pool3d",
        3,
        input,
        kernel_size,
        output_size,
        output_ratio,
        return_indices,
        _random_samples,
    )
