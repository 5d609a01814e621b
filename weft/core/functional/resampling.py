"""Padding, resizing and rearranging images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from weft.core import broadcast as bc
from weft.core.axes import known_sizes
from weft.core.creation import tensor
from weft.core.functional.convolution import PerAxis, per_axis, windows
from weft.core.gather import rows
from weft.core.handle import Number, value_of, wrap
from weft.core.movement import constant_pad, pad_value, permute, reshape
from weft.core.movement import window as slide
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor import Tensor


def pad(input: Tensor, pad: Sequence[int], mode: str = "constant", value: Number | None = None) -> Tensor:
    """Elements added around: (before, after) of the last dimension, then of the one before it, and so on.

    mode "constant" adds `value` (0), and negative numbers cut; "reflect", "replicate" and "circular" repeat the input.
    """
    if mode == "constant":
        return constant_pad(input, pad, 0 if value is None else value)
    v = value_of("pad", input)
    device = v.node.device
    if mode not in ("reflect", "replicate", "circular"):
        raise ArgumentError(f"pad: mode must be constant, reflect, replicate or circular, got {mode!r}")
    if len(pad) % 2 or len(pad) > 2 * len(v.shape):
        raise ArgumentError(
            f"pad: needs pairs for at most {len(v.shape)} dimensions of shape {tuple(v.shape)}, got {tuple(pad)}"
        )
    for i in range(len(pad) // 2):
        k = len(v.shape) - 1 - i
        n, before, after = v.shape[k], pad[2 * i], pad[2 * i + 1]
        if not isinstance(n, int):
            raise ShapeError(f"pad: mode {mode!r} needs known sizes")
        most = {"reflect": n - 1, "circular": n, "replicate": before if n else -1}[mode]
        if before > most or (after > most and mode != "replicate"):
            raise ShapeError(f"pad: mode {mode!r} cannot add {before} and {after} to a dimension of size {n}")
        if before or after:
            at = np.arange(-before, n + after)
            if mode == "reflect":
                at = np.abs(at)
                at = np.where(at >= n, 2 * (n - 1) - at, at)
            at = np.clip(at, 0, n - 1) if mode == "replicate" else at % n
            v = rows(v, k, tensor(at, device=device).value)
    return wrap(v)


def interpolate(
    input: Tensor,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
) -> Tensor:
    """The input (n, c, sizes...) resized, mode "nearest", or "linear", "bilinear" and "trilinear"."""
    v = value_of("interpolate", input)
    device = v.node.device
    rank = len(v.shape) - 2
    if mode not in ("nearest", "linear", "bilinear", "trilinear"):
        raise ArgumentError(f"interpolate: mode must be nearest, linear, bilinear or trilinear, got {mode!r}")
    if (size is None) == (scale_factor is None) or rank < 1:
        raise ArgumentError("interpolate: needs input (n, c, sizes...) and either size or scale_factor")
    known = known_sizes("interpolate", v.shape[2:])
    scales: list[float | None] = [None] * rank
    if size is not None:
        wanted = list(per_axis("interpolate", "size", size, rank, 1))
    else:
        given = [scale_factor] * rank if isinstance(scale_factor, (int, float)) else list(scale_factor or ())
        wanted = [int(n * s) for n, s in zip(known, given, strict=True)]
        scales = [1.0 / s for s in given]
    out = input
    for i, (n, m) in enumerate(zip(known, wanted, strict=True)):
        step = scales[i]
        if mode == "nearest":
            at = np.floor(np.arange(m) * (n / m if step is None else step)).clip(0, n - 1).astype(np.int64)
            out = wrap(rows(out.value, 2 + i, tensor(at, device=device).value))
        else:
            out = _linear(out, 2 + i, n, m, step, bool(align_corners))
    return out


def _linear(x: Tensor, k: int, n: int, m: int, step: float | None, align_corners: bool) -> Tensor:
    """Linear interpolation along axis k, from n to m elements."""
    if not x.value.dtype.is_float:
        raise DTypeError(f"interpolate: linear modes need a float tensor, got {x.value.dtype.name}")
    device = x.value.node.device
    if align_corners:
        at = np.arange(m) * ((n - 1) / (m - 1) if m > 1 else 0.0)
    else:
        at = ((np.arange(m) + 0.5) * (n / m if step is None else step) - 0.5).clip(0)
    low = np.floor(at).astype(np.int64).clip(0, n - 1)
    high = (low + 1).clip(0, n - 1)
    part = tensor(at - low, x.value.dtype, device)
    part = reshape(part, (m, *(1 for _ in x.value.shape[k + 1 :])))
    a, b = (wrap(rows(x.value, k, tensor(i, device=device).value)) for i in (low, high))
    return a * (1 - part) + b * part


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


def unfold(
    input: Tensor, kernel_size: PerAxis, dilation: PerAxis = 1, padding: PerAxis = 0, stride: PerAxis = 1
) -> Tensor:
    """The windows of (n, c, H, W) as columns: (n, c kh kw, number of windows)."""
    v = value_of("unfold", input)
    if len(v.shape) != 4:
        raise ShapeError(f"unfold: needs input (n, c, H, W), got shape {tuple(v.shape)}")
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
