"""Images sampled at points that are data: spatial transformers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.autograd.value import Value, apply, zero_gradient
from weft.core.args import broadcast as bc
from weft.core.args.axes import known_sizes
from weft.core.args.handle import value_of, wrap
from weft.core.composed.autocast import widens
from weft.core.composed.composite import composite
from weft.core.composed.precision import widened
from weft.core.functional.resampling import cubic_weights
from weft.core.functions.matmul import matmul
from weft.core.layout.creation import tensor
from weft.core.pointwise.elementwise import (
    abs,
    clamp,
    eq,
    floor,
    fmod,
    ge,
    gt,
    le,
    logical_and,
    lt,
    round,
    where,
)
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import int64
from weft.ir.graph import Along
from weft.ir.ops import Op

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool | None = None) -> Tensor:
    """The points that grid_sample reads for an image transformed by the matrices theta.

    Shapes: theta (n, 2, 3) and size (n, c, H, W) -> (n, H, W, 2); theta (n, 3, 4) and size (n, c, D, H, W) ->
    (n, D, H, W, 3). Coordinates go from -1 to 1, x (along W) first.
    """
    v = value_of("affine_grid", theta)
    if not v.dtype.is_float:
        raise DTypeError(f"affine_grid: theta must be a float tensor, got {v.dtype.name}")
    rank = len(size) - 2
    if rank not in (2, 3) or tuple(v.shape) != (size[0], rank, rank + 1):
        raise ShapeError(
            f"affine_grid: theta must be (n, 2, 3) for size (n, c, H, W), or (n, 3, 4) for (n, c, D, H, W); got shape "
            f"{tuple(v.shape)} and size {tuple(size)}"
        )
    if any(n < 1 for n in size):
        raise ShapeError(f"affine_grid: sizes must be positive, got {tuple(size)}")
    lines: list[Any] = []
    for n in size[2:]:
        line = np.linspace(-1, 1, n) if n > 1 else np.zeros(1)
        lines.append(line if align_corners else line * ((n - 1) / n))
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*reversed(mesh), np.ones(tuple(size[2:]))], -1).reshape(1, -1, rank + 1)
    wide = widened(v)
    base = tensor(points, wide.dtype, v.node.device)
    out = matmul(base, wrap(wide).transpose(1, 2))
    return wrap(bc.cast(bc.reshape(out.value, (*size[:1], *size[2:], rank)), v.dtype))


@composite(autocast=widens, rounds_once=False)
def grid_sample(
    input: Tensor,
    grid: Tensor,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Tensor:
    """The input at the points of grid: coordinates x, y (and z) from -1 to 1, interpolated.

    Shapes: (n, c, H, W) and (n, H', W', 2) -> (n, c, H', W'); (n, c, D, H, W) and (n, D', H', W', 3) likewise.
    mode: "bilinear" (also for volumes), "nearest", or "bicubic" for images. Points outside read "zeros", the "border",
    or the "reflection" of the image. Source: Jaderberg et al. 2015, arXiv:1506.02025.
    """
    op = "grid_sample"
    v, g = value_of(op, input), value_of(op, grid)
    rank = len(v.shape) - 2
    if rank not in (2, 3) or len(g.shape) != rank + 2 or g.shape[0] != v.shape[0] or g.shape[-1] != rank:
        raise ShapeError(
            f"{op}: needs input (n, c, H, W) and grid (n, H', W', 2), or with one size more and 3; got shapes "
            f"{tuple(v.shape)} and {tuple(g.shape)}"
        )
    if v.dtype is not g.dtype or not v.dtype.is_float:
        raise DTypeError(
            f"{op}: input and grid must have one float dtype, got {v.dtype.name} and {g.dtype.name}"
        )
    if mode not in ("bilinear", "nearest", "bicubic") or (mode == "bicubic" and rank == 3):
        raise ArgumentError(
            f"{op}: mode must be 'bilinear', 'nearest' or, for images, 'bicubic', got {mode!r}"
        )
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ArgumentError(
            f"{op}: padding_mode must be 'zeros', 'border' or 'reflection', got {padding_mode!r}"
        )
    bc.same_device(op, (v, g))
    sizes = known_sizes(op, v.shape[2:])
    if any(n < 1 for n in sizes):
        raise ShapeError(f"{op}: the input has no elements to sample, shape {tuple(v.shape)}")
    points = wrap(widened(g))
    reader = _Reader(widened(v), sizes, g.shape[1:-1], padding_mode, bool(align_corners))
    # coordinates along the input's axes: the grid has x, the last of them, first
    at = [reader.unnormalized(points[..., rank - 1 - i], i) for i in range(rank)]
    out = {"bilinear": _bilinear, "nearest": _nearest, "bicubic": _bicubic}[mode](reader, at)
    return wrap(bc.cast(out.value if mode != "nearest" else zero_gradient(out.value, g), v.dtype))


class _Reader:
    """An image whose elements are read at whole coordinates, by a rule for those outside."""

    def __init__(self, v: Value, sizes: list[int], out: Any, padding: str, align_corners: bool) -> None:
        self.sizes, self.out, self.padding, self.align = sizes, tuple(out), padding, align_corners
        self.lead = v.shape[:2]
        count = 1
        for n in sizes:
            count *= n
        self.flat = bc.reshape(v, (*self.lead, count))

    def unnormalized(self, x: Tensor, i: int) -> Tensor:
        """From -1 ... 1 to 0 ... n - 1."""
        n = self.sizes[i]
        return (x + 1) * ((n - 1) / 2) if self.align else ((x + 1) * n - 1) / 2

    def inside(self, x: Tensor, i: int) -> Tensor:
        """A coordinate moved into the image, as the padding has it; NaN to the start. Gradients end on the border."""
        n = self.sizes[i]
        if self.padding == "zeros":
            return x
        if self.padding == "reflection":
            x = self._reflected(x, 0, 2 * (n - 1)) if self.align else self._reflected(x, -1, 2 * n - 1)
        x = where(gt(x, 0), x, 0.0)
        return where(lt(x, n - 1), x, float(n - 1))

    def _reflected(self, x: Tensor, twice_low: int, twice_high: int) -> Tensor:
        if twice_low == twice_high:
            return x * 0.0
        low, span = twice_low / 2, (twice_high - twice_low) / 2
        x = abs(x - low)
        extra = fmod(x, span)
        flips = floor(x / span)
        return where(eq(fmod(flips, 2), 0), extra + low, span - extra + low)

    def read(self, at: Sequence[Tensor]) -> Tensor:
        """The elements at whole coordinates, (n, c, *out); zero outside."""
        index: Tensor | None = None
        valid: Tensor | None = None
        for x, n in zip(at, self.sizes, strict=True):
            ok = logical_and(ge(x, 0), le(x, n - 1))
            valid = ok if valid is None else logical_and(valid, ok)
            i = wrap(bc.cast(clamp(wrap(Value(x.value.node)), 0, n - 1).value, int64))
            index = i if index is None else index * n + i
        assert index is not None and valid is not None
        count = 1
        for m in self.out:
            count = count * m
        n, c = self.lead
        place = bc.expand(bc.reshape(index.value, (n, 1, count)), (n, c, count))
        found = apply(Op.GATHER, (self.flat, place), Along(2))
        picked = wrap(bc.reshape(found, (n, c, *self.out)))
        return picked if self.padding != "zeros" else where(valid.unsqueeze(1), picked, 0.0)


def _nearest(reader: _Reader, at: list[Tensor]) -> Tensor:
    return reader.read([round(reader.inside(x, i)) for i, x in enumerate(at)])


def _bilinear(reader: _Reader, at: list[Tensor]) -> Tensor:
    at = [reader.inside(x, i) for i, x in enumerate(at)]
    low = [wrap(Value(floor(x).value.node)) for x in at]
    taps = [[(a, 1 - (x - a)), (a + 1, x - a)] for x, a in zip(at, low, strict=True)]
    return _combined(reader, taps, lambda x, _: x)


def _bicubic(reader: _Reader, at: list[Tensor]) -> Tensor:
    taps: list[list[tuple[Tensor, Tensor]]] = []
    for x in at:
        low = wrap(Value(floor(x).value.node))
        taps.append([(low + k, w) for k, w in zip((-1, 0, 1, 2), cubic_weights(x - low), strict=True)])
    return _combined(reader, taps, reader.inside)


def _combined(
    reader: _Reader, taps: list[list[tuple[Tensor, Tensor]]], place: Callable[[Tensor, int], Tensor]
) -> Tensor:
    """The sum over all combinations of taps of the element there times the product of the weights."""
    corners: list[tuple[list[Tensor], Tensor | None]] = [([], None)]
    for i, axis in enumerate(taps):
        corners = [
            ([*at, place(x, i)], w if weight is None else weight * w)
            for at, weight in corners
            for x, w in axis
        ]
    total: Tensor | None = None
    for at, weight in corners:
        assert weight is not None
        part = reader.read(at) * weight.unsqueeze(1)
        total = part if total is None else total + part
    assert total is not None
    return total


__all__ = ["affine_grid", "grid_sample"]
