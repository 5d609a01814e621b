"""Counting what lies in bins: histograms of one and several dimensions."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from weft.autograd.value import Value
from weft.core.args import broadcast as bc
from weft.core.args.handle import Handle, Number, describe, value_of, wrap
from weft.core.composed.precision import widened
from weft.core.execute import run
from weft.core.functions.reductions import sum
from weft.core.functions.sorting import searchsorted
from weft.core.layout.movement import flatten, narrow, reshape
from weft.core.pointwise.elementwise import ge, le, logical_and, where
from weft.errors import ArgumentError, DTypeError, ShapeError
from weft.ir.dtypes import int64
from weft.ir.graph import elements

if TYPE_CHECKING:
    from weft.core.tensor.tensor import Tensor


class Histogram(NamedTuple):
    """The result of histogram: how much lies in each bin, and the edges of the bins."""

    hist: Tensor
    bin_edges: Tensor


def histc(input: Tensor, bins: int = 100, min: Number = 0, max: Number = 0) -> Tensor:
    """Numbers of elements in `bins` equal parts of min..max; of the input's range if both are equal."""
    v = value_of("histc", input)
    if not v.dtype.is_float:
        raise DTypeError(f"histc: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    if bins < 1:
        raise ArgumentError(f"histc: bins must be positive, got {bins}")
    x = flatten(wrap(widened(Value(v.node))))
    low, high = _histogram_range("histc", x, float(min), float(max))
    counts = _counted(x, bins, low, high, wrap(bc.scalar(1, int64, x.value.shape)))
    return wrap(bc.cast(counts.value, v.dtype))


def _histogram_range(op: str, x: Tensor, low: float, high: float, widen: float = 1.0) -> tuple[float, float]:
    if not (math.isfinite(low) and math.isfinite(high)) or low > high:
        raise ArgumentError(f"{op}: the range from {low} to {high} must be finite and ascending")
    if low == high and not x.value.shape[0]:
        return low, low + 1.0
    if low == high:
        array = run.to_numpy(x.value.node)
        low, high = float(array.min()), float(array.max())
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ArgumentError(
                f"{op}: the input's range from {low} to {high} is not finite; give min and max"
            )
    return (low - widen, high + widen) if low == high else (low, high)


def _counted(x: Tensor, bins: int, low: float, high: float, weights: Tensor) -> Tensor:
    """Weights added up by bin; the last bin holds its upper edge too."""
    from weft.core.layout.gather import scatter_add

    inside = logical_and(ge(x, low), le(x, high))
    place = ((x - low) * (bins / (high - low))).clamp(0, bins - 1)
    at = where(inside, wrap(bc.cast(place.value, int64)), 0)
    source = where(inside, weights, 0)
    return scatter_add(wrap(bc.scalar(0, weights.value.dtype, (bins,))), 0, at, source)


class HistogramDD(NamedTuple):
    """The contents of each box, and the edges along each coordinate."""

    hist: Tensor
    bin_edges: tuple[Tensor, ...]


def histogramdd(
    input: Tensor,
    bins: int | Sequence[int | Tensor],
    *,
    range: Sequence[float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> HistogramDD:
    """Numbers of the points (..., n), or sums of their weights (...), in each box between edges.

    `bins` is a number of equal parts, or one for each coordinate, or the edges of each; `range` holds the least and the
    greatest value of each coordinate, one after the other. Ranges that are not given are computed when called.
    """
    from weft.core.layout.creation import linspace
    from weft.core.layout.gather import scatter_add

    v = value_of("histogramdd", input)
    if len(v.shape) < 2 or not isinstance(v.shape[-1], int):
        raise ShapeError(f"histogramdd: needs points (..., n), got shape {tuple(v.shape)}")
    if not v.dtype.is_float:
        raise DTypeError(f"histogramdd: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    n = v.shape[-1]
    points = wrap(bc.reshape(Value(v.node), (elements(v.shape[:-1]), n)))
    parts = [bins] * n if isinstance(bins, int) else list(bins)
    for part in parts:
        _check_bins("histogramdd", part)
    if len(parts) != n:
        raise ArgumentError(f"histogramdd: {len(parts)} bins for points of {n} coordinates")
    if range is not None and len(range) != 2 * n:
        raise ArgumentError(f"histogramdd: range needs {2 * n} numbers, got {len(range)}")
    count = points.value.shape[0]
    if weight is not None and value_of("histogramdd", weight).shape != v.shape[:-1]:
        raise ShapeError(f"histogramdd: weight must have shape {tuple(v.shape[:-1])}, got {describe(weight)}")
    weights = (
        wrap(bc.scalar(1, v.dtype, (count,))) if weight is None else flatten(wrap(Value(weight.value.node)))
    )
    at: Tensor | None = None
    within: Tensor | None = None
    edges: list[Tensor] = []
    sizes: list[int] = []
    for k, part in enumerate(parts):
        x = flatten(narrow(points, 1, k, 1))
        if isinstance(part, Handle):
            line = wrap(Value(part.value.node))
            if len(line.value.shape) != 1 or line.value.shape[0] == 0 or range is not None:
                raise ArgumentError("histogramdd: edges must be vectors, and then no range is given")
        else:
            given = (0.0, 0.0) if range is None else (range[2 * k], range[2 * k + 1])
            line = linspace(*_histogram_range("histogramdd", x, *given, widen=0.5), part + 1, dtype=v.dtype)
        m = line.value.shape[0]
        assert isinstance(m, int)
        place, inside = _between(x, line, m)
        at = place if at is None else at * (m - 1) + place
        within = inside if within is None else logical_and(within, inside)
        edges.append(line)
        sizes.append(m - 1)
    assert at is not None and within is not None
    none = wrap(bc.scalar(0, v.dtype, (math.prod(sizes),)))
    hist = reshape(scatter_add(none, 0, where(within, at, 0), where(within, weights, 0)), sizes)
    if density:
        hist = hist / sum(hist)
        for k, (line, m) in enumerate(zip(edges, sizes, strict=True)):
            width = narrow(line, 0, 1, m) - narrow(line, 0, 0, m)
            hist = hist / reshape(width, [m if i == k else 1 for i in builtins.range(n)])
    return HistogramDD(hist, tuple(edges))


def _check_bins(op: str, bins: int | Tensor) -> None:
    if not isinstance(bins, Handle) and bins < 1:
        raise ArgumentError(f"{op}: bins must be 1 or more, got {bins}")


def _between(x: Tensor, edges: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Between which of n edges each element lies, the last interval with its upper end, and whether it does."""
    first, last = narrow(edges, 0, 0, 1), narrow(edges, 0, n - 1, 1)
    return (searchsorted(edges, x, right=True) - 1).clamp(0, n - 2), logical_and(ge(x, first), le(x, last))


def histogram(
    input: Tensor,
    bins: int | Tensor,
    *,
    range: tuple[float, float] | None = None,
    weight: Tensor | None = None,
    density: bool = False,
) -> Histogram:
    """Numbers of elements, or their weights' sums, between given edges or in `bins` equal parts of a range."""
    from weft.core.layout.creation import linspace
    from weft.core.layout.gather import scatter_add

    v = value_of("histogram", input)
    if not v.dtype.is_float:
        raise DTypeError(f"histogram: needs a float tensor, got {v.dtype.name}; convert it with .float()")
    x = flatten(wrap(Value(v.node)))
    _check_bins("histogram", bins)
    if isinstance(bins, Handle):
        edges = wrap(bins.value)
        if len(edges.value.shape) != 1 or range is not None:
            raise ArgumentError("histogram: edges must be a vector, and then no range is given")
    else:
        low, high = _histogram_range("histogram", x, *(range or (0.0, 0.0)), widen=0.5)
        edges = linspace(low, high, bins + 1, dtype=v.dtype)
    n = edges.value.shape[0]
    assert isinstance(n, int)
    weights = wrap(bc.scalar(1, v.dtype, x.value.shape)) if weight is None else flatten(weight)
    at, inside = _between(x, edges, n)
    hist = scatter_add(
        wrap(bc.scalar(0, v.dtype, (n - 1,))), 0, where(inside, at, 0), where(inside, weights, 0)
    )
    if density:
        width = narrow(edges, 0, 1, n - 1) - narrow(edges, 0, 0, n - 1)
        hist = hist / (sum(hist) * width)
    return Histogram(hist, edges)
