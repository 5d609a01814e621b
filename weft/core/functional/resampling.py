"""Padding, resizing and rearranging images."""
# Tests: tests/nn/test_functional.py, tests/core/functional/test_pooling_ends.py

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.value import apply
from weft.core.args import broadcast as bc
from weft.core.args.axes import is_int, known_sizes
from weft.core.args.handle import value_of, wrap
from weft.core.args.requirements import filled, needs
from weft.core.composed.precision import widened
from weft.core.functional.convolution import PerAxis, per_axis, windows
from weft.core.functional.pooling import adaptive_mean
from weft.core.functions.matmul import matmul
from weft.core.layout.creation import tensor
from weft.core.layout.gather import rows
from weft.core.layout.movement import box, movedim, pad_value, permute, reshape
from weft.core.layout.movement import window as slide
from weft.core.pointwise.elementwise import clamp, floor
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import float32, uint8
from weft.ir.graph import Axes, Window, elements
from weft.ir.index import low
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


_MODES: dict[str, tuple[int, ...]] = {
    "nearest": (1, 2, 3),
    "nearest-exact": (1, 2, 3),
    "area": (1, 2, 3),
    "linear": (1,),
    "bilinear": (2,),
    "bicubic": (2,),
    "trilinear": (3,),
}
"""The numbers of spatial dimensions that each mode is for."""


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """The input (n, c, sizes...) resized to `size`, or by `scale_factor`.

    mode: "nearest", "nearest-exact", "area" for 1 to 3 sizes, "linear" for 1, "bilinear" and "bicubic" for 2,
    "trilinear" for 3. antialias (for two sizes) widens the filter where the result is smaller, so that every element
    of the input counts. align_corners makes the corners' centres meet. Coordinates follow the scale factor given, or,
    with recompute_scale_factor, the ratio of the sizes.
    """
    v = value_of("interpolate", input)
    rank = len(v.shape) - 2
    if mode not in _MODES:
        raise ArgumentError(f"interpolate: mode must be one of {', '.join(_MODES)}, got {mode!r}")
    if rank not in _MODES[mode]:
        raise ShapeError(
            f"interpolate: mode {mode!r} needs input (n, c, sizes...) with {' or '.join(map(str, _MODES[mode]))} "
            f"sizes, got shape {tuple(v.shape)}"
        )
    if align_corners is not None and mode in ("nearest", "nearest-exact", "area"):
        raise ArgumentError(f"interpolate: align_corners has no meaning for mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ArgumentError(f"interpolate: antialias is for modes 'bilinear' and 'bicubic', got {mode!r}")
    if (size is None) == (scale_factor is None):
        raise ArgumentError("interpolate: give either size or scale_factor")
    known = known_sizes("interpolate", v.shape[2:])
    scales: list[float | None] = [None] * rank
    if size is not None:
        if recompute_scale_factor:
            raise ArgumentError("interpolate: recompute_scale_factor needs scale_factor, not size")
        if isinstance(size, Sequence) and (len(size) != rank or not all(map(is_int, size))):
            raise ArgumentError(f"interpolate: size must be an int or {rank} ints, got {size}")
        wanted = list(per_axis("interpolate", "size", size, rank, 1))
    else:
        given = [scale_factor] * rank if isinstance(scale_factor, (int, float)) else list(scale_factor or ())
        if len(given) != rank or any(s <= 0 for s in given):
            raise ArgumentError(
                f"interpolate: scale_factor must be {rank} positive numbers, got {scale_factor}"
            )
        wanted = [math.floor(n * s) for n, s in zip(known, given, strict=True)]
        scales = [None if recompute_scale_factor else 1.0 / s for s in given]
    if any(m < 1 for m in wanted) or any(n < 1 for n in known) or v.shape[1] == 0:
        raise ShapeError(
            f"interpolate: sizes must be positive, got {tuple(known)} resized to {tuple(wanted)}"
        )
    if not v.dtype.is_float and v.dtype is not uint8:
        raise DTypeError(
            f"interpolate: needs a float or uint8 tensor, got {v.dtype.name}; convert it with .float()"
        )
    if mode == "area":
        return adaptive_mean("interpolate", rank, input, wanted)
    image = v.dtype is uint8 and mode in (
        "bilinear",
        "bicubic",
    )  # rounded after each axis, the last one first
    if not v.dtype.is_float and not mode.startswith("nearest") and not image:
        raise DTypeError(f"interpolate: mode {mode!r} needs a float tensor, got {v.dtype.name}")
    out = wrap(v if mode.startswith("nearest") else bc.cast(v, float32) if image else widened(v))
    for i, n, m in [(i, known[i], wanted[i]) for i in (reversed(range(rank)) if image else range(rank))]:
        if mode.startswith("nearest"):
            out = _nearest(out, 2 + i, n, m, scales[i], 0.5 if mode == "nearest-exact" else 0.0)
        elif antialias:
            out = _smoothed(out, 2 + i, n, m, scales[i], bool(align_corners), mode == "bicubic")
        else:
            taps = _cubic_taps if mode == "bicubic" else _linear_taps
            out = _weighted(out, 2 + i, n, *taps(n, m, scales[i], bool(align_corners)))
        if image:
            out = clamp(floor(out + 0.5), 0, 255)
    return wrap(bc.cast(out.value, v.dtype))


def _smoothed(
    x: Tensor, k: int, n: int, m: int, step: float | None, align_corners: bool, cubic: bool
) -> Tensor:
    """Axis k of n elements resized to m by a filter as wide as the step: a product with a matrix of weights."""
    if align_corners:
        scale = (n - 1) / (m - 1) if m > 1 else 0.0
    else:
        scale = n / m if step is None else step
    wide = max(scale, 1.0)
    reach = (2.0 if cubic else 1.0) * wide
    centre = scale * (np.arange(m)[:, None] + 0.5)
    at = np.arange(n)[None, :]
    first = np.maximum(np.trunc(centre - reach + 0.5), 0)
    last = np.minimum(np.trunc(centre + reach + 0.5), n)
    d = np.abs((at - centre + 0.5) / wide)
    if cubic:
        a = -0.5  # of Catmull and Rom: the value with which smoothing filters reproduce parabolas
        near, far = ((a + 2) * d - (a + 3)) * d * d + 1, a * (((d - 5) * d + 8) * d - 4)
        weights = np.where(d < 1, near, np.where(d < 2, far, 0.0))
    else:
        weights = np.maximum(1 - d, 0.0)
    weights = np.where((at >= first) & (at < last), weights, 0.0)
    weights /= np.where(weights.sum(1, keepdims=True) == 0, 1.0, weights.sum(1, keepdims=True))
    table = tensor(weights.T, dtype=x.value.dtype, device=x.value.node.device)
    return movedim(matmul(movedim(x, k, -1), table), -1, k)


def _nearest(x: Tensor, k: int, n: int, m: int, step: float | None, offset: float) -> Tensor:
    """Axis k of n elements resized to m by repeating and leaving out."""
    shape = x.value.shape
    if m % n == 0 and step in (None, n / m):
        wide = bc.reshape(x.value, (*shape[: k + 1], 1, *shape[k + 1 :]))
        wide = bc.expand(wide, (*shape[: k + 1], m // n, *shape[k + 1 :]))
        return wrap(bc.reshape(wide, (*shape[:k], m, *shape[k + 1 :])))
    # in float32, as torch has it: the rounding decides which element is nearest
    scale = np.float32(n / m if step is None else step)
    at = np.floor((np.arange(m, dtype=np.float32) + np.float32(offset)) * scale)
    index = np.minimum(at.astype(np.int64), n - 1)
    return wrap(rows(x.value, k, tensor(index, device=x.value.node.device).value))


def _sources(n: int, m: int, step: float | None, align_corners: bool) -> np.ndarray[Any, Any]:
    """The coordinate in the input of each of m outputs."""
    if align_corners:
        return np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
    return (np.arange(m) + 0.5) * (n / m if step is None else step) - 0.5


def _linear_taps(n: int, m: int, step: float | None, align_corners: bool) -> tuple[Any, Any]:
    at = _sources(n, m, step, align_corners).clip(0)
    low = np.minimum(np.floor(at), n - 1)
    part = at - low
    return [low, low + 1], [1 - part, part]


_SHARPNESS = -0.75
"""The parameter of the cubic convolution. Source: Keys 1981, IEEE TASSP 29(6); torch and OpenCV have this value."""


def cubic_weights(t: Any) -> list[Any]:
    """The weights of the elements at -1, 0, 1 and 2 for a point t between 0 and 1."""

    def near(x: Any) -> Any:
        return ((_SHARPNESS + 2) * x - (_SHARPNESS + 3)) * x * x + 1

    def far(x: Any) -> Any:
        return ((_SHARPNESS * x - 5 * _SHARPNESS) * x + 8 * _SHARPNESS) * x - 4 * _SHARPNESS

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def _cubic_taps(n: int, m: int, step: float | None, align_corners: bool) -> tuple[Any, Any]:
    at = _sources(n, m, step, align_corners)
    low = np.floor(at)
    return [low + i for i in (-1, 0, 1, 2)], cubic_weights(at - low)


def _weighted(x: Tensor, k: int, n: int, places: Sequence[Any], weights: Sequence[Any]) -> Tensor:
    """The sum of slices along axis k times weights; places outside are at the border."""
    device, dtype = x.value.node.device, x.value.dtype
    total: Tensor | None = None
    for at, weight in zip(places, weights, strict=True):
        index = tensor(np.clip(at, 0, n - 1).astype(np.int64), device=device).value
        column = tensor(weight, dtype, device).reshape((len(weight), *(1 for _ in x.value.shape[k + 1 :])))
        part = wrap(rows(x.value, k, index)) * column
        total = part if total is None else total + part
    assert total is not None
    return total


def upsample(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The older name of interpolate."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def upsample_nearest(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode "nearest"."""
    return interpolate(input, size, scale_factor)


def upsample_bilinear(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
) -> Tensor:
    """interpolate with mode "bilinear" and aligned corners."""
    return interpolate(input, size, scale_factor, "bilinear", align_corners=True)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """(..., c r r, H, W) -> (..., c, H r, W r)."""
    shape, r = value_of("pixel_shuffle", input).shape, upscale_factor
    if len(shape) < 3 or shape[-3] % (r * r) != 0:
        raise ShapeError(f"pixel_shuffle: the channels of shape {tuple(shape)} must be a multiple of {r * r}")
    lead, (c, h, w) = shape[:-3], shape[-3:]
    k = len(lead)
    x = reshape(input, (*lead, c // (r * r), r, r, h, w))
    x = permute(x, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return reshape(x, (*lead, c // (r * r), h * r, w * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """(..., c, H r, W r) -> (..., c r r, H, W)."""
    shape, r = value_of("pixel_unshuffle", input).shape, downscale_factor
    if len(shape) < 3 or shape[-1] % r != 0 or shape[-2] % r != 0:
        raise ShapeError(f"pixel_unshuffle: the last sizes of shape {tuple(shape)} must be multiples of {r}")
    lead, (c, h, w) = shape[:-3], shape[-3:]
    k = len(lead)
    x = reshape(input, (*lead, c, h // r, r, w // r, r))
    x = permute(x, (*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return reshape(x, (*lead, c * r * r, h // r, w // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Channels (dimension 1) seen as (groups, c / groups) and transposed. Source: Zhang et al., arXiv:1707.01083."""
    v = value_of("channel_shuffle", input)
    if len(v.shape) < 3:
        raise ShapeError(f"channel_shuffle: needs at least 3 dimensions, got shape {tuple(v.shape)}")
    if groups < 1 or v.shape[1] % groups != 0:
        raise ShapeError(
            f"channel_shuffle: {groups} groups do not divide the channels of shape {tuple(v.shape)}"
        )
    n, c, rest = v.shape[0], v.shape[1], v.shape[2:]
    apart = bc.reshape(v, (n, groups, c // groups, *rest))
    order = (0, 2, 1, *range(3, 3 + len(rest)))
    return reshape(permute(wrap(apart), order), v.shape)


@needs(filled("input", 2))
def unfold(
    input: Tensor, kernel_size: PerAxis, dilation: PerAxis = 1, padding: PerAxis = 0, stride: PerAxis = 1
) -> Tensor:
    """The windows of (n, c, H, W) as columns: (n, c kh kw, number of windows)."""
    v = value_of("unfold", input)
    if len(v.shape) == 3:
        columns = unfold(wrap(bc.reshape(v, (1, *v.shape))), kernel_size, dilation, padding, stride)
        return wrap(bc.reshape(columns.value, columns.value.shape[1:]))
    if len(v.shape) != 4:
        raise ShapeError(f"unfold: needs input (n, c, H, W) or (c, H, W), got shape {tuple(v.shape)}")
    kernel, steps = (
        per_axis("unfold", "kernel_size", kernel_size, 2, 1),
        per_axis("unfold", "stride", stride, 2, 1),
    )
    pads, dilations = (
        per_axis("unfold", "padding", padding, 2),
        per_axis("unfold", "dilation", dilation, 2, 1),
    )
    x = pad_value(v, [0, 0, *pads], [0, 0, *pads])
    counts = [windows(n, k, s, d) for n, k, s, d in zip(x.shape[2:], kernel, steps, dilations, strict=True)]
    if any(isinstance(n, int) and n < 1 for n in counts):
        raise ShapeError(f"unfold: kernel {kernel} exceeds the padded input of shape {tuple(x.shape)}")
    for i in range(2):
        x = slide(x, 2 + i, kernel[i], steps[i], dilations[i])
    columns = permute(wrap(x), (0, 1, 4, 5, 2, 3))
    return wrap(
        bc.reshape(columns.value, (v.shape[0], v.shape[1] * kernel[0] * kernel[1], elements(tuple(counts))))
    )


def fold(
    input: Tensor,
    output_size: PerAxis,
    kernel_size: PerAxis,
    dilation: PerAxis = 1,
    padding: PerAxis = 0,
    stride: PerAxis = 1,
) -> Tensor:
    """The sum of windows laid over one another, the transpose of unfold: (n, c kh kw, windows) -> (n, c, H, W)."""
    v = value_of("fold", input)
    single = len(v.shape) == 2
    if len(v.shape) not in (2, 3):
        raise ShapeError(f"fold: needs input (n, c kh kw, windows) or without n, got shape {tuple(v.shape)}")
    x = bc.reshape(v, (1, *v.shape)) if single else v
    size = per_axis("fold", "output_size", output_size, 2, 1)
    kernel, steps = (
        per_axis("fold", "kernel_size", kernel_size, 2, 1),
        per_axis("fold", "stride", stride, 2, 1),
    )
    pads, dilations = per_axis("fold", "padding", padding, 2), per_axis("fold", "dilation", dilation, 2, 1)
    whole = [n + 2 * p for n, p in zip(size, pads, strict=True)]
    counts = [windows(n, k, s, d) for n, k, s, d in zip(whole, kernel, steps, dilations, strict=True)]
    taps = kernel[0] * kernel[1]
    if x.shape[1] % taps != 0 or any(low(n) < 1 for n in counts) or x.shape[2] != counts[0] * counts[1]:
        raise ShapeError(
            f"fold: input of shape {tuple(v.shape)} does not fit output_size {size}: with kernel {kernel} it needs a "
            f"multiple of {taps} rows and {counts[0]} x {counts[1]} windows"
        )
    n, c = x.shape[0], x.shape[1] // taps
    x = bc.reshape(x, (n, c, *kernel, *counts))
    x = apply(Op.PERMUTE, (x,), Axes((0, 1, 4, 5, 2, 3)))
    for i in range(2):
        shape = (*x.shape[: 2 + i], whole[i], *x.shape[3 + i :])
        x = apply(Op.UNSHEAR, (x,), Window(2 + i, 4 + i, steps[i], dilations[i]), shape)
    x = apply(Op.SUM, (x,), Axes((4, 5)))
    x = box(x, (0, 0, *pads), (n, c, *size))
    return wrap(bc.reshape(x, x.shape[1:]) if single else x)
