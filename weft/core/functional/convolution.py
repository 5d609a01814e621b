"""Convolutions and their transposes: windows slide over the padded input, one sum of products over taps, channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.axes import known_sizes
from weft.core.args.handle import value_of, wrap
from weft.core.composed.autocast import lowers
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functional.sliding import Taps, convolve, unconvolve
from weft.core.layout.movement import pad_value
from weft.core.pointwise.elementwise import add
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.graph import Shape
from weft.ir.index import Int

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor

PerAxis: TypeAlias = int | Sequence[int]


def per_axis(op: str, name: str, x: PerAxis, rank: int, low: int = 0) -> tuple[int, ...]:
    """One number for all spatial dimensions, or one for each."""
    out = (x,) * rank if isinstance(x, int) else tuple(x)
    if len(out) == 1:
        out *= rank
    if len(out) != rank or any(n < low for n in out):
        raise ArgumentError(f"{op}: {name} must be an int or {rank} ints, each at least {low}, got {x}")
    return out


def windows(n: Int, kernel: int, stride: int, dilation: int) -> Int:
    """The number of windows that fit in n elements."""
    return (n - dilation * (kernel - 1) - 1) // stride + 1


@lowers
def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Shapes: (n, in, L) or (in, L), weight (out, in/groups, k), bias (out) -> (n, out, L')."""
    return _conv("conv1d", 1, input, weight, bias, stride, padding, dilation, groups)


