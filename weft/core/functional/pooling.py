"""Pooling: the maximum or mean of windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from weft.autograd.value import Value, apply
from weft.core import broadcast as bc
from weft.core.axes import known_sizes
from weft.core.elementwise import where
from weft.core.functional.convolution import PerAxis, per_axis
from weft.core.handle import value_of, wrap
from weft.core.movement import pad_value, positions
from weft.core.precision import widened
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import DType
from weft.ir.graph import Axes, Window
from weft.ir.index import Int
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor import Tensor

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
        if 2 * p > k:
            raise ArgumentError(f"{op}: padding {p} may be at most half the kernel, {k}")
        room = n + 2 * p - d * (k - 1) - 1
        if isinstance(room, int) and room < 0:
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


def _max_pool(
    op: str, rank: int, input: Tensor, kernel_size: PerAxis, stride: PerAxis | None, padding: PerAxis,
    dilation: PerAxis, ceil_mode: bool,
) -> Tensor:  # fmt: skip
    v = _input(op, rank, input)
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    steps = kernel if stride is None else per_axis(op, "stride", stride, rank, 1)
    pads, dilations = per_axis(op, "padding", padding, rank), per_axis(op, "dilation", dilation, rank, 1)
    out = _slide(op, rank, v, kernel, steps, pads, dilations, ceil_mode, v.dtype.min)
    last = len(out.shape)
    return wrap(apply(Op.REDUCE_MAX, (out,), Axes(tuple(range(last - rank, last)))))


def _avg_pool(
    op: str, rank: int, input: Tensor, kernel_size: PerAxis, stride: PerAxis | None, padding: PerAxis,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Tensor:  # fmt: skip
    v = _input(op, rank, input)
    if not v.dtype.is_float:
        raise DTypeError(f"{op}: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    kernel = per_axis(op, "kernel_size", kernel_size, rank, 1)
    steps = kernel if stride is None else per_axis(op, "stride", stride, rank, 1)
    pads, ones = per_axis(op, "padding", padding, rank), (1,) * rank
    x = widened(v)
    out = _slide(op, rank, x, kernel, steps, pads, ones, ceil_mode, 0)
    over = Axes(tuple(range(len(out.shape) - rank, len(out.shape))))
    total = wrap(apply(Op.SUM, (out,), over))
    if divisor_override is not None:
        mean = total / divisor_override
    elif (count_include_pad or not any(pads)) and not ceil_mode:
        taps = 1
        for k in kernel:
            taps *= k
        mean = total / taps
    else:
        inside = bc.scalar(1, x.dtype, v.shape[len(v.shape) - rank :])
        if count_include_pad:
            inside = pad_value(inside, pads, pads, 1)
            pads = (0,) * rank
        hits = _slide(op, rank, inside, kernel, steps, pads, ones, ceil_mode, 0)
        mean = total / wrap(apply(Op.SUM, (hits,), Axes(tuple(range(rank, 2 * rank)))))
    return wrap(bc.cast(mean.value, v.dtype))


def max_pool1d(
    input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0, dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """The maximum of windows of (n, c, L); stride is kernel_size unless given. Equal maxima share the gradient."""
    return _max_pool("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool2d(
    input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0, dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """The maximum of windows of (n, c, H, W); stride is kernel_size unless given. Equal maxima share the gradient."""
    return _max_pool("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)


def max_pool3d(
    input: Tensor, kernel_size: PerAxis, stride: PerAxis | None = None, padding: PerAxis = 0, dilation: PerAxis = 1,
    ceil_mode: bool = False,
) -> Tensor:  # fmt: skip
    """The maximum of windows of (n, c, D, H, W); else as max_pool2d."""
    return _max_pool("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode)


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


# ---------------------------------------------------------------------------------------------- adaptive


def _sizes(op: str, rank: int, v: Value, output_size: Sizes) -> list[tuple[int, int, int]]:
    """(axis, input size, output size) of each spatial dimension; None keeps a size."""
    wanted = list(output_size) if isinstance(output_size, Sequence) else [output_size] * rank
    if len(wanted) != rank or any(m is not None and m < 1 for m in wanted):
        raise ArgumentError(f"{op}: output_size must be {rank} positive ints or None, got {output_size}")
    first = len(v.shape) - rank
    known = known_sizes(op, v.shape[first:])
    return [(first + i, n, n if m is None else m) for i, (n, m) in enumerate(zip(known, wanted, strict=True))]


def _member(n: int, m: int, rank: int, k: int) -> Tensor:
    """For output i and input j: true where floor(i n / m) <= j < ceil((i + 1) n / m), on axes k and k + 1."""
    i, j = wrap(positions((m, n), 0)), wrap(positions((m, n), 1))
    inside = ((i * n) // m <= j) & (j < ((i + 1) * n + m - 1) // m)
    return wrap(bc.reshape(inside.value, (*(1 for _ in range(k)), m, n, *(1 for _ in range(rank - k - 1)))))


def _adaptive(op: str, rank: int, input: Tensor, output_size: Sizes, reduction: Op) -> Tensor:
    v = _input(op, rank, input)
    x = wrap(widened(v))
    for k, n, m in _sizes(op, rank, v, output_size):
        shape = x.value.shape
        if n % m == 0:
            parts = bc.reshape(x.value, (*shape[:k], m, n // m, *shape[k + 1 :]))
            picked, size = wrap(parts), n // m
        else:
            wide = wrap(bc.reshape(x.value, (*shape[:k], 1, n, *shape[k + 1 :])))
            member = _member(n, m, len(shape), k)
            picked = where(member, wide, 0 if reduction is Op.SUM else float(v.dtype.min))
            size = wrap(apply(Op.SUM, (bc.cast(member.value, x.value.dtype),), Axes((k + 1,))))
        x = wrap(apply(reduction, (picked.value,), Axes((k + 1,))))
        x = x / size if reduction is Op.SUM else x
    return wrap(bc.cast(x.value, v.dtype))


def _float(op: str, input: Tensor) -> DType:
    d = value_of(op, input).dtype
    if not d.is_float:
        raise DTypeError(f"{op}: needs a float tensor, got {d.name}; convert it with .float()")
    return d


def adaptive_avg_pool1d(input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of windows that divide (n, c, L) into output_size parts."""
    _float("adaptive_avg_pool1d", input)
    return _adaptive("adaptive_avg_pool1d", 1, input, output_size, Op.SUM)


def adaptive_avg_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """The mean of windows that divide (n, c, H, W) into output_size parts."""
    _float("adaptive_avg_pool2d", input)
    return _adaptive("adaptive_avg_pool2d", 2, input, output_size, Op.SUM)


def adaptive_max_pool1d(input: Tensor, output_size: Sizes) -> Tensor:
    """The maximum of windows that divide (n, c, L) into output_size parts."""
    _float("adaptive_max_pool1d", input)
    return _adaptive("adaptive_max_pool1d", 1, input, output_size, Op.REDUCE_MAX)


def adaptive_max_pool2d(input: Tensor, output_size: Sizes) -> Tensor:
    """The maximum of windows that divide (n, c, H, W) into output_size parts."""
    _float("adaptive_max_pool2d", input)
    return _adaptive("adaptive_max_pool2d", 2, input, output_size, Op.REDUCE_MAX)