@lowers
def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Shapes: (n, in, H, W) or (in, H, W), weight (out, in/groups, kh, kw), bias (out) -> (n, out, H', W').

    H' = (H + 2 padding - dilation (kh - 1) - 1) // stride + 1. padding may be "valid" or "same".
    """
    return _conv("conv2d", 2, input, weight, bias, stride, padding, dilation, groups)


@lowers
def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis | str = 0,
    dilation: PerAxis = 1,
    groups: int = 1,
) -> Tensor:
    """Shapes: (n, in, D, H, W), weight (out, in/groups, kd, kh, kw), bias (out) -> (n, out, D', H', W')."""
    return _conv("conv3d", 3, input, weight, bias, stride, padding, dilation, groups)


def _checked(
    op: str, rank: int, input: Tensor, weight: Tensor, groups: int, channels: int
) -> tuple[Value, Value]:
    """The values; `channels` is the axis of weight that input channels are counted on."""
    x, w = value_of(op, input), value_of(op, weight)
    if len(x.shape) not in (rank + 1, rank + 2) or len(w.shape) != rank + 2:
        raise ShapeError(
            f"{op}: needs input (n, channels, {rank} sizes) and weight of {rank + 2} dimensions, got shapes "
            f"{tuple(x.shape)} and {tuple(w.shape)}"
        )
    if x.dtype is not w.dtype:
        raise DTypeError(f"{op}: input is {x.dtype.name}, weight {w.dtype.name}; convert one with .to(...)")
    have = x.shape[-rank - 1]
    want = w.shape[1] * groups if channels == 1 else w.shape[0]
    if groups < 1 or w.shape[0] % groups:
        raise ArgumentError(
            f"{op}: groups {groups} must divide the {w.shape[0]} channels of weight {tuple(w.shape)}"
        )
    if have != want:
        raise ShapeError(
            f"{op}: input of shape {tuple(x.shape)} has {have} channels, but weight of shape {tuple(w.shape)} with "
            f"groups={groups} takes {want}"
        )
    bc.same_device(op, (x, w))
    return x, w


def _margins(
    op: str, padding: PerAxis | str, kernel: Shape, stride: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    rank = len(kernel)
    if padding == "valid":
        return [0] * rank, [0] * rank
    if padding == "same":
        if any(s != 1 for s in stride):
            raise ArgumentError(f"{op}: padding='same' needs stride 1, got {stride}")
        total = [d * (k - 1) for d, k in zip(dilation, known_sizes(op, kernel), strict=True)]
        return [t // 2 for t in total], [t - t // 2 for t in total]
    if isinstance(padding, str):
        raise ArgumentError(f"{op}: padding must be ints, 'valid' or 'same', got {padding!r}")
    both = list(per_axis(op, "padding", padding, rank))
    return both, both


@composite
def _conv(
    op: str, rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: PerAxis, padding: PerAxis | str,
    dilation: PerAxis, groups: int,
) -> Tensor:  # fmt: skip
    x, w = _checked(op, rank, input, weight, groups, channels=1)
    strides, dilations = per_axis(op, "stride", stride, rank, 1), per_axis(op, "dilation", dilation, rank, 1)
    low, high = _margins(op, padding, w.shape[2:], strides, dilations)
    single = len(x.shape) == rank + 1
    if single:
        x = bc.reshape(x, (1, *x.shape))
    x, w = widened(pad_value(x, [0, 0, *low], [0, 0, *high])), widened(w)
    n, out, per_group = x.shape[0], w.shape[0], w.shape[1]
    kernel = w.shape[2:]
    for size, k, d in zip(x.shape[2:], kernel, dilations, strict=True):
        if isinstance(size, int) and isinstance(k, int) and d * (k - 1) + 1 > size:
            raise ShapeError(
                f"{op}: kernel {tuple(kernel)} with dilation {dilations} exceeds the padded input {tuple(x.shape)}"
            )
    taps = Taps(tuple(known_sizes(op, kernel)), strides, dilations)
    if 0 in taps.kernel or 0 in input.value.shape[-rank:]:
        raise ShapeError(
            f"{op}: only batch and channels may be empty, got input {tuple(input.value.shape)} and kernel {taps.kernel}"
        )
    each = zip(x.shape[2:], taps.kernel, strides, dilations, strict=True)
    sizes = tuple(windows(*one) for one in each)
    x = bc.reshape(x, (n, groups, per_group, *x.shape[2:]))
    total = convolve(x, bc.reshape(w, (groups, out // groups, per_group, *kernel)), taps, sizes)
    total = bc.cast(total, input.value.dtype)
    return _with_bias(op, total, bias, (out, *sizes) if single else (n, out, *sizes), rank)


def _with_bias(op: str, v: Value, bias: Tensor | None, shape: Shape, rank: int) -> Tensor:
    result = wrap(bc.reshape(v, shape))
    if bias is None:
        return result
    b = value_of(op, bias)
    channels = shape[len(shape) - rank - 1]
    if b.shape != (channels,):
        raise ShapeError(f"{op}: bias must have shape ({channels},), got {tuple(b.shape)}")
    if b.dtype is not v.dtype:
        raise DTypeError(f"{op}: bias is {b.dtype.name}, input {v.dtype.name}; convert one with .to(...)")
    return add(result, wrap(bc.reshape(b, (channels, *(1 for _ in range(rank))))))


@lowers
def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """The transpose of conv1d: (n, in, L), weight (in, out/groups, k) -> (n, out, L')."""
    return _conv_transpose(
        "conv_transpose1d", 1, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@lowers
def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """The transpose of conv2d: (n, in, H, W), weight (in, out/groups, kh, kw) -> (n, out, H', W').

    H' = (H - 1) stride - 2 padding + dilation (kh - 1) + output_padding + 1.
    """
    return _conv_transpose(
        "conv_transpose2d", 2, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@lowers
def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: PerAxis = 1,
    padding: PerAxis = 0,
    output_padding: PerAxis = 0,
    groups: int = 1,
    dilation: PerAxis = 1,
) -> Tensor:
    """The transpose of conv3d: (n, in, D, H, W), weight (in, out/groups, kd, kh, kw) -> (n, out, D', H', W')."""
    return _conv_transpose(
        "conv_transpose3d", 3, input, weight, bias, stride, padding, output_padding, groups, dilation
    )


@composite
def _conv_transpose(
    op: str, rank: int, input: Tensor, weight: Tensor, bias: Tensor | None, stride: PerAxis, padding: PerAxis,
    output_padding: PerAxis, groups: int, dilation: PerAxis,
) -> Tensor:  # fmt: skip
    x, w = _checked(op, rank, input, weight, groups, channels=0)
    strides, dilations = per_axis(op, "stride", stride, rank, 1), per_axis(op, "dilation", dilation, rank, 1)
    pads, extra = per_axis(op, "padding", padding, rank), per_axis(op, "output_padding", output_padding, rank)
    if any(more >= max(s, d) for more, s, d in zip(extra, strides, dilations, strict=True)):
        raise ArgumentError(
            f"{op}: output_padding {extra} must be smaller than either stride {strides} or dilation {dilations}"
        )
    single = len(x.shape) == rank + 1
    if single:
        x = bc.reshape(x, (1, *x.shape))
    x, w = widened(x), widened(w)
    n, wide, per_group, kernel = x.shape[0], w.shape[1], w.shape[0] // groups, w.shape[2:]
    sizes = x.shape[2:]
    taps = Taps(tuple(known_sizes(op, kernel)), strides, dilations)
    each = zip(sizes, taps.kernel, strides, dilations, extra, strict=True)
    whole = tuple((size - 1) * step + d * (k - 1) + 1 + more for size, k, step, d, more in each)
    v = bc.reshape(x, (n, groups, per_group, *sizes))
    total = unconvolve(v, bc.reshape(w, (groups, per_group, wide, *kernel)), taps, whole)
    out = groups * wide
    kept = tuple(full - 2 * p for full, p in zip(total.shape[3:], pads, strict=True))
    if any(isinstance(s, int) and s < 1 for s in kept):
        raise ShapeError(f"{op}: padding {pads} leaves nothing of the output, sizes {tuple(total.shape[3:])}")
    if any(pads):
        from weft.core.layout.movement import box

        total = box(total, (0, 0, 0, *pads), (*total.shape[:3], *kept))
    total = bc.cast(total, input.value.dtype)
    return _with_bias(op, total, bias, (out, *kept) if single else (n, out, *kept), rank)
